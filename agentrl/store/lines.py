"""Plain JSON-lines files (`metrics.jsonl`, `failures.jsonl`), for `tail -f` and `jq`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from agentrl.types.errors import StoreError
from agentrl.types.values import scrubbed


def append_line(path: Path, entry: dict[str, Any]) -> None:
    """Appends one entry in one write, so that readers never see a partial entry."""
    try:
        data = msgspec.json.encode(entry, enc_hook=_plain) + b"\n"
    except UnicodeEncodeError:  # lone surrogates: shown as "?"
        data = msgspec.json.encode(scrubbed(msgspec.to_builtins(entry, enc_hook=_plain))) + b"\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The entries, without a torn last line.

    Raises:
        StoreError: another line is not JSON.
    """
    if not path.exists():
        return []
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            entries.append(msgspec.json.decode(line))
        except msgspec.DecodeError as error:
            raise StoreError(
                f"not JSON: {error}", place=f"{path}:{number}", remedy="delete the line or restore the file"
            ) from None
    return entries


def cut_torn_line(path: Path) -> int:
    """Cuts off a last line without a newline. Returns the number of bytes removed."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    return len(data) - whole


def _plain(value: Any) -> Any:
    """Converts NumPy and torch scalars and arrays to Python numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"cannot store a {type(value).__name__}")
