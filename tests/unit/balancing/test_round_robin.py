from __future__ import annotations

from lb.balancing.round_robin import RoundRobin
from lb.domain.pool import Picker
from tests.fakes.backends import make_backends


def names(picker: Picker, count: int) -> str:
    """The last letters of the next picks."""
    return "".join(picked.name[-1] for _ in range(count) if (picked := picker.pick()) is not None)


def test_a_full_backend_loses_its_turn_and_comes_back_without_a_backlog() -> None:
    backends = make_backends(0, 0, 0)
    picker = RoundRobin().build(backends)
    backends[1].max_in_flight = backends[1].in_flight = 1
    assert names(picker, 6) == "020202"
    backends[1].in_flight = 0
    assert names(picker, 6).count("1") == 2


def test_waiting_for_room_moves_nobody() -> None:
    backends = make_backends(1, 1, 1)
    for backend in backends:
        backend.max_in_flight = 1
    picker = RoundRobin().build(backends)
    assert picker.pick() is None
    for backend in backends:
        backend.in_flight = 0
    assert names(picker, 3) == "012"
