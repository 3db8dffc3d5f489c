"""The shipped recipes run in containers by one override."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import agentrl


@pytest.mark.parametrize(("recipe", "episodes"), [("quickstart", 6), ("search-qa", 4)])
def test_a_recipe_runs_in_containers(
    docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recipe: str, episodes: int
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    docker = ["--set", "sandbox.use=docker", "--set", "concurrency=3"]
    agentrl("rollout", recipe, "--agent", "oracle", "--n", str(episodes), "--out", "run", *docker, cwd=tmp_path)
    report = json.loads(agentrl("check", "run", "--json", cwd=tmp_path).stdout)
    assert (report["ok"], report["episodes"]) == (True, episodes)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["recipe"]["sandbox"]["use"] == "docker"
    assert f"{episodes} done" in agentrl("show", "run", cwd=tmp_path).stdout


def test_training_in_containers(docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    small = [
        "sandbox.use=docker", "tasks.args={mazes: 2, size: 3, extra_doors: 1, distance: 3}", "train.iterations=1",
        "train.groups=2", "train.group_size=2", "warm_start.episodes=4", "warm_start.steps=5", "eval.episodes=2",
        "agent.max_turns=5", "concurrency=4",
    ]  # fmt: skip
    agentrl("train", "quickstart", "--out", "run", *(p for s in small for p in ("--set", s)), cwd=tmp_path)
    assert json.loads(agentrl("check", "run", "--json", cwd=tmp_path).stdout)["ok"]
