"""Readable errors for a full disk in all writes to a run."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.types.errors import InfraError, StoreError

REMEDY = "free some disk space and run the same command again: it goes on"


class DiskFull(StoreError, InfraError):
    """A run cannot be written. An episode that meets it failed by its host, not by a bug of user code.

    No budget counts it: the run stops where its next record is stored.
    """

    cause = ""
    retried = False


_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_of_a_full_disk(error: BaseException | None) -> bool:
    """Returns True if an exception or one of its causes reports a full disk; safetensors has it only in the message."""
    while error is not None:
        number = error.errno if isinstance(error, OSError) else None
        if number in _FULL or any(f"(os error {each})" in str(error) for each in _FULL):
            return True
        if isinstance(error, sqlite3.Error) and "disk is full" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def told_if_full(path: Path) -> Iterator[None]:
    """Converts errors of writes in the block.

    Raises:
        DiskFull: the disk is full. Data stored before remains.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not is_of_a_full_disk(error):
            raise
        raise DiskFull("the disk is full", place=str(path), remedy=REMEDY) from error
