"""Fixtures for all tests, and an end to a run that goes wrong test after test."""

from __future__ import annotations

import socket
import time

import pytest

RUN_LIMIT_S = 40 * 60.0
"""Some four times what all tests take; one test is limited by `faulthandler_timeout`."""
_STARTED_AT = time.monotonic()


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Stop a run in which every test waits for something that is gone."""
    if time.monotonic() - _STARTED_AT > RUN_LIMIT_S:
        item.session.shouldfail = f"the run took longer than {RUN_LIMIT_S / 60:.0f} minutes"


@pytest.fixture
def unused_tcp_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
