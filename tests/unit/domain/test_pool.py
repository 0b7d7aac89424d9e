"""The published snapshot and those who are told of it."""

from __future__ import annotations

from lb.balancing.round_robin import RoundRobin
from lb.domain.backend import AppProtocol
from lb.domain.model import NO_FACTS
from lb.domain.pool import ModelRoute, Placement, PoolRef, PoolSnapshot
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


def test_the_end_of_one_subscription_looks_at_no_other() -> None:
    """Each stream of a client may be one, so that would be quadratic."""

    class Listener:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, snapshot: PoolSnapshot) -> None: ...

        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

    ref = PoolRef(snapshot_of(()))
    ends = [ref.subscribe(Listener()) for _ in range(3)]
    for end in (*reversed(ends), *ends):
        end()


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


# What is served


def test_a_model_is_served_where_somebody_has_it_ready() -> None:
    snapshot = serving(ready_versions=frozenset({b"1"}))
    assert snapshot.is_served(b"m", b"", AppProtocol.HTTP) is True
    assert snapshot.is_served(b"m", b"1", AppProtocol.HTTP) is True
    assert snapshot.is_served(b"m", b"2", AppProtocol.HTTP) is False
    assert snapshot.is_served(b"other", b"", AppProtocol.HTTP) is False
    assert serving().is_served(b"m", b"", AppProtocol.HTTP) is False


def test_a_backend_that_names_no_versions_serves_any() -> None:
    snapshot = serving(ready_versions=frozenset({b""}))
    assert snapshot.is_served(b"m", b"3", AppProtocol.HTTP) is True


def test_a_protocol_without_backends_serves_nothing() -> None:
    snapshot = serving(ready_versions=frozenset({b"1"}))
    assert snapshot.is_served(b"m", b"", AppProtocol.GRPC) is False


def test_whether_a_model_is_served_is_open_where_somebody_cannot_say() -> None:
    snapshot = serving(knows_all=False)
    assert snapshot.is_served(b"other", b"", AppProtocol.HTTP) is None


def test_partial_backends_are_usable() -> None:
    snapshot = serving()
    assert snapshot.usable(AppProtocol.HTTP) == {FULL, PARTIAL}
    assert snapshot.usable(AppProtocol.GRPC) == {PARTIAL}


FULL, PARTIAL = make_backends(0, 0)


def serving(
    ready_versions: frozenset[bytes] = frozenset(), *, knows_all: bool = True
) -> PoolSnapshot:
    """HTTP has a backend, gRPC none."""
    policy = RoundRobin()
    placements = (
        Placement((FULL,), policy.build((FULL,)), policy),
        Placement((), None, policy),
    )
    return PoolSnapshot(
        1,
        (FULL, PARTIAL),
        placements,
        routes={b"m": ModelRoute(facts=NO_FACTS, ready_versions=ready_versions)},
        partial=((PARTIAL,), (PARTIAL,)),
        knows_all=knows_all,
    )
