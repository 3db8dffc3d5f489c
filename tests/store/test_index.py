"""The work that the index does for a question, in steps of SQLite's virtual machine."""

from __future__ import annotations

from pathlib import Path

from agentrl.store import RunDir
from agentrl.store.index import Index
from tests.store.make import make_episode


def steps(index: Index, what: str) -> int:
    """The steps of a question, in hundreds."""
    counted = [0]

    def count() -> None:
        counted[0] += 1

    index._db.set_progress_handler(count, 100)
    index.select(what)
    index._db.set_progress_handler(None, 0)
    return counted[0]


def test_sorting_by_reward_costs_no_more_than_by_another_column(tmp_path: Path) -> None:
    """Scores of groups replace rewards: without any, none is looked up."""
    with RunDir.create(tmp_path / "run") as run:
        for k in range(500):
            run.add(make_episode(f"a#{k}", turns=1))
    index = Index(tmp_path / "run" / "index.sqlite", write=False)
    by_reward, by_turns = (
        steps(index, f"id FROM all_episodes ORDER BY {column} DESC NULLS LAST, id") for column in ("reward", "turns")
    )
    assert by_turns > 100
    assert by_reward < 1.2 * by_turns
    index.close()
