"""Descriptors of abandoned attempts: given up where they are needed, although a Triton executes the
requests all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from tests.fakes.clock import FakeLoop
from tests.fakes.http1_sides import FakeTransport, Sides
from tests.fakes.relay import snapshot_of
from tests.wire.http1 import inference_response, post, reply

_EXPECTED_S: Final = 8.0
_ANSWER: Final = reply(inference_response())


def schedule(sides: Sides) -> None:
    """Have requests of the model scheduled."""
    backends = tuple(sides.backends)
    plan = QueuePlan(limits={}, default=Capacity(4, instances=4))
    facts = ModelFacts(is_stateful=False)
    route = ModelRoute(facts=facts, plan=plan, is_uniform=True, is_plain=False)
    sides.pool.publish(replace(snapshot_of(backends), routes={b"simple": route}))


def abandon(sides: Sides) -> FakeTransport:
    """Send a request over a new connection to the backend, and leave. Returns that connection."""
    _, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(post())
    assert backend.take()
    client.lose()
    return backend


async def test_the_longest_abandoned_are_closed_first_and_idle_connections_before_them() -> None:
    sides = Sides()
    abandoned = [abandon(sides) for _ in range(3)]
    _, idle = sides.upstream()
    sides.relay.close_unneeded(2)
    assert idle.ended == "abort"
    assert [each.ended for each in abandoned] == ["abort", "", ""]
    assert sides.upstream_connections == sides.in_flight == 2
    sides.relay.close_unneeded(5)
    assert sides.upstream_connections == sides.in_flight == 0
    assert sides.is_clean()


async def test_connections_that_a_client_waits_for_stay() -> None:
    sides = Sides()
    _, backend = sides.upstream()
    server, client = sides.client()
    server.data_received(post())
    sides.relay.close_unneeded(5)
    assert backend.ended == ""
    backend.protocol.data_received(_ANSWER)
    assert client.take() == _ANSWER


async def test_a_connection_whose_answer_came_is_abandoned_no_more() -> None:
    sides = Sides()
    backend = abandon(sides)
    backend.protocol.data_received(_ANSWER)
    server, client = sides.client()
    server.data_received(post())
    assert backend.take()
    sides.relay.close_unneeded(5)
    backend.protocol.data_received(_ANSWER)
    assert client.take() == _ANSWER


async def test_a_scheduled_request_counts_without_a_connection_until_its_expected_end() -> None:
    loop = FakeLoop()
    sides = Sides(loop=loop)
    schedule(sides)
    for _ in range(16):
        _, backend = sides.upstream()
        server, client = sides.client()
        server.data_received(post())
        loop.advance(_EXPECTED_S)
        backend.protocol.data_received(_ANSWER)
        assert client.take() == _ANSWER
        sides.relay.close_unneeded(1)
    backend = abandon(sides)
    loop.advance(_EXPECTED_S / 2)
    sides.relay.close_unneeded(1)
    assert backend.ended == "abort"
    assert (sides.upstream_connections, sides.in_flight) == (0, 1)
    loop.advance(_EXPECTED_S / 4)
    assert sides.in_flight == 1
    loop.advance(_EXPECTED_S / 2)
    assert sides.is_clean()
    # It is we who did not wait for the answer.
    assert sides.backends[0].lost_requests == 0
