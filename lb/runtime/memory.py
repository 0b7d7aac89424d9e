"""How much memory the process may hold for payload."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LARGEST_DEFAULT: Final = 512 * 2**20
_SHARE: Final = 4
"""A quarter: a sidecar with 512 MiB must live."""
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_limit(cgroup_files: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Bytes that this process may use: the container's limit or the machine's memory."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in cgroup_files:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isascii() and text.isdecimal():
            limit = min(limit, int(text))
    return limit


def held_ceiling(configured: int, limit: int) -> int:
    """The ledger's ceiling in bytes: as configured, or a share of the limit when that is 0."""
    return configured or min(limit // _SHARE, _LARGEST_DEFAULT)
