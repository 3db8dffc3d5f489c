"""Settings of glibc's malloc for freed memory."""

from __future__ import annotations

import ctypes
import functools
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>

KEPT = 512 << 20
"""Free memory in bytes at the end of the heap that the process keeps."""

LARGE = 64 << 20
"""Size in bytes from which a freed tensor is returned to the system at once."""


@functools.cache
def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory within the limits above. Does nothing with other C libraries.

    By default a freed tensor of a few MiB is returned to the system, and the next tensor of that size costs a page
    fault per 4 KiB: 7,600 of them to draw tokens for 32 rows of 49,152 logits.

    Returns:
        Whether the settings took effect.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE) and mallopt(M_TRIM_THRESHOLD, KEPT))
