"""Calls that are refused for what their heads say, and those that are not."""

from __future__ import annotations

import pytest

from lb.access.gate import Gate, GateRules, LimitRule
from lb.access.limits import Limit
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Role
from lb.domain.outcome import Reason
from lb.proxy.http2.relay import Http2Options
from tests.fakes.frames import (
    GOAWAY,
    HEADERS,
    RST_STREAM,
    FieldPair,
    answer,
    call,
    data,
    headers,
    message,
    request_fields,
)
from tests.fakes.links import PaperRelay

SECRET = b"0123456789abcdef"
GOOD = (b"authorization", b"Bearer " + SECRET)
SERVICE = b"/inference.GRPCInferenceService/"


def guarded(*limits: LimitRule) -> PaperRelay:
    book = TokenBook([Token("key", digest_of(SECRET), frozenset({Role.INFER}))])
    gate = Gate(GateRules(needs_token=not limits, limits=limits), book)
    return PaperRelay(gate=gate, options=Http2Options(private_fields=frozenset({b"authorization"})))


@pytest.mark.parametrize("fields", [(), ((b"authorization", b"Bearer wrong"),), (GOOD, GOOD)])
async def test_without_a_valid_token_nothing_reaches_a_backend(
    fields: tuple[FieldPair, ...],
) -> None:
    relay = guarded()
    backend, client = relay.backend(), relay.client()
    for stream_id in (1, 3):
        client.sends(call(stream_id, None, *fields))
        (head, *rest) = client.gets()
        assert (head.kind, b"grpc-status\x0216" in head.payload) == (HEADERS, True)
        assert [frame.kind for frame in rest] in ([], [RST_STREAM])
    assert backend.gets() == []
    assert {record.reason for record in relay.finished.records} == {Reason.UNAUTHENTICATED}
    assert relay.is_clean()


async def test_a_valid_token_opens_and_stays_here() -> None:
    relay = guarded()
    backend, client = relay.backend(), relay.client()
    for number, stream_id in enumerate((1, 3)):
        client.sends(call(stream_id, None, GOOD, (b"x-other", b"1")))
        head = backend.gets()[0]
        assert b"x-other" in head.payload
        assert SECRET not in head.payload
        backend.sends(answer(1 + 2 * number))
    assert [record.token for record in relay.finished.records] == ["key", "key"]
    assert relay.is_clean()


async def test_health_is_answered_without_a_token() -> None:
    relay = guarded()
    client = relay.client()
    client.sends(
        headers(1, request_fields(path=SERVICE + b"ServerLive")) + data(1, message(b""), end=True)
    )
    assert b"grpc-status\x010" in b"".join(frame.payload for frame in client.gets())


async def test_control_from_elsewhere_reaches_no_backend() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    for number, name in enumerate((b"RepositoryModelLoad", b"repositorymodelload?x")):
        stream_id = 1 + 2 * number
        fields = request_fields(path=SERVICE + name)
        client.sends(headers(stream_id, fields) + data(stream_id, message(b""), end=True))
        assert b"grpc-status\x017" in client.gets()[0].payload
    assert backend.gets() == []
    assert {record.reason for record in relay.finished.records} == {Reason.CONTROL_REFUSED}
    assert relay.is_clean()


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
