"""The built-in signature `files`: a hash of the sandbox's files, of what a shell and an editor change."""

from __future__ import annotations

import re

from agentrl.rollouts.states.registry import PLACE, Moment
from agentrl.types.errors import RecipeError

SKIPPED = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    "node_modules",
    ".cache",
)
"""Folders whose files do not count: caches, and records of what the files were."""

_LARGE_KIB = 2048
_UNKNOWN = 127  # exit code of a shell that does not find a command


async def files(moment: Moment, folder: str | None = None, timeout_s: float = 20.0) -> str | None:
    """Hash of the names and contents of the files in the sandbox: turns share a state while the files are the same,
    whatever was read or tried in between. `.git` and caches (`__pycache__`, `node_modules`, ...) do not count, and of a
    file above 2 MiB only the size does. The state is unknown if hashing takes longer than `timeout_s`.

    Args:
        folder: the folder to hash; default: the workdir.
        timeout_s: of the command that hashes.

    Raises:
        RecipeError: the episode has no sandbox, or its image lacks `find`, `sort`, `stat` or `sha256sum`.
    """
    if moment.sandbox is None:
        raise RecipeError(
            "the signature files hashes the files of the sandbox, and the episode has none",
            place=PLACE,
            remedy="use agent.state: tools or history, or add a tool that works in a sandbox (shell, files)",
        )
    found = await moment.sandbox.exec(["sh", "-c", _COMMAND], cwd=folder, timeout_s=timeout_s)
    if found.code == _UNKNOWN:
        raise RecipeError(
            f"the files of the sandbox cannot be hashed: {found.text.strip()[-200:]}",
            place=PLACE,
            remedy="use an image with find, sort, stat and sha256sum, or agent.state: history",
        )
    key = re.match(rb"[0-9a-f]{64}", found.stdout)
    return key[0].decode()[:32] if found.ok and key is not None else None


_PRUNED = " -o ".join(f"-name {name}" for name in SKIPPED)
# Folders and targets of links are state, too. `find` fails where a file vanishes: the last command alone counts.
_COMMAND = (
    "command -v find >/dev/null && command -v stat >/dev/null && command -v sort >/dev/null || exit 127; "
    f"find . -xdev '(' -type d '(' {_PRUNED} ')' ')' -prune -o '(' -type d -print ')' -o '(' -type l -exec stat -c "
    f"'%N' '{{}}' + ')' -o '(' -type f -size -{_LARGE_KIB}k -exec sha256sum '{{}}' + ')' -o '(' -type f -exec stat -c "
    "'%n %s' '{}' + ')' 2>/dev/null | LC_ALL=C sort | sha256sum"
)
