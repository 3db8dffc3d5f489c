"""The databases of Spider's dev set, from the MySQL dump in the package intercode-bench, as SQLite files.

Only data files of the installed package are read. The databases are kept in `$AGENTRL_CACHE/sql`, by default
`~/.cache/agentrl/sql`.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import hashlib
import os
import random
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path

from agentrl.types.errors import TaskError

PACKAGE = "intercode-bench==0.1.22"

LEFT_OUT = {
    "wta_1": "the dump holds no rows",
    "flight_2": "the dump is cut off",
}

_DROPPED = re.compile(r"(?is)(lock|unlock|drop|create user|create database|grant|flush|set|alter)\b")


def pairs() -> list[dict[str, str]]:
    """The questions of Spider in the package: `query` is the question, `gold` the SQL, `db` the database."""
    with _file("sql_queries.csv").open() as lines:
        return [row for row in csv.DictReader(lines) if row["db"] not in LEFT_OUT]


@functools.cache
def databases() -> dict[str, tuple[str, str]]:
    """Paths by name: the database, and its copy with other values, on which an answer must be right as well.

    Raises:
        TaskError: the package is not installed.
    """
    dump = _file("spider_dev.sql").read_bytes()
    folder = Path(os.environ.get("AGENTRL_CACHE") or Path.home() / ".cache" / "agentrl") / "sql"
    root = folder / f"spider-{hashlib.sha256(dump + Path(__file__).read_bytes()).hexdigest()[:16]}"
    if not (root / "done").is_file():
        _build(dump.decode(), root)
    names = sorted(path.stem for path in root.glob("*.sqlite") if not path.stem.endswith(".other"))
    return {name: (str(root / f"{name}.sqlite"), str(root / f"{name}.other.sqlite")) for name in names}


def tables(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns of each table."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
    return {name: [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')] for name in names}


def _file(name: str) -> Path:
    try:
        installed = metadata.distribution(PACKAGE.split("==")[0])
    except metadata.PackageNotFoundError:
        raise TaskError(
            "the data package intercode-bench is not installed", remedy=f"pip install --no-deps {PACKAGE}"
        ) from None
    (found,) = [file for file in installed.files or [] if file.name == name]
    return Path(str(installed.locate_file(found)))


def _build(dump: str, root: Path) -> None:
    """Writes all databases; `done` comes last."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as draft:
        opened: dict[str, sqlite3.Connection] = {}
        current: sqlite3.Connection | None = None
        for statement in _statements(dump):
            if used := re.search(r"(?is)^(?:create database.*?)?\buse\s+`?(\w+)", statement):
                current = opened.setdefault(used[1], sqlite3.connect(Path(draft) / f"{used[1]}.sqlite"))
            elif current is not None and not _DROPPED.match(statement):
                _run(current, _as_sqlite(statement))
        for name, connection in opened.items():
            connection.commit()
            if name not in LEFT_OUT:
                _with_other_values(name, connection, Path(draft) / f"{name}.other.sqlite")
            connection.close()
        for path in Path(draft).iterdir():
            if path.name.split(".")[0] not in LEFT_OUT:
                os.replace(path, root / path.name)
    (root / "done").touch()


def _statements(dump: str) -> Iterator[str]:
    """The statements of a MySQL dump, without comments; a semicolon in quotes ends none."""
    text = re.sub(r"(?m)^--.*$", "", re.sub(r"(?s)/\*!.*?\*/;?", "", dump))
    for found in re.finditer(r"(?s)(?:[^;'\"`]|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`)+", text):
        if statement := found[0].strip():
            yield statement


def _as_sqlite(statement: str) -> str:
    """A statement of MySQL in the words of SQLite."""
    if not re.match(r"(?is)create table", statement):
        return statement.replace("\\'", "''").replace('\\"', '"')
    text = re.sub(r"(?is)\)\s*ENGINE=.*$", ")", statement)
    text = re.sub(r"(?i)\s+(CHARACTER SET|COLLATE|CHARSET)\s*=?\s*\w+", "", text)
    text = re.sub(r"(?i)\bAUTO_INCREMENT\b|\bunsigned\b|\s+COMMENT '[^']*'|ON UPDATE CURRENT_TIMESTAMP", "", text)
    text = re.sub(r"(?i)\benum\([^)]*\)", "TEXT", text)
    lines = [line for line in text.split("\n") if not re.match(r"(?i)\s*(UNIQUE\s+)?KEY\s", line)]
    return re.sub(r",\s*\n\s*\)", ")", "\n".join(lines))


def _run(connection: sqlite3.Connection, statement: str) -> None:
    with contextlib.suppress(sqlite3.Error):  # one table of 81 has an index that MySQL alone can make
        connection.execute(statement)


def _with_other_values(name: str, connection: sqlite3.Connection, path: Path) -> None:
    """A copy in which a sixth of the rows is gone and all columns but the first hold values of other rows."""
    rng = random.Random(f"other values {name}")
    with closing(sqlite3.connect(path)) as other:
        for (made,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'"):
            other.execute(re.sub(r"(?is),\s*(CONSTRAINT|FOREIGN KEY|UNIQUE|PRIMARY KEY)\b.*\)", ")", made))
        for table, columns in tables(connection).items():
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
            values = list(zip(*rows, strict=True))
            kept = [
                (row[0], *(rng.choice(values[place]) for place in range(1, len(columns))))
                for row in rows
                if len(rows) < 6 or rng.random() > 1 / 6
            ]
            marks = ", ".join("?" * len(columns))
            other.executemany(f'INSERT OR IGNORE INTO "{table}" VALUES ({marks})', kept)
        other.commit()
