"""The run directory: all data of a run.

run.json                 resolved recipe, versions, seeds, git, command line
episodes/*.jsonl.zst     the episodes (authoritative); a frame holds one, or one and its forks
credit/*.jsonl.zst       advantages per turn; new credit is appended, never rewritten
scores/*.jsonl.zst       rewards of whole groups, one record per group; an episode is read with the last one
index.sqlite             a row per episode; rebuilt from the shards when it is lost or behind
blobs/ab/ab12...         long outputs by SHA-256
metrics.jsonl  failures.jsonl  repairs.jsonl
tokens/*.jsonl.zst       numbers of the tokens of some groups, a file per update (`tokens.py`)
heartbeat.json           what the run does now (`heartbeat.py`)
checkpoints/             the trainer's
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.store.codec import StoredCredit, encode_credit, encode_tree
from agentrl.store.full_disk import told_if_full
from agentrl.store.group_scores import GroupScores, encode_group_scores
from agentrl.store.index import Index, rows_of
from agentrl.store.info import circumstances, new_id, write_json
from agentrl.store.lines import append_line, cut_torn_line
from agentrl.store.lock import Lock
from agentrl.store.reader import COMMIT_ROWS, RunReader
from agentrl.store.shards import Frame, Shards
from agentrl.store.tokens import TokenRecord, write_tokens
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError

_COMMIT_SECONDS = 0.5


class RunDir(RunReader):
    """A run on disk, for its one writer: `create` starts a new run, `open` continues one. `read` gives a reader.

    One process may write a run (its threads may share the object) while any number of processes read it. After `add`
    returns, the episode survives a kill -9; after `flush` returns, it survives a power cut.
    """

    @classmethod
    def create(cls, path: str | Path, info: Mapping[str, Any] | None = None) -> RunDir:
        """Starts a new run.

        Args:
            info: additional fields of `run.json` (versions, command line and git are always there). `agentrl check`
                uses `planned` (ids or their number) and `finished`.

        Raises:
            StoreError: the folder has a run already.
        """
        path = Path(path)
        if (path / "run.json").exists():
            raise StoreError("there is a run already", place=str(path), remedy="resume it, or choose another folder")
        with told_if_full(path):
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / "run.json", {**circumstances(), **(info or {})})
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """Opens a run to continue it, and repairs leftovers of a killed writer.

        Raises:
            StoreError: the folder is not a run, or another process writes it.
        """
        return cls(path)

    @staticmethod
    def read(path: str | Path) -> RunReader:
        """Opens a run for reading, also while it is written. Changes nothing.

        Raises:
            StoreError: the folder is not a run.
        """
        return RunReader(path)

    def _open_index(self) -> None:
        self._pending_ids: set[str] = set()
        self._committed_at = time.monotonic()
        self._lock = Lock(self.path / "lock")
        self._write = True
        try:
            self._index = Index(self.path / "index.sqlite", write=True)
            self._repair()
            self._catch_up()
            self._sweep_blobs()
        except BaseException:
            self._lock.release()
            raise

    def refresh(self) -> None:
        """Does nothing: the writer has all data."""

    def add(self, *tree: Episode) -> None:
        """Stores an episode, or one and its forks: all or none.

        Raises:
            StoreError: an id is stored already, an episode contains NaN or infinity, or the disk is full.
        """
        record, episodes = encode_tree(tree)
        with self._mutex, told_if_full(self.path):
            self._must_write()
            if stored := next(filter(self._has, (each.id for each in episodes)), None):
                raise StoreError(
                    f"episode {stored!r} is stored already",
                    place=str(self.path),
                    remedy="plan only the ids that `RunDir.ids()` lacks",
                )
            location = self._episodes.append(record)
            for each in episodes:
                self._add_rows(rows_of(each, location))
            self._pending_ids.update(each.id for each in episodes)
            self._commit_when_due()

    def add_credit(
        self,
        episode_id: str,
        estimator: str,
        turn_advantages: Sequence[float],
        parts: Mapping[str, Sequence[float]] | None = None,
        iteration: int = 0,
        note: str = "",
    ) -> None:
        """Stores the credit of an episode's turns, which replaces earlier credit.

        Raises:
            StoreError: a number is not finite.
        """
        credit = StoredCredit(
            episode_id=episode_id,
            estimator=estimator,
            turn_advantages=[float(value) for value in turn_advantages],
            parts={name: [float(value) for value in values] for name, values in (parts or {}).items()},
            iteration=iteration,
            note=note,
        )
        line = encode_credit(credit)
        with self._mutex:
            self._must_write()
            self._add_rows(rows_of(credit, self._credit.append(line)))
            self._commit_when_due()

    def add_scores(self, scores: GroupScores) -> None:
        """Stores the scores of a group, all at once; its members are read with them from now on.

        Raises:
            StoreError: a number is not finite.
        """
        line = encode_group_scores(scores)
        with self._mutex, told_if_full(self.path):
            self._must_write()
            self._add_rows(rows_of(scores, self._scores.append(line)))
            self._commit_when_due()

    def add_failure(self, failure: Mapping[str, Any]) -> None:
        """Appends a failure (for example of a retried attempt) to `failures.jsonl`."""
        self._must_write()
        with told_if_full(self.path):
            append_line(self.path / "failures.jsonl", {"at": time.time(), **failure})

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Appends a line to `metrics.jsonl`. NaN becomes null."""
        self._must_write()
        with told_if_full(self.path):
            append_line(self.path / "metrics.jsonl", dict(metrics))

    def add_tokens(self, stage: str, iteration: int, records: Sequence[TokenRecord]) -> None:
        """Stores the numbers of tokens of an update (`tokens.py`); replaces earlier ones of the same update."""
        self._must_write()
        with told_if_full(self.path):
            write_tokens(self.path, stage, iteration, records)

    def put_blob(self, data: bytes) -> str:
        """Stores bytes under their SHA-256, once. Blobs without a stored episode are deleted when the run is closed."""
        self._must_write()
        with told_if_full(self.path):
            return self._blobs.put(data)

    def update_info(self, **fields: Any) -> None:
        """Sets fields of `run.json`."""
        with self._mutex, told_if_full(self.path):
            self._must_write()
            self.info = {**self.info, **fields}
            write_json(self.path / "run.json", self.info)

    def begin_again(self) -> None:
        """Resets the run for another recipe: gives it a new id and removes its metrics."""
        self.update_info(id=new_id())
        (self.path / "metrics.jsonl").unlink(missing_ok=True)

    def flush(self) -> None:
        """Writes everything to disk, so that it survives a power cut."""
        with self._mutex:
            self._episodes.sync()
            self._credit.sync()
            self._scores.sync()
            self._commit()

    def close(self) -> None:
        """Flushes and releases the run. May be called twice."""
        with self._mutex, told_if_full(self.path):
            if self._write:
                self._commit()
                self._episodes.close()
                self._credit.close()
                self._scores.close()
                self._sweep_blobs()
                self._write = False
                self._lock.release()
            super().close()

    def _must_write(self) -> None:
        if not self._write:
            raise StoreError("the run is not open for writing", place=str(self.path), remedy="use `RunDir.open`")

    def _has(self, id: str) -> bool:
        return id in self._pending_ids or bool(self._index.select("1 FROM all_episodes WHERE id = ?", [id]))

    def _commit_when_due(self) -> None:
        waiting = len(self._pending["episodes"]) + len(self._pending["credit"])
        if waiting >= COMMIT_ROWS or time.monotonic() - self._committed_at > _COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        super()._commit()
        self._pending_ids.clear()
        self._committed_at = time.monotonic()

    def _repair(self) -> None:
        """Cuts torn records and lines, and removes index rows beyond the end of the shards."""
        for name in ("metrics.jsonl", "failures.jsonl", "repairs.jsonl"):
            if size := cut_torn_line(self.path / name):
                self._note_repair(kind="torn_line", file=name, bytes=size)
        for table, shards in self._logs:
            for shard, end in self._index.ends(table).items():
                if end > (size := shards.size(shard)):
                    rows = self._index.drop_beyond(table, shard, size)
                    self._note_repair(kind="lost", file=f"{table}/{shard}", records=rows)

    def _found_unreadable(self, table: str, shards: Shards, frame: Frame) -> None:
        """Notes a torn or damaged record; cuts a torn one."""
        at = frame.location
        self._note_repair(kind=frame.state, file=f"{table}/{at.shard}", offset=at.offset, bytes=at.length)
        if frame.state == "torn":
            shards.cut(at)

    def _note_repair(self, **what: Any) -> None:
        # After a kill between note and repair both happen again: the same note is written once.
        if not any(what.items() <= noted.items() for noted in self.repairs()):
            append_line(self.path / "repairs.jsonl", {"at": time.time(), **what})

    def _sweep_blobs(self) -> None:
        """Deletes blobs of episodes that were never stored (cancelled, retried, killed).

        Does nothing in a run with damaged records: their blobs are unknown.
        """
        if self.damage or any(noted["kind"] in ("damaged", "lost") for noted in self.repairs()):
            return
        self._blobs.sweep({row[0] for row in self._select("DISTINCT sha FROM all_blobs")})
