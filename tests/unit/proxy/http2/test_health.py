"""Health of the server and of models, and whether a model is ready."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grpc_health.v1 import health_pb2

from lb.domain.backend import AppProtocol
from lb.domain.model import NO_FACTS
from lb.domain.outcome import Reason
from lb.domain.pool import ModelRoute, PoolSnapshot
from lb.kserve import inference_pb2 as pb
from lb.kserve.health import Serving
from lb.proxy.http2.health import serving, watched
from lb.wire.http2.fields import encode_field
from tests.fakes.backends import make_backends
from tests.fakes.http2_connections import PaperRelay
from tests.fakes.relay import snapshot_of
from tests.wire.frames import (
    DATA,
    HEADERS,
    RST_STREAM,
    Frame,
    data,
    headers,
    message,
    request_fields,
    rst,
)

CHECK = b"/grpc.health.v1.Health/Check"
WATCH = b"/grpc.health.v1.Health/Watch"
LIVE = b"/inference.GRPCInferenceService/ServerLive"
READY = b"/inference.GRPCInferenceService/ServerReady"
MODEL_READY = b"/inference.GRPCInferenceService/ModelReady"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def ask(path: bytes, stream: int = 1, service: str = "") -> bytes:
    """A question about a service."""
    text = health_pb2.HealthCheckRequest(service=service).SerializeToString()
    return headers(stream, request_fields(path=path)) + data(stream, message(text), end=True)


def ask_ready(model: str, version: str = "") -> bytes:
    text = pb.ModelReadyRequest(name=model, version=version).SerializeToString()
    return headers(1, request_fields(path=MODEL_READY)) + data(1, message(text), end=True)


def ask_server(path: bytes, stream: int = 1, text: bytes = b"") -> bytes:
    """A call with any message."""
    return headers(stream, request_fields(path=path)) + data(stream, message(text), end=True)


def health(frames: list[Frame]) -> list[int]:
    texts = [frame.payload[5:] for frame in frames if frame.kind == DATA]
    return [health_pb2.HealthCheckResponse.FromString(each).status for each in texts]


def listing(snapshot: PoolSnapshot, *, knows_all: bool = True, **models: bool) -> PoolSnapshot:
    """A pool that lists models, of which those that are true are ready."""
    routes = {
        name.encode(): ModelRoute(
            facts=NO_FACTS, ready_versions=frozenset({b"1"} if is_ready else ())
        )
        for name, is_ready in models.items()
    }
    return replace(snapshot, routes=routes, knows_all=knows_all)


ONE = snapshot_of(make_backends(0))
NONE = snapshot_of(())


@pytest.mark.parametrize(
    ("snapshot", "service", "state"),
    [
        (ONE, b"", Serving.SERVING),
        (ONE, b"inference.GRPCInferenceService", Serving.SERVING),
        (NONE, b"", Serving.NOT_SERVING),
        (listing(ONE, m=True), b"m", Serving.SERVING),
        (listing(ONE, m=False), b"m", Serving.NOT_SERVING),
        (listing(NONE, m=True), b"m", Serving.NOT_SERVING),
        (listing(ONE, m=False), b"liveness", Serving.SERVING),
        (listing(NONE, m=False), b"liveness", Serving.NOT_SERVING),
    ],
)
def test_a_service_is_a_model_that_is_listed_or_else_the_server(
    snapshot: PoolSnapshot, service: bytes, state: Serving
) -> None:
    assert serving(snapshot, service) is state


def test_who_watches_is_told_that_nobody_lists_a_model() -> None:
    assert watched(listing(ONE, m=True), b"other") is Serving.SERVICE_UNKNOWN
    assert watched(listing(ONE, knows_all=False), b"other") is Serving.SERVING
    assert watched(listing(ONE, m=False), b"m") is Serving.NOT_SERVING
    assert watched(listing(ONE), b"") is Serving.SERVING


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_name_serves_while_one_of_its_variants_does(is_ready: bool) -> None:
    relay = PaperRelay()
    relay.use_variants(b"name", {"name": "only", "model": b"model", "weight": 1})
    relay.ref.publish(listing(relay.ref.current, model=is_ready))
    client = relay.client()
    client.sends(ask(CHECK, 1, "name"), ask(WATCH, 3, "name"))
    state = SERVING if is_ready else NOT_SERVING
    assert health(client.gets()) == [state, state]
    relay.ref.publish(listing(relay.ref.current, model=not is_ready))
    relay.relay.flush()
    assert health(client.gets()) == [NOT_SERVING if is_ready else SERVING]


async def test_a_check_of_a_model_is_answered_by_its_state() -> None:
    relay = PaperRelay()
    relay.ref.publish(listing(relay.ref.current, good=True, bad=False))
    client = relay.client()
    client.sends(ask(CHECK, 1, "good"), ask(CHECK, 3, "bad"), ask(CHECK, 5))
    assert health(client.gets()) == [SERVING, NOT_SERVING, SERVING]
    assert relay.is_clean()


async def test_a_question_that_is_too_long_is_refused_at_once() -> None:
    relay = PaperRelay()
    client = relay.client()
    client.sends(headers(1, request_fields(path=CHECK)), data(1, bytes(5000)))
    frames = client.gets()
    assert [frame.kind for frame in frames if frame.stream == 1] == [HEADERS, RST_STREAM]
    assert b"grpc-status\x018" in frames[0].payload
    assert relay.is_clean()


async def test_a_model_comes_and_goes_for_who_watches_it() -> None:
    relay = PaperRelay()
    client = relay.client()
    relay.ref.publish(listing(relay.ref.current))
    client.sends(ask(WATCH, service="m"))
    assert health(client.gets()) == [SERVICE_UNKNOWN]
    for is_there, wanted in ((False, [NOT_SERVING]), (True, [SERVING]), (True, [])):
        relay.ref.publish(listing(relay.ref.current, m=is_there))
        relay.relay.flush()
        assert health(client.gets()) == wanted


async def test_a_watcher_hears_of_every_change_once() -> None:
    relay = PaperRelay()
    client = relay.client()
    client.sends(ask(WATCH))
    assert health(client.gets()) == [SERVING]
    for backends, wanted in ((relay.backends, []), ((), [NOT_SERVING]), ((), [])):
        relay.ref.publish(snapshot_of(backends))
        relay.relay.flush()
        assert health(client.gets()) == wanted
    relay.ref.publish(snapshot_of(relay.backends))
    relay.dispatcher.announce_exit()
    relay.relay.flush()
    assert health(client.gets()) == [SERVING, NOT_SERVING]


async def test_a_drain_does_not_wait_for_a_watcher() -> None:
    relay = PaperRelay()
    client = relay.client()
    client.sends(ask(WATCH))
    client.gets()
    relay.dispatcher.announce_exit()
    relay.relay.begin_drain()
    relay.relay.flush()
    client.sends(ask(WATCH, stream=3))
    written = client.gets()
    for stream in (1, 3):
        frames = [frame for frame in written if frame.stream == stream]
        assert health(frames)[-1] == NOT_SERVING
        assert b"grpc-status\x0214" in frames[-1].payload
    assert relay.is_clean()


async def test_a_watcher_that_goes_is_told_nothing_more() -> None:
    relay = PaperRelay()
    client = relay.client()
    client.sends(ask(WATCH))
    client.sends(rst(1))
    client.gets()
    relay.ref.publish(snapshot_of(()))
    relay.relay.flush()
    assert client.gets() == []
    assert relay.is_clean()


async def test_a_model_that_a_backend_has_is_ready() -> None:
    relay = PaperRelay()
    relay.ref.publish(listing(relay.ref.current, m=True))
    client = relay.client()
    client.sends(ask_ready("m", "1"))
    (answer,) = [frame.payload[5:] for frame in client.gets() if frame.kind == DATA]
    assert pb.ModelReadyResponse.FromString(answer).ready
    assert relay.is_clean()


@pytest.mark.parametrize(("model", "version"), [("m", "2"), ("bad", ""), ("other", "")])
async def test_of_other_models_a_backend_says_what_they_are(model: str, version: str) -> None:
    relay = PaperRelay()
    relay.ref.publish(listing(relay.ref.current, m=True, bad=False))
    client = relay.client()
    backend = relay.backend()
    client.sends(ask_ready(model, version))
    sent = b"".join(frame.payload for frame in backend.gets() if frame.kind == DATA)
    asked = pb.ModelReadyRequest.FromString(sent[5:])
    assert (asked.name, asked.version) == (model, version)


# The server


async def test_while_we_exit_we_are_not_ready() -> None:
    relay = PaperRelay()
    relay.dispatcher.announce_exit()
    client = relay.client()
    client.sends(ask(CHECK))
    assert health(client.gets()) == [NOT_SERVING]
    client.sends(ask_server(READY, 3))
    (head,) = client.gets()
    assert b"grpc-status\x0214" in head.payload
    assert b"Server exiting" in head.payload
    assert head.ends_stream


@pytest.mark.parametrize("path", [LIVE, READY, CHECK])
@pytest.mark.parametrize("body", [b"", b"\0\0\0\0\x05ab", message(b"\x0a\x7f")])
async def test_a_question_that_nobody_can_read_is_an_error(path: bytes, body: bytes) -> None:
    relay = PaperRelay()
    client = relay.client()
    client.sends(headers(1, request_fields(path=path)) + data(1, body, end=True))
    (head,) = client.gets()
    assert b"grpc-status\x0213" in head.payload
    assert b"Unable to parse request" in head.payload
    assert head.ends_stream
    assert relay.is_clean()


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
