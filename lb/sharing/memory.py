"""The shared memory of a service with workers: made by the supervisor, attached by each process.

Its last cell is the heartbeat of the control process. Workers have theirs on the board.

It is an anonymous file (memfd_create), so that it needs no `/dev/shm`, leaves nothing behind, and
reaches the processes as an inherited descriptor.
"""

from __future__ import annotations

import os
from mmap import mmap
from typing import Final

from lb.sharing import board, usage

_HEARTBEAT: Final = 8
"""Bytes of the heartbeat of the control process: monotonic seconds."""


def size(count: int) -> int:
    """The bytes that a number of workers and their control process share."""
    return board.size(count) + usage.size(count) + _HEARTBEAT


def create(count: int) -> int:
    """Make the memory for a number of workers.

    Returns:
        Its descriptor. It is closed on exec unless the caller makes it inheritable.

    Raises:
        OSError: the system has no memory for it. The text says how much was needed.
    """
    length = size(count)
    descriptor = os.memfd_create("triton-lb-workers", os.MFD_CLOEXEC)
    try:
        # Reserved now: memory that is missing later would end a process with SIGBUS.
        os.posix_fallocate(descriptor, 0, length)
    except OSError as error:
        os.close(descriptor)
        text = f"no {length} bytes of shared memory for {count} workers: {error.strerror}"
        raise OSError(error.errno, text) from error
    return descriptor


def attach(descriptor: int, count: int) -> memoryview:
    """Map the memory that `create` has made for this number of workers.

    Raises:
        OSError: the descriptor is not open, or cannot be mapped.
        ValueError: it was made for fewer workers.
    """
    return memoryview(mmap(descriptor, size(count)))


def usage_part(memory: memoryview, count: int) -> memoryview:
    """The part of the memory that tells what clients have used up of limits."""
    return memory[board.size(count) : -_HEARTBEAT]


def clear(memory: memoryview, index: int, count: int) -> None:
    """Take all that a worker has in flight, queued and open off the counts. To be called by the
    process that has waited for its end."""
    board.clear(memory, index)
    usage.clear(usage_part(memory, count), index)


def beat(memory: memoryview, now: float) -> None:
    """Say that the control process runs. Only the control process calls this.

    Args:
        memory: that `attach` has mapped.
        now: monotonic seconds.
    """
    memory[-_HEARTBEAT:].cast("d")[0] = now


def last_beat(memory: memoryview) -> float:
    """When the control process has said last that it runs, in monotonic seconds."""
    return memory[-_HEARTBEAT:].cast("d")[0]
