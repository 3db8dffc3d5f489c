"""`agentrl fork` and `agentrl probe` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import agentrl
from tests.sound import assert_sound

pytestmark = pytest.mark.slow


def test_fork_and_probe(counting: Path) -> None:
    here = counting.parent
    agentrl("rollout", "counting", "--n", "8", "--group-size", "2", "--script", "hasty", "--out", "run", cwd=here)
    made = agentrl("fork", "run", "count3#0", "--turn", "0", "--n", "12", "--out", "forks", cwd=here)
    assert "12 episodes" in made.stdout
    assert_sound(here / "forks")
    refused = agentrl("fork", "run", "count3#0", "--turn", "99", cwd=here, ok=False)
    assert refused.returncode == 1
    assert "there is no turn 99" in refused.stderr
    assert "-> agentrl show" in refused.stderr
    arguments = ["probe", "run", "count3#0", "--n", "4", "--out", "probe"]
    found = json.loads(agentrl(*arguments, "--json", cwd=here).stdout)
    assert found["turns"][0]["did"].startswith("add(")
    text = agentrl(*arguments, "--estimator", "rloo", "--plot", "values.png", cwd=here).stdout
    assert "rloo" in text
    assert "value before" in text
    assert (here / "values.png").read_bytes().startswith(b"\x89PNG")
