"""Requests for a name whose variant has just become unready everywhere, over both protocols."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from lb.domain.model import NO_FACTS, ModelFacts
from lb.domain.pool import ModelRoute, OnDemand, Placement, PoolSnapshot
from lb.domain.schedule import Capacity, QueuePlan, QueueRules
from lb.kserve import inference_pb2 as pb
from tests.fakes.gated import FACTS, until
from tests.fakes.grpc_server import grpc_channel, path
from tests.fakes.relay import RunningRelay, running_http1_relay, running_relay, snapshot_of
from tests.wire.http1 import Peer, inference_response, raw_client, scripted_backend

PIN = b"x-triton-lb-variant"
STABLE, CANARY = "detector", "detector_of_the_second_generation"
VERSION = {STABLE: "", CANARY: "3"}
OPTIONS = {"variant_names": frozenset({b"detector"}), "noted": frozenset({PIN})}
UNKNOWN = "Request for unknown model: '{}' is not found"
GENERATION = 7


class Triton:
    """A backend of either protocol, and what it has ready."""

    def __init__(self) -> None:
        self.ready = {STABLE, CANARY}
        self.seen: list[tuple[str, str, bytes]] = []
        """Model, version and data of each request."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def infer(self, model: str, version: str, data: bytes) -> str:
        """Take a request; the error."""
        self.seen.append((model, version, data))
        await self.may_answer.wait()
        return "" if model in self.ready else UNKNOWN.format(model)

    @property
    def models(self) -> list[str]:
        return [model for model, _, _ in self.seen]


class Side:
    """One protocol."""

    def __init__(self, relay: RunningRelay, tritons: list[Triton]) -> None:
        self.relay = relay
        self.tritons = tritons
        variants = (
            {"name": name, "model": model.encode(), "version": VERSION[model].encode()}
            for name, model in (("stable", STABLE), ("canary", CANARY))
        )
        stable, canary = variants
        relay.use_variants(b"detector", {**stable, "weight": 0.0}, {**canary, "weight": 1.0})
        self.publish(STABLE, CANARY)

    def publish(self, *ready: str, schedule: bool = False, facts: ModelFacts = FACTS) -> None:
        """Backends have these models ready from now on, as far as is known."""
        plan = QueuePlan(limits={}, default=Capacity(1, instances=1), rules=QueueRules())
        base = snapshot_of(self.relay.backends, GENERATION)
        route = replace(
            base.routes[b"m"],
            facts=facts,
            ready_versions=frozenset({b"1", b"3"}),
            plan=plan if schedule else None,
            is_plain=not schedule and facts is FACTS,
            is_uniform=facts is FACTS,
        )
        routes = {model.encode(): route for model in ready}
        self.relay.pool.publish(replace(base, routes=routes, knows_all=True))

    async def ask(self, data: bytes = b"\1\2", pinned: str = "", sequence: int = 0) -> str:
        """Ask for the name; the name in the answer, or the error."""
        raise NotImplementedError


class HttpSide(Side):
    async def ask(self, data: bytes = b"\1\2", pinned: str = "", sequence: int = 0) -> str:
        parameters = {"sequence_id": sequence} if sequence else {}
        head = json.dumps({"inputs": [], "parameters": parameters}).encode()
        fields = b"%b: %b\r\n" % (PIN, pinned.encode()) if pinned else b""
        request = (
            b"POST /v2/models/detector/infer HTTP/1.1\r\nHost: a\r\n%b"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n%b%b"
        ) % (fields, len(head), len(head) + len(data), head, data)
        async with raw_client(self.relay.port) as client:
            await client.send(request)
            answer = json.loads((await client.answer("POST")).body)
        return str(answer.get("model_name") or answer["error"])


class GrpcSide(Side):
    channel: grpc.aio.Channel

    async def ask(self, data: bytes = b"\1\2", pinned: str = "", sequence: int = 0) -> str:
        message = pb.ModelInferRequest(model_name="detector", raw_input_contents=[data])
        if sequence:
            message.parameters["sequence_id"].int64_param = sequence
        call = self.channel.unary_unary(path("ModelInfer"))
        metadata = ((PIN.decode(), pinned),) if pinned else ()
        try:
            answer = await call(message.SerializeToString(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.details() or ""
        return str(pb.ModelInferResponse.FromString(answer).model_name)


@asynccontextmanager
async def http_triton(triton: Triton) -> AsyncIterator[str]:
    async def serve(peer: Peer) -> None:
        while True:
            received = await peer.request()
            parts = received.head.split(b" ")[1].decode().split("/")
            version = parts[5] if parts[4] == "versions" else ""
            head = int(received.field(b"inference-header-content-length") or 0)
            error = await triton.infer(parts[3], version, received.body[head:])
            body = inference_response(parts[3].encode())
            if error:
                body = json.dumps({"error": error}).encode()
            status = b"404 Not Found" if error else b"200 OK"
            await peer.send(
                b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
            )

    async with scripted_backend(serve) as backend:
        yield str(backend.target)


@asynccontextmanager
async def grpc_triton(triton: Triton) -> AsyncIterator[str]:
    async def infer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        message = pb.ModelInferRequest.FromString(request)
        data = message.raw_input_contents[0]
        error = await triton.infer(message.model_name, message.model_version, data)
        if error:
            await context.abort(grpc.StatusCode.NOT_FOUND, error)
        answer = pb.ModelInferResponse(model_name=message.model_name)
        return bytes(answer.SerializeToString())

    class Service(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(infer)

    options = [("grpc.max_receive_message_length", -1)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((Service(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.fixture(params=["http", "grpc"])
async def side(request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    tritons = [Triton(), Triton()]
    first, second = tritons
    async with asyncio.timeout(60):
        if request.param == "http":
            async with (
                http_triton(first) as one,
                http_triton(second) as two,
                running_http1_relay(one, two, options=OPTIONS) as relay,
            ):
                yield HttpSide(relay, tritons)
                await until(relay.is_clean, "nothing is left")
        else:
            async with (
                grpc_triton(first) as one,
                grpc_triton(second) as two,
                running_relay(one, two, options=OPTIONS) as relay,
                grpc_channel(relay.target) as channel,
            ):
                grpc_side = GrpcSide(relay, tritons)
                grpc_side.channel = channel
                yield grpc_side
                await channel.close()
                await until(relay.is_clean, "nothing is left")


def unload(side: Side, model: str) -> None:
    for each in side.tritons:
        each.ready.discard(model)


@pytest.mark.parametrize("size", [2, 300_000])
async def test_a_variant_that_no_backend_has_any_more_gives_way(side: Side, size: int) -> None:
    unload(side, CANARY)
    data = bytes(range(250)) * (size // 250) or b"\1\2"
    assert await side.ask(data) == "detector"
    models = [model for each in side.tritons for model in each.models]
    assert sorted(models) == [STABLE, CANARY, CANARY]
    assert (STABLE, "", data) in [each for triton in side.tritons for each in triton.seen]
    await until(lambda: side.relay.finished.records, "it is logged")
    assert side.relay.finished.records[0].model == STABLE.encode()
    assert side.relay.variant_counts() == [(1, 0), (0, 0)]


async def test_the_attempts_are_no_limit_of_answers_that_name_an_unknown_model(
    side: Side,
) -> None:
    side.relay.max_attempts = 1
    unload(side, CANARY)
    assert await side.ask() == "detector"


async def test_a_variant_that_is_queued_gives_way(side: Side) -> None:
    side.publish(STABLE, CANARY, schedule=True)
    for each in side.tritons:
        each.may_answer.clear()
    first = [asyncio.create_task(side.ask()) for _ in range(2)]
    await until(lambda: all(each.seen for each in side.tritons), "both run")
    queued = asyncio.create_task(side.ask(b"\7"))
    await until(lambda: len(side.relay.queue) == 1, "one waits")
    side.publish(STABLE, schedule=True)
    await until(lambda: len(side.relay.queue) == 0, "it waits no more")
    for each in side.tritons:
        each.may_answer.set()
    assert await queued == "detector"
    assert await asyncio.gather(*first) == ["detector", "detector"]
    seen = [each for triton in side.tritons for each in triton.seen]
    assert [each for each in seen if each[2] == b"\7"] == [(STABLE, "", b"\7")]


async def test_pinned_requests_and_open_sequences_stay(side: Side) -> None:
    unload(side, CANARY)
    side.publish(STABLE, CANARY, facts=NO_FACTS)
    for asked in ({"pinned": "canary"}, {"sequence": 5}):
        assert await side.ask(**asked) == UNKNOWN.format(CANARY)  # type: ignore[arg-type]
    assert STABLE not in [model for each in side.tritons for model in each.models]


async def test_nothing_changes_where_the_other_variant_is_not_ready(side: Side) -> None:
    unload(side, CANARY)
    side.publish(CANARY)
    assert await side.ask() == UNKNOWN.format(CANARY)


async def test_a_request_that_waits_for_a_load_moves_when_that_fails(side: Side) -> None:
    base = side.relay.pool.current
    empty = tuple(Placement((), None, each.policy) for each in base.placements)

    def loading(error: str) -> PoolSnapshot:
        on_demand = OnDemand(60.0, error)
        route = ModelRoute(facts=FACTS, placements=(empty[0], empty[1]), on_demand=on_demand)
        return replace(base, routes={**base.routes, CANARY.encode(): route})

    side.relay.pool.publish(loading(""))
    waiting = asyncio.create_task(side.ask())
    await until(lambda: len(side.relay.queue) == 1, "it waits for the load")
    side.relay.pool.publish(loading("out of memory"))
    assert await waiting == "detector"
    assert [model for each in side.tritons for model in each.models] == [STABLE]
