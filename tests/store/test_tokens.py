"""Numbers of tokens, as they are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from agentrl.store.tokens import TokenRecord, TurnTokens
from agentrl.types.errors import StoreError


def record(episode: str) -> TokenRecord:
    turn = TurnTokens(turn=2, advantage=[0.5], logprob=[-1.25], ratio=[1.1], entropy=[0.75], clipped=[True])
    return TokenRecord(episode_id=episode, group_id="g", branch_id=0, turns=[turn])


def test_records_are_read_by_update_and_by_episode(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        assert [*run.tokens()] == [], "nothing was kept"
        run.add_tokens("learn", 1, [record("a"), record("b")])
        run.add_tokens("learn", 10, [record("a")])
        run.add_tokens("learn", 10, [record("c")])  # repeated after a kill
    with RunDir.read(tmp_path / "run") as run:
        found = [(each.episode_id, each.stage, each.iteration) for each in run.tokens()]
        assert found == [("a", "learn", 1), ("b", "learn", 1), ("c", "learn", 10)]
        assert [each.episode_id for each in run.tokens(iteration=10)] == ["c"]
        assert [each.iteration for each in run.tokens(episode_id="a")] == [1]
        assert next(run.tokens()).turns == record("a").turns


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        run.add_tokens("rl", 1, [record("a")])
        (file,) = (run.path / "tokens").iterdir()
        file.write_bytes(file.read_bytes()[:-9])
        with pytest.raises(StoreError, match=r"rl-00001\.jsonl\.zst"):
            next(run.tokens())
