"""Copies of gRPC calls for a shadow: what is copied, what becomes of it, and what is not."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest

from lb.access.gate import ControlRule, Gate, GateRules
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.kserve import inference_pb2 as pb
from tests.fakes.relay import RunningRelay, running_relay
from tests.wire import frames as f
from tests.wire.http2 import Peer, RawBackend, raw_backend, raw_client, replies
from tests.wire.waiting import eventually

NAME, MODEL, SHADOW = b"detector", b"detector_v1", b"detector_v2"
LIMIT_S = 30.0
LOOKED_AT = 32 * 1024
"""Bytes of a request that are inspected before it goes on, at most."""
Reply = Callable[[int, bytes], bytes]


class Site(NamedTuple):
    """A relay between a client and a backend with both models."""

    backend: RawBackend
    relay: RunningRelay
    client: Peer

    async def ask(self, body: bytes, stream: int = 1) -> None:
        """A call, until the client has its answer."""
        self.client.send(f.call(stream, body))
        await self.client.until_over(stream)

    @property
    def fates(self) -> dict[str, int]:
        """What became of copies."""
        shadow = self.relay.shadows.sets[NAME]
        return {fate: count for (_, fate), count in shadow.fates.items()}

    def models(self) -> list[str]:
        """Those that the backend was asked for."""
        return [read(body).model_name for _, body in self.backend.requests]


def infer(**parameters: int) -> bytes:
    request = pb.ModelInferRequest(model_name=NAME.decode(), raw_input_contents=[b"four"])
    request.inputs.add(name="X", datatype="UINT8", shape=[1, 4])
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(request.parameters[name], kind, value)
    return request.SerializeToString()


def read(body: bytes) -> pb.ModelInferRequest:
    text = body[5 : 5 + int.from_bytes(body[1:5], "big")]
    return pb.ModelInferRequest.FromString(gzip.decompress(text) if body[0] else text)


def echo(stream: int, body: bytes) -> bytes:
    answer = pb.ModelInferResponse(model_name=read(body).model_name)
    return f.answer(stream, f.message(answer.SerializeToString()))


@asynccontextmanager
async def serving(
    reply: Reply = echo,
    *,
    model: bytes = MODEL,
    gate: Gate | None = None,
    ceiling: int = 2**28,
) -> AsyncIterator[Site]:
    options = {"variant_names": frozenset({NAME})}
    async with (
        asyncio.timeout(LIMIT_S),
        raw_backend(replies(reply)) as backend,
        running_relay(backend.target, options=options, gate=gate, ceiling=ceiling) as relay,
        raw_client(relay.port) as client,
    ):
        relay.use_variants(NAME, {"name": "stable", "model": model, "weight": 1})
        relay.use_shadow(NAME, SHADOW, b"")
        yield Site(backend, relay, client)
        await eventually(relay.is_clean)


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_the_shadow_gets_the_call_with_its_own_model(is_compressed: bool) -> None:
    async with serving() as site:
        text = gzip.compress(infer()) if is_compressed else infer()
        await site.ask(f.message(text, flag=int(is_compressed)))
        await eventually(lambda: site.fates == {"answered": 1})
        assert site.models() == [MODEL.decode(), SHADOW.decode()]
        first, copy = [read(body) for _, body in site.backend.requests]
        assert copy.raw_input_contents == first.raw_input_contents


async def test_a_call_that_comes_in_pieces_is_copied_whole() -> None:
    async with serving() as site:
        body = f.message(infer())
        site.client.send(f.headers(1, f.request_fields()))
        for at in range(len(body)):
            site.client.send(f.data(1, body[at : at + 1]))
            await asyncio.sleep(0)
        site.client.send(f.data(1, end=True))
        await site.client.until_over(1)
        await eventually(lambda: site.fates == {"answered": 1})
        assert site.backend.requests[0][1].replace(MODEL, SHADOW) == site.backend.requests[1][1]


async def test_a_long_call_in_equal_frames_is_copied_whole() -> None:
    async with serving() as site:
        request = read(f.message(infer()))
        request.raw_input_contents[0] = random.Random(1).randbytes(300_000)
        body = f.message(request.SerializeToString())
        cut = [f.data(1, body[at : at + 4096]) for at in range(0, len(body), 4096)]
        site.client.send(f.headers(1, f.request_fields()), cut[0])
        await eventually(lambda: any(peer.bodies for peer in site.backend.peers))
        site.client.send(b"".join(cut[1:]), f.data(1, end=True))
        await site.client.until_over(1)
        await eventually(lambda: site.fates == {"answered": 1})
        first, copy = [read(text) for _, text in site.backend.requests]
        assert first.raw_input_contents == request.raw_input_contents
        assert copy.raw_input_contents == request.raw_input_contents
        (record,) = site.relay.finished.records
        assert record.bytes_in == len(body)


def unreadable(stream: int, _: bytes) -> bytes:
    return f.answer(stream, f.message(b"no gzip", flag=1))


def inflating(stream: int, _: bytes, *, size: int = 2**20 + 1) -> bytes:
    """An answer that inflates to more than it has."""
    answer = pb.ModelInferResponse(raw_output_contents=[bytes(size)])
    return f.answer(stream, f.message(gzip.compress(answer.SerializeToString()), flag=1))


UNFIT: dict[str, tuple[bytes, Reply]] = {
    "a step of a sequence": (f.message(infer(sequence_id=7, sequence_start=True)), echo),
    "two messages": (f.message(infer()) * 2, echo),
    "shared memory": (f.message(infer(shared_memory_region=1)), echo),
    "an answer that cannot be read": (f.message(infer()), unreadable),
    "an answer that inflates to too much": (f.message(infer()), inflating),
}


@pytest.mark.parametrize(("body", "reply"), UNFIT.values(), ids=UNFIT)
async def test_what_cannot_be_compared_or_may_not_run_again_is_not_copied(
    body: bytes, reply: Reply
) -> None:
    async with serving(reply) as site:
        await site.ask(body)
        await eventually(lambda: site.fates == {"unfit": 1})
        assert site.models() == [MODEL.decode()]


async def test_an_answer_to_be_compared_counts_in_the_memory_as_it_is_inflated() -> None:
    async with serving(partial(inflating, size=900_000), ceiling=2**20) as site:
        await site.ask(f.message(infer()))
        await eventually(lambda: site.fates == {"memory": 1})


async def test_calls_that_the_shadow_serves_itself_are_not_copied() -> None:
    async with serving(model=SHADOW) as site:
        await site.ask(f.message(infer()))
        await eventually(site.relay.is_clean)
        assert site.fates == {}
        assert site.models() == [SHADOW.decode()]


@pytest.mark.parametrize(
    ("facts", "said"),
    [(ModelFacts(is_decoupled=True), "decoupled"), (ModelFacts(is_stateful=True), "stateful")],
)
async def test_a_shadow_that_may_not_get_copies_gets_none_and_a_note_says_why(
    facts: ModelFacts, said: str
) -> None:
    async with serving() as site:
        snapshot = site.relay.pool.current
        routes = {**snapshot.routes, SHADOW: ModelRoute(facts=facts)}
        site.relay.pool.publish(replace(snapshot, routes=routes))
        await site.ask(f.message(infer()))
        await eventually(lambda: site.fates == {"unfit": 1})
        assert site.models() == [MODEL.decode()]
        shadows = site.relay.shadows
        (note,) = shadows.notes(shadows.sets[NAME])
        assert said in note


async def test_a_shadow_that_fails_gets_no_more_copies_for_a_while() -> None:
    def fails(stream: int, body: bytes) -> bytes:
        is_copy = read(body).model_name == SHADOW.decode()
        return f.rst(stream, f.INTERNAL_ERROR) if is_copy else echo(stream, body)

    async with serving(fails) as site:
        await site.ask(f.message(infer()))
        await eventually(lambda: site.fates == {"failed": 1})
        await site.ask(f.message(infer()), 3)
        await eventually(lambda: site.fates == {"failed": 1, "busy": 1})
        assert site.client.status(1) == site.client.status(3) == 0
        assert site.relay.variant_counts() == [(2, 0)]


async def test_a_call_whose_client_leaves_is_not_copied() -> None:
    async with serving(lambda *_: b"") as site:
        site.client.send(f.call(1, f.message(infer())))
        await eventually(lambda: site.backend.requests)
        site.client.send(f.rst(1))
        await eventually(site.relay.is_clean)
        assert site.fates == {}
        assert site.models() == [MODEL.decode()]


async def test_a_call_whose_inspection_takes_several_turns_is_copied_as_it_came() -> None:
    control = ControlRule(loopback=False, networks=())
    gate = Gate(GateRules(control=control, strict_shared_memory=True))
    request = read(f.message(infer()))
    request.raw_input_contents[0] = bytes(LOOKED_AT)
    first = request.SerializeToString()
    names = b"\x0a\x00" * 8000  # of one input, whose name is empty each time
    rest = b"\x2a\x80\x7d" + names
    body = f.message(first + rest)
    async with serving(gate=gate) as site:
        cut = len(body) - len(rest)
        parts = [body[:cut][at : at + 16_000] for at in range(0, cut, 16_000)]
        site.client.send(f.headers(1, f.request_fields()), *(f.data(1, part) for part in parts))
        await eventually(lambda: any(peer.bodies for peer in site.backend.peers))
        site.client.send(f.data(1, rest, end=True))
        await site.client.until_over(1)
        await eventually(lambda: site.fates)
        assert site.fates == {"answered": 1}
        assert site.backend.requests[0][1].replace(MODEL, SHADOW) == site.backend.requests[1][1]
