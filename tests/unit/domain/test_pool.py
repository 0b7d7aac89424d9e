"""The published snapshot and those who are told of it."""

from __future__ import annotations

from lb.domain.backend import AppProtocol
from lb.domain.pool import PoolRef, PoolSnapshot
from tests.fakes.backends import make_backends
from tests.fakes.relay import snapshot_of


def test_placements_are_by_protocol() -> None:
    snapshot = snapshot_of(make_backends(0))
    assert snapshot.placement(AppProtocol.HTTP) is snapshot.placements[0]
    assert snapshot.placement(AppProtocol.GRPC) is snapshot.placements[1]


def test_listeners_see_the_new_snapshot_in_its_place() -> None:
    ref = PoolRef(snapshot_of(()))
    seen: list[tuple[PoolSnapshot, PoolSnapshot]] = []
    ref.subscribe(lambda snapshot: seen.append((snapshot, ref.current)))
    new = snapshot_of(make_backends(0), generation=2)
    ref.publish(new)
    assert seen == [(new, new)]
    ref.announce()
    assert seen == [(new, new)] * 2


def test_who_unsubscribes_is_told_nothing_more() -> None:
    ref = PoolRef(snapshot_of(()))
    seen: list[int] = []
    first = ref.subscribe(lambda _: seen.append(1))
    ref.subscribe(lambda _: seen.append(2))
    first()
    first()
    ref.announce()
    assert seen == [2]


def test_a_listener_may_unsubscribe_while_it_is_told() -> None:
    ref = PoolRef(snapshot_of(()))
    seen: list[int] = []

    def once(_: PoolSnapshot) -> None:
        seen.append(1)
        end()

    end = ref.subscribe(once)
    ref.subscribe(lambda _: seen.append(2))
    ref.announce()
    ref.announce()
    assert seen == [1, 2, 2]
