"""Readiness that rests on who asks does not count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lb.domain.backend import AppProtocol
from lb.domain.pool import PoolSnapshot
from lb.proxy.readiness import Readiness, readiness
from lb.wire.hops import MAX_HOPS, passed
from tests.fakes.backends import make_backends
from tests.fakes.relay import snapshot_of

GRPC = AppProtocol.GRPC
A, B, C, OWN = (b"triton-lb-%016x" % number for number in range(4))


def pool(*paths: tuple[bytes, ...]) -> PoolSnapshot:
    """Eligible backends that are ready through those balancers; an empty path is a server."""
    backends = make_backends(*[0] * len(paths))
    for backend, path in zip(backends, paths, strict=True):
        for port in backend.ports:
            assert port is not None
            port.ready_through = path
    return snapshot_of(backends)


def ask(snapshot: PoolSnapshot, *hops: bytes) -> Readiness:
    return readiness(snapshot, GRPC, hops, OWN)


def test_clients_are_told_no_path() -> None:
    assert ask(pool(())) == ask(pool((A,))) == Readiness(True)
    assert ask(pool()) == Readiness(False)


def test_a_balancer_is_told_that_it_asks_one_which_has_nobody() -> None:
    assert ask(pool(), A) == Readiness(False, OWN)


def test_a_balancer_is_told_the_shortest_path() -> None:
    assert ask(pool((B, C), ()), A) == Readiness(True, OWN)
    assert ask(pool((B, C), (C,)), A) == Readiness(True, OWN + b", " + C)


def test_what_rests_on_who_asks_does_not_count() -> None:
    state = ask(pool((A,), (B, A)), A)
    assert not state.is_ready
    assert A.decode() in state.loop
    assert ask(pool((A,), (B,)), A) == Readiness(True, OWN + b", " + B)
    assert ask(pool((A,)), B).is_ready


def test_a_path_that_is_too_long_does_not_count() -> None:
    """Requests could not pass all of its balancers: who asks and we ourselves count as well."""
    path = tuple(b"triton-lb-%016x" % number for number in range(10, 10 + MAX_HOPS - 1))
    assert not ask(pool(path), A).is_ready
    assert ask(pool(path[1:]), A).is_ready
    assert not ask(pool(path[1:]), A, B).is_ready


NODES = tuple(b"triton-lb-%016x" % number for number in range(6))


@given(
    st.lists(st.sets(st.integers(0, 5)), min_size=6, max_size=6),
    st.sets(st.integers(0, 5)),
    st.data(),
)
def test_without_a_server_nobody_stays_ready(
    names: list[set[int]], served: set[int], data: st.DataObject
) -> None:
    """Balancers that name each other in any way, and ask in any order: who reaches a server is
    ready, and when all servers are gone nobody is after a round per hop."""
    paths: dict[tuple[int, int], tuple[bytes, ...] | None] = {}

    def snapshot(node: int, *, is_served: bool) -> PoolSnapshot:
        ready = [paths.get((node, other)) for other in sorted(names[node])]
        return pool(*[path for path in ready if path is not None], *[()] * is_served)

    def play_round(servers: set[int]) -> None:
        edges = [(node, other) for node in range(6) for other in sorted(names[node])]
        for node, other in data.draw(st.permutations(edges)) if edges else []:
            if node == other:
                continue  # it refuses its own probe
            state = readiness(
                snapshot(other, is_served=other in servers), GRPC, (NODES[node],), NODES[other]
            )
            paths[node, other] = passed(state.through) if state.is_ready else None

    for _ in range(MAX_HOPS + 1):
        play_round(served)
    reached = set(served)
    for _ in range(6):
        reached |= {node for node in range(6) if names[node] & reached}
    for node in range(6):
        assert ask(snapshot(node, is_served=node in served)).is_ready == (node in reached)
    for _ in range(MAX_HOPS + 1):
        play_round(set())
    assert not any(ask(snapshot(node, is_served=False)).is_ready for node in range(6))
