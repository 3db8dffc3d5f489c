"""The engine that says a stored run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.engines.replay import ReplayEngine
from agentrl.store.run_dir import RunDir
from agentrl.types.engine import ContextOverflow, Sampling
from agentrl.types.errors import StoreError
from tests.store.make import make_episode


@pytest.mark.parametrize(("stop", "error"), [("tokens", ContextOverflow), ("answer", StoreError)])
async def test_an_episode_ends_as_it_did(tmp_path: Path, stop: str, error: type[Exception]) -> None:
    episode = make_episode("e", turns=1, stop=stop, status="truncated" if stop == "tokens" else "done")
    with RunDir.create(tmp_path / "run", {"recipe": {}}) as run:
        run.add(episode)
        engine = ReplayEngine(run)
        engine.begin_session("e~1", episode.task, [], 0)  # it ran again after a failure
        said = await engine.generate(episode.nodes[0].token_ids, Sampling(), "e~1")
        assert said.token_ids == episode.nodes[1].token_ids
        with pytest.raises(error):
            await engine.generate(episode.nodes[0].token_ids, Sampling(), "e~1")


async def test_what_was_sampled_at_another_temperature_is_not_replayed(tmp_path: Path) -> None:
    episode = make_episode("e", turns=1, temperature=0.5)
    with RunDir.create(tmp_path / "run", {"recipe": {}}) as run:
        run.add(episode)
        engine = ReplayEngine(run)
        engine.begin_session("e", episode.task, [], 0)
        with pytest.raises(StoreError, match="was sampled at temperature 0.5, and is replayed at 1"):
            await engine.generate(episode.nodes[0].token_ids, Sampling(), "e")
        said = await engine.generate(episode.nodes[0].token_ids, Sampling(temperature=0.5), "e")
        assert said.token_ids == episode.nodes[1].token_ids


async def test_a_part_of_the_distribution_is_not_replayed_as_the_whole(tmp_path: Path) -> None:
    """A rollout that replays it would be recorded with top_p 1, and train (`agentrl train --from`)."""
    episode = make_episode("e", turns=1)
    with RunDir.create(tmp_path / "run", {"recipe": {"sampling": {"top_p": 0.7}}}) as run:
        run.add(episode)
        engine = ReplayEngine(run)
        engine.begin_session("e", episode.task, [], 0)
        with pytest.raises(StoreError, match=r"with sampling.top_p 0.7, and is replayed with 1"):
            await engine.generate(episode.nodes[0].token_ids, Sampling(), "e")
        said = await engine.generate(episode.nodes[0].token_ids, Sampling(top_p=0.7), "e")
        assert said.token_ids == episode.nodes[1].token_ids
