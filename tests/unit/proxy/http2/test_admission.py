"""Calls that are refused for what their heads say, and those that are not."""

from __future__ import annotations

from lb.access.gate import Gate, GateRules, LimitRule
from lb.access.limits import Limit
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Role
from lb.domain.outcome import Reason
from lb.proxy.http2.options import Http2Options
from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import GOAWAY, HEADERS, answer, call, data, headers, message, request_fields

SECRET = b"0123456789abcdef"
GOOD = (b"authorization", b"Bearer " + SECRET)
SERVICE = b"/inference.GRPCInferenceService/"


def guarded(*limits: LimitRule) -> PaperRelay:
    book = TokenBook([Token("key", digest_of(SECRET), frozenset({Role.INFER}))])
    gate = Gate(GateRules(needs_token=not limits, limits=limits), book)
    return PaperRelay(gate=gate, options=Http2Options(private_fields=frozenset({b"authorization"})))


async def test_a_limit_says_in_milliseconds_when_to_come_again() -> None:
    relay = guarded(LimitRule(Limit(rate=0.5)))
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    backend.gets()
    backend.sends(answer(1))
    client.gets()
    client.sends(call(3))
    (head, *_) = client.gets()
    assert b"grpc-status\x018" in head.payload
    assert b"grpc-retry-pushback-ms\x042000" in head.payload
    assert backend.gets() == []
    assert relay.is_clean()


async def test_requests_under_way_are_given_back_in_every_ending() -> None:
    relay = guarded(LimitRule(Limit(concurrent=1)))
    backend, client = relay.backend(), relay.client()
    client.sends(call(1))
    client.sends(call(3))
    assert b"grpc-status\x018" in client.gets()[0].payload
    client.goes()
    assert relay.is_clean()
    other = relay.client()
    backend.gets()
    other.sends(call(1))
    assert backend.gets()[0].kind == HEADERS
    backend.goes()
    assert relay.is_clean()


async def test_a_client_whose_heads_are_all_too_large_has_to_go() -> None:
    relay = PaperRelay(options=Http2Options(head_size=1000))
    client = relay.client()
    for number in range(101):
        client.sends(headers(2 * number + 1, request_fields((b"x", b"y" * 1500)), end=True))
    goaways = [found for found in client.gets() if found.kind == GOAWAY]
    assert b"too many oversized heads" in goaways[0].payload
    assert len(relay.finished.records) == 101
    assert relay.is_clean()


async def test_a_call_that_comes_back_goes_no_further_whatever_it_is() -> None:
    own = b"triton-lb-0123456789abcdef"
    relay = guarded()
    relay.dispatcher.identity = own
    relay.relay.configure(relay.relay.options)
    backend, client = relay.backend(), relay.client()
    client.sends(call(1, None, (b"cdn-loop", own), GOOD))
    for number, name in enumerate((b"ServerReady", b"RepositoryIndex", b"ModelStreamInfer")):
        fields = request_fields((b"cdn-loop", own), GOOD, path=SERVICE + name)
        stream_id = 3 + 2 * number
        client.sends(headers(stream_id, fields), data(stream_id, message(), end=True))
    heads = [frame for frame in client.gets() if frame.kind == HEADERS]
    assert len(heads) == 4
    assert all(b"grpc-status\x0214" in head.payload for head in heads)
    assert all(b"loop detected" in head.payload for head in heads)
    assert backend.gets() == []
    assert [record.reason for record in relay.finished.records] == [Reason.LOOP] * 4
    client.sends(call(9, None, GOOD))
    assert b"cdn-loop" in backend.gets()[0].payload
