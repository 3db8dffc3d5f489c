"""SQLite: a file that is only read, or a copy in memory that an episode may change."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from agentrl.sql.query import Database, QueryFailed, QueryLimits, Result, read

STEPS = 50_000_000
"""Maximum steps of SQLite's virtual machine per query: a limit independent of the clock."""

_LARGEST = 256 << 20  # bytes of a database that is written
_EVERY = 10_000  # steps between two looks at the clock
_FAILURES = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError)
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_LOCKED_S = 0.02  # between two tries while another process writes the file

# Allowed actions of a query. All others are refused, also those that a later SQLite adds.
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE}
_WRITING = {
    sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW, sqlite3.SQLITE_CREATE_TRIGGER,
    sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_VIEW, sqlite3.SQLITE_DROP_TRIGGER,
    sqlite3.SQLITE_ALTER_TABLE, sqlite3.SQLITE_REINDEX, sqlite3.SQLITE_ANALYZE, sqlite3.SQLITE_DROP_VTABLE,
}  # fmt: skip
_PRAGMAS = {
    "table_info", "table_xinfo", "table_list", "foreign_key_list", "index_list", "index_info",
    "data_version", "page_size",  # full-text search asks for them
}  # fmt: skip
_MODULES = {"json_each", "json_tree", *(f"pragma_{name}" for name in _PRAGMAS)}
"""Virtual tables that are there in every database."""
_OF_VALUES = """
abs char coalesce concat concat_ws format glob hex if ifnull iif instr length like likelihood likely lower ltrim max min
nullif octet_length printf quote replace round rtrim sign soundex substr substring trim typeof unhex unicode unistr
unistr_quote unlikely upper zeroblob changes last_insert_rowid total_changes sqlite_version
acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod pi pow power
radians sin sinh sqrt tan tanh trunc date datetime julianday strftime time timediff unixepoch
-> ->> json json_array json_array_insert json_array_length json_error_position json_extract json_insert json_object
json_patch json_pretty json_quote json_remove json_replace json_set json_type json_valid jsonb jsonb_array jsonb_extract
jsonb_insert jsonb_object jsonb_patch jsonb_remove jsonb_replace jsonb_set subtype
"""
"""Reruns of an episode must give the same results: random numbers and CURRENT_TIMESTAMP are not available."""
_OF_ROWS = """
avg count group_concat json_group_array json_group_object jsonb_group_array jsonb_group_object median percentile
percentile_cont percentile_disc string_agg sum total cume_dist dense_rank first_value lag last_value lead nth_value
ntile percent_rank rank row_number bm25 highlight match matchinfo offsets snippet
"""
_FUNCTIONS = {*_OF_VALUES.split(), *_OF_ROWS.split()}
_RENAMING = {
    "sqlite_rename_column", "sqlite_rename_table", "sqlite_rename_test", "sqlite_rename_quotefix", "sqlite_drop_column",
}  # fmt: skip
"""Internal functions of ALTER TABLE, which queries may not call."""


class Sqlite(Database):
    """An SQLite database.

    Args:
        where: path of a file, or a script that makes the database.
        script: `where` is a script.
        write: queries may change it, in a copy.
        copy: path of that copy, which is made unless it is there; default: it is in memory.
    """

    def __init__(self, where: str, *, script: bool = False, write: bool = False, copy: Path | None = None) -> None:
        # Autocommit (None): no transaction of Python's own, which the authoriser would refuse.
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
        if script or write:
            made = copy is not None and copy.exists()
            self.connection = sqlite3.connect(copy or ":memory:", **options)
            self.connection.executescript("PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY")  # no files of sorts
            if not made and script:
                self.connection.executescript(where)
            elif not made:
                with closing(sqlite3.connect(f"{Path(where).as_uri()}?mode=ro", uri=True)) as file:
                    file.backup(self.connection)
        else:
            self.connection = sqlite3.connect(f"{Path(where).as_uri()}?mode=ro", uri=True, **options)
            self.connection.execute("PRAGMA temp_store = MEMORY")
        self.write = write
        self.connection.text_factory = _decoded
        self.connection.executescript(
            f"PRAGMA max_page_count = {_LARGEST // 4096}; PRAGMA trusted_schema = OFF; PRAGMA busy_timeout = 0; "
            f"PRAGMA query_only = {int(not write)}"
        )
        own = {name.lower() for (name,) in self.connection.execute("SELECT name FROM sqlite_master")}
        modules = {name.lower() for (name,) in self.connection.execute("PRAGMA module_list")}
        self._closed = modules - _MODULES - own
        self._begin_virtual_tables()
        self.connection.set_authorizer(self._allows)

    def _begin_virtual_tables(self) -> None:
        """Initialises each virtual table with an empty read, so that queries are not charged for its setup."""
        listed = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'create virtual %'"
        for (name,) in self.connection.execute(listed).fetchall():
            with suppress(*_FAILURES):  # it is broken, or its module is missing: the query reports it
                self.connection.execute('SELECT 1 FROM "{}" LIMIT 0'.format(name.replace('"', '""')))

    def _allows(self, action: int, what: str | None, more: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ:  # asked for each column of a query
            allowed = (what or "").lower() not in self._closed
        elif action in _READING:
            allowed = True
        elif action == sqlite3.SQLITE_PRAGMA:
            allowed = (what or "").lower() in _PRAGMAS
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed = (name := (more or "").lower()) in _FUNCTIONS or (self.write and name in _RENAMING)
        elif action == sqlite3.SQLITE_UPDATE and what == "sqlite_master":
            allowed = True  # a virtual table declares its columns; a query that changes this table is refused always
        else:
            allowed = self.write and action in _WRITING and (what or "").lower() not in self._closed
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _run(self, query: str, limits: QueryLimits) -> Result:
        left, until, over = STEPS // _EVERY, time.process_time() + limits.seconds, ""
        locked_until = time.monotonic() + limits.seconds

        def tick() -> int:
            nonlocal left, over
            left -= 1
            if left < 0:
                over = f"the query took more than {STEPS // 1_000_000} million steps"
            elif time.process_time() > until:
                over = f"the query took longer than {limits.seconds:g} s"
            return int(bool(over))

        self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.value)
        self.connection.set_progress_handler(tick, _EVERY)
        try:
            while True:
                try:
                    with closing(self.connection.execute(query.strip().rstrip(";"))) as cursor:
                        return read(_columns(cursor), cursor, limits)
                except _FAILURES as error:
                    if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _LOCKED or time.monotonic() > locked_until:
                        raise QueryFailed(over or self._said(error)) from None
                time.sleep(_LOCKED_S)
        finally:
            self.connection.set_progress_handler(None, 0)

    def _said(self, error: Exception) -> str:
        text = str(error) or type(error).__name__
        if "not authorized" in text and not self.write:
            return f"{text}: the database can only be read"
        return text

    def reads(self, query: str) -> set[str]:
        """Returns the tables and columns that a query reads, as `table` and `table.column` in lower case.

        Raises:
            QueryFailed: it is not a valid query of this database.
        """
        found: set[str] = set()

        def note(action: int, table: str | None, column: str | None, *more: str | None) -> int:
            if action == sqlite3.SQLITE_READ and table:
                found.update({table.lower(), f"{table}.{column}".lower()} if column else {table.lower()})
            return self._allows(action, table, column, *more)

        self.connection.set_authorizer(note)
        try:
            self.run(f"EXPLAIN {query}", QueryLimits())
        finally:
            self.connection.set_authorizer(self._allows)
        return found

    def schema(self) -> dict[str, str]:
        listed = "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
        return {name: made for name, made in self.run(listed, QueryLimits()).rows}

    def close(self) -> None:
        self.connection.close()


def _decoded(raw: bytes) -> str:
    """Decodes bytes, with replacements if they are not UTF-8."""
    return raw.decode(errors="replace")


def _columns(cursor: sqlite3.Cursor) -> list[str]:
    return [column[0] for column in cursor.description or ()]
