"""However a call ends, nothing of it is left."""

from __future__ import annotations

import pytest

from lb.domain.outcome import Outcome
from lb.proxy.http2.options import Http2Options
from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import call, data, headers, named, request_fields


@pytest.mark.parametrize("begins_with", ["whole", "message", "end"])
@pytest.mark.parametrize(("asked", "own_s"), [(b"9S", 2.0), (b"2S", 9.0)])
async def test_the_shorter_time_ends_a_call_that_has_two(
    asked: bytes, own_s: float, begins_with: str
) -> None:
    relay = PaperRelay(options=Http2Options(request_timeout_s=own_s))
    relay.backend()
    client = relay.client()
    head = request_fields((b"grpc-timeout", asked))
    if begins_with == "whole":
        client.sends(call(1, None, (b"grpc-timeout", asked)))
    elif begins_with == "message":
        client.sends(headers(1, head))
        client.sends(data(1, named(), end=True))
    else:
        client.sends(headers(1, head, end=True))
    (exchange,) = (
        pipe.owner for connection in relay.connections for pipe in connection.streams.values()
    )
    assert exchange.deadline - exchange.started_at == 2.0
    relay.loop.advance(1.9)
    assert relay.outcomes.seen == []
    relay.loop.advance(0.2)
    assert relay.outcomes.seen == [("b0", Outcome.DEADLINE)]
    assert relay.is_clean()
