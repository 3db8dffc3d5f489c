"""One writer per run: an advisory lock that ends with its process, also after `kill -9`.

This replaces filelock, which does not name the holder, cannot be queried without being acquired, and falls back to a
file that survives `kill -9` if there is no flock.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from agentrl.types.errors import StoreError


class Lock:
    """Holds the lock file `path`. The kernel releases the lock when the process ends, so a lock is never stale.

    Raises:
        StoreError: another writer holds the lock; the message contains its process id.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._fd, 32, 0).decode().strip() or "unknown"
            os.close(self._fd)
            raise StoreError(
                f"the run is being written by process {holder}",
                place=str(path.parent),
                remedy="wait for it, stop it, or write to another folder",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Releases the lock. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_held(path: Path) -> bool:
    """Returns True if a process holds the lock."""
    if not path.exists():
        return False
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
