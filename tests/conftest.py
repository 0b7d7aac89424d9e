"""Fixtures for all tests, and an end to a run that goes wrong test after test."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator
from types import FrameType

import hypothesis
import pytest

from lb.wire.compiled import is_compiled

RUN_LIMIT_S = float(os.environ.get("RUN_LIMIT_S", "3600"))
"""Some four times what all tests take on a machine as fast as most."""
TEST_LIMIT_S = float(os.environ.get("TEST_LIMIT_S", "90"))
"""No test may hang the run; the longest takes about 15 s on two idle cores."""
_AGAIN_S = 5.0
"""The error may be raised within a callback, whose loop logs it and goes on waiting."""
_END_LIMIT_S = TEST_LIMIT_S + 30.0
"""uvloop runs signal handlers as callbacks, so there the error may never arrive: then the run ends.

Where a call into C keeps even threads from running, `faulthandler_timeout` of pyproject.toml does.
"""
_FRAMES = 15
_STARTED_AT = time.monotonic()

# Hundreds of processes of the product are started: each would compile all of its modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Always the same examples and no limit of time: a run tells of the change, not of chance or of what
# else the machine does. `@settings` takes the rest from this profile when a module is imported, so
# it is loaded before. `--hypothesis-profile=default` searches at random.
hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")


class _Watch(threading.Thread):
    """Ends the run where a test hangs for good, with its name as the last line."""

    def __init__(self, stderr: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._stderr = stderr
        self._main = threading.main_thread().ident or 0
        self.test = ""
        self.began_at = 0.0

    def run(self) -> None:
        while True:
            time.sleep(1.0)
            if self.test and time.monotonic() - self.began_at > _END_LIMIT_S:
                frame = sys._current_frames().get(self._main)
                lines = traceback.format_stack(frame)[-_FRAMES:]
                text = "".join([*lines, f"the run ends: {self.test} hangs\n"])
                os.write(self._stderr, text.encode())
                os._exit(1)


def pytest_configure(config: pytest.Config) -> None:
    """Watch over the run; nothing captures the output yet."""
    global _watch
    _watch = _Watch(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2))
    _watch.start()


_watch: _Watch | None = None


def _begin_phase() -> None:
    """Begin the limit of the watch anew: after a failure all servers may start again, which takes
    long on a busy machine."""
    assert _watch is not None
    _watch.began_at = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tell the watch what runs."""
    assert _watch is not None
    _begin_phase()
    _watch.test = item.nodeid
    try:
        return (yield)
    finally:
        _watch.test = ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that hangs, and show where every task of its event loop stands."""

    def expire(number: int, frame: FrameType | None) -> None:
        try:
            tasks = asyncio.all_tasks()
        except RuntimeError:  # no event loop runs
            tasks = set()
        for task in tasks:
            task.print_stack(file=sys.stderr)
        # Not TimeoutError: it is an OSError, which tests that wait for a server catch.
        pytest.fail(f"the test took longer than {TEST_LIMIT_S:.0f} s")

    _begin_phase()
    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, TEST_LIMIT_S, _AGAIN_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Stop a run in which every test waits for something that is gone."""
    _begin_phase()
    if time.monotonic() - _STARTED_AT > RUN_LIMIT_S:
        item.session.shouldfail = f"the run took longer than {RUN_LIMIT_S / 60:.0f} minutes"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot be tried on compiled modules; all of it runs on their sources."""
    if not is_compiled():
        return
    out = [item for item in items if item.get_closest_marker("interpreted")]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


@pytest.fixture(scope="module", autouse=True)
def forget_what_stays() -> None:
    """Take what is there before the tests of a file out of the garbage collector's sight: modules,
    items and reports of thousands of tests, which every full collection would walk through."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def unused_tcp_port() -> int:
    """A port of loopback that nobody listens on, and that stays so while the test runs."""
    # Here, since it takes the environment as it is when it is imported.
    from tests.fakes.process import free_ports

    return free_ports(1)[0]
