"""Reads JSON Lines and JSON files of users, each row with its place for messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.types.errors import TaskError

_FORM = 'a JSON object a line: {"key": "value", ...}'


class JsonRow(NamedTuple):
    """JSON object of a file and its line number; `place`: `file:line`."""

    number: int
    place: str
    data: dict[str, Any]


def read_rows(path: Path, key: str) -> Iterator[JsonRow]:
    """Yields the objects of a file; empty lines are skipped. A file `*.json` may also be one object, or a list of them.

    Args:
        key: key of the recipe that names the file.

    Raises:
        TaskError: the file does not exist, or a line is not a JSON object.
    """
    if not path.is_file():
        raise TaskError(f"there is no file {path}", place=key, remedy="paths are relative to the recipe")
    if path.suffix == ".json" and (whole := _whole(path)) is not None:
        for number, row in enumerate(whole, 1):
            place = f"{path}, row {number}"
            yield JsonRow(number, place, _object(row, place))
        return
    with path.open("rb") as lines:
        for number, written in enumerate(lines, 1):
            place = f"{path}:{number}"
            line = _text(written, place, key)
            if line.strip():
                yield JsonRow(number, place, _row(line, place))


def _text(line: bytes, place: str, key: str) -> str:
    try:
        return line.decode("utf-8-sig" if place.endswith(":1") else "utf-8")
    except UnicodeDecodeError as error:
        remedy = f"{key} is text, a JSON object a line"
        if key == "tasks.jsonl":
            remedy += "; tasks.source names a function that reads other files"
        raise TaskError(f"not UTF-8 text: {error}", place=place, remedy=remedy) from None


def _row(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise TaskError(f"not valid JSON: {error.msg} at column {error.colno}", place=place, remedy=_FORM) from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, lists thousands deep
        raise TaskError(f"the row cannot be read: {error}", place=place) from None
    return _object(row, place)


def _object(row: Any, place: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TaskError(f"a row is an object, found {type(row).__name__}", place=place, remedy=_FORM)
    return row


def _whole(path: Path) -> list[Any] | None:
    """Returns the rows of a file of one JSON value; None if it is none: it may hold JSON lines."""
    try:
        value = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else [value]
