"""Which backend gets a message of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lb.domain.backend import Backend
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, Placement, Placements
from lb.domain.sequence import SequenceKey
from lb.kserve.pending_responses import StreamMessage
from lb.proxy.http2.stream_router import StreamRouter
from tests.fakes.paper_streams import ROUTES, PaperStreams, request
from tests.fakes.relay import FewestInFlight, snapshot_of

STATELESS = ModelFacts(is_stateful=False, is_decoupled=False)


def placed(backends: Sequence[Backend]) -> Placements:
    chosen = tuple(backends)
    placement = Placement(chosen, FewestInFlight(chosen), FewestInFlight())
    return placement, placement


def names(paper: PaperStreams, *messages: StreamMessage) -> list[str]:
    """Where messages would go now."""
    router = paper.session.router
    assert isinstance(router, StreamRouter)
    found = [router.backend_for(message) for message in messages]
    return [backend.name if backend is not None else "-" for backend in found]


async def test_a_model_or_version_or_region_goes_to_where_it_is() -> None:
    paper = PaperStreams(backends=3)
    paper.begin_two()
    b1, b2 = placed(paper.bench.backends[1:2]), placed(paper.bench.backends[2:])
    routes = {
        b"on1": ModelRoute(facts=STATELESS, placements=b1),
        b"on2": ModelRoute(facts=STATELESS, placements=b2),
        b"versions": ModelRoute(facts=STATELESS, versions={b"2": b2}),
    }
    paper.bench.ref.publish(
        replace(paper.bench.ref.current, routes={**ROUTES, **routes}, regions={b"r": b1})
    )
    assert names(
        paper,
        StreamMessage(b"on1"),
        StreamMessage(b"on2"),
        StreamMessage(b"versions", b"1"),
        StreamMessage(b"versions", b"2"),
        StreamMessage(b"plain", regions=(b"r",)),
    ) == ["b1", "b2", "b0", "b2", "b1"]


async def test_a_stream_goes_on_at_a_backend_that_gets_no_new_ones() -> None:
    paper = PaperStreams(backends=3)
    paper.begin_two()
    on2 = ModelRoute(facts=STATELESS, placements=placed(paper.bench.backends[2:]))
    pool = replace(snapshot_of(paper.bench.backends[1:]), routes={**ROUTES, b"on2": on2})
    paper.bench.ref.publish(pool)
    assert names(paper, StreamMessage(b"plain"), StreamMessage(b"on2")) == ["b0", "b0"]
    # But a backend of which the stream has only a part is no home.
    pool = replace(
        snapshot_of((paper.bench.backends[0], paper.bench.backends[2])),
        routes={**ROUTES, b"on2": on2},
    )
    paper.bench.ref.publish(pool)
    assert names(paper, StreamMessage(b"plain"), StreamMessage(b"on2")) == ["b0", "b2"]


async def test_the_next_backend_of_the_stream_is_its_home_when_the_first_has_gone() -> None:
    paper = PaperStreams()
    paper.begin_two()
    paper.end(0)
    assert names(paper, StreamMessage(b"plain")) == ["b1"]


async def test_a_full_backend_takes_starts_of_streams_that_it_has() -> None:
    paper = PaperStreams(backends=3)
    paper.begin_two()
    for backend in paper.bench.backends:
        backend.max_in_flight = 1
    paper.bench.backends[2].in_flight = 1
    paper.send(*(request("seq", number, f"{number}", start=True) for number in (3, 4)))
    assert [paper.requests(0), paper.requests(1)] == [["3"], ["4"]]
    table = paper.bench.dispatcher.steps.table
    homes = [table.backend_of(SequenceKey(b"seq", number)) for number in (3, 4)]
    assert homes == list(paper.bench.backends[:2])


async def test_a_sequence_on_a_backend_without_a_grpc_port_is_not_moved() -> None:
    paper = PaperStreams()
    paper.begin_two()
    b1 = paper.bench.backends[1]
    paper.end(1)
    b1.ports = (b1.ports[0], None)
    key = SequenceKey(b"seq", 2)
    paper.send(request("seq", 2, "x", end=True))
    (answer,) = paper.answers()
    text = "sequence 2 of model seq runs on backend b1, which has no grpc port"
    assert answer.error_message == text
    assert paper.bench.dispatcher.steps.table.backend_of(key) is b1
