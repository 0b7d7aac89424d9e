"""Trace contexts and spans, through a relay before backends that show what they got."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_network
from typing import Any

import grpc.aio
import pytest

from lb.domain.client import TrustedProxies
from lb.domain.outcome import Outcome
from lb.domain.why import Why
from lb.telemetry.spans import AttemptSpan, RequestSpan
from lb.telemetry.spans import spans_of as spans_of_record
from lb.wire.trace_context import Traces
from tests.fakes.grpc_server import grpc_server
from tests.fakes.relay import running_http1_relay, running_relay
from tests.wire.http1 import Peer, post, raw_client, reply, scripted_backend
from tests.wire.waiting import eventually

ID = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
STATE = "vendor=1"
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
Fields = list[tuple[str, str]]


def fields_of(flags: str = "01", *, state: str = STATE, trace: str = ID) -> Fields:
    found = [("traceparent", f"00-{trace}-{SPAN}-{flags}")]
    return [*found, ("tracestate", state)] if state else found


class HttpSide:
    """Asks over HTTP/1.1; a request after the other on one connection."""

    async def __aenter__(self) -> HttpSide:
        self._backend = scripted_backend(self._script)
        self.backend = await self._backend.__aenter__()
        self._relay = running_http1_relay(self.backend.target)
        self.relay = await self._relay.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._relay.__aexit__(*raised)
        await self._backend.__aexit__(*raised)

    async def _script(self, peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(reply(b"ok"))

    async def ask(self, fields: Fields) -> dict[str, str]:
        """Ask; returns the fields of the trace context that the backend got."""
        lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in fields)
        async with raw_client(self.relay.port) as client:
            await client.send(post(b"hello", lines))
            answer = await client.answer()
            assert answer.status == 200
        got = self.backend.requests[-1]
        return {
            name: value.decode()
            for name in ("traceparent", "tracestate")
            if (value := got.field(name.encode())) is not None
        }


class GrpcSide:
    """Asks over gRPC."""

    async def __aenter__(self) -> GrpcSide:
        self._backend = grpc_server()
        self.service, target = await self._backend.__aenter__()
        self._relay = running_relay(target)
        self.relay = await self._relay.__aenter__()
        self._channel = grpc.aio.insecure_channel(
            self.relay.target, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._channel.close()
        await self._relay.__aexit__(*raised)
        await self._backend.__aexit__(*raised)

    async def ask(self, fields: Fields) -> dict[str, str]:
        """Ask; returns the fields of the trace context that the backend got."""
        call = self._channel.unary_unary(_METHOD)
        await call(b"\x0a\x01m", metadata=tuple(fields))
        return {
            name: str(value)
            for name, value in self.service.metadata
            if name in ("traceparent", "tracestate")
        }


Side = HttpSide | GrpcSide
SIDES = pytest.mark.parametrize("make", [HttpSide, GrpcSide])


def spans_of(tracer: Any) -> tuple[list[RequestSpan], list[AttemptSpan]]:
    waiting = [span for record in tracer.spans.waiting for span in spans_of_record(record)]
    return (
        [each for each in waiting if isinstance(each, RequestSpan)],
        [each for each in waiting if isinstance(each, AttemptSpan)],
    )


async def spans_soon(tracer: Any, count: int) -> tuple[list[RequestSpan], list[AttemptSpan]]:
    await eventually(lambda: sum(map(len, spans_of(tracer))) >= count)
    return spans_of(tracer)


@SIDES
async def test_contexts_pass_unchanged_while_nothing_is_traced(make: type[Side]) -> None:
    async with make() as side:
        for fields in (fields_of("00"), fields_of("01"), [("traceparent", "nonsense")], []):
            for _ in range(110):  # also once the head without it is known
                assert await side.ask(fields) == dict(fields)


@SIDES
async def test_a_sampled_context_goes_on_with_the_span_of_the_attempt(make: type[Side]) -> None:
    async with make() as side:
        tracer = side.relay.trace()
        for _ in range(110):
            tracer.spans.waiting.clear()
            got = await side.ask(fields_of("03"))
            (request,), (attempt,) = await spans_soon(tracer, 2)
            assert got == {
                "traceparent": f"00-{ID}-{attempt.span_id.decode()}-03",
                "tracestate": STATE,
            }
            assert request.trace_id.decode() == attempt.trace_id.decode() == ID
            assert request.parent_id.decode() == SPAN
            assert attempt.parent_id == request.span_id
            assert (attempt.why, attempt.outcome) == (Why.FIRST, Outcome.ANSWERED)


@SIDES
@pytest.mark.parametrize(
    "fields",
    [
        fields_of("00"),
        fields_of("00", state=""),
        [("tracestate", STATE)],
        [("traceparent", "00-nonsense-01"), ("tracestate", STATE)],
        [("traceparent", f"00-{'0' * 32}-{SPAN}-01")],
        [("traceparent", f"ff-{ID}-{SPAN}-01")],
        [],
    ],
)
async def test_backends_see_nothing_of_what_is_not_sampled_or_malformed(
    make: type[Side], fields: Fields
) -> None:
    async with make() as side:
        tracer = side.relay.trace()
        for _ in range(110):
            assert await side.ask(fields) == {}
        assert not tracer.spans.waiting


async def test_two_contexts_count_as_none() -> None:
    # Not over gRPC, whose clients send the last one alone.
    async with HttpSide() as side:
        side.relay.trace()
        for other in (fields_of("01"), [("TraceParent", f"00-{ID}-{SPAN}-01")]):
            for _ in range(110):
                assert await side.ask(fields_of("01") + other) == {}


@SIDES
async def test_contexts_that_are_not_sampled_may_pass(make: type[Side]) -> None:
    async with make() as side:
        tracer = side.relay.trace(contexts=Traces.PASS)
        for _ in range(110):
            assert await side.ask(fields_of("00")) == dict(fields_of("00"))
        assert await side.ask([("traceparent", "nonsense")]) == {}
        assert not tracer.spans.waiting
        got = await side.ask(fields_of("01"))
        _, (attempt,) = await spans_soon(tracer, 2)
        assert got["traceparent"] == f"00-{ID}-{attempt.span_id.decode()}-01"


@SIDES
@pytest.mark.parametrize("contexts", [Traces.STRIP, Traces.PASS])
async def test_strangers_have_no_say_where_only_proxies_are_trusted(
    make: type[Side], contexts: Traces
) -> None:
    async with make() as side:
        tracer = side.relay.trace(trusts_all=False, contexts=contexts)
        passed = dict(fields_of("01")) if contexts is Traces.PASS else {}
        assert await side.ask(fields_of("01")) == passed
        assert not tracer.spans.waiting
    async with make() as side:
        side.relay.configure(trusted_proxies=TrustedProxies((ip_network("127.0.0.1/32"),)))
        tracer = side.relay.trace(trusts_all=False, contexts=contexts)
        assert (await side.ask(fields_of("01")))["traceparent"].startswith(f"00-{ID}-")
        await spans_soon(tracer, 2)


@SIDES
async def test_requests_beyond_the_limit_are_not_traced_and_counted(make: type[Side]) -> None:
    async with make() as side:
        tracer = side.relay.trace(ratio=1.0, spans_per_s=4)
        told = [await side.ask(fields_of("01")) for _ in range(8)]
        assert {} in told
        assert told[0] != {}
        assert tracer.spans.dropped["limited"] > 0
        assert len(tracer.spans.waiting) < 16


@SIDES
async def test_requests_without_a_context_are_traced_by_ratio(make: type[Side]) -> None:
    async with make() as side:
        tracer = side.relay.trace(ratio=1.0)
        got = await side.ask([])
        (request,), (attempt,) = await spans_soon(tracer, 2)
        trace_id = request.trace_id.decode()
        assert got == {"traceparent": f"00-{trace_id}-{attempt.span_id.decode()}-01"}
        assert request.parent_id == b""
        tracer = side.relay.trace(ratio=0.5)
        tracer.spans.waiting.clear()
        traced = [bool(await side.ask([])) for _ in range(200)]
        assert 50 < sum(traced) < 150  # one in 10^12 runs is outside


@SIDES
async def test_each_attempt_tells_its_own_span(make: type[Side]) -> None:
    """A hundred traced requests at once, whose backend gets a hundred spans."""
    async with make() as side:
        tracer = side.relay.trace(ratio=1.0)
        await asyncio.gather(*(side.ask([]) for _ in range(100)))
        requests, attempts = await spans_soon(tracer, 200)
        assert len({each.trace_id for each in requests}) == 100
        assert len({each.span_id for each in attempts}) == 100
        assert not side.relay.open_requests


async def test_a_retry_is_told_as_such_and_a_failure_is_traced_late() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        gone = f"127.0.0.1:{nobody.getsockname()[1]}"

        async def script(peer: Peer) -> None:
            while True:
                await peer.request()
                await peer.send(reply(b"ok"))

        async with (
            scripted_backend(script) as backend,
            running_http1_relay(gone, backend.target) as relay,
        ):
            tracer = relay.trace()
            async with raw_client(relay.port) as client:
                await client.send(post())
                assert (await client.answer()).status == 200
            (request,), (first, second) = await spans_soon(tracer, 3)
    assert request.is_late
    assert (first.why, first.outcome) == (Why.FIRST, Outcome.CONNECT_REFUSED)
    assert (second.why, second.outcome) == (Why.RETRY, Outcome.ANSWERED)
    assert {first.trace_id, second.trace_id} == {request.trace_id}
    assert backend.requests[0].field(b"traceparent") is None


async def test_what_we_refuse_ourselves_is_traced_late_and_what_clients_do_is_not() -> None:
    async with running_http1_relay() as relay:
        tracer = relay.trace()
        async with raw_client(relay.port) as client:
            await client.send(post())
            assert (await client.answer()).status == 503
        (request,), () = await spans_soon(tracer, 1)
        assert request.is_late
        tracer.spans.waiting.clear()
        async with raw_client(relay.port) as client:
            await client.send(b"nonsense\r\n\r\n")
            assert (await client.answer()).status == 400
        assert not tracer.spans.waiting


async def test_an_error_of_a_backend_is_traced_late() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\nno")
        await peer.request()
        await peer.send(b"HTTP/1.1 400 Yours\r\nContent-Length: 2\r\n\r\nno")

    async with scripted_backend(script) as backend, running_http1_relay(backend.target) as relay:
        tracer = relay.trace()
        async with raw_client(relay.port) as client:
            await client.send(
                post(b"hello", b"traceparent: " + fields_of("00")[0][1].encode() + b"\r\n")
            )
            assert (await client.answer()).status == 500
            (request,), (attempt,) = await spans_soon(tracer, 2)
            assert request.trace_id.decode() == ID
            assert request.parent_id.decode() == SPAN
            assert request.is_late
            assert attempt.code == 500
            tracer.spans.waiting.clear()
            await client.send(post())
            assert (await client.answer()).status == 400
        assert not tracer.spans.waiting


async def test_slow_requests_are_traced_late() -> None:
    async with HttpSide() as side:
        tracer = side.relay.trace()
        await side.ask([])
        assert not tracer.spans.waiting
        tracer.slow[b"simple"] = 0.0
        await side.ask([])
        (request,), (attempt,) = await spans_soon(tracer, 2)
        assert request.is_late
        assert attempt.is_late
