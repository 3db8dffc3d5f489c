"""The run directory: all data of a run.

run.json                 resolved recipe, versions, seeds, git, command line
episodes/*.jsonl.zst     the episodes (authoritative); a frame holds one, or one and its forks
credit/*.jsonl.zst       advantages per turn; new credit is appended, never rewritten
scores/*.jsonl.zst       rewards of whole groups, one record per group; an episode is read with the last one
index.sqlite             a row per episode; rebuilt from the shards when it is lost or behind
blobs/ab/ab12...         long outputs by SHA-256
metrics.jsonl  failures.jsonl  repairs.jsonl
checkpoints/             the trainer's
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl.store.blobs import Blobs
from agentrl.store.codec import StoredCredit, decode_credit, decode_episode, encode_credit, encode_tree, line_of
from agentrl.store.full_disk import told_if_full
from agentrl.store.group_scores import GroupScores, decode_group_scores, encode_group_scores
from agentrl.store.index import LAST, CreditRow, EpisodeRow, Index, Record, ScoreRow, rows_of, where
from agentrl.store.info import circumstances, new_id, read_info, run_folder, write_json
from agentrl.store.lines import append_line, cut_torn_line, read_lines
from agentrl.store.lock import Lock
from agentrl.store.shards import Location, Shards
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError

_COMMIT_ROWS = 256
_COMMIT_SECONDS = 0.5
_ASKED_AT_ONCE = 500  # SQLite supports at least 999 parameters


_DECODERS: dict[str, Callable[[bytes], Episode | StoredCredit | GroupScores]] = {
    "episodes": decode_episode,
    "credit": decode_credit,
    "scores": decode_group_scores,
}


class RunDir:
    """A run on disk: `create` starts a new run, `open` continues one, `read` only reads.

    One process may write a run (its threads may share the object) while any number of processes read it. After `add`
    returns, the episode survives a kill -9; after `flush` returns, it survives a power cut.

    Attributes:
        path: the folder.
        info: the content of `run.json`.
        damage: unreadable records found so far, as "shard@offset".
    """

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path = path
        self.damage: list[str] = []
        self._write = write
        self._mutex = threading.RLock()
        self.info: dict[str, Any] = read_info(path)
        self._lock = Lock(path / "lock") if write else None
        self._episodes = Shards(path / "episodes")
        self._credit = Shards(path / "credit")
        self._scores = Shards(path / "scores")
        self._blobs = Blobs(path / "blobs")
        self._pending: dict[str, list[Record]] = {"episodes": [], "credit": [], "scores": [], "blobs": []}
        self._pending_ids: set[str] = set()
        self._committed_at = time.monotonic()
        try:
            with told_if_full(path):
                self._index = Index(path / "index.sqlite", write=write)
                if write:
                    self._repair()
                self._catch_up()
                if write:
                    self._sweep_blobs()
        except BaseException:
            if self._lock:
                self._lock.release()
            raise

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
        return cls(path, write=True)

    @classmethod
    def open(cls, path: str | Path) -> RunDir:
        """Opens a run to continue it, and repairs leftovers of a killed writer.

        Raises:
            StoreError: the folder is not a run, or another process writes it.
        """
        return cls(run_folder(path), write=True)

    @classmethod
    def read(cls, path: str | Path) -> RunDir:
        """Opens a run for reading, also while it is written (see `refresh`). Changes nothing.

        Raises:
            StoreError: the folder is not a run.
        """
        return cls(run_folder(path), write=False)

    @property
    def id(self) -> str:
        """The unique id of the run, which does not depend on its folder."""
        return str(self.info["id"])

    # -- writing

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
            if self._lock is not None and self._write:
                self._commit()
                self._episodes.close()
                self._credit.close()
                self._scores.close()
                self._sweep_blobs()
                self._write = False
                self._lock.release()
            self._index.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- reading

    def refresh(self) -> None:
        """Reads new data of another process."""
        with self._mutex:
            if not self._write:
                self.info = read_info(self.path)
                self._index.forget_tail()
                self._catch_up()

    def ids(self, *, split: str | None = None, iteration: int | None = None) -> set[str]:
        """Ids of the stored episodes. Resume plays the planned ids that are not among them."""
        chosen, values = where({"split = ?": split, "iteration = ?": iteration})
        return {row[0] for row in self._select(f"id FROM all_episodes {chosen}", values)}

    def statuses(self, ids: Iterable[str]) -> dict[str, str]:
        """The status of the stored episodes among `ids`. The cost depends on the number of `ids`, not on the run."""
        wanted, found = list(ids), dict[str, str]()
        for start in range(0, len(wanted), _ASKED_AT_ONCE):
            some = wanted[start : start + _ASKED_AT_ONCE]
            marks = ", ".join("?" * len(some))
            found.update(self._select(f"id, status FROM all_episodes WHERE id IN ({marks})", some))
        return found

    def rows(
        self,
        *,
        split: str | None = None,
        iteration: int | None = None,
        status: str | None = None,
        group_id: str | None = None,
        min_reward: float | None = None,
        order: str = "created_at",
        descending: bool = False,
        limit: int | None = None,
    ) -> list[EpisodeRow]:
        """Index rows, without reading shards.

        Args:
            order: a field of `EpisodeRow`; rows without a value come last.

        Raises:
            StoreError: `order` is not a field.
        """
        if order not in EpisodeRow.__struct_fields__:
            known = ", ".join(EpisodeRow.__struct_fields__)
            raise StoreError(f"episodes cannot be sorted by {order!r}", remedy=f"sort by one of: {known}")
        chosen, values = where(
            {
                "split = ?": split,
                "iteration = ?": iteration,
                "status = ?": status,
                "group_id = ?": group_id,
                "reward >= ?": min_reward,
            }
        )
        sort = f"ORDER BY {order} {'DESC' if descending else 'ASC'} NULLS LAST, id"
        with self._mutex:
            self._commit()
            rows: list[EpisodeRow] = self._index.find(
                "episodes", f"{chosen} {sort} LIMIT {-1 if limit is None else int(limit)}", values
            )
        return rows

    def get(self, id: str) -> Episode:
        """One episode.

        Raises:
            StoreError: the episode is not stored, or its record is damaged.
        """
        return self._read_episode(id, self._location(id))

    def resolve(self, name: str) -> str:
        """The id `name`, or the only id that begins with it, ends with it or contains it.

        Raises:
            StoreError: no id or several ids match.
        """
        size = len(name)
        ends = ("substr(id, 1, ?) = ? OR substr(id, -?) = ?", [size, name, size, name])
        inside = ("instr(id, ?)", [name])
        for condition, values in (ends, inside):
            found = self._select(f"id FROM all_episodes WHERE {condition} ORDER BY id", values)
            if ids := [row[0] for row in found]:
                break
        if name in ids or len(ids) == 1:
            return name if name in ids else str(ids[0])
        if not ids:
            raise StoreError(f"no episode {name!r}", place=str(self.path), remedy="`agentrl show RUN` lists them")
        some = ", ".join(ids[:4]) + (", ..." if len(ids) > 4 else "")
        raise StoreError(f"{name!r} fits {len(ids)} episodes: {some}", remedy="give more of the id")

    def episodes(
        self,
        ids: Iterable[str] | None = None,
        *,
        split: str | None = None,
        iteration: int | None = None,
        prefix: str = "",
        damaged: list[StoreError] | None = None,
    ) -> Iterator[Episode]:
        """Yields episodes: those of `ids` in this order, else all of the split and iteration in stored order.

        Args:
            prefix: a prefix of the ids.
            damaged: receives the errors of unreadable records; default: the first error is raised.
        """
        if ids is None:
            chosen, values = where({"split = ?": split, "iteration = ?": iteration, "instr(id, ?) = 1": prefix or None})
            which = f"FROM all_episodes {chosen} ORDER BY shard, offset, id"
            found = self._select(f"id, shard, offset, length {which}", values)
            places: Iterable[tuple[str, Location]] = ((id, Location(*row)) for id, *row in found)
        else:
            places = ((id, self._location(id)) for id in ids)
        for id, location in places:
            try:
                yield self._read_episode(id, location)
            except StoreError as error:
                if damaged is None:
                    raise
                damaged.append(error)

    def credit(self, id: str) -> StoredCredit | None:
        """The latest credit of an episode, or None."""
        with self._mutex:
            self._commit()
            rows: list[CreditRow] = self._index.find("credit", f"WHERE id = ? {LAST}", [id])
        return decode_credit(self._credit.read(rows[0].location)) if rows else None

    def group_scores(self, episode_id: str) -> GroupScores | None:
        """The latest scores of a group that count for one of its episodes, or None."""
        with self._mutex:
            self._commit()
            rows: list[ScoreRow] = self._index.find("scores", f"WHERE id = ? {LAST}", [episode_id])
        return decode_group_scores(self._scores.read(rows[0].location)) if rows else None

    def get_blob(self, sha: str) -> bytes:
        """The bytes of a blob.

        Raises:
            StoreError: it is missing.
        """
        return self._blobs.get(sha)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return read_lines(self.path / "metrics.jsonl")

    def failures(self) -> list[dict[str, Any]]:
        """The lines of `failures.jsonl`."""
        return read_lines(self.path / "failures.jsonl")

    def repairs(self) -> list[dict[str, Any]]:
        """Returns all repairs by `open`; `kind` is `torn`, `damaged`, `lost` or `torn_line`."""
        return read_lines(self.path / "repairs.jsonl")

    def _must_write(self) -> None:
        if not self._write:
            raise StoreError("the run is not open for writing", place=str(self.path), remedy="use `RunDir.open`")

    def _has(self, id: str) -> bool:
        return id in self._pending_ids or bool(self._index.select("1 FROM all_episodes WHERE id = ?", [id]))

    def _select(self, what: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        with self._mutex:
            self._commit()
            return self._index.select(what, values)

    def _location(self, id: str) -> Location:
        found = self._select("shard, offset, length FROM all_episodes WHERE id = ?", [id])
        if not found:
            raise StoreError(f"no episode {id!r}", place=str(self.path), remedy="`agentrl show RUN` lists them")
        return Location(*found[0])

    def _read_episode(self, id: str, location: Location) -> Episode:
        record = self._episodes.read(location)
        try:
            episode = decode_episode(line_of(record, id))
            return episode if (scores := self.group_scores(episode.id)) is None else scores.of(episode)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"not an episode: {error}",
                place=f"{self._episodes.folder}/{location}",
                remedy="it was written by another version of agentrl; read it with that one",
            ) from None

    def _commit_when_due(self) -> None:
        waiting = len(self._pending["episodes"]) + len(self._pending["credit"])
        if waiting >= _COMMIT_ROWS or time.monotonic() - self._committed_at > _COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        if any(self._pending.values()):
            with told_if_full(self.path):
                self._index.put(self._pending)
            for rows in self._pending.values():
                rows.clear()
            self._pending_ids.clear()
        self._committed_at = time.monotonic()

    def _repair(self) -> None:
        """Cuts torn records and lines, and removes index rows beyond the end of the shards."""
        for name in ("metrics.jsonl", "failures.jsonl", "repairs.jsonl"):
            if size := cut_torn_line(self.path / name):
                self._note_repair(kind="torn_line", file=name, bytes=size)
        for table, shards in self._logs():
            for shard, end in self._index.ends(table).items():
                if end > (size := shards.size(shard)):
                    rows = self._index.drop_beyond(table, shard, size)
                    self._note_repair(kind="lost", file=f"{table}/{shard}", records=rows)

    def _catch_up(self) -> None:
        """Indexes the records that the index lacks."""
        self.damage = []
        for table, shards in self._logs():
            for frame in shards.scan(self._index.ends(table)):
                if frame.data is not None:
                    self._index_record(table, frame.data, frame.location)
                elif self._write:
                    where = frame.location
                    kind = frame.state
                    self._note_repair(kind=kind, file=f"{table}/{where.shard}", offset=where.offset, bytes=where.length)
                    if kind == "torn":
                        shards.cut(where)
                if frame.state == "damaged":
                    self.damage.append(f"{table}/{frame.location}")
                if len(self._pending[table]) >= _COMMIT_ROWS:
                    self._commit()
        self._commit()

    def _index_record(self, table: str, data: bytes, location: Location) -> None:
        try:
            for line in data.split(b"\n"):
                self._add_rows(rows_of(_DECODERS[table](line), location))
        except msgspec.DecodeError:
            self.damage.append(f"{table}/{location}")

    def _add_rows(self, rows: Mapping[str, Sequence[Record]]) -> None:
        for table, new in rows.items():
            self._pending[table] += new

    def _logs(self) -> list[tuple[str, Shards]]:
        return [("episodes", self._episodes), ("credit", self._credit), ("scores", self._scores)]

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
