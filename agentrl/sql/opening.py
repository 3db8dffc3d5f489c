"""Opens a database by its file, or by the script that makes it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Literal

from agentrl.sql.duckdb import DuckDb, import_duckdb
from agentrl.sql.query import Database
from agentrl.sql.sqlite import Sqlite
from agentrl.types.errors import TaskError

Engine = Literal["sqlite", "duckdb"]


def open_database(
    where: str, *, engine: Engine | None = None, write: bool = False, copy: Path | None = None
) -> Database:
    """Opens a database.

    Args:
        where: path of a database's file, path of a script (its name ends in .sql), or the script itself: text with a
            line break or a semicolon.
        engine: default: `duckdb` for files that end in .duckdb, else `sqlite`.
        write: queries may change a private copy.
        copy: path of that copy, created if missing; default: it lasts as long as the object.

    Raises:
        TaskError: the file does not exist or is not a database, or the script fails.
        MissingExtra: duckdb is not installed.
    """
    require_database(where)
    named = "the script that makes the database" if is_script(where) else where
    if not is_script(where) and where.endswith(".sql"):
        where = f"{Path(where).read_text()}\n"  # the line break marks it as a script, whatever its content
    script = is_script(where)
    engine = engine_of(where, engine)
    if engine == "duckdb" and write and not script:
        raise TaskError("a DuckDB file can only be read", remedy="give the script that makes it")
    failures = (sqlite3.Error, *([import_duckdb().Error] if engine == "duckdb" else []))
    try:
        opened = Sqlite if engine == "sqlite" else DuckDb
        database = opened(where if script else str(Path(where).resolve()), script=script, write=write, copy=copy)
        database.schema()
    except failures as error:
        remedy = None if script else "a file is a database, or a script that makes one, whose name ends in .sql"
        raise TaskError(f"{named}: {error}", remedy=remedy) from None
    return database


def engine_of(where: str, engine: Engine | None) -> Engine:
    """The engine of a path or script: the one that is asked for, else by the file's ending."""
    return engine or ("duckdb" if not is_script(where) and where.endswith(".duckdb") else "sqlite")


def require_engine(where: str, engine: Engine | None) -> None:
    """Checks that the engine of a path or script is installed.

    Raises:
        MissingExtra: duckdb is not.
    """
    if engine_of(where, engine) == "duckdb":
        import_duckdb()


def is_script(where: str) -> bool:
    """Returns True if a text is a script, and not a path."""
    return ";" in where or "\n" in where


def require_database(where: str) -> None:
    """Checks that a path names a file.

    Raises:
        TaskError: it does not.
    """
    if not is_script(where) and not Path(where).is_file():
        at = "" if Path(where).is_absolute() else f" (no file {Path(where).absolute()})"
        raise TaskError(
            f"there is no database {where!r}{at}",
            remedy="in the recipe ./FILE is relative to the recipe; in task.data a path is relative to the folder that "
            "the command runs in: give an absolute one there",
        )
