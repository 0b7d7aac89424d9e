"""Keeping glibc's allocator from giving memory back between two reads.

Large bodies arrive in pieces of up to 256 KiB that live for one turn of the event loop. With its
defaults the allocator returns the top of the heap and fetches it again every time: `brk` and page
faults were a tenth of the CPU of a 602,112-byte request.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_TRIM_BYTES: Final = 16 * 2**20
"""Free memory at the top of the heap that is kept."""
_MMAP_BYTES: Final = 4 * 2**20
"""Smaller blocks come from the heap."""


def keep_freed_memory() -> bool:
    """Keep up to 16 MiB of freed memory. False where the C library is not glibc."""
    return _set(_M_MMAP_THRESHOLD, _MMAP_BYTES) and _set(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def share_one_heap() -> bool:
    """Have all threads that start from now on share one heap. Otherwise each reserves 64 MiB of
    address space for its own, which counts where that is limited (`ulimit -v`). False where the C
    library is not glibc."""
    return _set(_M_ARENA_MAX, 1)


def _set(option: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(option, value))
    except (AttributeError, OSError):
        return False
