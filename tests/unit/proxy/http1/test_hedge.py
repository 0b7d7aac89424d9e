"""A second attempt of a request beside the first: the client sees one answer, whoever gives it."""

from __future__ import annotations

import pytest

from lb.domain.backend import BackendKind
from lb.domain.outcome import Outcome
from lb.proxy.http1.options import Http1Options
from lb.proxy.http1.request_body import PORTION
from tests.fakes.http1_sides import Sides
from tests.fakes.relay import snapshot_of

_POST = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


class Hedged:
    """A request that two backends have."""

    def __init__(
        self, wire: bytes = _POST, kind: BackendKind = BackendKind.TRITON, ceiling: int = 1 << 20
    ) -> None:
        self.sides = Sides(backends=2, kind=kind, ceiling=ceiling)
        self.connections, self.backends = zip(
            self.sides.upstream(0), self.sides.upstream(1), strict=True
        )
        self.server, self.client = self.sides.client()
        self.server.data_received(wire)
        self.first_sent = self.backends[0].take()
        (self.exchange,) = self.sides.relay.under_way()
        hedge = self.sides.relay.hedge(self.exchange)
        assert hedge is not None
        self.hedge = hedge

    @property
    def is_over(self) -> bool:
        """Whether it is known if the second attempt was the first to answer."""
        return self.hedge.outcome is not None or self.exchange.hedge is not self.hedge

    @property
    def has_won(self) -> bool:
        return self.sides.dispatcher.accounts.overtaken == 1

    @property
    def is_wanted(self) -> bool:
        return self.exchange.is_sent and self.exchange.is_under_way

    def cancel(self) -> None:
        self.sides.relay.cancel_hedge(self.exchange)

    @property
    def is_clean(self) -> bool:
        sides = self.sides
        return not (sides.in_flight or sides.dispatcher.open_exchanges or sides.memory_budget.held)


@pytest.mark.parametrize("size", [5, 50_000])
async def test_the_second_backend_gets_the_same_request(size: int) -> None:
    hedged = Hedged(_POST[:-5].replace(b": 5", b": %d" % size) + bytes(size))
    assert hedged.backends[1].take() == hedged.first_sent
    assert [backend.in_flight for backend in hedged.sides.backends] == [1, 1]


async def test_an_answer_that_comes_in_pieces_is_the_clients_as_well() -> None:
    hedged = Hedged()
    for part in (_CHUNKED[:20], _CHUNKED[20:50], _CHUNKED[50:]):
        hedged.connections[1].data_received(part)
    assert hedged.client.take() == _CHUNKED
    hedged.connections[0].data_received(_OK)
    assert hedged.is_clean


@pytest.mark.parametrize("answer", [_OK, _CHUNKED])
async def test_the_second_is_read_and_dropped_when_the_first_has_answered(answer: bytes) -> None:
    hedged = Hedged()
    hedged.connections[0].data_received(_OK)
    assert hedged.client.take() == _OK
    assert not hedged.is_wanted
    hedged.cancel()
    assert hedged.is_over
    assert not hedged.is_clean, "a Triton computes on"
    hedged.connections[1].data_received(answer)
    assert hedged.client.take() == b""
    assert not hedged.backends[1].ended
    assert hedged.is_clean


def _long(size: int) -> bytes:
    return _POST[:-5].replace(b": 5", b": %d" % size) + bytes(size)


async def test_nothing_is_kept_of_a_request_whose_second_attempt_is_cancelled() -> None:
    hedged = Hedged(_long(50_000))
    hedged.connections[0].data_received(_OK)
    hedged.cancel()
    assert not hedged.hedge.body.is_retained
    assert hedged.sides.memory_budget.held == 0


async def test_a_second_that_is_still_being_sent_ends_once_the_first_has_answered() -> None:
    sides = Sides(backends=2, ceiling=1 << 24)
    first, _ = sides.upstream(0)
    _, second = sides.upstream(1)
    server, client = sides.client()
    wire = _long(2 * PORTION)
    for at in range(0, len(wire), PORTION // 4):
        server.data_received(wire[at : at + PORTION // 4])
    (exchange,) = sides.relay.under_way()
    assert sides.relay.hedge(exchange) is not None
    first.data_received(_OK)
    assert client.take() == _OK
    sides.relay.cancel_hedge(exchange)
    assert second.ended == "abort", "no Triton is to execute it for nobody"
    assert sides.is_clean()


async def test_other_servers_are_told_that_nobody_waits() -> None:
    hedged = Hedged(kind=BackendKind.KSERVE)
    hedged.connections[1].data_received(_OK)
    assert hedged.client.take() == _OK
    assert hedged.backends[0].ended == "abort"
    assert hedged.sides.outcomes.seen == [("b0", Outcome.OVERTAKEN)]
    assert hedged.is_clean


@pytest.mark.parametrize(
    "end",
    [
        b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"nonsense\r\n\r\n",
        None,
    ],
)
async def test_what_is_no_answer_of_the_second_does_not_matter(end: bytes | None) -> None:
    hedged = Hedged()
    if end is None:
        hedged.backends[1].lose()
    else:
        hedged.connections[1].data_received(end)
    assert hedged.is_over
    assert hedged.client.take() == b""
    hedged.connections[0].data_received(_OK)
    assert hedged.client.take() == _OK
    assert hedged.sides.finished.records[0].attempts == 1
    assert hedged.is_clean


async def test_an_error_of_the_first_that_is_on_its_way_is_overtaken() -> None:
    hedged = Hedged()
    hedged.connections[0].data_received(b"HTTP/1.1 503 No\r\nContent-Length: 9\r\n\r\nabc")
    hedged.connections[1].data_received(_OK)
    assert hedged.client.take() == _OK
    hedged.connections[0].data_received(b"defghi")
    assert hedged.client.take() == b""
    assert hedged.is_clean


async def test_nothing_is_left_when_the_client_goes() -> None:
    hedged = Hedged()
    hedged.client.lose()
    assert not hedged.is_wanted
    hedged.cancel()
    for connection in hedged.connections:
        connection.data_received(_OK)
    assert hedged.is_clean


async def test_the_second_takes_the_place_of_a_first_that_is_lost() -> None:
    hedged = Hedged()
    hedged.backends[0].lose()
    assert hedged.is_over
    assert hedged.is_wanted
    hedged.sides.waits.advance(0.1)
    assert len(hedged.sides.tasks) == 0, "there is no third one"
    hedged.connections[1].data_received(_OK)
    assert hedged.client.take() == _OK
    (record,) = hedged.sides.finished.records
    assert (record.status, record.attempts) == (200, 2)
    assert record.backend is hedged.sides.backends[1]
    assert not hedged.has_won
    assert hedged.sides.outcomes.seen == [("b0", Outcome.STALE)]
    assert hedged.is_clean


async def test_two_servers_that_are_lost_with_a_request_are_enough() -> None:
    hedged = Hedged()
    for backend in hedged.backends:
        backend.lose()
        hedged.sides.pool.publish(snapshot_of(()))
    hedged.sides.waits.advance(1.0)
    assert hedged.client.take().startswith(b"HTTP/1.1 502 ")
    assert hedged.sides.dispatcher.reruns.refused == {"lost_twice": 1}
    assert hedged.is_clean


async def test_where_the_second_is_not_sent_yet_a_first_that_is_lost_goes_again() -> None:
    sides = Sides(backends=2)
    _, first = sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST)
    (exchange,) = sides.relay.under_way()
    assert sides.relay.hedge(exchange) is not None
    assert len(sides.tasks) == 1, "it is dialled"
    first.lose()
    assert exchange.hedge is not None
    sides.waits.advance(0.1)
    assert len(sides.tasks) == 2
    await sides.tasks.aclose()
    client.lose()


async def test_what_was_not_kept_is_not_sent_twice() -> None:
    sides = Sides(Http1Options(retained_size=4), backends=2)
    sides.upstream(0)
    server, client = sides.client()
    server.data_received(_POST[:-5].replace(b": 5", b": 5000") + bytes(5000))
    assert sides.relay.hedge(sides.relay.under_way()[0]) is None
    client.lose()
