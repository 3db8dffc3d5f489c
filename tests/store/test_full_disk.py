"""A full disk is told in words, wherever a run is written."""

from __future__ import annotations

import errno
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl import cli
from agentrl.rollouts.faults.failures import Verdict, verdict
from agentrl.store import RunDir
from agentrl.store.full_disk import REMEDY, DiskFull, is_of_a_full_disk
from agentrl.types.errors import StoreError
from tests.store.make import make_episode

WRITES: dict[str, Callable[[RunDir], Any]] = {
    "failures": lambda run: run.add_failure({"kind": "X"}),
    "metrics": lambda run: run.add_metrics({"iteration": 1}),
    "info": lambda run: run.update_info(a=1),
    "blob": lambda run: run.put_blob(b"x"),
    "episode": lambda run: run.add(make_episode("e")),
    "index": lambda run: run.flush(),
}
PLACES = {
    "failures": "agentrl.store.run_dir.append_line",
    "metrics": "agentrl.store.run_dir.append_line",
    "info": "agentrl.store.run_dir.write_json",
    "blob": "agentrl.store.blobs.Blobs.put",
    "episode": "agentrl.store.shards.Shards.append",
    "index": "agentrl.store.index.Index.put",
}


@pytest.mark.parametrize("what", WRITES)
def test_a_full_disk_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full") if what == "index" else OSError(errno.ENOSPC, "full")

    run = RunDir.create(tmp_path / "run")
    if what == "index":
        run.add(make_episode("e"))
    with monkeypatch.context() as patch:
        patch.setattr(PLACES[what], full)
        with pytest.raises(StoreError, match="the disk is full") as caught:
            WRITES[what](run)
    assert "disk space and run the same command again" in str(caught.value)
    run.close()


def test_other_errors_are_what_they_are() -> None:
    assert not is_of_a_full_disk(OSError(errno.EACCES, "no"))
    assert not is_of_a_full_disk(sqlite3.OperationalError("locked"))
    assert not is_of_a_full_disk(None)


@pytest.mark.parametrize("place", ["agentrl.store.run_dir.write_json", "agentrl.store.index.Index.__init__"])
def test_so_is_one_that_is_full_before_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def full(*given: Any, **named: Any) -> None:
        if place.endswith("__init__"):
            raise sqlite3.OperationalError("database or disk is full")
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(place, full)
    with pytest.raises(DiskFull, match="the disk is full"):
        RunDir.create(tmp_path / "run")


def test_and_one_that_is_full_when_the_run_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    run = RunDir.create(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("agentrl.store.shards.Shards.close", full)
        with pytest.raises(DiskFull):
            run.close()
    run.close()


def test_an_episode_that_meets_it_failed_by_its_host() -> None:
    assert verdict(DiskFull("the disk is full")) == Verdict("infra_error", retry=False)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), sqlite3.OperationalError("database or disk is full")]
)
def test_a_command_tells_it_in_a_sentence_wherever_it_meets_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(**how: str) -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(signal, "signal", lambda *given: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert said.startswith("error: the disk is full")
    assert "Traceback" not in said
    assert REMEDY in said
