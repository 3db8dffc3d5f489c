"""The runs that a viewer finds, opens, keeps and closes."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from agentrl.types.errors import StoreError
from agentrl.view.web.library import RunLibrary, user_cache
from agentrl.view.web.query import RequestError
from tests.view.web.test_server import make_run


def library_of(path: Path) -> RunLibrary:
    """A library without threads."""
    return RunLibrary(path, cache=path.parent / "cache", builds=False)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"(?s)there is no such folder.*name a run, or a folder that holds runs") as it:
        library_of(tmp_path / "nothing")
    assert it.value.place == str(tmp_path / "nothing")


def test_a_folder_that_was_deleted_meanwhile_holds_no_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "one", groups=1)
    library = library_of(tmp_path / "runs")
    assert library.keys() == ["one"]
    shutil.rmtree(tmp_path / "runs")
    assert library.keys() == []


def test_a_run_that_was_deleted_while_it_was_looked_at_is_told_apart_from_one_that_never_was(tmp_path: Path) -> None:
    path = make_run(tmp_path / "runs" / "one", groups=1)
    library = library_of(tmp_path / "runs")
    library.run("one")
    shutil.rmtree(path)
    with pytest.raises(RequestError, match=r"(?s)was deleted, moved or replaced.*reload the page") as deleted:
        library.run("one")
    with pytest.raises(RequestError, match="there is no run 'two'") as unknown:
        library.run("two")
    assert (deleted.value.status, unknown.value.status) == (410, 404)
    library.close()


def test_the_run_that_was_looked_at_longest_ago_is_closed_and_opens_again(tmp_path: Path) -> None:
    keys = [f"run{k}" for k in range(7)]
    for key in keys:
        make_run(tmp_path / "runs" / key, groups=1)
    library = library_of(tmp_path / "runs")
    first, *others = [library.run(key) for key in keys[:6]]
    assert library.run(keys[0]) is first  # looked at again: the second is now the oldest
    library.run(keys[6])
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        others[0].reader.select("COUNT(*) FROM all_episodes")
    for run in (first, *others[1:]):
        assert run.reader.select("COUNT(*) FROM all_episodes") == [(4,)]
    assert library.run(keys[1]).reader.select("COUNT(*) FROM all_episodes") == [(4,)]
    library.close()


def test_answers_are_kept_until_24_others_were_asked_for(tmp_path: Path) -> None:
    library = library_of(make_run(tmp_path / "run", groups=1))
    run, made = library.run("run"), list[int]()

    def asked(key: int) -> int:
        def make() -> int:
            made.append(key)
            return key

        return run.cached(("episodes",), key, make)

    assert [asked(key) for key in [*range(24), 0, 24]] == [*range(24), 0, 24]
    assert made == [*range(25)]
    asked(0)  # asked for again before the 25th came
    assert made == [*range(25)]
    asked(1)
    assert made == [*range(25), 1]
    library.close()


def test_text_indexes_are_kept_in_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AGENTRL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert user_cache() == tmp_path / "home" / ".cache" / "agentrl" / "view"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache() == tmp_path / "xdg" / "agentrl" / "view"
    monkeypatch.setenv("AGENTRL_CACHE", "mine")
    monkeypatch.chdir(tmp_path)
    assert user_cache() == tmp_path / "mine" / "view"
