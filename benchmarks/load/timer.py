"""A timer of the kernel that expires at a steady rate, to the microsecond.

The time-outs of epoll are whole milliseconds: at 10,000 requests a second that would be bursts of
ten. Python has no call for timerfd before 3.13, so it is called in the C library.
"""

from __future__ import annotations

import ctypes
import os
import time

_NONBLOCK = 0o4000
_libc = ctypes.CDLL(None, use_errno=True)


class _Spec(ctypes.Structure):
    """struct itimerspec: interval and first expiry, each in seconds and nanoseconds."""

    _fields_ = [
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    ]


class Timer:
    """A descriptor that becomes readable at every expiry."""

    def __init__(self) -> None:
        self.fd = _libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set_rate(self, per_second: float) -> None:
        """Expire that often from now on; 0 stops it."""
        whole, rest = divmod(round(1e9 / per_second), 10**9) if per_second else (0, 0)
        spec = _Spec(whole, rest, whole, rest)
        if _libc.timerfd_settime(self.fd, 0, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def expired(self) -> int:
        """How often it has expired since the last call."""
        try:
            return int.from_bytes(os.read(self.fd, 8), "little")
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)
