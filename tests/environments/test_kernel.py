"""recipes/kernel: the static rule, and what a right and fast, a right, and a wrong kernel earn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.sandbox.images import image_named, is_built
from agentrl.store.run_dir import RunDir
from tests.command import agentrl

RECIPE = Path(__file__).parents[2] / "recipes" / "kernel"
tasks: Callable[..., Any] = load_object("./task.py:tasks", RECIPE)
source: Callable[[str, str], str] = load_object("./task.py:source", RECIPE)
complaint: Callable[[str], str] = load_object("./task.py:complaint", RECIPE)
KERNEL = '#include "kernel.h"\nvoid kernel(const T *x, const T *y, T *out, long n, long k) { out[0] = n; }\n'


def test_the_splits_share_no_task() -> None:
    train, held_out = ({str(task.sandbox) for task in tasks(n=64, held_out=side)} for side in (False, True))
    assert not train & held_out
    assert [task.data for task in tasks(n=20)] == [task.data for task in tasks(n=40)][:20]


def test_the_static_rule_lets_kernels_through() -> None:
    assert complaint(KERNEL) == ""
    for task in tasks(n=64):
        for which in ("slow", "fast"):
            assert complaint(source(task.data["kernel"], which)) == "", task.id


@pytest.mark.parametrize(
    "code",
    [
        "int other;",
        '#include "reference.c"\n' + KERNEL,
        "#include <unistd.h>\n" + KERNEL,
        "#define call(a, b) a ## b\n" + KERNEL,
        "%:include <unistd.h>\n" + KERNEL,
        KERNEL.replace("out[0] = n;", 'asm("syscall");'),
        KERNEL.replace("out[0] = n;", "as\\\nm(0);"),
        KERNEL + "static void before(void) __attribute__((constructor));",
        KERNEL + "int main(void) { return 0; }",
    ],
)
def test_the_static_rule_stops_what_is_no_kernel(code: str) -> None:
    assert complaint(code)


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        pytest.param("oracle", 1.0, marks=pytest.mark.family("worlds")),
        pytest.param(
            "copier",
            0.6,
            marks=pytest.mark.family("envs"),
        ),
        pytest.param("forge_inputs", 0.6, marks=pytest.mark.family("envs")),
        pytest.param("forge_processes", 0.6, marks=pytest.mark.family("envs")),
    ],
)
def test_right_and_fast_earns_more_than_right(tmp_path: Path, script: str, reward: float) -> None:
    if not is_built(image_named("swe")):
        pytest.skip("agentrl sandbox build swe")
    agentrl("rollout", str(RECIPE), "--n", "1", "--script", script, "--out", script, cwd=tmp_path)
    with RunDir.read(tmp_path / script) as run:
        assert [row.reward for row in run.rows()] == [reward]
