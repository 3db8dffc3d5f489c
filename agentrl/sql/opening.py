"""Opens a database by its file or by the script that makes it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal

from agentrl.sql.duckdb import DuckDb, import_duckdb
from agentrl.sql.query import Database
from agentrl.sql.sqlite import Sqlite
from agentrl.types.errors import TaskError

Engine = Literal["sqlite", "duckdb"]


def open_database(where: str, *, engine: Engine | None = None, write: bool = False) -> Database:
    """Opens a database.

    Args:
        where: path of a file, or a script: text with a line break or a semicolon.
        engine: default: `duckdb` for files that end on .duckdb, else `sqlite`.
        write: queries may change it. They change a copy that nobody else sees.

    Raises:
        TaskError: there is no such file, it is no database, or the script fails.
        MissingExtra: duckdb is not installed.
    """
    script = ";" in where or "\n" in where
    if not script and not Path(where).is_file():
        raise TaskError(f"there is no database {where!r}")
    engine = engine or ("duckdb" if not script and where.endswith(".duckdb") else "sqlite")
    if engine == "duckdb" and write and not script:
        raise TaskError("a DuckDB file can only be read", remedy="give the script that makes it")
    failures = (sqlite3.Error, *([import_duckdb().Error] if engine == "duckdb" else []))
    try:
        opened = Sqlite if engine == "sqlite" else DuckDb
        database = opened(where if script else str(Path(where).resolve()), script=script, write=write)
        database.schema()
    except failures as error:
        named = "the script that makes the database" if script else where
        raise TaskError(f"{named}: {error}") from None
    return database
