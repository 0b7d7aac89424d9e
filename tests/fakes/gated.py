"""Both relays before backends that answer when they are told to; one model is scheduled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc

from lb.domain.backend import AppProtocol, Backend
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, PoolSnapshot
from lb.domain.schedule import Capacity, QueuePlan, QueueRules
from lb.kserve import inference_pb2 as pb
from lb.telemetry.record import RequestRecord
from tests.fakes.clock import FakeLoop
from tests.fakes.grpc_server import grpc_channel, path
from tests.fakes.relay import (
    Options,
    QueueView,
    RunningRelay,
    running_http1_relay,
    running_relay,
    snapshot_of,
)
from tests.wire.http1 import Peer, raw_client, reply, scripted_backend

_PATIENCE_S = 30.0
FACTS = ModelFacts(is_stateful=False, is_decoupled=False, instances=1)


async def until(is_so: Callable[[], bool], what: str = "it is so") -> None:
    """Wait for something, but not for ever."""
    for _ in range(int(_PATIENCE_S / 0.002)):
        if is_so():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"waited in vain: {what}")


class Gated:
    """What a backend has, and may answer."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Event] = {}
        """By the id of the request."""
        self.seen: list[str] = []
        self.open = False
        self.lost: set[str] = set()
        """Ids of requests that are not answered even then, unless they are released."""

    async def serve(self, name: str) -> None:
        self.seen.append(name)
        if self.open and name not in self.lost:
            return
        event = self.running[name] = asyncio.Event()
        try:
            await event.wait()
        finally:
            del self.running[name]

    def release(self, *names: str) -> None:
        """Answer some, or all that are there."""
        for name in names or tuple(self.running):
            self.running[name].set()


class Outcome:
    """What became of a request."""

    def __init__(self, code: int, fields: dict[str, str]) -> None:
        self.code = code
        """HTTP status, or that of gRPC."""
        self.fields = fields

    @property
    def retry_after_s(self) -> float | None:
        if "retry-after" in self.fields:
            return float(self.fields["retry-after"])
        said = self.fields.get("grpc-retry-pushback-ms")
        return None if said is None else float(said) / 1000


def _fields(more: dict[str, object]) -> dict[str, str]:
    """Headers that a request is to have."""
    fields = more.get("fields", {})
    assert isinstance(fields, dict)
    return fields


class Side:
    """One protocol: a relay, its backends, and a client that asks through it."""

    ok: int
    overloaded: int
    late: int
    unavailable: int
    protocol: AppProtocol

    def __init__(self, relay: RunningRelay, gates: list[Gated]) -> None:
        self.relay = relay
        self.gates = gates
        self.tasks: list[asyncio.Task[Outcome]] = []

    @property
    def queue(self) -> QueueView:
        return self.relay.queue

    @property
    def records(self) -> list[RequestRecord]:
        return self.relay.finished.records

    def snapshot(self, plan: QueuePlan | None, *backends: Backend) -> PoolSnapshot:
        route = ModelRoute(
            facts=FACTS, plan=plan, is_uniform=True, ready_versions=frozenset({b"1"}),
            is_plain=plan is None,
        )  # fmt: skip
        return replace(snapshot_of(backends), routes={b"m": route})

    def schedule(self, concurrency: int = 1, *backends: Backend, **rules: object) -> None:
        """Publish a plan; for all backends unless some are named."""
        plan = QueuePlan(
            limits={},
            default=Capacity(concurrency, instances=concurrency),
            rules=QueueRules(**rules),
        )
        self.relay.pool.publish(self.snapshot(plan, *(backends or self.relay.backends)))

    def publish(self, *backends: Backend) -> None:
        """Other backends, the same plan."""
        route = self.relay.pool.current.routes[b"m"]
        self.relay.pool.publish(self.snapshot(route.plan, *backends))

    def ask(self, name: str, **more: object) -> asyncio.Task[Outcome]:
        """Ask for the model."""
        task = asyncio.create_task(self._ask(name, **more), name=name)
        self.tasks.append(task)
        return task

    async def asked(self, name: str, **more: object) -> asyncio.Task[Outcome]:
        """As `ask`, until it runs or waits."""
        before = self.relay.open_requests, len(self.queue), len(self.seen)
        task = self.ask(name, **more)

        def is_there() -> bool:
            return task.done() or (len(self.queue), len(self.seen)) != before[1:]

        await until(is_there, f"{name} is there")
        return task

    async def _ask(self, name: str, **more: object) -> Outcome:
        raise NotImplementedError

    @property
    def seen(self) -> list[str]:
        """Ids of all requests that any backend got."""
        return [name for gate in self.gates for name in gate.seen]

    async def until_clean(self) -> None:
        """Nothing is left of any request."""
        await until(self.relay.is_clean, "nothing is left")
        assert len(self.queue) == 0
        assert self.queue.reserved == 0
        assert not any(self.queue.in_flight)


class GrpcSide(Side):
    """gRPC."""

    ok, overloaded, late, unavailable = (
        grpc.StatusCode.OK.value[0],
        grpc.StatusCode.RESOURCE_EXHAUSTED.value[0],
        grpc.StatusCode.DEADLINE_EXCEEDED.value[0],
        grpc.StatusCode.UNAVAILABLE.value[0],
    )
    protocol = AppProtocol.GRPC
    channel: grpc.aio.Channel

    async def _ask(self, name: str, **more: object) -> Outcome:
        message = pb.ModelInferRequest(model_name="m", id=name)
        message.inputs.add(name="IN", datatype="INT8", shape=[int(str(more.get("rows", 1))), 4])
        if "priority" in more:
            message.parameters["priority"].uint64_param = int(str(more["priority"]))
        message.raw_input_contents.append(bytes(int(str(more.get("size", 4)))))
        ask = self.channel.unary_unary(path("ModelInfer"))
        timeout_s = more.get("timeout_s")
        call = ask(
            message.SerializeToString(),
            timeout=float(str(timeout_s)) if timeout_s is not None else None,
            metadata=tuple(_fields(more).items()),
        )
        try:
            await call
        except grpc.aio.AioRpcError as error:
            fields = {key: str(value) for key, value in error.trailing_metadata() or ()}
            return Outcome(error.code().value[0], fields)
        return Outcome(0, {})


class _GatedService(grpc.GenericRpcHandler):
    def __init__(self, gate: Gated) -> None:
        self._gate = gate

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.unary_unary_rpc_method_handler(self._infer)

    async def _infer(self, request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await self._gate.serve(pb.ModelInferRequest.FromString(request).id)
        return b""


@asynccontextmanager
async def gated_grpc(gate: Gated) -> AsyncIterator[str]:
    """A gRPC server; where it listens."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((_GatedService(gate),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def grpc_side(
    count: int = 1,
    options: Options | None = None,
    loop: FakeLoop | None = None,
    others: Sequence[str] = (),
) -> AsyncIterator[Side]:
    """A gRPC relay before `count` backends, and `others` that have no gate. With `loop`, its time
    is under the test's control."""
    gates = [Gated() for _ in range(count)]
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(gated_grpc(gate)) for gate in gates]
        running = running_relay(*targets, *others, options=options, loop=loop)
        relay = await stack.enter_async_context(running)
        side = GrpcSide(relay, gates)
        side.channel = await stack.enter_async_context(grpc_channel(relay.target))
        yield side
        await _settle(side)


class HttpSide(Side):
    """HTTP/1.1, each request on a connection of its own."""

    ok, overloaded, late, unavailable = 200, 503, 504, 503
    protocol = AppProtocol.HTTP

    async def _ask(self, name: str, **more: object) -> Outcome:
        async with raw_client(self.relay.port) as client:
            await client.send(self.request(name, **more))
            answer = await client.answer("POST")
        fields = {key.decode().lower(): value.decode() for key, value in answer.fields.items()}
        return Outcome(answer.status, fields)

    def request(self, name: str, **more: object) -> bytes:
        """The whole request."""
        inputs = [{"name": "IN", "shape": [more.get("rows", 1), 4], "datatype": "INT8"}]
        parameters = {"priority": more["priority"]} if "priority" in more else {}
        content = {"id": name, "inputs": inputs, "parameters": parameters}
        head = json.dumps(content).encode()
        size = int(str(more.get("size", 4)))
        fields = b"Inference-Header-Content-Length: %d\r\n" % len(head)
        if "timeout_s" in more:
            fields += b"X-Timeout: %fs\r\n" % float(str(more["timeout_s"]))
        fields += b"".join(
            b"%b: %b\r\n" % (key.encode(), value.encode()) for key, value in _fields(more).items()
        )
        fields += b"Content-Length: %d\r\n" % (len(head) + size)
        return b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n%b\r\n%b%b" % (
            fields,
            head,
            bytes(size),
        )


def _script(gate: Gated) -> Callable[[Peer], Awaitable[None]]:
    async def serve(peer: Peer) -> None:
        while True:
            received = await peer.request()
            head = int(received.field(b"inference-header-content-length") or 0)
            name = json.loads(received.body[:head])["id"]
            await gate.serve(name)
            await peer.send(reply())

    return serve


@asynccontextmanager
async def gated_http(gate: Gated) -> AsyncIterator[str]:
    """An HTTP/1.1 server; where it listens."""
    async with scripted_backend(_script(gate)) as backend:
        yield str(backend.target)


@asynccontextmanager
async def http_side(
    count: int = 1,
    options: Options | None = None,
    loop: FakeLoop | None = None,
    others: Sequence[str] = (),
) -> AsyncIterator[Side]:
    """An HTTP/1.1 relay before `count` backends; `loop` and `others` as of `grpc_side`."""
    gates = [Gated() for _ in range(count)]
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(gated_http(gate)) for gate in gates]
        options = options or {"deadline_header": b"x-timeout"}
        running = running_http1_relay(*targets, *others, options=options, loop=loop)
        side = HttpSide(await stack.enter_async_context(running), gates)
        yield side
        await _settle(side)


async def _settle(side: Side) -> None:
    for gate in side.gates:
        gate.open = True
        gate.release()
    for task in side.tasks:
        if not task.done():
            task.cancel()
    await asyncio.gather(*side.tasks, return_exceptions=True)
    await side.until_clean()
