"""Whatever clients do: no more than rate * T + burst in any T, and counts that are exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.access.gate import Gate, GateRules, LimitRule, Permit
from lb.access.limits import Limit
from lb.domain.client import Client, ip_of
from lb.domain.errors import RequestRefused
from lb.domain.operation import Operation, OperationKind

_RATES = st.floats(0.01, 10_000)
_PAUSES = st.lists(st.floats(0, 5), min_size=1, max_size=200)
_INFER = Operation("ModelInfer", OperationKind.INFERENCE)


@given(rate=_RATES, burst=st.integers(1, 50), pauses=_PAUSES, start=st.floats(0, 1e7))
def test_no_span_of_time_sees_more_than_its_share(
    rate: float, burst: int, pauses: list[float], start: float
) -> None:
    limit = Limit(rate=rate, burst=burst)
    now = start
    passed = []
    for pause in pauses:
        now += pause
        if not limit.wait_s(b"a", now):
            limit.take(b"a", now)
            passed.append(now)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            # Times of this size are exact to some nanoseconds only.
            span = passed[last] - passed[first] + 1e-7
            assert last - first + 1 <= burst + rate * span


@given(rate=_RATES, burst=st.integers(1, 50), pauses=_PAUSES)
def test_who_waits_as_told_is_let_through(rate: float, burst: int, pauses: list[float]) -> None:
    limit = Limit(rate=rate, burst=burst)
    now = 0.0
    for pause in pauses:
        now += pause
        now += limit.wait_s(b"a", now)
        assert limit.wait_s(b"a", now) == pytest.approx(0, abs=1e-9)
        limit.take(b"a", now)


def _client(number: int) -> Client:
    address = ip_of(f"192.0.2.{number}")
    return Client("x", address, address, False, False, False)


@given(
    concurrent=st.integers(1, 3),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=200),
    max_clients=st.integers(1, 5),
)
def test_requests_under_way_are_exact_however_they_end(
    concurrent: int, steps: list[tuple[bool, int]], max_clients: int
) -> None:
    limit = Limit(rate=1e9, concurrent=concurrent, max_clients=max_clients)
    gate = Gate(GateRules(limits=(LimitRule(limit),)))
    credentials = gate.credentials(_INFER, (), is_control=False)
    assert credentials is not None
    under_way: list[tuple[int, Permit]] = []
    for now, (begins, number) in enumerate(steps):
        mine = sum(owner == number for owner, _ in under_way)
        if begins:
            try:
                permit = gate.admit(credentials, None, _client(number), now)
            except RequestRefused:
                assert mine == concurrent
            else:
                assert mine < concurrent
                assert permit is not None
                under_way.append((number, permit))
        elif under_way:
            under_way.pop(number % len(under_way))[1].release()
    for _, permit in under_way:
        permit.release()
    assert not any(limit.open_of(bytes((192, 0, 2, number))) for number in range(10))
