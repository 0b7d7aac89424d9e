"""Plugin of pytest: tells the coverage which test runs, and writes down how long each took."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

TIMES = "MUTANTS_TIMES"
"""The environment variable that names the file for the durations, in seconds by test."""

_took: Counter[str] = Counter()
_failed: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set-up and tear-down are the test's as well."""
    measuring = coverage.Coverage.current()
    assert measuring is not None
    measuring.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the parts of a test."""
    _took[report.nodeid] += report.duration
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the durations; a test that fails by itself says nothing about a mutant."""
    times = {test: took for test, took in _took.items() if test not in _failed}
    Path(os.environ[TIMES]).write_text(json.dumps(times))
