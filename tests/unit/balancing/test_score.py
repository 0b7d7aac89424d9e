from __future__ import annotations

from lb.balancing.score import PickSequence, least_loaded_with_room, score
from tests.fakes.backends import make_backend, make_backends


def test_the_score_counts_the_request_to_come_and_divides_by_weight() -> None:
    assert score(make_backend(in_flight=0, weight=2.0)) == 0.5
    assert score(make_backend(in_flight=3, weight=2.0)) == 2.0


def test_full_backends_are_left_out() -> None:
    full = make_backend("full", max_in_flight=1, in_flight=1)
    busy = make_backend("busy", in_flight=7)
    assert least_loaded_with_room((full, busy)) is busy
    assert least_loaded_with_room((full,)) is None


def test_turns_continue_after_the_newest_pick_and_never_go_back() -> None:
    turn = PickSequence()
    backends = make_backends(0, 0)
    backends[1].last_pick = 41
    turn.resume(backends)
    assert turn.number == 41
    turn.resume(make_backends(0))
    assert turn.number == 41
