"""The shipped recipes run in containers by one override."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import agentrl as library
from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.docs.test_environments import blocks
from tests.integrations import test_harbor
from tests.rollouts.test_programs import LIBRARY, RECIPE, TASK
from tests.waiting import limits

pytestmark = [pytest.mark.slow, pytest.mark.family("sandbox")]


def test_a_recipe_runs_in_containers(docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    docker = ["--set", "sandbox.use=docker", "--set", "concurrency=3"]
    agentrl("rollout", "quickstart", "--script", "oracle", "--n", "4", "--out", "run", *docker, cwd=tmp_path)
    report = json.loads(agentrl("check", "run", "--json", cwd=tmp_path).stdout)
    assert (report["ok"], report["episodes"]) == (True, 4)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["recipe"]["sandbox"]["use"] == "docker"
    assert "4 done" in agentrl("show", "run", cwd=tmp_path).stdout


def test_training_in_containers(docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    small = [
        "sandbox.use=docker", "tasks.args={mazes: 2, size: 3, extra_doors: 1, distance: 3}", "train.iterations=1",
        "train.groups=2", "train.group_size=2", "warm_start.episodes=4", "warm_start.steps=5", "eval.episodes=2",
        "agent.max_turns=5", "concurrency=4",
    ]  # fmt: skip
    agentrl("train", "quickstart", "--out", "run", *(p for s in small for p in ("--set", s)), cwd=tmp_path)
    assert json.loads(agentrl("check", "run", "--json", cwd=tmp_path).stdout)["ok"]


def test_the_repair_set_of_the_page_with_an_image_per_task(
    docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    code, recipe = blocks()["repair"]
    for name, image in (("agentrl/python", "agentrl-test/one"), ("agentrl/swe", "agentrl-test/two")):
        subprocess.run(["docker", "-H", docker_host, "tag", "agentrl/base:latest", image], check=True)
        code = code.replace(name, image)
    (tmp_path / "repair").mkdir()
    (tmp_path / "repair" / "task.py").write_text(code)
    (tmp_path / "repair" / "recipe.yaml").write_text(recipe)
    docker = ("--set", "sandbox.use=docker")
    agentrl("recipe", "check", "repair", *docker, cwd=tmp_path)
    agentrl("rollout", "repair", "--script", "oracle", "--n", "4", "--out", "run", *docker, cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        episodes = list(run.episodes())
    assert [episode.reward for episode in episodes] == [1.0] * 4
    (tmp_path / "repair" / "task.py").write_text(code.replace("agentrl-test/two", "agentrl-test/none"))
    refused = agentrl("recipe", "check", "repair", *docker, cwd=tmp_path, ok=False)
    assert refused.returncode == 1
    assert "task 'last.py'" in refused.stderr
    unlimited = (*docker, "--set", "limits.sandbox_s=3600")  # an outage would be waited for
    agentrl("rollout", "repair", "--script", "oracle", "--n", "2", "--out", "none", *unlimited, cwd=tmp_path, ok=False)
    with RunDir.read(tmp_path / "none") as run:
        (failed,) = [episode for episode in run.episodes() if episode.error is not None]
    assert failed.error is not None
    assert failed.error.message.startswith("task 'last.py', sandbox.spec.image: the engine has no image")


@pytest.mark.parametrize(
    ("program", "wall", "ended"),
    [
        ("open('seen', 'w').write(question); print(loop(question))", 600, ("done", "answer", 8.0)),
        ("open('seen', 'w'); loop(question); time.sleep(600)", 2, ("truncated", "wall", 0.0)),
    ],
)
def test_an_agent_program_in_a_container(
    docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, wall: float, ended: Any
) -> None:
    """Without a network, it reaches the policy; rewards see what it left; at its limit it is killed."""
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text('{"n": 4, "answer": "8"}\n')
    (tmp_path / "task.py").write_text(TASK + "async def seen(sandbox):\n    return len(await sandbox.read('seen'))\n")
    (tmp_path / "agent.py").write_text(LIBRARY + program)
    overrides = {"sandbox.use": "docker", "rewards.seen": "./task.py:seen"}
    for limit in limits(wall):
        (tmp_path / "recipe.yaml").write_text(RECIPE.format(python="python3", more=", where: sandbox", wall=limit))
        run = library.rollout("recipe.yaml", 1, script="oracle", out=f"run-{limit}", reporters=(), overrides=overrides)
        with RunDir.read(run.path) as stored:
            (episode,) = stored.episodes()
        if len(episode.turns) == 2:
            break
    assert (episode.status, episode.stop, episode.components.get("seen")) == ended, episode.error


def test_harbor_tasks_in_containers(docker_host: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    folder = test_harbor.a_recipe(tmp_path)
    docker = {"sandbox.use": "docker", "concurrency": 2}
    for script, reward in (("oracle", 1.0), ("forge", 0.0)):
        found = test_harbor.rewards(folder, script, script, **docker)
        assert found == {"shared": reward, "apart": reward, "object": reward}
