"""Reads a run directory, also while another process writes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from agentrl.store.blobs import Blobs
from agentrl.store.codec import StoredCredit, decode_credit, decode_episode, line_of
from agentrl.store.full_disk import told_if_full
from agentrl.store.group_scores import GroupScores, decode_group_scores
from agentrl.store.index import LAST, SORTS, CreditRow, EpisodeRow, Index, Record, ScoreRow, rows_of, where
from agentrl.store.info import read_info, run_folder
from agentrl.store.lines import read_lines
from agentrl.store.shards import Frame, Location, Shards
from agentrl.store.tokens import TokenRecord, read_tokens
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError

COMMIT_ROWS = 256
_ASKED_AT_ONCE = 500  # SQLite supports at least 999 parameters


_DECODERS: dict[str, Callable[[bytes], Episode | StoredCredit | GroupScores]] = {
    "episodes": decode_episode,
    "credit": decode_credit,
    "scores": decode_group_scores,
}

_IDS = "ids of a training are train/ITERATION/NUMBER-TASK#TRY: train/00017/003-maze3#3"


class RunReader:
    """A run on disk, for reading. Changes nothing. `refresh` reads what another process has added.

    Raises:
        StoreError: the folder is not a run.

    Attributes:
        path: the folder.
        info: the content of `run.json`.
        damage: unreadable records found so far, as "shard@offset".
    """

    def __init__(self, path: str | Path) -> None:
        self.path = run_folder(path)
        self.info: dict[str, Any] = read_info(self.path)
        self.damage: list[str] = []
        self._mutex = threading.RLock()
        self._episodes = Shards(self.path / "episodes")
        self._credit = Shards(self.path / "credit")
        self._scores = Shards(self.path / "scores")
        self._blobs = Blobs(self.path / "blobs")
        self._attached: dict[str, Path] = {}
        self._pending: dict[str, list[Record]] = {"episodes": [], "credit": [], "scores": [], "blobs": []}
        with told_if_full(self.path):
            self._open_index()

    def _open_index(self) -> None:
        """Opens the index, and adds the records that it lacks."""
        self._index = Index(self.path / "index.sqlite", write=False)
        for name, path in self._attached.items():
            self._index.attach(path, name)
        self._catch_up()

    def close(self) -> None:
        """Releases the run. May be called twice."""
        with self._mutex:
            self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        """The unique id of the run, which does not depend on its folder."""
        return str(self.info["id"])

    def refresh(self) -> None:
        """Reads new data of another process."""
        with self._mutex:
            self.info = read_info(self.path)
            if self._index.fixed:
                self._index.close()
                self._open_index()
                return
            self._index.forget_tail()
            self._catch_up()

    def ids(self, *, split: str | None = None, iteration: int | None = None) -> set[str]:
        """Ids of the stored episodes. Resume plays the planned ids that are not among them."""
        chosen, values = where({"split = ?": split, "iteration = ?": iteration})
        return {row[0] for row in self._select(f"id FROM all_episodes {chosen}", values)}

    def count_by(self, column: str) -> dict[str, int]:
        """The number of stored episodes by a field of `EpisodeRow`, the most frequent value first."""
        assert column in EpisodeRow.__struct_fields__
        return dict(self._select(f"{column}, COUNT(*) FROM all_episodes GROUP BY {column} ORDER BY COUNT(*) DESC"))

    def values(self, column: str, ids: Iterable[str]) -> dict[str, Any]:
        """A column of the index, credit included (`index.SORTS`), of the stored episodes among `ids`.

        The cost depends on the number of `ids`, not on the run.
        """
        assert column in SORTS
        wanted, found = list(ids), dict[str, Any]()
        for start in range(0, len(wanted), _ASKED_AT_ONCE):
            some = wanted[start : start + _ASKED_AT_ONCE]
            marks = ", ".join("?" * len(some))
            found.update(self._select(f"id, {column} FROM all_episodes WHERE id IN ({marks})", some))
        return found

    def rows(
        self,
        *,
        split: str | None = None,
        iteration: int | None = None,
        status: str | None = None,
        group_id: str | None = None,
        but_split: str | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        order: str = "created_at",
        descending: bool = False,
        limit: int | None = None,
    ) -> list[EpisodeRow]:
        """Index rows, without reading shards.

        Args:
            but_split: without the episodes of this split.
            order: a field of `EpisodeRow`, or a column of credit (`index.CREDITED`); rows without a value come last.

        Raises:
            StoreError: `order` is no column.
        """
        if order not in SORTS:
            known = ", ".join(SORTS)
            raise StoreError(f"episodes cannot be sorted by {order!r}", remedy=f"sort by one of: {known}")
        chosen, values = where(
            {
                "split = ?": split,
                "split <> ?": but_split,
                "iteration = ?": iteration,
                "status = ?": status,
                "group_id = ?": group_id,
                "reward >= ?": min_reward,
                "reward <= ?": max_reward,
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
            raise StoreError(
                f"no episode {name!r}", place=str(self.path), remedy=f"`agentrl show RUN` lists them; {_IDS}"
            )
        some = ", ".join(ids[:4]) + (", ..." if len(ids) > 4 else "")
        raise StoreError(f"{name!r} fits {len(ids)} episodes: {some}", remedy=f"give more of the id; {_IDS}")

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

    def tokens(self, *, episode_id: str | None = None, iteration: int | None = None) -> Iterator[TokenRecord]:
        """Yields numbers of tokens that the trainer computed, of all episodes that were kept, or of one
        (`train.record_tokens`).

        Raises:
            StoreError: a file is damaged.
        """
        return read_tokens(self.path, episode_id=episode_id, iteration=iteration)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return read_lines(self.path / "metrics.jsonl")

    def failures(self) -> list[dict[str, Any]]:
        """The lines of `failures.jsonl`."""
        return read_lines(self.path / "failures.jsonl")

    def repairs(self) -> list[dict[str, Any]]:
        """Returns all repairs by `open`; `kind` is `torn`, `damaged`, `lost` or `torn_line`."""
        return read_lines(self.path / "repairs.jsonl")

    def select(self, what: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs `SELECT what` over the index: `all_episodes` (fields of `EpisodeRow`), `all_credit`, `all_scores`."""
        return self._select(what, values)

    def attach(self, path: Path, name: str) -> None:
        """Makes the tables of another SQLite file visible to `select` under `name`, for reading."""
        with self._mutex:
            self._attached[name] = path
            self._index.attach(path, name)

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

    def _commit(self) -> None:
        """Puts the rows that wait into the index."""
        if any(self._pending.values()):
            with told_if_full(self.path):
                self._index.put(self._pending)
            for rows in self._pending.values():
                rows.clear()

    def _catch_up(self) -> None:
        """Indexes the records that the index lacks."""
        self.damage = []
        for table, shards in self._logs:
            for frame in shards.scan(self._index.ends(table)):
                if frame.data is not None:
                    self._index_record(table, frame.data, frame.location)
                else:
                    self._found_unreadable(table, shards, frame)
                if frame.state == "damaged":
                    self.damage.append(f"{table}/{frame.location}")
                if len(self._pending[table]) >= COMMIT_ROWS:
                    self._commit()
        self._commit()

    def _found_unreadable(self, table: str, shards: Shards, frame: Frame) -> None:
        """Leaves a torn or damaged record as it is."""

    def _index_record(self, table: str, data: bytes, location: Location) -> None:
        try:
            for line in data.split(b"\n"):
                self._add_rows(rows_of(_DECODERS[table](line), location))
        except msgspec.DecodeError:
            self.damage.append(f"{table}/{location}")

    def _add_rows(self, rows: Mapping[str, Sequence[Record]]) -> None:
        for table, new in rows.items():
            self._pending[table] += new

    @property
    def _logs(self) -> list[tuple[str, Shards]]:
        return [("episodes", self._episodes), ("credit", self._credit), ("scores", self._scores)]
