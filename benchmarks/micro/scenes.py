"""What is measured: small pieces of relaying that repeat, each on fresh parts.

A scene is made by a function of a clock; it gives the inputs of its next steps, which are made
beforehand, and takes one step per input.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from types import CodeType, FrameType
from typing import Any, Final

from hpack import Encoder

from benchmarks.bench_grpc_message import long_meter
from benchmarks.bench_http1_heads import ANSWER as ANSWER_HEAD
from benchmarks.bench_http1_heads import LIMITS, MESH, SMALL
from benchmarks.bench_http2_headers import REQUEST, RESPONSE, stateless
from benchmarks.bench_http2_relay import join, request, response
from benchmarks.bench_schedule import (
    JSON_BODY,
    MESSAGE,
    PLAN,
    WIDE_PLAN,
    busy_desk,
    numbered_message,
)
from benchmarks.bench_sharing import busy_machine
from benchmarks.bench_stream_relay import head as stream_head
from benchmarks.bench_stream_relay import message as stream_message
from benchmarks.micro.sides import MODEL, Clock, Http1Sides, Http2Sides, Sink
from lb.balancing.least_loaded import LeastLoadedPicker, WindowPicker
from lb.balancing.round_robin import RoundRobinPicker
from lb.balancing.score import PickSequence
from lb.domain.pool import Picker
from lb.domain.schedule import QueuePlan
from lb.telemetry.meter import Meter
from lb.wire.grpc.message import frame_message, model_name
from lb.wire.http1.body import ChunkedDecoder
from lb.wire.http1.request import parse_request_head
from lb.wire.http1.response import parse_response_head
from lb.wire.http2 import frames as fr
from lb.wire.http2.fields import FieldCache, encode_field
from lb.wire.http2.huffman import decode
from tests.fakes.backends import make_backend, make_backends
from tests.fakes.records import PlainRecord, grpc_record

CHUNK = 256 * 1024
"""The most that uvloop reads at once."""
_FRAME = 16 * 1024
_STREAM = 1
_NAME = b"\x0a\x06simple"
_ANSWER = ANSWER_HEAD + b"x" * 338
_ENDLESS = 1 << 40
_EVENT = b'data: {"model_name":"simple","model_version":"1","text_output":"a few words"}\n\n'
_GRPC_HEAD = b"\x88" + encode_field(b"content-type", b"application/grpc")


_SHORT_S: Final = 1e-5
"""Between two looks at the clock, so that executions are too short for their batches to be cut."""
_ONE_ROW, _EIGHT_ROWS = b"\x1a\x02\x01\x10", b"\x1a\x02\x08\x10"
"""The shape of an input over gRPC."""
_IN_FLIGHT: Final = 32
"""Calls that one backend may have in flight at most while executions are as short as in a scene."""
_TICKETS: Final = 16
"""Of all workers in one step: they read each other once for about as many."""
_EXECUTION_S: Final = 0.005
_LEARNT: Final = 20
"""Executions after which it is known what they take."""
_HARDLY_EVER: Final = 1e-12
"""Share of the payload log by which none of some thousand requests is logged."""


@dataclass
class Scene:
    """Something that repeats."""

    step: Callable[[Any], object]
    inputs: Iterator[Any]
    """Of the next steps; endless."""
    parts: int = 1
    """Requests, frames or messages per step: what the figures are per."""

    def take(self, count: int) -> list[Any]:
        """Inputs of so many steps."""
        return list(itertools.islice(self.inputs, count))


Make = Callable[[Clock], Scene]


def _same(step: Callable[[Any], object], one: Any, parts: int = 1) -> Scene:
    return Scene(step, itertools.repeat(one), parts)


# HTTP/1.1


def _exchange(sides: Http1Sides) -> Callable[[tuple[bytes, bytes]], None]:
    def exchange(pair: tuple[bytes, bytes]) -> None:
        sides.client_sends(pair[0])
        sides.backend_sends(pair[1])

    return exchange


def http1_small(
    backends: int, having_model: int | None = None, logged: float | None = None
) -> Make:
    """A request whose head is known, and its answer, one read each; `logged` is the share of the
    payload log, None where that is off."""

    def make(clock: Clock) -> Scene:
        sides = Http1Sides(clock, backends=backends, having_model=having_model, logged=logged)
        return _same(_exchange(sides), (SMALL + b"x" * 130, _ANSWER))

    return make


def http1_new_heads(clock: Clock) -> Scene:
    """The same with a head that was never seen, as behind a mesh."""
    cut = MESH.index(b"0f5ab6a3")
    start, end = MESH[:cut], MESH[cut + 8 :] + b"x" * 332
    pairs = ((b"%b%08x%b" % (start, number, end), _ANSWER) for number in itertools.count())
    return Scene(_exchange(Http1Sides(clock)), pairs)


def http1_upload(clock: Clock) -> Scene:
    """A read of a large request."""
    sides = Http1Sides(clock)
    sides.client_sends(SMALL.replace(b"130", b"%d" % _ENDLESS))
    return _same(sides.client_sends, bytes(CHUNK))


def http1_download(clock: Clock) -> Scene:
    """A read of a large answer."""
    sides = Http1Sides(clock)
    sides.client_sends(SMALL + b"x" * 130)
    sides.backend_sends(ANSWER_HEAD.replace(b"338", b"%d" % _ENDLESS))
    return _same(sides.upstream.data_received, bytes(CHUNK))


def http1_events(number: int) -> Make:
    """So many server-sent events in one read, each a chunk of its own."""

    def make(clock: Clock) -> Scene:
        sides = Http1Sides(clock)
        sides.client_sends(SMALL.replace(b"/infer", b"/generate_stream") + b"x" * 130)
        sides.backend_sends(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        event = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
        return _same(sides.upstream.data_received, event * number)

    return make


def http1_traced(ratio: float) -> Make:
    """A small request while tracing is on: that share of them is traced."""

    def make(clock: Clock) -> Scene:
        sides = Http1Sides(clock)
        tracer = sides.relay.trace(ratio=ratio)
        sides.server = sides.connect()
        exchange, forget = _exchange(sides), tracer.spans.waiting.clear
        if ratio < 1:
            return _same(exchange, (SMALL + b"x" * 130, _ANSWER))

        def traced(pair: tuple[bytes, bytes]) -> None:
            exchange(pair)
            forget()

        return _same(traced, (SMALL + b"x" * 130, _ANSWER))

    return make


def http1_contexts(*, is_new: bool, is_on: bool) -> Make:
    """A small request with a trace context that is not sampled, a new one each time or not."""

    def make(clock: Clock) -> Scene:
        sides = Http1Sides(clock)
        if is_on:
            sides.relay.trace()
            sides.server = sides.connect()
        end = SMALL.index(b"\r\n") + 2
        start, rest = SMALL[:end], SMALL[end:] + b"x" * 130
        value = b"traceparent: 00-%032x-%016x-00\r\n"
        pairs = (
            (start + value % (number, number) + rest, _ANSWER)
            for number in (itertools.count(1) if is_new else itertools.repeat(1))
        )
        return Scene(_exchange(sides), pairs)

    return make


# gRPC


def _calls(
    *,
    unique: bool,
    same: int | None = None,
    batch: int = 1,
    interleaved: bool = False,
    message: Callable[[int], bytes] | None = None,
) -> Iterator[Any]:
    """Reads of calls and of their answers. `same`: the number in the `traceparent` of all."""
    for start in itertools.count(0, batch):
        numbers = range(start, start + batch)
        asked = [
            request(2 * n + 1, n if unique else same, message(n) if message else None)
            for n in numbers
        ]
        answered = [response(2 * n + 1) for n in numbers]
        yield join(asked, interleaved=interleaved), join(answered, interleaved=interleaved)


def grpc_unary(
    *,
    unique: bool = False,
    same: int | None = None,
    batch: int = 1,
    interleaved: bool = False,
    logged: float | None = None,
) -> Make:
    """A call and its answer; `batch` of them per read; `logged` as in `http1_small`, `same` as in
    `_calls`."""

    def make(clock: Clock) -> Scene:
        sides = Http2Sides(clock, logged=logged)

        def call(pair: tuple[bytes, bytes]) -> None:
            sides.client_sends(pair[0])
            sides.backend_sends(pair[1])

        calls = _calls(unique=unique, same=same, batch=batch, interleaved=interleaved)
        return Scene(call, calls, batch)

    return make


def grpc_decision(clock: Clock) -> Scene:
    """What is done with a call whose head was not seen lately."""
    relay = Http2Sides(clock).server.relay
    block = b"".join(encode_field(name.encode(), value.encode()) for name, value in REQUEST)
    return _same(relay.decide, stateless().request(block))


def grpc_traced(ratio: float, *, unique: bool = False) -> Make:
    """A call and its answer while tracing is on: that share of those without a trace context is
    traced. Those with one come with a new one each time, which is sampled: they all are traced."""

    def make(clock: Clock) -> Scene:
        sides = Http2Sides(clock)
        tracer = sides.relay.trace(ratio=ratio)
        forget = tracer.spans.waiting.clear

        def call(pair: tuple[bytes, bytes]) -> None:
            sides.client_sends(pair[0])
            sides.backend_sends(pair[1])

        def traced(pair: tuple[bytes, bytes]) -> None:
            call(pair)
            forget()

        is_traced = ratio == 1 or unique
        return Scene(traced if is_traced else call, _calls(unique=unique))

    return make


def grpc_in_parts(clock: Clock) -> Scene:
    """A call and its answer, a read per frame."""
    sides = Http2Sides(clock)

    def call(number: int) -> None:
        for frame in request(2 * number + 1, None):
            sides.client_sends(frame)
        for frame in response(2 * number + 1):
            sides.backend_sends(frame)

    return Scene(call, itertools.count())


def grpc_large(content: bytes) -> Make:
    """A call with a message of 64 KiB in four frames, which begins so and goes on with the last
    byte of that, and a small answer."""

    def make(clock: Clock) -> Scene:
        sides = Http2Sides(clock)
        start = b"\0" + (4 * _FRAME - 5).to_bytes(4, "big") + content
        body = start + content[-1:] * (4 * _FRAME - len(start))

        def calls() -> Iterator[tuple[bytes, bytes]]:
            for stream in itertools.count(1, 2):
                head, _ = request(stream, None)
                end = fr.frame_header(0, fr.DATA, fr.END_STREAM, stream)
                yield head + _frames(body, stream) + end, b"".join(response(stream))

        def call(pair: tuple[bytes, bytes]) -> None:
            sides.client_sends(pair[0])
            sides.backend_sends(pair[1])

        return Scene(call, calls())

    return make


def grpc_messages(*sizes: int, plan: QueuePlan | None = None, backends: int = 1) -> Make:
    """A message of an open ModelStreamInfer, and its answer; the sizes take turns."""

    def make(clock: Clock) -> Scene:
        sides = _open_stream(clock if plan is None else _ticking(), plan, backends)
        down = stream_message(_STREAM, b"\x12", 200)

        def both(up: bytes) -> None:
            sides.client_sends(up)
            sides.backend_sends(down)

        ups = [stream_message(_STREAM, _NAME, size) for size in sizes]
        return Scene(both, itertools.cycle(ups))

    return make


def grpc_spread_messages(_: Clock) -> Scene:
    """Two messages of a stream whose messages are spread over two backends, and their answers, one
    read each. A backend executes one message at a time, so each gets one."""
    times = [1000.0]
    asked = deque[Any]()

    class Upstream(Sink):
        """Notes that a request was written to it."""

        def write(self, data: Any) -> None:
            asked.append(self.protocol)

        writelines = write

    sides = _open_stream(partial(times.__getitem__, 0), PLAN, 2, Upstream)
    up = stream_message(_STREAM, _NAME, 200)
    down = stream_message(_STREAM, b"\x12", 200)
    begun = {sides.upstream}
    head = fr.header_frames(_STREAM, _GRPC_HEAD, end_stream=False, frame_size=_FRAME)

    def exchange(messages: int) -> None:
        asked.clear()
        for _ in range(messages):
            sides.client_sends(up)
        times[0] += _EXECUTION_S
        for _ in range(messages):
            upstream = asked.popleft()
            if upstream not in begun:
                begun.add(upstream)
                upstream.data_received(head)
            upstream.data_received(down)
            sides.flush()

    for _ in range(_LEARNT):
        exchange(1)
    exchange(_IN_FLIGHT)  # too many for one backend: from now on the stream has two
    assert len(begun) == 2
    return _same(exchange, 2, 2)


def grpc_streams(streams: int, plan: QueuePlan) -> Make:
    """A message of each of several open streams, and their answers, in one read each."""

    def make(_: Clock) -> Scene:
        sides = Http2Sides(_ticking(), plan)
        ids = range(1, 2 * streams, 2)
        up = b"".join([stream_message(each, _NAME, 200) for each in ids])
        down = b"".join([stream_message(each, b"\x12", 200) for each in ids])
        sides.client_sends(b"".join(map(stream_head, ids)) + up)
        heads = [
            fr.header_frames(each, _GRPC_HEAD, end_stream=False, frame_size=_FRAME) for each in ids
        ]
        sides.backend_sends(b"".join(heads) + down)

        def all_of_them(_: None) -> None:
            sides.client_sends(up)
            sides.backend_sends(down)

        return _same(all_of_them, None, streams)

    return make


def _open_stream(
    clock: Clock,
    plan: QueuePlan | None = None,
    backends: int = 1,
    transport_of: type[Sink] = Sink,
) -> Http2Sides:
    sides = Http2Sides(clock, plan, backends=backends, transport_of=transport_of)
    sides.client_sends(stream_head(_STREAM) + stream_message(_STREAM, _NAME, 200))
    head = fr.header_frames(_STREAM, _GRPC_HEAD, end_stream=False, frame_size=_FRAME)
    sides.backend_sends(head + stream_message(_STREAM, b"\x12", 200))
    return sides


def _frames(data: bytes, stream: int = _STREAM) -> bytes:
    """DATA frames of the usual size."""
    return b"".join(
        fr.frame_header(len(part), fr.DATA, 0, stream) + part
        for start in range(0, len(data), _FRAME)
        if (part := data[start : start + _FRAME])
    )


def _large_call(clock: Clock) -> Http2Sides:
    """A unary call within a message that is as long as they can be."""
    sides = Http2Sides(clock)
    head, _ = request(_STREAM, None)
    start = b"\0" + b"\x7f\xff\xff\xff" + _NAME
    sides.client_sends(head + fr.frame_header(len(start), fr.DATA, 0, _STREAM) + start)
    return sides


def grpc_upload(clock: Clock) -> Scene:
    """256 KiB of a large request, in frames of 16 KiB, in one read."""
    return _same(_large_call(clock).client_sends, _frames(bytes(CHUNK)))


def grpc_download(clock: Clock) -> Scene:
    """256 KiB of a large answer, in frames of 16 KiB, in one read."""
    sides = _large_call(clock)
    start = b"\0\x7f\xff\xff\xff"
    sides.backend_sends(
        fr.header_frames(_STREAM, _GRPC_HEAD, end_stream=False, frame_size=_FRAME)
        + fr.frame_header(len(start), fr.DATA, 0, _STREAM)
        + start
    )
    return _same(sides.backend_sends, _frames(bytes(CHUNK)))


# Scheduled models


def _ticking(step_s: float = 0.001) -> Clock:
    """A clock that goes on by `step_s` whenever it is looked at, without a call: what ends is
    learnt from."""
    return itertools.count(1000.0, step_s).__next__


def http1_scheduled(backends: int) -> Make:
    """A request of a scheduled model, and its answer, one read each."""

    def make(_: Clock) -> Scene:
        sides = Http1Sides(_ticking(), backends=backends, plan=PLAN)
        return _same(_exchange(sides), (SMALL + JSON_BODY, _ANSWER))

    return make


def http1_queued(waiting: int) -> Make:
    """A request of a scheduled model that is queued behind so many others at least, the answer of
    the one that began first, and the dispatch of the one that is next."""

    def make(_: Clock) -> Scene:
        sides = Http1Sides(_ticking(), plan=PLAN)
        give_turns = sides.relay.take_turns()
        asked = deque[asyncio.Protocol]()

        class Upstream(Sink):
            """Notes that a request was written to it."""

            def write(self, data: Any) -> None:
                asked.append(self.protocol)

            writelines = write

        first = waiting + _IN_FLIGHT
        for _number in range(_IN_FLIGHT):
            sides.dial(transport_of=Upstream)
        clients = itertools.cycle([sides.connect() for _number in range(first + 1)])
        asks = SMALL + JSON_BODY

        def call(answer: bytes) -> None:
            next(clients).data_received(asks)
            asked.popleft().data_received(answer)
            give_turns()

        for _number in range(first):
            next(clients).data_received(asks)
        return _same(call, _ANSWER)

    return make


def grpc_scheduled(
    batch: int = 1, plan: QueuePlan = PLAN, message: Callable[[int], bytes] = lambda _: MESSAGE
) -> Make:
    """A call of a scheduled model, and its answer; `batch` of them per read."""

    def make(_: Clock) -> Scene:
        sides = Http2Sides(_ticking(), plan=plan)

        def call(pair: tuple[bytes, bytes]) -> None:
            sides.client_sends(pair[0])
            sides.backend_sends(pair[1])

        return Scene(call, _calls(unique=False, batch=batch, message=message), batch)

    return make


def grpc_queued(waiting: int) -> Make:
    """A call of a scheduled model that is queued behind so many others at least, the answer of the
    call that began first, and the dispatch of the one that is next."""

    def make(_: Clock) -> Scene:
        sides = Http2Sides(_ticking(), plan=PLAN)
        give_turns = sides.relay.take_turns()
        calls = _calls(unique=False, message=lambda _: MESSAGE)
        answers = deque[bytes]()
        flush = sides.flush

        def call(pair: tuple[bytes, bytes]) -> None:
            sides.client_sends(pair[0])
            answers.append(pair[1])
            sides.upstream.data_received(answers.popleft())
            give_turns()
            flush()

        for request_bytes, answer in itertools.islice(calls, waiting + _IN_FLIGHT):
            sides.client_sends(request_bytes)
            answers.append(answer)
        return Scene(call, calls)

    return make


def tickets(lanes: int, waiting: int = 0) -> Make:
    """A ticket that begins, and one that ends."""

    def make(_: Clock) -> Scene:
        desk = busy_desk(lanes, waiting)
        return _same(desk.go_on, None)

    return make


def shared_tickets(lanes: int, load: float, workers: int) -> Make:
    """A ticket that begins at one of several busy workers, and one that ends there, with all that
    the workers tell each other for it. The machine that they are on is counted, too."""

    def make(_: Clock) -> Scene:
        machine = busy_machine(lanes, load, workers=workers, busy=workers)

        def go_on(_: object) -> None:
            for _number in range(_TICKETS):
                machine.go_on()

        return Scene(go_on, itertools.repeat(None), _TICKETS)

    return make


# Batches that may be cut


def http1_split(clock: Clock) -> Scene:
    """A request of one row for a model whose batches are cut, and its answer, one read each."""
    sides = Http1Sides(clock)
    sides.relay.split(MODEL, 8, is_auto=True)
    sides.server = sides.connect()
    return _same(_exchange(sides), (SMALL + JSON_BODY, _ANSWER))


def grpc_split(clock: Clock) -> Scene:
    """A call of one row for such a model, and its answer."""
    sides = Http2Sides(clock)
    sides.relay.split(MODEL, 8, is_auto=True)

    def call(pair: tuple[bytes, bytes]) -> None:
        sides.client_sends(pair[0])
        sides.backend_sends(pair[1])

    return Scene(call, _calls(unique=False, message=lambda _: MESSAGE))


def http1_batch(_: Clock) -> Scene:
    """A request of eight rows for a scheduled model whose batches are cut, which stays whole, since
    executions are short, and its answer, one read each."""
    sides = Http1Sides(_ticking(_SHORT_S), backends=3, plan=PLAN)
    sides.relay.split(MODEL, 64, is_auto=True)
    sides.server = sides.connect()
    return _same(_exchange(sides), (SMALL + JSON_BODY.replace(b"[1,16]", b"[8,16]"), _ANSWER))


def grpc_batch(_: Clock) -> Scene:
    """A call of eight rows for such a model, which stays whole, and its answer."""
    sides = Http2Sides(_ticking(_SHORT_S), plan=PLAN)
    sides.relay.split(MODEL, 64, is_auto=True)
    message = MESSAGE.replace(_ONE_ROW, _EIGHT_ROWS)

    def call(pair: tuple[bytes, bytes]) -> None:
        sides.client_sends(pair[0])
        sides.backend_sends(pair[1])

    return Scene(call, _calls(unique=False, message=lambda _: message))


# Picks


def pick(build: Callable[[Any], Picker], backends: int, fewest: int = 0) -> Make:
    """One pick, with `fewest` to three more requests in flight on each backend."""

    def make(_: Clock) -> Scene:
        rng = Random(1)
        counts = (fewest + rng.randrange(4) for _ in range(backends))
        picker = build(make_backends(*counts))
        return _same(lambda _: picker.pick(), None)

    return make


# Parts


def codec_message(_: Clock) -> Scene:
    """The name of the model in a message."""
    return _same(model_name, frame_message(_NAME + b"\x3a\xc0\x01" + bytes(192)))


def codec_meter(_: Clock) -> Scene:
    """Where messages end: a read within a long one."""
    return _same(long_meter(), bytes(_FRAME))


def codec_chunks(_: Clock) -> Scene:
    """A read of 64 KiB in chunks of 1 KiB."""
    decoder = ChunkedDecoder()
    return _same(lambda data: decoder.decode(data, 0, []), b"400\r\n%b\r\n" % bytes(1024) * 64, 64)


def codec_cut_chunks(_: Clock) -> Scene:
    """A chunk whose size came in another read than its content."""
    decoder = ChunkedDecoder()

    def both(reads: tuple[bytes, bytes]) -> None:
        decoder.decode(reads[0], 0, [])
        decoder.decode(reads[1], 0, [])

    return _same(both, (b"4", b"00\r\n%b\r\n" % bytes(1024)))


def codec_request(_: Clock) -> Scene:
    """A head of twelve fields."""
    return _same(lambda head: parse_request_head(head, LIMITS), MESH)


def codec_response(_: Clock) -> Scene:
    """A head of three fields."""
    return _same(lambda head: parse_response_head(head, LIMITS, to_head=False), ANSWER_HEAD)


def _new_blocks(fields: Iterable[tuple[str, str]]) -> Iterator[bytes]:
    """Header blocks with one more field, whose value never repeats."""
    block = b"".join(encode_field(name.encode(), value.encode()) for name, value in fields)
    for number in itertools.count():
        yield block + encode_field(b"traceparent", b"00-%032x-%016x-01" % (number, number))


def codec_fields(_: Clock) -> Scene:
    """A block of nine fields, one of them new."""
    return Scene(FieldCache().split, _new_blocks(REQUEST))


def codec_request_block(_: Clock) -> Scene:
    """The head of a request of ten fields, the last two of them new."""
    blocks = (
        block + encode_field(b"x-request-id", b"%d" % number)
        for number, block in enumerate(_new_blocks(REQUEST))
    )
    reader = stateless()
    return Scene(lambda block: reader.known_request(block) or reader.request(block), blocks)


def codec_answer(_: Clock) -> Scene:
    """The head of an answer of three fields, one of them new."""
    return Scene(stateless().response, _new_blocks(RESPONSE))


def codec_huffman(_: Clock) -> Scene:
    """A traceparent."""
    encoder = Encoder()
    values = (
        encoder.huffman_coder.encode(b"00-%032x-%016x-01" % (number, number))
        for number in itertools.count(1 << 60)
    )
    return Scene(decode, values)


def meter(record: Any) -> Make:
    """A finished request, counted."""

    def make(_: Clock) -> Scene:
        return _same(Meter().finished, record)

    return make


_BACKEND = make_backend()
SCENES: dict[str, Make] = {
    "HTTP/1.1 request": http1_small(1),
    "HTTP/1.1 request, 2 backends": http1_small(2),
    "HTTP/1.1 request, 200 backends": http1_small(200),
    "HTTP/1.1 request, model on 1 of 2": http1_small(2, 1),
    "HTTP/1.1 request, model on 100 of 200": http1_small(200, 100),
    "HTTP/1.1 request, payload log on": http1_small(1, logged=_HARDLY_EVER),
    "HTTP/1.1 request, payload logged": http1_small(1, logged=1.0),
    "HTTP/1.1 request, new head of 12 fields": http1_new_heads,
    "HTTP/1.1 request, tracing on": http1_traced(1e-6),
    "HTTP/1.1 request, traced": http1_traced(1.0),
    "HTTP/1.1 request, same traceparent": http1_contexts(is_new=False, is_on=False),
    "HTTP/1.1 request, new traceparent": http1_contexts(is_new=True, is_on=False),
    "HTTP/1.1 request, new traceparent, tracing on": http1_contexts(is_new=True, is_on=True),
    "HTTP/1.1 upload, 256 KiB": http1_upload,
    "HTTP/1.1 download, 256 KiB": http1_download,
    "HTTP/1.1 server-sent event": http1_events(1),
    "HTTP/1.1 server-sent events, 4 per read": http1_events(4),
    "gRPC call": grpc_unary(),
    "gRPC call, payload log on": grpc_unary(logged=_HARDLY_EVER),
    "gRPC call, payload logged": grpc_unary(logged=1.0),
    "gRPC call, same traceparent": grpc_unary(same=1),
    "gRPC call, new header block": grpc_unary(unique=True),
    "gRPC call, decision": grpc_decision,
    "gRPC call, tracing on": grpc_traced(1e-6),
    "gRPC call, traced": grpc_traced(1.0),
    "gRPC call, new header block, traced": grpc_traced(0.0, unique=True),
    "gRPC call, 8 per read": grpc_unary(batch=8),
    "gRPC call, 8 per read, interleaved": grpc_unary(batch=8, interleaved=True),
    "gRPC call, in parts": grpc_in_parts,
    "gRPC call, request of 64 KiB": grpc_large(_NAME + b"\0"),
    "gRPC call, 64 KiB that are no inference": grpc_large(b"y"),
    "gRPC stream, message and answer": grpc_messages(200),
    "gRPC stream, sizes differ": grpc_messages(200, 201),
    "gRPC stream, larger messages": grpc_messages(9000),
    "gRPC stream, scheduled": grpc_messages(200, plan=PLAN),
    "gRPC stream, scheduled, 2 backends": grpc_messages(200, plan=PLAN, backends=2),
    "gRPC stream, scheduled, over 2 backends": grpc_spread_messages,
    "gRPC streams, scheduled, 8 per read": grpc_streams(8, WIDE_PLAN),
    "gRPC upload, 256 KiB": grpc_upload,
    "gRPC download, 256 KiB": grpc_download,
    "HTTP/1.1 request, scheduled": http1_scheduled(1),
    "HTTP/1.1 request, scheduled, 3 backends": http1_scheduled(3),
    "HTTP/1.1 request, scheduled, queued": http1_queued(16),
    "gRPC call, scheduled": grpc_scheduled(),
    "gRPC call, scheduled, new id": grpc_scheduled(message=numbered_message),
    "gRPC call, scheduled, queued": grpc_queued(16),
    "gRPC call, scheduled, 8 per read": grpc_scheduled(8, WIDE_PLAN),
    "HTTP/1.1 request, split: auto": http1_split,
    "gRPC call, split: auto": grpc_split,
    "HTTP/1.1 request of 8 rows, split: auto": http1_batch,
    "gRPC call of 8 rows, split: auto": grpc_batch,
    "ticket, 3 lanes": tickets(3),
    "ticket, 3 lanes, 100 wait": tickets(3, 100),
    "ticket, 200 lanes": tickets(200),
    "ticket, 200 lanes, 10,000 wait": tickets(200, 10_000),
    "ticket, 3 lanes, 1 worker": shared_tickets(3, 0.5, 1),
    "ticket, 3 lanes, 2 workers": shared_tickets(3, 0.5, 2),
    "ticket, 3 lanes, 1 worker, 54 wait": shared_tickets(3, 10.0, 1),
    "ticket, 3 lanes, 2 workers, 54 wait": shared_tickets(3, 10.0, 2),
    "least_loaded, 2 backends": pick(
        lambda backends: LeastLoadedPicker(backends, PickSequence()), 2
    ),
    "least_loaded, 200 backends": pick(
        lambda backends: WindowPicker(backends, PickSequence(), Random(1)), 200
    ),
    "least_loaded, 200 busy backends": pick(
        lambda backends: WindowPicker(backends, PickSequence(), Random(1)), 200, fewest=1
    ),
    "round_robin, 200 backends": pick(
        lambda backends: RoundRobinPicker(backends, PickSequence()), 200
    ),
    "telemetry, HTTP": meter(PlainRecord(backend=_BACKEND)),
    "telemetry, gRPC": meter(grpc_record(backend=_BACKEND)),
    "model's name in a message": codec_message,
    "end of a message, read of 16 KiB": codec_meter,
    "chunk of 1 KiB": codec_chunks,
    "chunk of 1 KiB, cut": codec_cut_chunks,
    "HTTP/1.1 request head, 12 fields": codec_request,
    "HTTP/1.1 response head, 3 fields": codec_response,
    "header block, one new field": codec_fields,
    "header block of a request, two new fields": codec_request_block,
    "header block of an answer, one new field": codec_answer,
    "Huffman code, 55 bytes": codec_huffman,
}


def called(steps: int = 3) -> set[CodeType]:
    """The functions that the scenes call in their steps. Needs a running loop."""
    found: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add(frame.f_code)

    for make in SCENES.values():
        scene = make(lambda: 1000.0)
        for one in scene.take(steps):  # the first ones are no ordinary steps
            scene.step(one)
        inputs = scene.take(steps)
        sys.setprofile(note)
        for one in inputs:
            scene.step(one)
        sys.setprofile(None)
    return found
