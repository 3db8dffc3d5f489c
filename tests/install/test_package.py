"""A package that `agentrl init --package` writes: its test passes, and its recipe trains from an installed wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import agentrl, sets

pytestmark = [pytest.mark.slow, pytest.mark.family("packages")]

TINY = sets(
    "model={scratch: {hidden: 16, layers: 1, heads: 1, vocab_size: 300, max_context: 1024}}",
    "agent.format=tags",
    "warm_start={script: oracle, episodes: 4, steps: 2, batch: 4}",
    "train={iterations: 1, groups: 1, group_size: 2, minibatch: 2}",
    "eval.episodes=2",
    "concurrency=4",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package as `init` writes it, with its certificate; beside it `site`, where its wheel is installed."""
    folder = tmp_path_factory.mktemp("packaged")
    agentrl("init", "toy-env", "--like", "game", "--package", cwd=folder)
    agentrl("env", "check", "toy-env/src/toy_env", "--n", "2", "--store", cwd=folder)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", "dist", "./toy-env"], cwd=folder, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", "site", wheel], cwd=folder, check=True)
    return folder / "toy-env"


def beside(project: Path) -> str:
    """A search path of Python on which the package is installed."""
    return os.pathsep.join([str(project.parent / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentrl.cli", *arguments]
    env = {**os.environ, "PYTHONPATH": beside(project), "COLUMNS": "160"}
    done = subprocess.run(command, cwd=project.parent, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done


def test_its_own_test_passes(project: Path) -> None:
    env = {**os.environ, "PYTHONPATH": beside(project)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "."], cwd=project, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_it_trains_from_its_wheel(project: Path) -> None:
    run(project, "train", "toy-env", *TINY, "--out", "trained")
    summary = json.loads(agentrl("show", "trained", "--json", cwd=project.parent).stdout)
    assert summary
    assert "sound" in agentrl("check", "trained", cwd=project.parent).stdout


def test_its_code_is_used_by_name(project: Path) -> None:
    rewards = "rewards={won: {use: toy-env-won}}"
    said = run(
        project, "rollout", "toy-env", "--script", "oracle", "--n", "2", "--set", rewards, "--out", "named"
    ).stdout
    assert "reward mean 1.000" in said
    assert "toy-env-won (toy-env 0.1.0)" in run(project, "list", "rewards").stdout


def test_it_is_listed_with_its_certificate(project: Path) -> None:
    rows = {row["name"]: row for row in json.loads(run(project, "env", "list", "--json").stdout)}
    assert rows["toy-env"]["package"] == "toy-env 0.1.0"
    assert rows["toy-env"]["certificate"].startswith("certified on 2 tasks")
    assert rows["quickstart"]["package"] is None
