"""recipes/swe-inject: bugs are small and real, and a package is repaired in the sandbox."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from agentrl import Task
from agentrl.config.loader import load_recipe
from agentrl.preflight.plan import plan
from agentrl.registry.references import load_object
from agentrl.sandbox.images import image_named, place_of
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import RecipeError
from tests.command import agentrl

RECIPE = Path(__file__).parents[2] / "recipes" / "swe-inject"
folder: Callable[[], Path] = load_object("./packages.py:folder", RECIPE)
SOURCE = '''def f(é, items):
    """Says 1."""
    total = 0
    for item in items:
        if item > 3 and not é:
            total += item * 2
    return total if é else [total]
'''


def mutate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate", RECIPE / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_edit_is_a_program_that_differs() -> None:
    found = list(mutate().edits(SOURCE))
    kinds = {kind for kind, *_ in found}
    assert kinds >= {"comparison", "arithmetic", "boolean", "constant", "return", "removed", "swapped"}
    for kind, first, last, new in found:
        changed = SOURCE[:first] + new + SOURCE[last:]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE)), (kind, new)


@pytest.mark.slow  # makes 512 bugs
def test_nothing_trains_on_a_reward_that_can_be_forged() -> None:
    recipe = load_recipe(str(RECIPE), ["rewards.repaired.weight=1"])
    with pytest.raises(RecipeError, match=r"rewards\.repaired: repaired can be forged .* share a process"):
        plan(recipe)
    plan(load_recipe(str(RECIPE)))


class Left:
    """A sandbox that holds files."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    async def read(self, path: str, *, limit: int) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path].encode()


def test_a_package_is_restored_where_its_tokens_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else may be different: comments, line breaks, blanks. Other words for the same are not restored."""
    restored = load_object("./task.py:restored", RECIPE)
    monkeypatch.setitem(restored.__globals__, "code_of", lambda package: {"a.py": SOURCE, "b.py": "x = 1\n"})
    task = Task.of("one", "Repair it.", bug={"package": "mine"})

    def score(**files: str) -> float:
        left = {"a.py": SOURCE, "b.py": "x = 1\n"} | {f"{name}.py": text for name, text in files.items()}
        found = asyncio.run(restored(task, Left(left)))
        return float(getattr(found, "value", found))

    assert score() == score(b="# one\n\nx =  1\n") == 1
    assert score(a=SOURCE.replace("    ", "  ").replace("> 3", ">  3").replace("= 0", "= 0  # none")) == 1
    for wrong in (
        SOURCE.replace("> 3", ">= 3"),
        SOURCE.replace("item > 3", "3 < item"),
        SOURCE + "import os\n",
        "(",
        "",
    ):
        assert score(a=wrong) == 0
    assert score(b="x = 2\n") == 0


READY = pytest.mark.family("worlds")
WHOLE = pytest.mark.family("envs")


@READY
def test_the_oracle_repairs_a_package(tmp_path: Path) -> None:
    agentrl("rollout", str(RECIPE), "--n", "2", "--script", "oracle", "--out", "oracle", cwd=tmp_path)
    with RunDir.read(tmp_path / "oracle") as run:
        assert [row.reward for row in run.rows()] == [1.0] * 2


@WHOLE
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("held_out", ["false", "true"])
def test_tests_find_every_bug_in_the_sandbox(tmp_path: Path, held_out: str) -> None:
    """The script `junk` changes the file with the bug, and leaves the bug."""
    args = ("--n", "68" if held_out == "false" else "16", "--set", f"tasks.args.held_out={held_out}")
    agentrl("rollout", str(RECIPE), *args, "--script", "junk", "--out", "junk", cwd=tmp_path, timeout=1700)
    with RunDir.read(tmp_path / "junk") as run:
        assert {row.reward for row in run.rows()} == {0.0}


@READY
def test_the_image_holds_none_of_the_packages() -> None:
    root = place_of(image_named("swe"))
    for package in load_object("./packages.py:PACKAGES", RECIPE):
        found = [path for path in (root / "usr/lib/python3").rglob(f"{package}*")]
        assert found == []
