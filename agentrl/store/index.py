"""The index: one SQLite row per episode, so that episodes can be listed without reading shards.

The shards are authoritative. The index may lag behind them (rows are committed in batches) or be lost; missing rows are
read from the shards. A reader never writes the file: it keeps missing rows in a temporary table.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from agentrl.store.codec import StoredCredit
from agentrl.store.group_scores import GroupScores
from agentrl.store.shards import Location
from agentrl.types.episode import Episode
from agentrl.types.figures.notes import kinds_of
from agentrl.types.figures.of_episodes import earned, turns_of
from agentrl.types.figures.openings import opening_of

FORMAT = 9
"""Increased when a column changes; an index of another format is rebuilt."""


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """A row with the columns of a location: `shard`, `offset` and `length`."""

    @property
    def location(self) -> Location:
        return Location(*(getattr(self, column) for column in Location._fields))


class EpisodeRow(Located, frozen=True, kw_only=True):
    """The index row of an episode.

    Attributes:
        reward: of the outcome and of the policy's turns; None: not scored.
        turns: number of turns of the policy.
        sampled_tokens, calls, drift, branches, contexts: counts.
        malformed, unknown, refused, timeouts, raised: number of failed calls, by outcome.
        first_raised: the first exception of a tool, with its place in user code.
        duration_s: `timings["total"]`, else the sum of generation and tools.
        error: kind of the error, if any.
        notes: why its components gave nothing (`figures.notes`), a line each.
        opening: its mark (`types/figures/openings.py`); None: the policy has not spoken.
        shard, offset, length: location of the record.
    """

    id: str
    group_id: str
    task_id: str
    iteration: int
    split: str
    status: str
    stop: str
    attempt: int
    reward: float | None
    turns: int
    calls: int
    malformed: int
    unknown: int
    refused: int
    timeouts: int
    raised: int
    first_raised: str | None
    sampled_tokens: int
    drift: int
    branches: int
    contexts: int
    duration_s: float
    created_at: float
    answer: str | None
    error: str | None
    notes: str | None
    opening: str | None
    shard: str
    offset: int
    length: int


class CreditRow(Located, frozen=True, kw_only=True):
    """A credit of episode `id`. An episode that was credited again has several; the last one counts.

    Attributes:
        advantage, advantage_max, advantage_min: mean, largest and smallest advantage of its turns; None: it has none.
    """

    id: str
    estimator: str
    iteration: int
    advantage: float | None
    advantage_max: float | None
    advantage_min: float | None
    shard: str
    offset: int
    length: int


class ScoreRow(Located, frozen=True, kw_only=True):
    """The location of a score that episode `id` got with its group. The last one counts."""

    id: str
    group_id: str
    reward: float | None
    shard: str
    offset: int
    length: int


class BlobRow(msgspec.Struct, frozen=True):
    """Episode `id` refers to blob `sha`."""

    id: str
    sha: str


Record = EpisodeRow | CreditRow | ScoreRow | BlobRow
_TABLES: dict[str, type[Record]] = {
    "episodes": EpisodeRow,
    "credit": CreditRow,
    "scores": ScoreRow,
    "blobs": BlobRow,
}
_KEYS = {"episodes": "id", "credit": "shard, offset", "scores": "shard, offset, id", "blobs": "id, sha"}
_SQL_TYPES = {str: "TEXT", int: "INTEGER", float: "REAL"}
_INDEXED = {"episodes": ("group_id", "iteration", "created_at"), "credit": ("id",), "scores": ("id", "group_id")}
LAST = "ORDER BY shard DESC, offset DESC LIMIT 1"
"""Of the records of one episode: the one that counts."""
CREDITED = ("advantage", "advantage_max", "advantage_min")
"""Columns of `all_episodes` that come from the credit of an episode."""
SORTS = (*EpisodeRow.__struct_fields__, *CREDITED)
"""Columns of `all_episodes`."""


def row_of(episode: Episode, location: Location) -> EpisodeRow:
    """The index row of an episode that is stored at `location`."""
    outcomes = Counter(call.outcome for turn in episode.turns for call in turn.calls)
    spent = sum(turn.generate_s + turn.tools_s for turn in episode.turns)
    opening = opening_of(episode)
    return EpisodeRow(
        id=episode.id,
        group_id=episode.group_id,
        task_id=episode.task.id,
        iteration=episode.iteration,
        split=episode.split,
        status=episode.status,
        stop=episode.stop,
        attempt=episode.attempt,
        reward=earned(episode),
        turns=turns_of(episode),
        calls=outcomes.total(),
        malformed=outcomes["malformed"],
        unknown=outcomes["unknown"],
        refused=outcomes["error"],
        timeouts=outcomes["timeout"],
        raised=outcomes["raised"],
        first_raised=next((call.raised for turn in episode.turns for call in turn.calls if call.raised), None),
        sampled_tokens=episode.sampled_tokens,
        drift=len(episode.drift),
        branches=len(episode.branches),
        contexts=1 + len(episode.contexts),
        duration_s=episode.timings.get("total", spent),
        created_at=episode.created_at,
        answer=episode.answer,
        error=episode.error.kind if episode.error else None,
        notes="\n".join(kinds_of(episode)) or None,
        opening=None if opening is None else opening.mark,
        shard=location.shard,
        offset=location.offset,
        length=location.length,
    )


def rows_of(record: Episode | StoredCredit | GroupScores, location: Location) -> dict[str, list[Record]]:
    """The index rows of a record that is stored at `location`, by table."""
    match record:
        case Episode():
            blobs: list[Record] = [BlobRow(record.id, sha) for sha in sorted(blobs_of(record))]
            return {"episodes": [row_of(record, location)], "blobs": blobs}
        case StoredCredit():
            return {"credit": [_credit_row(record, location)]}
        case GroupScores():
            return {"scores": [*_score_rows(record, location)]}


def where(conditions: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """`WHERE` with the conditions that have a value."""
    given = {sql: value for sql, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(given) if given else ""), list(given.values())


def _credit_row(credit: StoredCredit, location: Location) -> CreditRow:
    advantages = credit.turn_advantages
    return CreditRow(
        id=credit.episode_id,
        estimator=credit.estimator,
        iteration=credit.iteration,
        advantage=sum(advantages) / len(advantages) if advantages else None,
        advantage_max=max(advantages, default=None),
        advantage_min=min(advantages, default=None),
        shard=location.shard,
        offset=location.offset,
        length=location.length,
    )


def _score_rows(scores: GroupScores, location: Location) -> list[ScoreRow]:
    shard, offset, length = location
    return [
        ScoreRow(
            id=each.episode_id,
            group_id=scores.group_id,
            reward=each.total,
            shard=shard,
            offset=offset,
            length=length,
        )
        for each in scores.scores
    ]


def blobs_of(episode: Episode) -> set[str]:
    """Hashes of the blobs that an episode refers to: outputs of calls, and images."""
    named = {call.blob for turn in episode.turns for call in turn.calls if call.blob}
    return named | {part["blob"] for part in episode.shown_images()}


def with_images(episode: Episode, taken: Mapping[str, dict[str, Any]]) -> Episode:
    """Returns the episode with the given images, by hash, that are in none of its messages."""
    if not taken:
        return episode
    named = {part["blob"] for part in episode.shown_images()}
    return msgspec.structs.replace(episode, images=[part for blob, part in taken.items() if blob not in named])


class Index:
    """The tables `episodes`, `credit`, `scores` and `blobs`.

    Args:
        path: `index.sqlite`.
        write: create the file if it is missing or unusable. Otherwise it is only read, and rows are added in memory.

    Attributes:
        fixed: it holds what was there when it was opened: no process wrote the run then.
    """

    def __init__(self, path: Path, *, write: bool) -> None:
        self._db, self.fixed = (_open_for_writing(path), False) if write else _open_for_reading(path)
        self._target = "main" if write else "temp"
        if not write:
            _create_tables(self._db, "temp")
        for table, key in _KEYS.items():
            name = "stored_episodes" if table == "episodes" else f"all_{table}"
            view = f"CREATE TEMP VIEW {name} AS SELECT * FROM main.{table} m"
            if not write:  # the writer may have committed rows of the temporary table meanwhile
                twice = f"SELECT 1 FROM temp.{table} t WHERE {_same(key)}"
                none = f"NOT EXISTS (SELECT 1 FROM temp.{table})"  # asked once, so that no row is looked up for nothing
                view += f" WHERE {none} OR NOT EXISTS ({twice}) UNION ALL SELECT * FROM temp.{table}"
            self._db.execute(view)
        self._db.execute(f"CREATE TEMP VIEW all_episodes AS SELECT {_joined_columns()} FROM stored_episodes e")

    def put(self, rows: Mapping[str, Sequence[Record]]) -> None:
        """Adds rows by table and commits. Later rows of an existing key are ignored."""
        with self._db:
            for table, new in rows.items():
                sql = f"INSERT OR IGNORE INTO {self._target}.{table} VALUES ({', '.join('?' * len(_columns(table)))})"
                self._db.executemany(sql, map(msgspec.structs.astuple, new))

    def forget_tail(self) -> None:
        """Empties a reader's temporary tables."""
        with self._db:
            for table in _TABLES:
                self._db.execute(f"DELETE FROM temp.{table}")

    def find(self, table: str, tail: str = "", values: Iterable[Any] = ()) -> list[Any]:
        """The rows of a table as structs. `tail` is SQL: WHERE, ORDER BY, LIMIT."""
        make, names = _TABLES[table], _columns(table)
        found = self.select(f"{', '.join(names)} FROM all_{table} {tail}", values)
        return [make(**dict(zip(names, row, strict=True))) for row in found]

    def select(self, what: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs `SELECT what` over `all_episodes`, `all_credit`, `all_scores` and `all_blobs`."""
        return self._db.execute(f"SELECT {what}", tuple(values)).fetchall()

    def attach(self, path: Path, name: str) -> None:
        """Makes the tables of another file visible to `select` under `name`."""
        self._db.execute(f"ATTACH ? AS {name}", (str(path),))

    def ends(self, table: str) -> dict[str, int]:
        """The byte up to which each shard is indexed."""
        return dict(self._db.execute(f"SELECT shard, MAX(offset + length) FROM all_{table} GROUP BY shard"))

    def drop_beyond(self, table: str, shard: str, size: int) -> int:
        """Deletes the rows of records beyond the end of their shard. Returns their number."""
        with self._db:
            sql = f"DELETE FROM {self._target}.{table} WHERE shard = ? AND offset + length > ?"
            return self._db.execute(sql, (shard, size)).rowcount

    def close(self) -> None:
        self._db.close()


def _columns(table: str) -> tuple[str, ...]:
    return _TABLES[table].__struct_fields__


def _joined_columns() -> str:
    """The columns of an episode, with the reward that it got with its group, and those of its credit."""
    last = f"(SELECT s.reward FROM all_scores s WHERE s.id = e.id {LAST})"
    reward = f"CASE WHEN EXISTS (SELECT 1 FROM all_scores) THEN COALESCE({last}, e.reward) ELSE e.reward END"
    names = {name: f"e.{name}" for name in _columns("episodes")} | {"reward": reward}
    names |= {name: f"(SELECT c.{name} FROM all_credit c WHERE c.id = e.id {LAST})" for name in CREDITED}
    return ", ".join(f"{column} AS {name}" for name, column in names.items())


def _same(key: str) -> str:
    return " AND ".join(f"t.{name} = m.{name}" for name in key.split(", "))


def _open_for_writing(path: Path) -> sqlite3.Connection:
    for attempt in (1, 2):
        db = sqlite3.connect(path, check_same_thread=False, timeout=30)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found == FORMAT:
                return db
            if found == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                _create_tables(db, "main")
                db.execute(f"PRAGMA user_version = {FORMAT}")
                return db
        except sqlite3.DatabaseError:
            if attempt == 2:
                raise
        db.close()
        for suffix in ("", "-wal", "-shm"):  # unusable: the shards hold all of its data
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    raise AssertionError("a fresh index is always of the current format")


def _open_for_reading(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Opens an index. Returns also whether it is `fixed`."""
    # A writer has a log next to the index. Without one, SQLite would make one, and the folder of a run is only read.
    # `immutable` is also for read-only media, where the shared-memory file of the log cannot be made.
    live = path.with_name(f"{path.name}-wal").exists()
    for fixed in (False, True) if live else (True,):
        option = "mode=ro&immutable=1" if fixed else "mode=ro"
        try:
            db = sqlite3.connect(f"{path.resolve().as_uri()}?{option}", uri=True, check_same_thread=False, timeout=30)
            if db.execute("PRAGMA user_version").fetchone()[0] == FORMAT:
                db.execute("SELECT COUNT(*) FROM episodes WHERE rowid < 0").fetchone()
                return db, fixed
            db.close()
        except sqlite3.DatabaseError:
            continue
    db = sqlite3.connect(":memory:", check_same_thread=False)
    _create_tables(db, "main")
    return db, True


def _create_tables(db: sqlite3.Connection, schema: str) -> None:
    for table, struct in _TABLES.items():
        hints = get_type_hints(struct)
        columns = [f"{name} {_sql_type(hints[name])}" for name in struct.__struct_fields__]
        db.execute(f"CREATE TABLE {schema}.{table} ({', '.join(columns)}, PRIMARY KEY ({_KEYS[table]}))")
        for name in _INDEXED.get(table, ()):
            db.execute(f"CREATE INDEX {schema}.{table}_{name} ON {table} ({name})")


def _sql_type(hint: Any) -> str:
    """The SQLite type: `float` and `float | None` are both REAL."""
    bare = next((arm for arm in getattr(hint, "__args__", ()) if arm is not type(None)), hint)
    return _SQL_TYPES[bare]
