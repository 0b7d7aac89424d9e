from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from lb.runtime.limits import (
    RESERVE,
    Budget,
    DescriptorUse,
    plan_budget,
    raise_limit,
)


def test_half_of_what_is_free_is_for_clients() -> None:
    budget = plan_budget(limit=1260, in_use=16, backends=10, wanted=0)
    assert budget == Budget(clients=500, all=1000)


def test_more_than_that_cannot_be_wanted_but_less() -> None:
    assert plan_budget(limit=1260, in_use=16, backends=10, wanted=100).clients == 100
    assert plan_budget(limit=1260, in_use=16, backends=10, wanted=10_000).clients == 500


def test_some_are_served_with_however_few_descriptors() -> None:
    assert plan_budget(limit=64, in_use=40, backends=3, wanted=0) == Budget(8, 16)


@pytest.mark.parametrize(
    ("clients", "upstream", "room"),
    [(0, 0, 5), (4, 0, 1), (5, 0, 0), (4, 5, 1), (4, 6, 0), (1, 8, 1), (7, 7, -4)],
)
def test_clients_come_while_both_bounds_hold(clients: int, upstream: int, room: int) -> None:
    assert Budget(clients=5, all=10).room(clients, upstream) == room


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_lower_limit_is_raised_and_divided(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    raise_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    budget = DescriptorUse().budget(backends=1, wanted=0)
    assert hard - RESERVE - 200 < budget.all < hard - RESERVE
