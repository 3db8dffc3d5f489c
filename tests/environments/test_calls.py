"""`agentrl env check` on every task of the recipes whose tools are simulated APIs: minutes each (`make test-envs`)."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from tests.command import agentrl

pytestmark = pytest.mark.skipif(not os.environ.get("AGENTRL_TEST_ENVS"), reason="takes long: make test-envs")

HELD_OUT = ("--set", "tasks.args.held_out=true")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("recipe", "package", "n", "more"),
    [
        ("bfcl", "bfcl_eval", 696, ()),
        ("bfcl", "bfcl_eval", 99, HELD_OUT),
        ("bfcl/short.yaml", "bfcl_eval", 175, ()),
    ],
)
def test_the_environment_is_certified_on_every_task(
    tmp_path: Path, recipe: str, package: str, n: int, more: tuple[str, ...]
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    said = agentrl("env", "check", recipe, "--n", str(n), "--json", *more, cwd=tmp_path, ok=False, timeout=3500)
    found = json.loads(said.stdout)
    assert [finding for finding in found["findings"] if finding["state"] == "fail"] == []
    assert found["tasks"] == n
