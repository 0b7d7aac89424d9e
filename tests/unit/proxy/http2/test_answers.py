"""Calls that the relay answers itself."""

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2

from lb.domain.backend import AppProtocol
from lb.domain.outcome import Reason
from lb.kserve import inference_pb2 as pb
from lb.proxy.http2.health import is_ready
from lb.wire.http2.fields import encode_field
from tests.fakes.backends import make_backends
from tests.fakes.frames import DATA, HEADERS, Frame, data, headers, message, request_fields
from tests.fakes.links import PaperRelay
from tests.fakes.relay import snapshot_of

LIVE = b"/inference.GRPCInferenceService/ServerLive"
READY = b"/inference.GRPCInferenceService/ServerReady"
CHECK = b"/grpc.health.v1.Health/Check"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def ask(path: bytes, stream: int = 1) -> bytes:
    """A call with an empty message."""
    return headers(stream, request_fields(path=path)) + data(stream, message(), end=True)


def messages(frames: list[Frame]) -> list[bytes]:
    """The messages in DATA, one frame each."""
    return [frame.payload[5:] for frame in frames if frame.kind == DATA]


def health(frames: list[Frame]) -> list[int]:
    return [health_pb2.HealthCheckResponse.FromString(each).status for each in messages(frames)]


def test_ready_is_any_eligible_backend() -> None:
    assert is_ready(snapshot_of(make_backends(0)))
    assert not is_ready(snapshot_of(()))


@pytest.mark.parametrize("backends", [0, 1])
async def test_we_live_whatever_the_backends_do(backends: int) -> None:
    relay = PaperRelay(backends=backends)
    client = relay.client()
    client.sends(ask(LIVE))
    (answer,) = messages(client.gets())
    assert pb.ServerLiveResponse.FromString(answer).live
    assert relay.is_clean()
    (record,) = relay.finished.records
    assert (record.grpc_status, record.attempts, record.backend) == (0, 0, None)


@pytest.mark.parametrize("backends", [0, 1])
async def test_we_are_ready_with_a_backend(backends: int) -> None:
    relay = PaperRelay(backends=backends)
    client = relay.client()
    client.sends(ask(READY), ask(CHECK, 3))
    ready, check = messages(client.gets())
    assert pb.ServerReadyResponse.FromString(ready).ready is bool(backends)
    wanted = SERVING if backends else NOT_SERVING
    assert health_pb2.HealthCheckResponse.FromString(check).status == wanted


async def test_while_we_exit_we_are_not_ready() -> None:
    relay = PaperRelay()
    relay.dispatcher.announce_exit()
    client = relay.client()
    client.sends(ask(CHECK))
    assert health(client.gets()) == [NOT_SERVING]
    client.sends(ask(READY, 3))
    (head,) = client.gets()
    assert b"grpc-status\x0214" in head.payload
    assert b"Server exiting" in head.payload
    assert head.ends_stream


@pytest.mark.parametrize("path", [READY, CHECK])
async def test_a_balancer_is_told_through_whom_we_are_ready(path: bytes) -> None:
    ours, other, server = (b"triton-lb-%016x" % number for number in range(3))
    relay = PaperRelay()
    relay.dispatcher.identity = ours
    relay.relay.configure(relay.relay.options)
    relay.backends[0].port(AppProtocol.GRPC).ready_through = (server,)
    client = relay.client()
    for stream_id, hop in ((1, other), (3, server)):
        fields = request_fields((b"cdn-loop", hop), path=path)
        client.sends(headers(stream_id, fields) + data(stream_id, message(), end=True))
    heads = [frame for frame in client.gets() if frame.kind == HEADERS]
    assert encode_field(b"triton-lb-ready-through", ours + b", " + server) in heads[0].payload
    last = heads[-1].payload
    assert b"grpc-status\x0214" in last
    assert server in last
    assert relay.is_clean()
    assert [record.reason for record in relay.finished.records] == [None, Reason.LOOP]
