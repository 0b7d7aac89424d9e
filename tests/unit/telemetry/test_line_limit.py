from __future__ import annotations

from lb.telemetry.line_limit import MAX_KINDS, LineLimit


def admitted(limit: LineLimit, kind: str, now: float, count: int) -> int:
    return sum(limit.admits(kind, now) for _ in range(count))


def test_a_burst_then_a_rate() -> None:
    limit = LineLimit(rate=10.0, burst=5)
    assert admitted(limit, "a", 0.0, 20) == 5
    assert admitted(limit, "a", 0.05, 20) == 0
    assert admitted(limit, "a", 0.2, 20) == 2
    assert admitted(limit, "a", 100.0, 20) == 5


def test_kinds_do_not_share() -> None:
    limit = LineLimit(rate=1.0, burst=1)
    assert limit.admits("a", 0.0)
    assert limit.admits("b", 0.0)
    assert not limit.admits("a", 0.0)


def test_what_was_left_out_is_told_once_and_a_second_later() -> None:
    limit = LineLimit(rate=1.0, burst=1)
    admitted(limit, "a", 0.0, 4)
    assert list(limit.left_out(0.9)) == []
    assert list(limit.left_out(1.0)) == [("a", 3)]
    assert list(limit.left_out(9.0)) == []
    admitted(limit, "a", 9.0, 2)
    assert list(limit.left_out(9.1)) == []
    assert list(limit.left_out(9.1, all_of_them=True)) == [("a", 1)]


def test_time_that_goes_back_gives_nothing() -> None:
    limit = LineLimit(rate=1.0, burst=1)
    assert limit.admits("a", 10.0)
    assert not limit.admits("a", 5.0)
    assert limit.admits("a", 11.0)


def test_too_many_kinds_are_one() -> None:
    limit = LineLimit(rate=1.0, burst=1)
    for number in range(MAX_KINDS):
        assert limit.admits(number, 0.0)
    assert limit.admits("x", 0.0)
    assert not limit.admits("y", 0.0)
    assert list(limit.left_out(1.0)) == [(None, 1)]
