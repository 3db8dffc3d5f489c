"""The text index of a run: rebuilt, shared by viewers, updated while the run grows, and its errors."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentrl.store import RunDir
from agentrl.store.group_scores import GroupScores
from agentrl.store.reader import RunReader
from agentrl.store.rescored import Rescore
from agentrl.types.episode import Episode
from agentrl.view.web import text_index
from agentrl.view.web.text_index import SCHEMA, Passage, Progress, Requests, TextIndex, components_of, passages, snippet
from tests.store.make import make_episode
from tests.view.web.test_server import make_run


@contextmanager
def indexed(run: Path, cache: Path) -> Iterator[TextIndex]:
    """The index of a run, which has not begun to build it."""
    with RunReader(run) as reader:
        index = TextIndex(reader, cache, Requests())
        try:
            yield index
        finally:
            index.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", groups=1)


def test_an_index_of_another_version_is_made_anew(run: Path, tmp_path: Path) -> None:
    with indexed(run, tmp_path / "cache") as index:
        index.finish()
    with sqlite3.connect(index.path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with indexed(run, tmp_path / "cache") as index:
        assert index.progress() == Progress("building", 0, 4)
        index.finish()
        assert index.progress() == Progress("ready", 4, 4)
        assert index.count("house", 100) == 4


def test_a_file_that_is_no_index_is_replaced(run: Path, tmp_path: Path) -> None:
    with indexed(run, tmp_path / "cache") as index:
        path = index.path
    path.write_bytes(b"no database" * 1000)
    with indexed(run, tmp_path / "cache") as index:
        index.finish()
        assert index.progress() == Progress("ready", 4, 4)


def test_an_sqlite_without_full_text_is_told(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "_TABLES", text_index._TABLES.replace("fts5", "fts_that_is_not_compiled_in"))
    with indexed(run, tmp_path / "cache") as index:
        assert not index.usable
        assert index.problem == f"the text index cannot be written: the file cannot be made anew ({index.path})"
        assert index.find("house", 10, 0) == []


def test_indexes_that_nobody_looked_at_for_a_month_are_deleted(run: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    month = 30 * 24 * 3600
    for name, age in (("old", month + 3600), ("recent", month - 3600)):
        for suffix in ("", "-wal", "-shm"):
            (cache / f"{name}.sqlite{suffix}").touch()
        os.utime(cache / f"{name}.sqlite", times=(time.time() - age,) * 2)
    with indexed(run, cache) as index:
        own = index.path.name
        left = {path.name for path in cache.iterdir() if not path.name.startswith(own)}
    assert left == {"recent.sqlite", "recent.sqlite-wal", "recent.sqlite-shm"}


def test_a_disk_that_fails_while_the_index_is_built_is_told(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(index: TextIndex) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(TextIndex, "build", fails)
    with indexed(run, tmp_path / "cache") as index:
        index.begin()
        index._thread.join()
        assert index.progress() == Progress("failed", 0, 4, "the text index is incomplete: disk I/O error")
        assert not index.usable


def test_an_error_after_an_index_was_closed_is_no_problem(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(index: TextIndex) -> int:
        index._closed.set()
        raise sqlite3.ProgrammingError("Cannot operate on a closed database.")

    monkeypatch.setattr(TextIndex, "build", fails)
    with indexed(run, tmp_path / "cache") as index:
        index.begin()
        index._thread.join()
        assert index.problem is None


def test_two_viewers_of_a_run_add_each_episode_once(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "_PIECE", 1)
    cache = tmp_path / "cache"
    with indexed(run, cache) as slow, indexed(run, cache) as fast:
        assert slow.build() == 1  # it has listed the other three
        fast.finish()
        slow.finish()
        assert slow.progress() == fast.progress() == Progress("ready", 4, 4)
        found = slow.find("house", 100, 0)
        assert sorted(id for id, _ in found) == [f"g0/{k}" for k in range(4)]


def components(index: TextIndex, run: RunReader, id: str) -> dict[str, Any]:
    return dict(run.select(f"name, value FROM {SCHEMA}.component WHERE id = ?", [id]))


def test_the_score_of_a_group_that_comes_after_its_episodes_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = make_episode("a/0", group="a", turns=1, reward=None, components={}, pending=["best"])
    scored = replace(waits, components={"best": 1.0}, reward=1.0, success="best", pending=[])
    unknown = replace(scored, id="a/1")
    with RunDir.create(tmp_path / "run") as run:
        run.add(waits)
        with indexed(tmp_path / "run", tmp_path / "cache") as index:
            index.finish()
        run.add(unknown)
        run.add_scores(GroupScores(group_id="a", scores=[Rescore.of(scored), Rescore.of(unknown)]))
        with RunReader(tmp_path / "run") as reader:
            index = TextIndex(reader, tmp_path / "cache", Requests())
            assert "best" not in components(index, reader, "a/0")
            index.finish()
            successes = f"id, success FROM {SCHEMA}.episode ORDER BY id"
            assert components(index, reader, "a/0")["best"] == 1.0
            assert reader.select(successes) == [("a/0", 1.0), ("a/1", 1.0)]
            lower = replace(scored, components={"best": 0.25}, reward=0.25)
            run.add_scores(GroupScores(group_id="a", scores=[Rescore.of(lower)]))  # another member came
            reader.refresh()
            index.finish()
            assert components(index, reader, "a/0")["best"] == 0.25
            read: list[str] = []
            monkeypatch.setattr(reader, "get", read.append)
            index.finish()
            assert read == [], "a score is followed once"
            index.close()


def test_a_component_that_was_given_to_no_turn_has_no_value() -> None:
    episode = make_episode("a", turns=3, components={"found": 1.0})
    rewards: list[dict[str, float | None]] = [
        {"late": None, "never": None},
        {"late": 0.25, "never": None},
        {"late": 0.5},
    ]
    turns = [replace(turn, rewards=given) for turn, given in zip(episode.turns, rewards, strict=True)]
    assert components_of(replace(episode, turns=turns)) == {"late": 0.75, "never": None, "found": 1.0}


def test_the_note_of_a_reward_is_searched(tmp_path: Path) -> None:
    episode: Episode = make_episode("a", turns=1, notes={"tests": "timeout: 3 of 9 tests passed"})
    assert Passage(None, "note", "tests: timeout: 3 of 9 tests passed") in list(passages(episode))
    with RunDir.create(tmp_path / "run") as run:
        run.add(episode)
        run.add(make_episode("b", turns=1))
    with indexed(tmp_path / "run", tmp_path / "cache") as index:
        index.finish()
        assert index.find('"9 tests passed"', 10, 0) == [("a", None)]


def test_a_snippet_of_nothing_is_empty() -> None:
    assert snippet([], "key") == ("text", [])
