"""The latest changes of state."""

from __future__ import annotations

from lb.control.changes import KEPT, ChangeLog, StateChange


def change(
    at: float, backend: str = "a", subject: str = "http", after: str = "down"
) -> StateChange:
    return StateChange(at, backend, subject, "up", after, "closed")


def test_it_is_bounded_and_tells_the_newest_first() -> None:
    changes = ChangeLog()
    for number in range(KEPT + 10):
        changes.add(change(10.0 * number, subject=""))
    assert len(changes) == KEPT
    ages = [each.at for each in changes.newest_first()]
    assert ages == sorted(ages, reverse=True)
    assert ages[0] == 10.0 * (KEPT + 9)


def test_ports_that_change_together_share_an_entry() -> None:
    changes = ChangeLog()
    changes.add(change(1.0))
    changes.add(change(1.2, subject="grpc"))
    changes.add(change(1.3, subject="grpc"))
    assert [each.subject for each in changes.newest_first()] == ["http, grpc"]
    changes.add(change(3.0, subject="grpc"))
    changes.add(change(3.1, backend="b", subject="grpc"))
    assert len(changes) == 3
