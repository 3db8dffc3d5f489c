"""`agentrl env check` finds tasks of published environments that nothing can fail or pass (`make test-envs`)."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from tests.command import agentrl

pytestmark = pytest.mark.skipif(not os.environ.get("AGENTRL_TEST_ENVS"), reason="takes long: make test-envs")


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
