"""Names that variants serve, over gRPC: what the backend gets, and what clients see of answers."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import NamedTuple

import grpc.aio
import pytest

from lb.access.gate import ControlRule, Gate, GateRules
from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE
from tests.fakes.grpc_server import CHANNEL_OPTIONS, grpc_channel, path
from tests.fakes.relay import RunningRelay, running_relay, snapshot_of
from tests.fakes.turns import InflatedSlices
from tests.wire import frames as f
from tests.wire.http2 import raw_client

NAME, OTHER = "detector", "classifier"
FIRST, SECOND = "detector_of_the_first_generation", "detector_v2"
_BETA = (("x-beta", "1"),)
_LIMIT_S = 30.0


class Backend(grpc.GenericRpcHandler):
    """Answers for whatever model it is asked for, and remembers names and versions."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = details.method.rpartition("/")[2]
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        return {
            "ModelInfer": unary(self._infer),
            "ModelMetadata": unary(self._metadata),
            "ModelStreamInfer": stream(self._stream),
        }.get(name)

    def _answer(self, data: bytes) -> pb.ModelInferResponse:
        request = pb.ModelInferRequest.FromString(data)
        self.seen.append((request.model_name, request.model_version))
        answer = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        answer.raw_output_contents.extend(request.raw_input_contents)
        return answer

    async def _infer(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        answer = self._answer(data)
        if answer.id == "bad":
            await context.abort(grpc.StatusCode.INTERNAL, f"{answer.model_name} is broken")
        return answer.SerializeToString()

    async def _metadata(self, data: bytes, _: grpc.aio.ServicerContext) -> bytes:
        request = pb.ModelMetadataRequest.FromString(data)
        self.seen.append((request.name, request.version))
        return pb.ModelMetadataResponse(name=request.name, platform="onnx").SerializeToString()

    async def _stream(
        self, requests: AsyncIterator[bytes], _: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        async for data in requests:
            answer = self._answer(data)
            text = f"{answer.model_name} is broken" if answer.id == "bad" else ""
            yield pb.ModelStreamInferResponse(
                infer_response=answer, error_message=text
            ).SerializeToString()


class Site(NamedTuple):
    """A relay between a client and a backend."""

    backend: Backend
    relay: RunningRelay
    channel: grpc.aio.Channel

    async def infer(self, request: pb.ModelInferRequest, metadata: object = ()) -> str:
        """The model that an answer names."""
        ask = self.channel.unary_unary(path("ModelInfer"))
        answer = await ask(request.SerializeToString(), metadata=metadata)
        return pb.ModelInferResponse.FromString(answer).model_name

    async def stream(
        self, *requests: pb.ModelInferRequest, metadata: object = (), **more: object
    ) -> list[pb.ModelStreamInferResponse]:
        """The answers to requests, which are sent one after the other."""
        call = self.channel.stream_stream(path("ModelStreamInfer"))(metadata=metadata, **more)
        for request in requests:
            await call.write(request.SerializeToString())
        await call.done_writing()
        return [pb.ModelStreamInferResponse.FromString(data) async for data in call]


@asynccontextmanager
async def serving(gate: Gate | None = None) -> AsyncIterator[Site]:
    """`detector` is served by two variants; clients with `x-beta: 1` get the second."""
    backend = Backend()
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((backend,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    options = {
        "variant_names": frozenset({NAME.encode()}),
        "noted": frozenset({b"x-beta", b"x-triton-lb-variant"}),
    }
    first = {"name": "stable", "model": FIRST.encode(), "weight": 1}
    second = {"name": "beta", "model": SECOND.encode(), "version": b"3", "match": (b"x-beta", b"1")}
    try:
        async with (
            asyncio.timeout(_LIMIT_S),
            running_relay(f"127.0.0.1:{port}", options=options, gate=gate) as relay,
        ):
            relay.use_variants(NAME.encode(), first, second)
            async with grpc_channel(relay.target) as channel:
                yield Site(backend, relay, channel)
            await relay.until_clean()
    finally:
        await server.stop(None)


def request(name: str = NAME, ident: str = "", size: int = 4) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name=name, id=ident, raw_input_contents=[bytes(size)])


@pytest.mark.parametrize("size", [4, 300_000])
async def test_a_call_has_the_model_at_the_backend_and_the_name_at_the_client(size: int) -> None:
    async with serving() as site:
        assert await site.infer(request(size=size)) == NAME
        assert await site.infer(request(size=size), _BETA) == NAME
        assert await site.infer(request(OTHER, size=size)) == OTHER
        assert site.backend.seen == [(FIRST, ""), (SECOND, "3"), (OTHER, "")]
        assert site.relay.variant_counts() == [(1, 0), (1, 0)]


async def test_failures_count_for_their_variant() -> None:
    async with serving() as site:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await site.infer(request(ident="bad"), _BETA)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert site.relay.variant_counts() == [(0, 0), (1, 1)]


async def test_metadata_is_about_the_first_variant_under_the_name() -> None:
    async with serving() as site:
        ask = site.channel.unary_unary(path("ModelMetadata"))
        answer = await ask(pb.ModelMetadataRequest(name=NAME).SerializeToString(), metadata=_BETA)
        assert pb.ModelMetadataResponse.FromString(answer).name == NAME
        assert site.backend.seen == [(FIRST, "")]


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_variant_is_pinned_by_those_who_may(method: str) -> None:
    async def ask(site: Site, pin: str) -> None:
        metadata = (("x-triton-lb-variant", pin),)
        if method == "ModelInfer":
            await site.infer(request(), metadata)
        else:
            await site.stream(request(), metadata=metadata)

    async with serving() as site:
        await ask(site, "beta")
        assert site.backend.seen == [(SECOND, "3")]
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(site, "nobody")
    nobody = Gate(GateRules(control=ControlRule(loopback=False)))
    async with serving(nobody) as site:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(site, "beta")
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert site.backend.seen == []


@pytest.mark.parametrize("size", [4, 300_000])
async def test_each_message_of_a_stream_goes_to_the_model_of_its_name(size: int) -> None:
    async with serving() as site:
        sent = [request(NAME, "a", size), request(OTHER, "b", size), request(NAME, "c", size)]
        answers = await site.stream(*sent, metadata=_BETA)
        shown = [(each.infer_response.id, each.infer_response.model_name) for each in answers]
        assert shown == [("a", NAME), ("b", OTHER), ("c", NAME)]
        assert [len(each.infer_response.raw_output_contents[0]) for each in answers] == [size] * 3
        assert site.backend.seen == [(SECOND, "3"), (OTHER, ""), (SECOND, "3")]
        assert site.relay.variant_counts() == [(0, 0), (2, 0)]


async def test_messages_of_a_stream_stay_with_their_variant_while_a_backend_has_it_ready() -> None:
    async with serving() as site:
        relay = site.relay
        stable = {"name": "stable", "model": FIRST.encode(), "weight": 0.0}
        canary = {"name": "canary", "model": SECOND.encode(), "weight": 1.0}
        relay.use_variants(NAME.encode(), stable, canary)
        call = site.channel.stream_stream(path("ModelStreamInfer"))()

        async def ask(*ready: str) -> str:
            """The model that gets the next message, while these are ready."""
            base = snapshot_of(relay.backends)
            routes = {model.encode(): base.routes[b"m"] for model in ready}
            relay.pool.publish(replace(base, routes=routes, knows_all=True))
            await call.write(request().SerializeToString())
            await call.read()
            return site.backend.seen[-1][0]

        assert await ask(FIRST, SECOND) == SECOND
        assert await ask(FIRST) == FIRST
        assert await ask(FIRST, SECOND) == FIRST, "it stays with the one that it has now"
        await call.done_writing()
        await call.read()


def _messages(body: bytes) -> list[bytes]:
    """The messages of a body, without their prefixes."""
    found = []
    while body:
        size = int.from_bytes(body[1:5], "big")
        found.append(body[5 : 5 + size])
        body = body[5 + size :]
    return found


@pytest.mark.parametrize("step", [1, 7, 100])
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_requests_that_come_in_pieces_are_told_apart(method: str, step: int) -> None:
    text = request(size=200).SerializeToString()
    is_stream = method == "ModelStreamInfer"
    async with serving() as site:
        async with raw_client(site.relay.port) as client:
            head = f.request_fields((b"x-beta", b"1"), path=path(method).encode())
            client.send(f.headers(1, head))
            body = f.message(text) * (2 if is_stream else 1)
            for at in range(0, len(body), step):
                client.send(f.data(1, body[at : at + step]))
                await asyncio.sleep(0)
            client.send(f.data(1, end=True))
            await client.until_over(1)
            assert client.status(1) == 0
            answers = _messages(bytes(client.bodies[1]))
        kind = pb.ModelStreamInferResponse if is_stream else pb.ModelInferResponse
        found = [kind.FromString(each) for each in answers]
        shown = [each.infer_response for each in found] if is_stream else found
        assert {each.model_name for each in shown} == {NAME}
        assert site.backend.seen == [(SECOND, "3")] * len(shown)
        assert len(shown) == (2 if is_stream else 1)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_compressed_message_that_inflates_to_too_much_is_refused(method: str) -> None:
    async with serving() as site:
        too_large = request(size=5 << 20)
        if method == "ModelInfer":
            ask = site.channel.unary_unary(path(method))
            asked = ask(too_large.SerializeToString(), compression=grpc.Compression.Gzip)
        else:
            asked = site.stream(too_large, compression=grpc.Compression.Gzip)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked
        assert "4194304 bytes" in str(caught.value.details())
        assert site.backend.seen == []


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_compressed_message_may_be_longer_than_the_window_of_its_stream(
    method: str,
) -> None:
    digits = Random(1).randbytes(1_900_000).hex().encode()  # half as long when compressed
    sent = pb.ModelInferRequest(model_name=NAME, raw_input_contents=[digits])
    async with serving() as site:
        if method == "ModelInfer":
            ask = site.channel.unary_unary(path(method))
            text = await ask(sent.SerializeToString(), compression=grpc.Compression.Gzip)
            answer = pb.ModelInferResponse.FromString(text)
        else:
            (streamed,) = await site.stream(sent, compression=grpc.Compression.Gzip)
            answer = streamed.infer_response
        assert answer.model_name == NAME
        assert answer.raw_output_contents == sent.raw_input_contents
        assert site.backend.seen == [(FIRST, "")]


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_a_compressed_message_that_is_too_long_is_refused_before_all_of_it_has_come(
    method: str,
) -> None:
    sent = pb.ModelInferRequest(model_name=NAME, raw_input_contents=[Random(1).randbytes(5 << 20)])
    body = f.message(gzip.compress(sent.SerializeToString(), 1), 1)
    async with serving() as site, raw_client(site.relay.port) as client:
        client.send(f.headers(1, f.request_fields(path=path(method).encode())))
        for at in range(0, 80_000, 16_000):
            client.send(f.data(1, body[at : at + 16_000]))
        await client.until_over(1)
        assert client.status(1) == 8


async def test_a_version_in_a_stream_means_the_model_itself() -> None:
    async with serving() as site:
        versioned = request(NAME)
        versioned.model_version = "7"
        (answer,) = await site.stream(versioned)
        assert answer.infer_response.model_name == NAME
        assert site.backend.seen == [(NAME, "7")]


async def test_an_error_in_a_stream_counts_for_its_only_variant_and_has_the_name() -> None:
    async with serving() as site:
        good, bad = await site.stream(request(ident="good"), request(ident="bad"))
        assert not good.error_message
        assert bad.error_message == f"{FIRST} is broken"
        assert bad.infer_response.model_name == NAME
        assert site.relay.variant_counts() == [(2, 1), (0, 0)]


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_read_and_go_on_plain(algorithm: grpc.Compression) -> None:
    async with serving() as site:
        ask = site.channel.unary_unary(path("ModelInfer"))
        text = request(size=5000).SerializeToString()
        answer = await ask(text, compression=algorithm)
        assert pb.ModelInferResponse.FromString(answer).model_name == NAME
        (streamed,) = await site.stream(request(size=5000), compression=algorithm)
        assert streamed.infer_response.model_name == NAME
        assert site.backend.seen == [(FIRST, "")] * 2


_GZIP = (b"grpc-encoding", b"gzip")
_LARGE = 1_000_000
_FEW_BYTES = 20_000
"""A large message of zeros has less than a tenth of that when it is compressed."""


async def test_calls_that_inflate_to_a_megabyte_are_inflated_a_slice_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five calls of a connection that come at once, one of them for a version, and one broken."""
    slices = InflatedSlices(monkeypatch, "lb.proxy.http2.inflation")
    versioned = request(size=_LARGE)
    versioned.model_version = "7"
    packed = [gzip.compress(request(size=_LARGE).SerializeToString())] * 3
    packed += [gzip.compress(versioned.SerializeToString()), packed[0][:-4]]
    assert len(b"".join(packed)) < _FEW_BYTES
    streams = range(1, 2 * len(packed), 2)
    async with serving() as site, raw_client(site.relay.port) as client:
        client.send(
            *(
                f.call(each, f.message(text, 1), _GZIP)
                for each, text in zip(streams, packed, strict=True)
            )
        )
        for each in streams:
            await client.until_over(each)
        assert [client.status(each) for each in streams] == [0, 0, 0, 0, 8]
        assert sorted(site.backend.seen) == [(NAME, "7"), *[(FIRST, "")] * 3]
        assert await client.is_alive()
    assert slices.total > 4 * 7
    assert slices.most_in_a_turn <= 2  # the last of one and the first of the next


def _messages(body: bytes) -> list[bytes]:
    """The plain messages of a response."""
    found, at, cutter = [], 0, MessageCutter()
    while at < len(body):
        stop = cutter.advance(body, at)
        found.append(body[at + PREFIX_SIZE : stop])
        at = stop
    return found


@pytest.mark.parametrize("frame", [_FEW_BYTES, 700, 41])
async def test_messages_of_a_stream_that_inflate_to_a_megabyte_are_taken_one_at_a_time(
    frame: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them come at once, in frames of so many bytes, with plain ones between them."""
    slices = InflatedSlices(monkeypatch, "lb.proxy.http2.inflation")
    texts = [
        request(name, f"{number}", size).SerializeToString()
        for number, (name, size) in enumerate(((NAME, _LARGE), (NAME, 4), (OTHER, _LARGE)) * 4)
    ]
    messages = [
        f.message(gzip.compress(text), 1) if number % 3 != 1 else f.message(text)
        for number, text in enumerate(texts)
    ]
    body = b"".join(messages)
    assert len(body) < _FEW_BYTES
    async with serving() as site, raw_client(site.relay.port) as client:
        client.send(
            f.headers(1, f.request_fields(_GZIP, path=path("ModelStreamInfer").encode())),
            *(
                f.data(1, body[at : at + frame], end=at + frame >= len(body))
                for at in range(0, len(body), frame)
            ),
        )
        await client.until_over(1)
        assert client.status(1) == 0
        shown = [
            pb.ModelStreamInferResponse.FromString(each).infer_response
            for each in _messages(bytes(client.bodies[1]))
        ]
        assert [each.id for each in shown] == [f"{number}" for number in range(len(texts))]
        assert [each.model_name for each in shown] == [NAME, NAME, OTHER] * 4
        assert site.backend.seen == [(FIRST, ""), (FIRST, ""), (OTHER, "")] * 4
    assert slices.total == 8 * 8
    assert slices.most_in_a_turn <= 2


def _endings(text: bytes) -> dict[str, tuple[bytes, ...]]:
    """Ways in which a stream of stream 1 may end within a message, as frames after its head."""
    whole = f.message(text)
    packed = f.message(gzip.compress(text), 1)
    trailers = f.headers(1, [(b"x-checksum", b"0")], end=True)
    return {
        "with its prefix": (f.data(1, whole[:3], end=True),),
        "in its prefix, by an empty frame": (f.data(1, whole[:3]), f.data(1, end=True)),
        "before its name": (f.data(1, whole[:9]), f.data(1, end=True)),
        "before its name, by trailers": (f.data(1, whole[:9]), trailers),
        "after its name": (f.data(1, whole[:-9], end=True),),
        "after its name, by trailers": (f.data(1, whole[:-9]), trailers),
        "compressed": (f.data(1, packed[:-9], end=True),),
        "compressed, by an empty frame": (f.data(1, packed[:-9]), f.data(1, end=True)),
    }


@pytest.mark.parametrize("has_answers", [False, True])
@pytest.mark.parametrize("ending", _endings(bytes(50)))
async def test_a_stream_that_ends_within_a_message_fails_under_every_name(
    ending: str, has_answers: bool
) -> None:
    async with serving() as site:
        for name in (NAME, OTHER):
            text = request(name, size=200).SerializeToString()
            async with raw_client(site.relay.port) as client:
                client.send(f.headers(1, f.request_fields(path=path("ModelStreamInfer").encode())))
                if has_answers:
                    client.send(f.data(1, f.message(text)))
                    await client.until_kind(f.DATA, 1)
                client.send(*_endings(text)[ending])
                await client.until_over(1)
                outcome = (client.status(1), client.resets.get(1))
            assert outcome == (13, None), name
        assert len(site.backend.seen) == (2 if has_answers else 0)


async def test_a_long_call_in_equal_frames_gets_its_answer() -> None:
    async with serving() as site:
        body = f.message(request(size=1_500_000).SerializeToString())
        cut = [f.data(1, body[at : at + 8192]) for at in range(0, len(body), 8192)]
        head = f.request_fields(path=path("ModelInfer").encode())
        async with raw_client(site.relay.port) as client:
            client.send(f.headers(1, head), *cut[:100])
            await client.until_kind(f.WINDOW_UPDATE, 1)  # the backend has begun to get it
            client.send(b"".join(cut[100:]), f.data(1, end=True))
            await client.until_over(1)
            assert client.status(1) == 0
            (answer,) = _messages(bytes(client.bodies[1]))
        assert len(pb.ModelInferResponse.FromString(answer).raw_output_contents[0]) == 1_500_000
        assert site.backend.seen == [(FIRST, "")]
