"""SQLite: a file that is only read, or a copy in memory that an episode may change."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from agentrl.sql.query import Database, Limits, QueryFailed, Result, read

STEPS = 50_000_000
"""What a query may take of SQLite's virtual machine: a bound that does not depend on the clock."""

_LONGEST = 32 << 20  # bytes of one value
_LARGEST = 256 << 20  # bytes of a database that is written
_EVERY = 10_000  # steps between two looks at the clock
_FAILURES = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError)

GLANCE_S = 0.002
"""Seconds that a glance may take. The clock is read between steps; the other limits keep each step short."""
_GLANCE_EVERY = 2000  # steps
_GLANCE_BYTES = 8 << 20  # of a database: counting the rows of a table is one step
_GLANCE_CHARS, _GLANCE_SELECTS = 1000, 4  # of a query: compiling it cannot be interrupted
_GLANCE_LIMITS = {sqlite3.SQLITE_LIMIT_LENGTH: 4000, sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 30}
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_LOCKED_S = 0.02  # between two tries while another process writes the file
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_OUTSIDE = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_CREATE_VTABLE}
_ASKING = {"table_info", "table_xinfo", "table_list", "foreign_key_list", "index_list", "index_info"}
_NEVER = {"load_extension", "random", "randomblob"}  # an episode that runs again sees the same


class Sqlite(Database):
    """An SQLite database.

    Args:
        where: path of a file, or a script that makes the database.
        script: `where` is a script.
        write: queries may change it, in a copy that is in memory.
    """

    def __init__(self, where: str, *, script: bool = False, write: bool = False) -> None:
        # Autocommit (None): no transaction of Python's own, which the authoriser would refuse.
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
        if script or write:
            self.connection = sqlite3.connect(":memory:", **options)
            if script:
                self.connection.executescript(where)
            else:
                with closing(sqlite3.connect(f"{Path(where).as_uri()}?mode=ro", uri=True)) as file:
                    file.backup(self.connection)
        else:
            self.connection = sqlite3.connect(f"{Path(where).as_uri()}?mode=ro", uri=True, **options)
        self.write = write
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        self.connection.execute(f"PRAGMA max_page_count = {_LARGEST // 4096}")
        pages, size = (self.connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
        self._glances = not write and pages * size <= _GLANCE_BYTES
        self._limits = {limit: self.connection.getlimit(limit) for limit in _GLANCE_LIMITS}
        self._until = 0.0
        self._keep_short()
        self.connection.execute("PRAGMA busy_timeout = 0")  # `run` waits for other processes, `glance` may not
        self.connection.set_authorizer(self._allows)

    def _allows(self, action: int, what: str | None, more: str | None, *_: str | None) -> int:
        if action in _READING:  # asked for each column of a query
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_PRAGMA:
            allowed = (what or "").lower() in _ASKING
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed = (more or "").lower() not in _NEVER
        else:
            allowed = self.write and action not in _OUTSIDE
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _run(self, query: str, limits: Limits) -> Result:
        left, until, over = STEPS // _EVERY, time.monotonic() + limits.seconds, ""

        def tick() -> int:
            nonlocal left, over
            left -= 1
            if left < 0:
                over = f"the query took more than {STEPS // 1_000_000} million steps"
            elif time.monotonic() > until:
                over = f"the query took longer than {limits.seconds:g} s"
            return int(bool(over))

        try:
            self._let_run(tick)
            while True:
                try:
                    with closing(self.connection.execute(query.strip().rstrip(";"))) as cursor:
                        return read(_columns(cursor), cursor, limits)
                except _FAILURES as error:
                    if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _LOCKED or time.monotonic() > until:
                        raise QueryFailed(over or self._said(error)) from None
                time.sleep(_LOCKED_S)
        finally:
            self._keep_short()

    def _glance(self, query: str, limits: Limits) -> Result | None:
        if not self._glances or not _is_short(query):
            return None
        self._until = time.monotonic() + GLANCE_S
        try:
            with closing(self.connection.execute(query.strip().rstrip(";"))) as cursor:
                rows, columns = cursor.fetchmany(limits.rows + 1), _columns(cursor)
            if len(rows) * len(columns) * _GLANCE_LIMITS[sqlite3.SQLITE_LIMIT_LENGTH] > limits.bytes:
                return None
            return Result(columns, rows[: limits.rows], more=len(rows) > limits.rows)
        except _FAILURES:
            return None

    def _let_run(self, tick: Callable[[], int]) -> None:
        """Settings of a query in a thread. `tick` is called now and then, and ends it if it returns what is true."""
        for limit, most in self._limits.items():
            self.connection.setlimit(limit, most)
        self.connection.text_factory = _decoded
        self.connection.set_progress_handler(tick, _EVERY)

    def _keep_short(self) -> None:
        """Settings of a query at a glance."""
        for limit, most in _GLANCE_LIMITS.items():
            self.connection.setlimit(limit, most)
        self.connection.text_factory = str
        self.connection.set_progress_handler(lambda: time.monotonic() > self._until, _GLANCE_EVERY)

    def _said(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        if "not authorized" in text and not self.write:
            return f"{text}: the database can only be read"
        return text

    def reads(self, query: str) -> set[str]:
        """The tables and columns that a query reads, as `table` and `table.column` in lower case.

        Raises:
            QueryFailed: it is no query of this database.
        """
        found: set[str] = set()

        def note(action: int, table: str | None, column: str | None, *more: str | None) -> int:
            if action == sqlite3.SQLITE_READ and table:
                found.update({table.lower(), f"{table}.{column}".lower()} if column else {table.lower()})
            return self._allows(action, table, column, *more)

        self.connection.set_authorizer(note)
        try:
            self.run(f"EXPLAIN {query}", Limits())
        finally:
            self.connection.set_authorizer(self._allows)
        return found

    def schema(self) -> dict[str, str]:
        listed = "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
        return {name: made for name, made in self.run(listed, Limits()).rows}

    def close(self) -> None:
        self.connection.close()


def _is_short(query: str) -> bool:
    """Whether a query compiles quickly and fails at a limit of SQLite. `printf` does not: it returns NULL there."""
    words = query.lower()
    short = len(query) <= _GLANCE_CHARS and words.count("select") <= _GLANCE_SELECTS
    return short and "printf" not in words and "format" not in words


def _decoded(raw: bytes) -> str:
    """Text, also if the bytes are no UTF-8."""
    return raw.decode(errors="replace")


def _columns(cursor: sqlite3.Cursor) -> list[str]:
    return [column[0] for column in cursor.description or ()]
