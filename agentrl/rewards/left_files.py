"""Files that the agent left: by path, by pattern, or all of a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentrl.rewards.isolation import is_loaded_by_itself, is_other_code

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

MOST_FILES, MOST_FOLDERS = 1000, 2000
_LARGEST = 16 << 20  # bytes of a file
_MOST = 64 << 20  # bytes of all files


class NotLeft(Exception):
    """A file is not there, cannot be read, or there are too many; the message is the note of the reward."""


async def files_left(sandbox: Sandbox, entries: Sequence[str]) -> dict[str, bytes]:
    """Returns the content of files by path, in the order of the entries.

    A pattern (`src/**/*.py`) or a folder (`src/`) gives what it finds, sorted by path: no hidden files, no code but
    Python, and no file that Python or a test runner loads by itself. Links to folders are not followed.

    Raises:
        NotLeft: an entry gives no file, or one that cannot be read; or there are too many, or they are too large.
        SandboxLost: the sandbox is gone.
    """
    found: dict[str, bytes] = {}
    size = 0
    for entry in entries:
        paths = await _matching(sandbox, entry) if is_pattern(entry) else [entry]
        if not paths:
            raise NotLeft(f"the agent left no file {entry}")
        for path in paths:
            if path in found:
                continue
            try:
                found[path] = await sandbox.read(path, limit=_LARGEST)
            except FileNotFoundError:
                raise NotLeft(f"the agent left no {path}") from None
            except OSError as error:
                raise NotLeft(f"what the agent left at {path}: {error.strerror or error}") from None
            size += len(found[path])
            if len(found) > MOST_FILES or size > _MOST:
                raise NotLeft(f"the agent left more than {MOST_FILES} files or {_MOST >> 20} MiB at {entry}")
    return found


def is_pattern(entry: str) -> bool:
    """Returns True for an entry that names no single file: a pattern, or a folder with a slash at its end."""
    return bool(set(entry) & set("*?[")) or entry.endswith("/")


async def _matching(sandbox: Sandbox, entry: str) -> list[str]:
    pattern = f"{entry}**" if entry.endswith("/") else entry
    wanted = re.compile(_translated(pattern))
    fixed = re.split(r"[*?\[]", pattern)[0].rpartition("/")[0]
    found, queue, seen = [], [fixed or ("/" if pattern.startswith("/") else "")], 0
    while queue:
        folder = queue.pop()
        seen += 1
        if seen > MOST_FOLDERS:
            raise NotLeft(f"the agent left more than {MOST_FOLDERS} folders at {entry}")
        try:
            inside = await sandbox.list(folder or ".")
        except OSError:
            continue  # no folder, or not readable
        for each in inside:
            path = f"{folder.rstrip('/')}/{each.name}" if folder else each.name
            if each.name.startswith(".") or each.name == "__pycache__":
                continue
            if each.kind == "folder":
                queue.append(path)
            elif each.kind in ("file", "link") and wanted.fullmatch(path) and not _left_out(path):
                found.append(path)
    return sorted(found)


def _left_out(path: str) -> bool:
    return is_other_code(path) or is_loaded_by_itself(path)


def _translated(pattern: str) -> str:
    """Returns a pattern of paths as a regular expression: `*` ends at a slash, `**` does not."""
    said, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            said, at = f"{said}(?:[^/]+/)*", at + 3
        elif pattern.startswith("**", at):
            said, at = f"{said}.*", at + 2
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            held = pattern[at + 1 : end].replace("\\", r"\\")
            said, at = f"{said}[{'^' + held[1:] if held[0] == '!' else held}]", end + 1
        else:
            said, at = said + {"*": "[^/]*", "?": "[^/]"}.get(pattern[at], re.escape(pattern[at])), at + 1
    return said
