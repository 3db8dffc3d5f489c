"""SQLite: a file that is only read, or a copy in memory that an episode may change."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from agentrl.sql.query import Database, Limits, QueryFailed, Result, read

STEPS = 50_000_000
"""What a query may take of SQLite's virtual machine: a bound that does not depend on the clock."""

_LONGEST = 32 << 20  # bytes of one value
_LARGEST = 256 << 20  # bytes of a database that is written
_EVERY = 10_000  # steps between two looks at the clock
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
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
        self.connection.text_factory = lambda raw: raw.decode(errors="replace")
        self.connection.set_authorizer(self._allows)

    def _allows(self, action: int, what: str | None, more: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_PRAGMA:
            allowed = (what or "").lower() in _ASKING
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed = (more or "").lower() not in _NEVER
        elif self.write:
            allowed = action not in _OUTSIDE
        else:
            allowed = action in _READING
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

        self.connection.set_progress_handler(tick, _EVERY)
        try:
            with closing(self.connection.execute(query.strip().rstrip(";"))) as cursor:
                return read([column[0] for column in cursor.description or ()], cursor, limits)
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            raise QueryFailed(over or self._said(error)) from None
        finally:
            self.connection.set_progress_handler(None, _EVERY)

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
