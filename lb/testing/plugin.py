"""Fixtures of pytest. In `conftest.py`: `pytest_plugins = ["lb.testing.plugin"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lb.testing import Balancer, Triton, running, simulated


@pytest.fixture
def tritons() -> Iterator[tuple[Triton, ...]]:
    """Three simulated Tritons, fresh for each test, so that a test may kill one."""
    with simulated(3) as started:
        yield started


@pytest.fixture
def triton_lb(tritons: tuple[Triton, ...]) -> Iterator[Balancer]:
    """A triton-lb before `tritons`, with default settings, in which every backend is ready."""
    with running(tritons) as balancer:
        yield balancer
