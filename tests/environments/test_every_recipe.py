"""Sixteen episodes of every recipe: SmolLM2 and a script play, in both sandboxes (`make test-envs`).

Nothing may fail but the policy, and what is recorded is sound. SmolLM2 gets three short turns: what it earns is no
matter here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.sandbox import dockerd

pytestmark = [
    pytest.mark.family("envs"),
    pytest.mark.timeout(1800),
]

N = 16
IN_SANDBOXES = {
    "kernel": "swe",
    "math-python": "base",
    "quickstart": "base",
    "swe-inject": "swe",
    "swe-testbed": "testbed",
    "terminal": "base",
}
"""Recipes that need a sandbox, and its image."""
WITH_SMOLLM2 = (
    "agentdojo", "agentdojo/attacked.yaml", "alfworld", "babyai", "bfcl", "bfcl/short.yaml", "clinic",
    "clinic/records.yaml", "docs-browse", "games", "games/self-play.yaml",
    "kernel", "math-python", "puzzles", "scienceworld", "search-qa", "search-qa/fiction.yaml", "sql-chinook",
    "sql-spider", "swe-inject", "swe-testbed", "tau2/telecom.yaml", "terminal", "textworld", "textworld-express",
    "webshop",
)  # fmt: skip
"""Those that have a language model. The others have one of their own, which is built on the spot."""
OTHERS = (
    "desktop-notes", "grounding", "lookup-llm", "miniwob", "mixed", "picture-maze", "quickstart",
    "self-play/scripted.yaml", "staged",
)  # fmt: skip
SHORT = {"agent.max_turns": "3", "sampling.max_tokens": "32", "concurrency": "4"}


@pytest.fixture(scope="module")
def docker_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a container engine."""
    if not dockerd.usable() and (why := dockerd.why_not()):
        pytest.skip(why)
    with dockerd.engine(tmp_path_factory.getbasetemp()) as host:
        yield host


def sound(folder: Path, recipe: str, *more: str, **settings: str) -> None:
    """Plays, and looks at what was recorded."""
    overrides = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    agentrl("rollout", recipe, "--n", str(N), "--out", "run", *more, *overrides, cwd=folder, timeout=1700)
    with RunDir.read(folder / "run") as run:
        ended = Counter(row.status for row in run.rows())
    assert sum(ended.values()) == N
    assert not {*ended} - {"done", "truncated"}, ended
    agentrl("check", "run", cwd=folder)


@pytest.mark.parametrize("recipe", [*WITH_SMOLLM2, *OTHERS])
def test_a_script_plays(tmp_path: Path, recipe: str) -> None:
    sound(tmp_path, recipe, "--script", "oracle")


@pytest.mark.parametrize("recipe", WITH_SMOLLM2)
def test_smollm2_plays(tmp_path: Path, recipe: str) -> None:
    sound(tmp_path, recipe, **SHORT)


@pytest.mark.parametrize("recipe", IN_SANDBOXES)
def test_a_script_plays_in_containers(
    tmp_path: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    in_containers(tmp_path, docker_host, monkeypatch, recipe)
    sound(tmp_path, recipe, "--script", "oracle", **{"sandbox.use": "docker", "concurrency": "4"})


@pytest.mark.parametrize("recipe", [recipe for recipe in IN_SANDBOXES if recipe in WITH_SMOLLM2])
def test_smollm2_plays_in_containers(
    tmp_path: Path, docker_host: str, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    in_containers(tmp_path, docker_host, monkeypatch, recipe)
    sound(tmp_path, recipe, **SHORT, **{"sandbox.use": "docker"})


def in_containers(folder: Path, host: str, monkeypatch: pytest.MonkeyPatch, recipe: str) -> None:
    """The engine, with the recipe's image."""
    monkeypatch.setenv("DOCKER_HOST", host)
    if (image := IN_SANDBOXES[recipe]) != "base":  # the engine of these tests has that
        agentrl("sandbox", "build", image, cwd=folder, timeout=1500)
