"""What speaks against a backend when an attempt at it ends badly."""

from __future__ import annotations

from enum import Enum


class Fault(Enum):
    """Kinds of evidence. None of them is a client's mistake that is known to be one."""

    DEVICE = "device"
    """The answer says that the server's device or one of its processes is broken."""
    CONNECTION = "connection"
    """There was no whole answer. Some connections break everywhere."""
    ERROR = "error"
    """An error that the backend or the request may be to blame for: only what others answer to the
    same model tells."""
    LATENCY = "latency"
    """An answer that took far longer than usual, here and elsewhere."""

    @property
    def is_certain(self) -> bool:
        """Whether neither requests nor chance are to blame, unless it happens to all alike."""
        return self is Fault.DEVICE
