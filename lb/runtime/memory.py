"""How much memory the process may hold for payload.

The limit of a container ends the process when it is passed, and limits of the process itself
(`ulimit -v`, `ulimit -d`) have every further allocation fail: both are far enough away then.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LARGEST_DEFAULT: Final = 512 * 2**20
_SHARE: Final = 4
"""A quarter: a sidecar with 512 MiB must live."""
_ROOM_SHARE: Final = 2
"""Half of what the process may still map: the other half is for what is not counted (buffers of
connections, stacks of threads, decoded heads) and for what the allocator cannot use again."""
_LEAST: Final = 2**20
"""Bytes of the ceiling however little room there is: small requests need next to nothing."""
_MAPPED_UNKNOWN: Final = 256 * 2**20
"""Taken for mapped where the system does not say; what a started process usually has."""
_CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_STATM: Final = Path("/proc/self/statm")
_LIMITS: Final = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5))
"""Limits of a process, and which field of `/proc/self/statm` counts toward them."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process may use, as far as that was known at its start."""

    limit: int
    """Bytes of the container or the machine."""
    room: int | None = None
    """Bytes that the process may map beyond what it has mapped; None where it has no limit of its
    own."""

    def ceiling(self, configured: int) -> int:
        """The ceiling of what is held for payload, in bytes.

        Args:
            configured: bytes; 0: as it suits the limits. More than the process can have at all
                does not count.
        """
        wanted = configured or min(self.limit // _SHARE, _LARGEST_DEFAULT)
        return wanted if self.room is None else min(wanted, max(self.room // _ROOM_SHARE, _LEAST))


def is_limited() -> bool:
    """Whether the process has a limit of its own."""
    return any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind, _ in _LIMITS)


def find_memory(cgroup_files: tuple[Path, ...] = _CGROUP_LIMITS, statm: Path = _STATM) -> Memory:
    """Look at all limits and at what is mapped. Call it once: later, payload is mapped, too."""
    page = os.sysconf("SC_PAGE_SIZE")
    limit = page * os.sysconf("SC_PHYS_PAGES")
    for path in cgroup_files:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isascii() and text.isdecimal():
            limit = min(limit, int(text))
    room = None
    for kind, field in _LIMITS:
        most, _ = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            left = max(most - _mapped(statm, field, page), 0)
            room = left if room is None else min(room, left)
    return Memory(limit, room)


def _mapped(statm: Path, field: int, page: int) -> int:
    try:
        return int(statm.read_text().split()[field]) * page
    except (OSError, ValueError, IndexError):
        return _MAPPED_UNKNOWN
