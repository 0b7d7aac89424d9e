"""What the system lets the process have: connections, memory, and what its allocator keeps.

*Descriptors.* Running out of them hurts everyone: requests under way cannot reach a backend, probes
fail and blame the backends, and metrics cannot be read. So clients get what is certainly there.

*Memory.* The limit of a container ends the process when it is passed, and limits of the process
itself (`ulimit -v`, `ulimit -d`) have every further allocation fail: both are far enough away then.

*Allocator.* Large bodies arrive in pieces of up to 256 KiB that live for one iteration of the event
loop. With its defaults glibc returns the top of the heap and fetches it again every time: `brk` and
page faults were a tenth of the CPU of a 602,112-byte request. So freed memory is kept while there
is load, and given back afterwards. Glibc itself never gives back what lies below a block in use.
"""

from __future__ import annotations

import ctypes
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lb.net.splice import MOST
from lb.net.stored import MOST_PIPES

RESERVE: Final = 64 + 3 * MOST + 2 * MOST_PIPES
"""For probes, scrapes, the admin API and the metrics port, three for each pump, and two for each
pipe that bodies are held in."""
PER_BACKEND: Final = 2
"""More for each backend: a probe on its way to each of its ports."""
_FEWEST: Final = 8
"""Connections of clients with however few descriptors: none at all would be no service."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds on open connections."""

    clients: int
    """Of clients. One of HTTP/1.1 may need another one to a backend, so this is half of all."""
    all: int
    """Of clients and to backends."""

    def room(self, clients: int, upstream: int) -> int:
        """How many more clients may come; not above 0 when none may."""
        return min(self.clients - clients, self.all - clients - upstream)


def plan_budget(*, limit: int, in_use: int, backends: int, wanted: int) -> Budget:
    """Divide the descriptors.

    Args:
        limit: of descriptors, for the process.
        in_use: open before the first client came.
        backends: configured ones.
        wanted: connections of clients at most; 0 is as many as there is room for.
    """
    free = max(limit - in_use - RESERVE - PER_BACKEND * backends, 2 * _FEWEST)
    return Budget(min(wanted or free, free // 2), free)


def raise_limit() -> None:
    """Take the descriptors that the system grants; the lower limit is for programs that use
    select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class DescriptorUse:
    """What the process has open; to be made before clients come."""

    def __init__(self) -> None:
        self._in_use = len(os.listdir("/proc/self/fd"))

    def budget(self, *, backends: int, wanted: int) -> Budget:
        """The budget beside that: see `plan_budget`."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return plan_budget(limit=limit, in_use=self._in_use, backends=backends, wanted=wanted)


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


_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_TRIM_BYTES: Final = 16 * 2**20
"""Free memory at the top of the heap that is always kept."""
_MAX_TRIM_BYTES: Final = 2**30
"""No more is kept, however long batches may be."""
_QUIET_BYTES: Final = 16 * 2**20
"""While less payload is held there is no load that needs much memory."""
_GROWN_BYTES: Final = 64 * 2**20
"""Less is not worth the page faults of the next load."""
_RESIDENT: Final = 1
"""The field of `/proc/self/statm` that says what is in memory."""
_MMAP_BYTES: Final = 4 * 2**20
"""Smaller blocks come from the heap."""


def keep_freed_memory(held_whole: int = 0) -> bool:
    """Keep up to 16 MiB of freed memory, and as much as the longest request that is held whole:
    fresh pages for each would cost as much as relaying it.

    Args:
        held_whole: bytes of that request.

    Returns:
        False where the C library is not glibc.
    """
    room = _kept(held_whole)
    return _set(_M_MMAP_THRESHOLD, _MMAP_BYTES) and _set(_M_TRIM_THRESHOLD, room)


def _kept(held_whole: int) -> int:
    return min(_TRIM_BYTES + held_whole, _MAX_TRIM_BYTES)


def give_back_freed_memory(held_whole: int = 0) -> bool:
    """Give all other freed memory back to the system. It takes about 80 µs for each MiB, so call it
    in a thread.

    Args:
        held_whole: as for `keep_freed_memory`.

    Returns:
        False where the C library is not glibc.
    """
    try:
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(_kept(held_whole)))
    except (AttributeError, OSError):
        return False
    return True


class FreedMemory:
    """Says when freed memory is to be given back: nearly nothing is held for long enough, and the
    process has grown since the last time."""

    def __init__(self, statm: Path = _STATM) -> None:
        """
        Args:
            statm: the file in which Linux says how large the process is.
        """
        self._statm = statm
        self._was_quiet = False
        self._least = self._resident()
        """The fewest resident bytes since the last time."""

    def _resident(self) -> int:
        return _mapped(self._statm, _RESIDENT, os.sysconf("SC_PAGE_SIZE"))

    def is_due(self, held: int) -> bool:
        """Look, now and then.

        Args:
            held: bytes of payload.
        """
        resident = self._resident()
        self._least = min(self._least, resident)
        is_quiet = held < _QUIET_BYTES
        was_quiet, self._was_quiet = self._was_quiet, is_quiet
        return is_quiet and was_quiet and resident - self._least >= _GROWN_BYTES

    def given_back(self) -> None:
        """What is resident still is in use."""
        self._least = self._resident()


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
