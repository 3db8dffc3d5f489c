"""A full disk is told in words, wherever a run is written."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import RunDir
from agentrl.store.full_disk import is_of_a_full_disk
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
