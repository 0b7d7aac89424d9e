"""Copies of requests for a shadow: what it gets and when, and that requests do not notice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import zlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPConnection
from typing import Any

import grpc
import pytest

from lb.comparison.pairs import Rules
from lb.kserve import inference_pb2 as pb
from lb.testing import running, simulated
from lb.testing.balancer import Balancer
from lb.testing.tritons import Triton
from tests.fakes.process import wait_until
from tests.fakes.relay import RunningRelay, running_http1_relay
from tests.fakes.turns import InflatedSlices
from tests.wire.http1 import (
    Peer,
    RawClient,
    ScriptedBackend,
    inference_response,
    raw_client,
    reply,
    scripted_backend,
)
from tests.wire.waiting import eventually

NAME, MODEL, SHADOW = b"detector", b"detector_v1", b"detector_v2"
BODY = b'{"inputs":[]}'
DEFLATE = b"Content-Encoding: deflate\r\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMIT_S = 60.0
HANGS_S = 0.5


class Detectors:
    """A backend with both models. The shadow answers once `may_answer` is set."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.padding = b""
        """Comes after what the shadow answers."""
        self.fields = b""
        """Of all answers, beside their length."""

    async def __call__(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            is_copy = SHADOW in received.head.partition(b"\r\n")[0]
            if is_copy:
                await self.may_answer.wait()
            body = inference_response(SHADOW if is_copy else MODEL)
            if is_copy:
                body += self.padding
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n" % (len(body), self.fields)
            await peer.send(head + body)


Setup = tuple[ScriptedBackend, RunningRelay, RawClient, Detectors]


@asynccontextmanager
async def serving() -> AsyncIterator[Setup]:
    detectors = Detectors()
    async with (
        scripted_backend(detectors) as backend,
        running_http1_relay(backend.target, options={"variant_names": frozenset({NAME})}) as relay,
        raw_client(relay.port) as client,
    ):
        relay.use_variants(NAME, {"name": "stable", "model": MODEL, "weight": 1})
        relay.use_shadow(NAME, SHADOW, b"7")
        yield backend, relay, client, detectors
        detectors.may_answer.set()
        await eventually(relay.is_clean)


def fates(relay: RunningRelay) -> dict[str, int]:
    shadow = relay.shadows.sets[NAME]
    return {fate: count for (_, fate), count in shadow.fates.items()}


async def infer(client: RawClient, body: bytes = BODY, fields: bytes = b"") -> bytes:
    head = b"POST /v2/models/detector/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n"
    await client.send(head % (len(body), fields) + body)
    answer = await client.answer()
    assert answer.status == 200
    return bytes(answer.body)


async def test_the_shadow_gets_a_copy_once_the_client_has_its_answer() -> None:
    async with serving() as (backend, relay, client, detectors):
        detectors.may_answer.clear()
        assert await infer(
            client, fields=b"X-Other: 1\r\ntraceparent: 00\r\n"
        ) == inference_response(NAME)
        await eventually(lambda: len(backend.requests) == 2)
        copy = backend.requests[1]
        assert copy.head.startswith(b"POST /v2/models/detector_v2/versions/7/infer HTTP/1.1\r\n")
        assert b"x-other: 1" in copy.head.lower()
        assert b"traceparent" not in copy.head
        assert fates(relay) == {}
        detectors.may_answer.set()
        await eventually(lambda: fates(relay) == {"answered": 1})
        assert copy.body == BODY


async def test_nothing_is_left_of_answers_whose_json_has_no_length() -> None:
    async with serving() as (_, relay, client, detectors):
        detectors.fields = b"Inference-Header-Content-Length: %b\r\n" % (b"9" * 5000)
        await infer(client)
        await eventually(lambda: fates(relay) == {"answered": 1})


async def test_copies_share_a_connection() -> None:
    async with serving() as (backend, relay, client, _):
        for count in range(1, 6):
            await infer(client)
            await eventually(lambda count=count: fates(relay) == {"answered": count})
        assert backend.connections == 2  # that of requests, and that of copies


async def test_requests_go_on_while_the_shadow_is_silent_and_further_copies_are_dropped() -> None:
    async with serving() as (backend, relay, client, detectors):
        detectors.may_answer.clear()
        for _ in range(20):
            assert await infer(client) == inference_response(NAME)
        await eventually(lambda: len(backend.requests) == 22)
        assert fates(relay) == {"busy": 18}
        assert relay.memory_budget.held <= 2 * (len(BODY) + len(inference_response(NAME)))
        detectors.may_answer.set()
        await eventually(lambda: fates(relay) == {"busy": 18, "answered": 2})
        assert relay.variant_counts() == [(20, 0)]


async def test_copies_count_nowhere_but_as_copies() -> None:
    async with serving() as (_, relay, client, _):
        for count in range(1, 4):
            await infer(client)
            await eventually(lambda count=count: fates(relay) == {"answered": count})
        (backend,) = relay.pool.current.backends
        assert sum(port.attempts for port in backend.ports if port is not None) == 3
        assert len(relay.finished.records) == 3


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b'{"inputs":[{"parameters":{"shared_memory_region":"r"}}]}', b""),
        (b'{"inputs":[{"parameters":{"\\u0073hared_memory_region":"r"}}]}', b""),
        (zlib.compress(b'{"inputs":[{"parameters":{"shared_memory_region":"r"}}]}'), DEFLATE),
        (b"anything", b"Content-Encoding: gzip\r\n"),
        (zlib.compress(bytes(2**20 + 1)), DEFLATE),
        (BODY, b"Content-Encoding: br\r\n"),
    ],
    ids=[
        "shared memory",
        "hidden shared memory",
        "compressed shared memory",
        "broken",
        "too long inflated",
        "an encoding that Tritons do not know",
    ],
)
async def test_what_may_not_run_again_is_not_copied(body: bytes, fields: bytes) -> None:
    async with serving() as (backend, relay, client, _):
        await infer(client, body, fields)
        await eventually(lambda: fates(relay) == {"unfit": 1})
        assert len(backend.requests) == 1


async def test_copies_of_compressed_bodies_are_plain() -> None:
    async with serving() as (backend, relay, client, _):
        await infer(client, zlib.compress(BODY), DEFLATE)
        await eventually(lambda: fates(relay) == {"answered": 1})
        assert backend.requests[1].body == BODY
        assert backend.requests[1].field(b"content-encoding") is None


async def test_copies_of_bodies_that_inflate_to_a_megabyte_are_made_a_slice_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between two slices of all copies together, others have their turn."""
    slices = InflatedSlices(monkeypatch, "lb.proxy.shadow")
    async with serving() as (_, relay, client, detectors), AsyncExitStack() as stack:
        clients = [client] + [
            await stack.enter_async_context(raw_client(relay.port)) for _ in range(5)
        ]
        detectors.may_answer.clear()  # copies stay under way
        body = zlib.compress(BODY + bytes(900_000))
        await asyncio.gather(*(infer(each, body, DEFLATE) for each in clients))
        await eventually(lambda: slices.total == len(clients) * 7)
        detectors.may_answer.set()
        await eventually(lambda: sum(fates(relay).values()) == len(clients))
    assert 0 < slices.most_in_a_turn <= 2  # the last of one and the first of the next


async def test_long_bodies_are_not_held() -> None:
    async with serving() as (backend, relay, client, _):
        await infer(client, b" " * (2**20 + 1))
        await eventually(lambda: fates(relay) == {"memory": 1})
        assert len(backend.requests) == 1


async def test_of_a_long_answer_to_a_copy_no_more_is_read_than_is_compared() -> None:
    async with serving() as (_, relay, client, detectors):
        detectors.padding = b" " * 2**20
        await infer(client)
        await eventually(lambda: fates(relay) == {"memory": 1})
        detectors.padding = b""
        await infer(client)
        await eventually(lambda: fates(relay) == {"memory": 1, "answered": 1})


async def test_a_backend_with_requests_in_flight_gets_no_copies() -> None:
    async with serving() as (backend, relay, client, _):
        (busy,) = relay.pool.current.backends
        busy.in_flight += 1
        await infer(client)
        await eventually(lambda: fates(relay) == {"busy": 1})
        busy.in_flight -= 1
        assert len(backend.requests) == 1


async def test_what_comes_late_about_a_shadow_counts_for_no_other_one() -> None:
    rules = Rules(atol=0.0, rtol=0.0, top_k=1)
    async with serving() as (_, relay, client, detectors):
        relay.use_shadow(NAME, SHADOW, b"7", compare=rules)
        old = relay.shadows.sets[NAME]
        detectors.may_answer.clear()
        await infer(client)
        await eventually(lambda: relay.shadows.held)
        relay.use_shadow(NAME, SHADOW, b"8", compare=rules)
        detectors.may_answer.set()
        await eventually(lambda: old.fates == {("shadow", "answered"): 1})
        await infer(client)
        new = relay.shadows.sets[NAME].tallies["shadow"]
        await eventually(lambda: new.compared and not relay.shadows.process.held)
        assert new.compared == 1
        await relay.tasks.aclose()  # which ends the process that compares


async def test_when_memory_is_short_copies_go_first() -> None:
    async with serving() as (_, relay, client, detectors):
        detectors.may_answer.clear()
        await infer(client)
        await eventually(lambda: relay.shadows.held)
        relay.shadows.evict()
        assert relay.shadows.held == 0
        await eventually(lambda: fates(relay) == {"memory": 1})


async def test_copies_that_are_dropped_before_they_begin_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as (backend, relay, client, _):
        spawn = relay.tasks.spawn

        def spawn_and_drop(work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
            task = spawn(work, name=name)
            if name == "shadow":
                task.cancel()
            return task

        monkeypatch.setattr(relay.tasks, "spawn", spawn_and_drop)
        for count in range(1, 4):  # two may run at a time
            await infer(client)
            await eventually(lambda count=count: fates(relay) == {"memory": count})
        assert len(backend.requests) == 3


async def test_requests_that_wait_behind_a_copy_to_their_model_defer_further_such_copies() -> None:
    delayed = 51
    seen: set[bytes] = set()
    copy_may_end, requests_may_end = asyncio.Event(), asyncio.Event()

    async def serve(peer: Peer) -> None:
        while True:
            received = await peer.request()
            number = received.field(b"x-number") or b""
            if SHADOW not in received.head:
                if number in seen:  # it is the copy of a request
                    await copy_may_end.wait()
                elif number == b"behind":
                    await requests_may_end.wait()
                else:
                    seen.add(number)
            await peer.send(reply(inference_response(MODEL)))

    async with (
        scripted_backend(serve) as backend,
        running_http1_relay(backend.target, options={"variant_names": frozenset({NAME})}) as relay,
        AsyncExitStack() as clients,
    ):
        relay.use_variants(NAME, {"name": "stable", "model": MODEL, "weight": 1})
        relay.use_shadow(NAME, SHADOW, b"7", noise=True)
        made = relay.shadows.sets[NAME].fates
        client = await clients.enter_async_context(raw_client(relay.port))

        async def ask(count: int) -> None:
            for _ in range(count):
                before = sum(made.values())
                await infer(client, fields=b"X-Number: %d\r\n" % len(seen))
                await eventually(lambda before=before: sum(made.values()) > before)

        await ask(10)  # the tenth is copied to its model, too
        behind = [await clients.enter_async_context(raw_client(relay.port)) for _ in range(delayed)]
        asked = [
            asyncio.ensure_future(infer(each, fields=b"X-Number: behind\r\n")) for each in behind
        ]
        await eventually(lambda: relay.in_flight == delayed)
        copy_may_end.set()
        await eventually(lambda: made.get(("noise", "answered")) and len(relay.tasks) == 0)
        requests_may_end.set()
        await asyncio.gather(*asked)
        await ask(30)
        noise = {fate: count for (kind, fate), count in made.items() if kind == "noise"}
        assert noise == {"answered": 1}
        await eventually(relay.is_clean)


async def test_copies_pause_once_requests_are_slower_with_them() -> None:
    async with serving() as (_, relay, client, _):
        shadows = relay.shadows
        for second in range(400):
            slow = 0.05 if second % 10 != 9 else 0.01
            for number in range(100):
                shadows.answered(NAME, slow if number % 10 == 0 else 0.01)
            shadows.check()
        assert shadows.notes(shadows.sets[NAME])[0].startswith("paused: ")
        await infer(client)
        assert fates(relay) == {}


async def test_slowness_with_and_without_copies_pauses_nothing() -> None:
    async with serving() as (_, relay, _, _):
        shadows = relay.shadows
        for second in range(400):
            for number in range(100):
                took_s = 0.05 if number % 10 == 0 and second > 200 else 0.01
                shadows.answered(NAME, took_s)
            shadows.check()
        assert shadows.notes(shadows.sets[NAME]) == []


# A process before simulated Tritons: two for the model, one for the shadow


@pytest.fixture(scope="module")
def tritons() -> Iterator[tuple[Triton, ...]]:
    with simulated(2, models=["identity_fp32"]) as started:
        shadow = Triton("shadow", models=["sleeper"])
        try:
            shadow.wait()
            yield (*started, shadow)
        finally:
            shadow.close()


@pytest.fixture(scope="module")
def balancer(tritons: tuple[Triton, ...]) -> Iterator[Balancer]:
    stable = {"name": "stable", "model": "identity_fp32", "weight": 1}
    settings: dict[str, Any] = {
        "models": {
            "floats": {
                "variants": [stable],
                "shadow": {"model": "sleeper", "percent": 100, "timeout": HANGS_S, "p99": 1000},
            }
        },
    }
    with running(tritons, settings) as started:
        yield started


def compared(balancer: Balancer) -> dict[str, Any]:
    connection = HTTPConnection(balancer.admin, timeout=LIMIT_S)
    try:
        connection.request("GET", "/api/v1/compare/floats")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()


def ask_over_http(connection: HTTPConnection, number: int) -> None:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, number]}
    headers = {"x-request-id": f"http-{number}"}
    connection.request("POST", "/v2/models/floats/infer", json.dumps({"inputs": [tensor]}), headers)
    answer = connection.getresponse()
    assert json.loads(answer.read())["outputs"][0]["data"] == [1, number]


def ask_over_grpc(channel: grpc.Channel, number: int) -> None:
    request = pb.ModelInferRequest(model_name="floats")
    values = (1.0, number, *[0.0] * 500)  # zeros, so that it is worth to compress them
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[len(values)])
    request.raw_input_contents.append(struct.pack("<502f", *values))
    answer = channel.unary_unary(
        INFER,
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )(
        request,
        timeout=LIMIT_S,
        metadata=[("x-request-id", f"grpc-{number}")],
        compression=grpc.Compression.Gzip if number % 2 else grpc.Compression.NoCompression,
    )
    assert struct.unpack("<502f", answer.raw_output_contents[0]) == values
    assert answer.model_name == "floats"


def ask_all(balancer: Balancer, count: int) -> None:
    """Both protocols, so many requests each, all of which must go well."""
    connection = HTTPConnection(balancer.http, timeout=LIMIT_S)
    with grpc.insecure_channel(balancer.grpc) as channel:
        for number in range(count):
            ask_over_http(connection, number)
            ask_over_grpc(channel, number)
    connection.close()


def copies(balancer: Balancer) -> dict[str, int]:
    found: dict[str, int] = compared(balancer)["copies"]
    return found


def test_a_shadow_that_refuses_hangs_or_is_dead_disturbs_nobody(
    balancer: Balancer, tritons: tuple[Triton, ...]
) -> None:
    wait_until(lambda: not compared(balancer)["notes"], timeout_s=LIMIT_S, what="the shadow")

    def until(fate: str) -> None:
        """Ask until a copy comes to that."""
        before = copies(balancer).get(fate, 0)
        wait_until(
            lambda: ask_all(balancer, 2) or copies(balancer).get(fate, 0) > before,
            timeout_s=LIMIT_S,
            what=fate,
        )

    until("error")  # the shadow has other inputs
    wait_until(lambda: compared(balancer)["agreement"]["compared"], timeout_s=LIMIT_S, what="it")
    found = compared(balancer)
    assert "unfit" not in found["copies"]
    assert found["status_differs"] == found["agreement"]["compared"]
    assert {each["why"].partition(" ")[0] for each in found["examples"]} == {"status"}
    assert {each["id"].partition("-")[0] for each in found["examples"]} <= {"http", "grpc"}

    os.kill(tritons[2].pid, signal.SIGSTOP)
    try:
        until("timeout")
        ask_all(balancer, 20)
    finally:
        os.kill(tritons[2].pid, signal.SIGCONT)
    os.kill(tritons[2].pid, signal.SIGKILL)
    until("not_ready")
    ask_all(balancer, 20)
    wait_until(  # pairs are gathered before they are compared
        lambda: "triton_lb_held_bytes 0.0" in metrics(balancer),
        timeout_s=LIMIT_S,
        what="memory that is given back",
    )


def metrics(balancer: Balancer) -> str:
    connection = HTTPConnection(balancer.metrics, timeout=LIMIT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
