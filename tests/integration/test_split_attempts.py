"""Parts of a batch are retried and hedged as any request is, over real sockets: where a backend
dies or is slow, and where a part fails for good."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import grpc.aio
import pytest

from lb.domain.backend import AppProtocol
from lb.domain.hedge import HedgeRules
from lb.domain.outcome import Outcome
from lb.domain.schedule import Capacity, QueuePlan
from lb.kserve import inference_pb2 as pb
from lb.kserve.split import bodies, messages
from tests.fakes.gated import until
from tests.fakes.grpc_server import grpc_backend, grpc_channel, path
from tests.fakes.relay import (
    HedgeView,
    RunningRelay,
    running_http1_relay,
    running_relay,
)
from tests.wire.http1 import Peer, raw_client, reply, scripted_backend

LIMIT_S = 30.0
MAX_ROWS = 8
ROWS = 20
PARTS = ((0, 7), (7, 7), (14, 6))
"""First row and rows of each part of a batch."""
UNKNOWN = "Request for unknown model: 'm' version 2 is not found"
"""What Triton says of a version that it has not."""


class RowsBackend(grpc.GenericRpcHandler):
    """Answers with the rows that it gets, or with an error, once its gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.parts: list[tuple[int, int]] = []
        """First row and rows of each part that it got."""
        self.cancelled = 0
        self.error = ""
        self.versions = ["1"]
        """Of the model, as it is for each part in turn; the last one stays."""

    async def take(self, data: bytes) -> None:
        numbers = struct.unpack(f"<{len(data) // 4}i", data)
        self.parts.append((numbers[0], len(numbers)))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    def served_by(self, asked: str) -> str:
        """The version that answers a part, which asks for one, or for any; empty: it has not that
        one."""
        version = self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]
        return version if asked in ("", version) else ""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self._infer)

    async def _infer(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        message = pb.ModelInferRequest.FromString(request)
        [data] = message.raw_input_contents
        await self.take(data)
        if self.error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.error)
        version = self.served_by(message.model_version)
        if not version:
            await context.abort(grpc.StatusCode.NOT_FOUND, UNKNOWN)
        answer = pb.ModelInferResponse(model_name="m", model_version=version)
        answer.outputs.add(name="OUT", datatype="INT32", shape=message.inputs[0].shape)
        answer.raw_output_contents.append(data)
        return answer.SerializeToString()

    async def http(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            size = int(received.field(b"inference-header-content-length") or 0)
            data = received.body[size:]
            await self.take(data)
            asked = received.target.partition(b"/versions/")[2].removesuffix(b"/infer").decode()
            version = "" if self.error else self.served_by(asked)
            if not version:
                text = json.dumps({"error": self.error or UNKNOWN}).encode()
                await peer.send(reply(text, status=b"400 Bad Request"))
                continue
            tensor = {
                "name": "OUT", "datatype": "INT32", "shape": [len(data) // 4, 1],
                "parameters": {"binary_data_size": len(data)},
            }  # fmt: skip
            head = json.dumps({"model_name": "m", "model_version": version, "outputs": [tensor]})
            fields = b"Inference-Header-Content-Length: %d\r\n" % len(head)
            await peer.send(reply(head.encode() + data, fields))


@asynccontextmanager
async def http_backend(backend: RowsBackend) -> AsyncIterator[str]:
    async with scripted_backend(backend.http) as running:
        yield str(running.target)


class Answer(NamedTuple):
    """What the client got."""

    code: int
    """HTTP status, or that of gRPC."""
    text: str
    """Of an error."""
    data: bytes


class Scene:
    """A relay before three backends, and a batch of three parts of which each has one."""

    def __init__(
        self, relay: RunningRelay, backends: list[RowsBackend], protocol: AppProtocol
    ) -> None:
        self.relay = relay
        self.backends = backends
        self.protocol = protocol
        relay.split(b"m", MAX_ROWS)

    @property
    def is_grpc(self) -> bool:
        return self.protocol is AppProtocol.GRPC

    async def ask(self) -> Answer:
        """Send the batch."""
        data = struct.pack(f"<{ROWS}i", *range(ROWS))
        return await (self._ask_grpc(data) if self.is_grpc else self._ask_http(data))

    async def _ask_grpc(self, data: bytes) -> Answer:
        request = pb.ModelInferRequest(model_name="m")
        request.inputs.add(name="IN", datatype="INT32", shape=[ROWS, 1])
        request.raw_input_contents.append(data)
        async with grpc_channel(self.relay.target) as channel:
            infer = channel.unary_unary(path("ModelInfer"))
            try:
                answer = await infer(request.SerializeToString())
            except grpc.aio.AioRpcError as error:
                return Answer(error.code().value[0], str(error.details()), b"")
        [found] = pb.ModelInferResponse.FromString(answer).raw_output_contents
        return Answer(0, "", found)

    async def _ask_http(self, data: bytes) -> Answer:
        tensor = {
            "name": "IN", "datatype": "INT32", "shape": [ROWS, 1],
            "parameters": {"binary_data_size": len(data)},
        }  # fmt: skip
        head = json.dumps({"inputs": [tensor]}).encode()
        fields = b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n" % (
            len(head),
            len(head) + len(data),
        )
        async with raw_client(self.relay.port) as client:
            line = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
            await client.send(line + fields + b"\r\n" + head + data)
            answer = await client.answer("POST")
        if answer.status != 200:
            return Answer(answer.status, json.loads(answer.body)["error"], b"")
        size = next(
            int(value)
            for name, value in answer.fields.items()
            if name.lower() == b"inference-header-content-length"
        )
        return Answer(200, "", answer.body[size:])

    @property
    def right(self) -> Answer:
        return Answer(0 if self.is_grpc else 200, "", struct.pack(f"<{ROWS}i", *range(ROWS)))

    def close_gates(self, *places: int) -> None:
        for place in places:
            self.backends[place].gate.clear()

    async def until_all_have_parts(self) -> None:
        await until(lambda: all(each.parts for each in self.backends), "each has a part")
        assert tuple(each.parts[0] for each in self.backends) == PARTS

    def cut_connections(self, place: int) -> None:
        """The backend is killed."""
        port = self.relay.backends[place].port(self.protocol).address
        for transport in self.relay.upstream_transports:
            if transport.get_extra_info("peername")[:2] == (port.host, port.port):
                transport.abort()

    @property
    def attempts(self) -> list[int]:
        """At backends, for each request of the client."""
        return [record.attempts for record in self.relay.finished.records]


Backend = Callable[[RowsBackend], Any]
STARTS: dict[AppProtocol, tuple[Backend, Callable[..., Any]]] = {
    AppProtocol.GRPC: (grpc_backend, running_relay),
    AppProtocol.HTTP: (http_backend, running_http1_relay),
}


@pytest.fixture(params=STARTS, ids=lambda protocol: protocol.name.lower())
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    start_backend, start_relay = STARTS[request.param]
    backends = [RowsBackend() for _ in PARTS]
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(start_backend(each)) for each in backends]
        relay = await stack.enter_async_context(start_relay(*targets))
        yield Scene(relay, backends, request.param)
        for backend in backends:
            backend.gate.set()
        await until(relay.is_clean, "nothing is left")


async def test_a_part_whose_backend_dies_runs_elsewhere(scene: Scene) -> None:
    scene.close_gates(0)
    asked = asyncio.create_task(scene.ask())
    await scene.until_all_have_parts()
    scene.cut_connections(0)
    assert await asked == scene.right
    again = [part for backend in scene.backends[1:] for part in backend.parts[1:]]
    assert again == [PARTS[0]], "only that part ran again"
    assert scene.attempts == [4]
    assert scene.relay.outcomes.seen == [("b0", Outcome.LOST)]


async def test_a_part_is_tried_as_often_as_a_request(scene: Scene) -> None:
    scene.relay.max_attempts = 1
    scene.close_gates(0, 1, 2)
    asked = asyncio.create_task(scene.ask())
    await scene.until_all_have_parts()
    scene.cut_connections(1)
    answer = await asked
    assert answer.code == (grpc.StatusCode.UNAVAILABLE.value[0] if scene.is_grpc else 502)
    assert answer.text.startswith("rows 7 to 13 of 20: ")
    assert [len(each.parts) for each in scene.backends] == [1, 1, 1]
    assert scene.attempts == [3]


def hedges_of(scene: Scene) -> HedgeView:
    """It knows that answers take 50 ms."""
    hedges = scene.relay.hedge(HedgeRules(least_s=0.05))
    hedges.learn(b"m", 0.05, 30)
    return hedges


async def test_a_slow_part_is_hedged(scene: Scene) -> None:
    scene.close_gates(2)
    asked = asyncio.create_task(scene.ask())
    await scene.until_all_have_parts()
    # On a busy machine any part may take as long as a slow one: hedges begin once one part is left.
    others = scene.relay.backends[:2]
    await until(lambda: not any(each.in_flight for each in others), "the others are answered")
    hedges = hedges_of(scene)
    assert await asked == scene.right
    assert (hedges.count, hedges.won) == (1, 1)
    assert scene.attempts == [4]
    if scene.is_grpc:
        await until(lambda: scene.backends[2].cancelled == 1, "the slow attempt is cancelled")
    else:
        assert scene.relay.backends[2].in_flight == 1, "a Triton computes on"
    hedges.stop()


async def test_hedges_of_parts_go_on_alone_when_their_first_backend_dies(scene: Scene) -> None:
    hedges = hedges_of(scene)
    scene.close_gates(0, 1, 2)
    asked = asyncio.create_task(scene.ask())
    await until(lambda: PARTS[0] in _of(scene.backends[1:]), "the first part is hedged")
    scene.cut_connections(0)
    # A hedge of another part may go there yet.
    lost = ("b0", Outcome.LOST)
    await until(lambda: lost in scene.relay.outcomes.seen, "its first attempt is over")
    for backend in scene.backends[1:]:
        backend.gate.set()
    assert await asked == scene.right
    assert _of(scene.backends[1:]).count(PARTS[0]) == 1, "the hedge has answered"
    hedges.stop()


def _of(backends: list[RowsBackend]) -> list[tuple[int, int]]:
    return [part for backend in backends for part in backend.parts]


async def test_a_part_that_fails_for_good_fails_the_batch(scene: Scene) -> None:
    scene.close_gates(0, 1, 2)
    asked = asyncio.create_task(scene.ask())
    await scene.until_all_have_parts()
    scene.backends[1].error = "no such rows"
    scene.backends[1].gate.set()
    answer = await asked
    assert answer.code == (grpc.StatusCode.INVALID_ARGUMENT.value[0] if scene.is_grpc else 400)
    assert answer.text == "rows 7 to 13 of 20: no such rows"
    others = [scene.backends[0], scene.backends[2]]
    if scene.is_grpc:
        await until(lambda: all(each.cancelled == 1 for each in others), "both are cancelled")
    else:
        assert [each.in_flight for each in scene.relay.backends] == [1, 0, 1], "both compute on"
    assert scene.attempts == [3]


def _break(_: object, *parts: object) -> None:
    raise ArithmeticError


def _with_broken_parts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages.MessageCut if scene.is_grpc else bodies.BodyCut, "part", _break)


def _with_broken_reading(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages if scene.is_grpc else bodies, "common_rows", _break)


def _with_broken_joining(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages if scene.is_grpc else bodies, "_read_answer", _break)


@pytest.mark.parametrize("spoil", [_with_broken_reading, _with_broken_parts, _with_broken_joining])
async def test_an_error_of_ours_ends_its_batch_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., None]
) -> None:
    assert await scene.ask() == scene.right
    connections = list(scene.relay.upstream_transports)
    with monkeypatch.context() as patch:
        spoil(scene, patch)
        answer = await scene.ask()
    assert answer.code == (grpc.StatusCode.INTERNAL.value[0] if scene.is_grpc else 500)
    assert answer.text == "internal error"
    assert await scene.ask() == scene.right
    assert list(scene.relay.upstream_transports) == connections, "backends have theirs still"


async def test_a_batch_that_meets_two_versions_runs_again_on_the_newer_one(scene: Scene) -> None:
    scene.backends[1].versions = scene.backends[2].versions = ["2"]
    assert await scene.ask() == scene.right
    assert sorted(_of(scene.backends[1:])) == sorted((*PARTS, *PARTS[1:]))
    assert scene.relay.split_counts.batches == 1


async def test_a_batch_that_meets_two_versions_twice_fails(scene: Scene) -> None:
    for backend, version in zip(scene.backends, ("1", "2", "2"), strict=True):
        backend.versions = [version, "3"]
    answer = await scene.ask()
    assert answer.code == (grpc.StatusCode.UNAVAILABLE.value[0] if scene.is_grpc else 503)
    assert answer.text.startswith("rows ")
    assert UNKNOWN in answer.text


async def test_a_batch_that_runs_whole_in_the_end_is_retried_like_any_other(scene: Scene) -> None:
    scene.relay.divide_batches(*[rows for _, rows in PARTS])
    scene.relay.split(b"m", 2 * ROWS, is_auto=True)
    snapshot = scene.relay.pool.current
    plan = QueuePlan(limits={}, default=Capacity(1, instances=1))
    routes = {b"m": replace(snapshot.routes[b"m"], plan=plan, is_plain=False)}
    scene.relay.pool.publish(replace(snapshot, routes=routes))
    for version, backend in enumerate(scene.backends, 1):
        backend.versions = [str(version)]
    scene.close_gates(0, 1, 2)
    asked = asyncio.create_task(scene.ask())
    await until(lambda: len(_of(scene.backends)) == len(PARTS), "all parts run")
    for backend in scene.backends:
        backend.gate.set()  # for the parts alone
        backend.gate.clear()
    whole = (0, ROWS)
    await until(lambda: whole in _of(scene.backends), "it runs whole")
    (place,) = (at for at, each in enumerate(scene.backends) if whole in each.parts)
    scene.cut_connections(place)
    for backend in scene.backends:
        backend.gate.set()
    assert await asked == scene.right
    assert scene.attempts == [2]


@pytest.mark.parametrize("version", ["two", "9 HTTP/1.1\r\nX: y"])
async def test_only_numbers_are_asked_for_as_versions(scene: Scene, version: str) -> None:
    scene.backends[1].versions = [version]
    answer = await scene.ask()
    assert answer.code == (grpc.StatusCode.UNAVAILABLE.value[0] if scene.is_grpc else 503)
    assert "of the model answered parts of the request" in answer.text
    assert [len(each.parts) for each in scene.backends] == [1, 1, 1]
