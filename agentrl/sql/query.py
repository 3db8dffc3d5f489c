"""Limits of a query, its result, and the interface of a database."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class QueryFailed(Exception):
    """A query was refused, failed, or exceeded a limit. The message is shown to the model that wrote it."""


@dataclass(frozen=True)
class QueryLimits:
    """Limits of one query.

    Attributes:
        rows: rows that are read; further ones are not read (`Result.more`).
        bytes: size of all values that are read.
        value: bytes of one value, also of intermediate ones (SQLite).
        seconds: processor time of this process.
    """

    rows: int = 100_000
    bytes: int = 256 << 20
    value: int = 32 << 20
    seconds: float = 30.0


@dataclass(frozen=True)
class Result:
    """The rows of a query.

    Attributes:
        more: further rows exist.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool = False


class Database(ABC):
    """An open database. One thread at a time."""

    def run(self, query: str, limits: QueryLimits) -> Result:
        """Runs one statement.

        Raises:
            QueryFailed: see there.
        """
        if (wrong := _wrong(query)) is not None:
            raise QueryFailed(wrong)
        return self._run(query, limits)

    @abstractmethod
    def _run(self, query: str, limits: QueryLimits) -> Result: ...

    @abstractmethod
    def schema(self) -> dict[str, str]:
        """Returns the CREATE statements by table."""

    @abstractmethod
    def close(self) -> None:
        """Closes the database. Changes are lost."""

    def state(self) -> str:
        """A hash of all rows of all tables, in the order in which the database gives them."""
        digest = hashlib.sha256()
        for name, made in sorted(self.schema().items()):
            found = self.run('SELECT * FROM "{}"'.format(name.replace('"', '""')), QueryLimits())
            digest.update(f"{made}\n{found.rows}\n".encode())
        return digest.hexdigest()[:16]


def _wrong(query: str) -> str | None:
    """Returns why a text is not a query of any database, else None."""
    if not query.strip(" \t\r\n;"):
        return "the query is empty"
    if "\0" in query or (not query.isascii() and any("\ud800" <= character <= "\udfff" for character in query)):
        return "the query holds what is no character"
    return None


def read(columns: list[str], found: Iterable[tuple[Any, ...]], limits: QueryLimits) -> Result:
    """Reads rows until they end or a limit is met.

    Raises:
        QueryFailed: the values are more than `limits.bytes`, or the time is up.
    """
    rows: list[tuple[Any, ...]] = []
    size, until = 0, time.process_time() + limits.seconds
    for row in found:
        if len(rows) == limits.rows:
            return Result(columns, rows, more=True)
        size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if size > limits.bytes:
            raise QueryFailed(f"more than {limits.bytes >> 20} MiB of values")
        if time.process_time() > until:
            raise QueryFailed(f"the query took longer than {limits.seconds:g} s")
        rows.append(tuple(row))
    return Result(columns, rows)
