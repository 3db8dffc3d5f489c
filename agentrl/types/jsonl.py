"""Data files that people bring: a JSON object per line, each with its place for messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.types.errors import TaskError


class JsonRow(NamedTuple):
    """An object of a file, and the line that it stands on; `place`: `file:line`."""

    number: int
    place: str
    data: dict[str, Any]


def read_rows(path: Path, key: str) -> Iterator[JsonRow]:
    """The objects of a file; empty lines are passed over.

    Args:
        key: of the recipe, that names the file.

    Raises:
        TaskError: there is no such file, or a line is no JSON object.
    """
    if not path.is_file():
        raise TaskError(f"there is no file {path}", place=key, remedy="paths are relative to the recipe")
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
        raise TaskError(f"not valid JSON: {error.msg} at column {error.colno}", place=place) from None
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, lists thousands deep
        raise TaskError(f"the row cannot be read: {error}", place=place) from None
    if not isinstance(row, dict):
        raise TaskError(f"a row is an object, found {type(row).__name__}", place=place)
    return row
