"""Waiting for another thread, in tests of things that have one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], *, at_most_s: float = 30.0) -> None:
    """Return as soon as `is_so`; fail the test when that takes too long."""
    deadline = time.monotonic() + at_most_s
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        pause.wait(0.001)
