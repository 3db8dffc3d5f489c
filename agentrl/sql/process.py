"""Functions of the helper process for the databases of a model: it opens, queries and describes them.

A read-only database stays open for later queries. A writable one is a file, which each query opens again: a query that
is ended loses only its own changes.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.sql.opening import Engine, is_script, open_database
from agentrl.sql.query import Database, QueryFailed, QueryLimits, Result
from agentrl.types.errors import AgentRLError

MEMORY_MB = 1536
"""Of a process: SQLite's heap, or DuckDB's, and the rows of a result."""
_HEAP = 384 << 20  # bytes that SQLite takes: databases of scripts, sorting, joining and grouping
_OPEN = 4  # databases that stay open
_CELL = 200  # characters of a value that are shown
_SAID = 2000  # characters of a database's message

_databases: OrderedDict[tuple[Any, ...], Database] = OrderedDict()


def prepare() -> None:
    """Limits SQLite's memory in this process."""
    sqlite3.connect(":memory:").execute(f"PRAGMA hard_heap_limit = {_HEAP}")


def opened(where: str, engine: Engine | None, copy: str | None) -> dict[str, Any]:
    """Opens a database, so that errors in it are reported before the first query.

    Args:
        copy: path of the writable copy; None: read-only.

    Returns:
        Its `state`, or the error as `wrong`, and the `remedy`.
    """
    try:
        with _database(where, engine, copy) as database:
            return {"state": database.state() if copy else ""}
    except QueryFailed as failure:
        return {"wrong": str(failure), "remedy": None}
    except AgentRLError as error:
        return {"wrong": error.message, "remedy": error.remedy}


def shown(
    where: str, engine: Engine | None, copy: str | None, query: str, rows: int, chars: int, seconds: float
) -> dict[str, Any]:
    """Runs a query: the `text` that the model is shown, and whether the database `changed`; or why it `failed`."""
    before = _stamp(copy)
    limits = QueryLimits(rows=rows, bytes=16 << 20, value=1 << 20, seconds=seconds)
    found = _tried(where, engine, copy, lambda database: _table(database.run(query, limits), chars))
    return found if "failed" in found else {**found, "changed": _stamp(copy) != before}


def described(where: str, engine: Engine | None, copy: str | None) -> dict[str, Any]:
    """Returns the CREATE statements by table as `text`, or the error as `failed`."""
    return _tried(where, engine, copy, lambda database: database.schema())


def state(where: str, engine: Engine | None, copy: str | None) -> str:
    """A hash of all rows of all tables."""
    with _database(where, engine, copy) as database:
        return database.state()


def _tried(where: str, engine: Engine | None, copy: str | None, work: Callable[[Database], Any]) -> dict[str, Any]:
    try:
        with _database(where, engine, copy) as database:
            return {"text": work(database)}
    except QueryFailed as failure:
        return {"failed": cut(str(failure), _SAID)}
    except AgentRLError as error:  # its file is gone
        return {"failed": error.message}


@contextmanager
def _database(where: str, engine: Engine | None, copy: str | None) -> Iterator[Database]:
    if copy is not None:
        database = open_database(where, engine=engine, write=True, copy=Path(copy))
        try:
            yield database
        finally:
            database.close()
        return
    key = (where, engine, *_stamp(None if is_script(where) else where))
    if (kept := _databases.pop(key, None)) is None:
        kept = open_database(where, engine=engine)
    _databases[key] = kept
    while len(_databases) > _OPEN:
        _databases.popitem(last=False)[1].close()
    yield kept


def _stamp(path: str | None) -> tuple[int, ...]:
    """Returns inode, modification time and size of a file, to detect changes."""
    if path is None or not Path(path).exists():
        return ()
    found = Path(path).stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _table(result: Result, chars: int) -> str:
    if not result.columns:
        return "done"
    lines = [" | ".join(map(_cell, result.columns)), *(" | ".join(map(_cell, row)) for row in result.rows)]
    count = f"({len(result.rows)} row{'s' if len(result.rows) != 1 else ''})"
    return "\n".join([cut("\n".join(lines), chars), f"(the first {len(result.rows)} rows)" if result.more else count])


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return str(value)
    text = f"x'{value[:_CELL].hex()}'" if isinstance(value, bytes) else " ".join(str(value).split())
    return text if len(text) <= _CELL else f"{text[:_CELL]}..."


def cut(text: str, limit: int) -> str:
    """Returns the first `limit` characters of a text, and the number of further ones."""
    return text if len(text) <= limit else f"{text[:limit]}\n[... {len(text) - limit} more characters]"
