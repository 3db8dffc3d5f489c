"""What the C library does with memory that is given back."""

from __future__ import annotations

import ctypes
import functools
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>

KEPT = 512 << 20
"""So much free memory at the end of the heap stays with the process, bytes."""

LARGE = 64 << 20
"""Tensors from this size on go back to the system as soon as they are freed, bytes."""


@functools.cache
def keep_freed_memory() -> bool:
    """Has glibc keep freed memory for the process, within the bounds above, from now on. Elsewhere it does nothing.

    By default a tensor of a few MiB goes back to the system when it is freed, and the next one of that size costs a
    page fault for every 4 KiB: 7,600 of them in a draw of tokens for 32 rows of 49,152 logits.

    Returns:
        Whether it does.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE) and mallopt(M_TRIM_THRESHOLD, KEPT))
