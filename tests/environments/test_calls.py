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
TEST = ("--set", "tasks.args.split=test")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("recipe", "package", "n", "more"),
    [
        ("bfcl", "bfcl_eval", 696, ()),
        ("bfcl", "bfcl_eval", 99, HELD_OUT),
        ("bfcl/short.yaml", "bfcl_eval", 175, ()),
        ("tau2/telecom.yaml", "tau2", 74, ()),
        ("tau2/telecom.yaml", "tau2", 40, TEST),
        ("tau2/retail.yaml", "tau2", 69, ()),
        ("tau2/retail.yaml", "tau2", 38, TEST),
        ("tau2/airline.yaml", "tau2", 17, ()),
        ("tau2/airline.yaml", "tau2", 14, TEST),
        ("agentdojo", "agentdojo", 69, ()),
        ("agentdojo", "agentdojo", 23, HELD_OUT),
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


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("recipe", "n", "free"), [("tau2/airline.yaml", 30, 13), ("tau2/retail.yaml", 74, 5)])
def test_env_check_finds_the_tasks_that_nothing_passes(tmp_path: Path, recipe: str, n: int, free: int) -> None:
    """With the tasks that the recipes leave out."""
    if importlib.util.find_spec("tau2") is None:
        pytest.skip("tau2 is not installed")
    more = ("--set", "tasks.exclude={}", "--n", str(n), "--json")
    said = agentrl("env", "check", recipe, *more, cwd=tmp_path, ok=False, timeout=3500)
    assert said.returncode == 1
    found = {finding["check"]: finding for finding in json.loads(said.stdout)["findings"]}
    assert found["empty fails"]["state"] == "fail"
    assert len(found["empty fails"]["tasks"]) == free
    assert found["gold passes"]["state"] == "pass"
