"""Streams over several backends in any order of events: every counted request has one answer while
the stream lives, every decoupled one an answer or an error, and nothing is left when it is over."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.kserve import inference_pb2 as pb
from lb.wire.http2.frames import window_update
from tests.fakes.paper_streams import PaperStreams, request, result
from tests.wire.frames import (
    CANCEL,
    DATA,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    OK_TRAILERS,
    RESPONSE_FIELDS,
    RST_STREAM,
    data,
    headers,
    rst,
)
from tests.wire.frames import settings as settings_frame

BACKENDS = 3
OPTIONS = {
    "stream_window": 5000,
    "stream_window_max": 8000,
    "answer_window": 3000,
    "retained_size": 500,
}


class Server:
    """One backend: all of its streams, and what it owes on them."""

    def __init__(self, paper: PaperStreams, number: int) -> None:
        self.side = paper.backends[number]
        self.got: dict[int, bytes] = {}
        self.headed: set[int] = set()
        self.owed: dict[int, list[pb.ModelInferRequest]] = {}

    def look(self) -> None:
        for frame in self.side.gets():
            if frame.kind == HEADERS:
                self.got[frame.stream] = b""
                self.owed[frame.stream] = []
            elif frame.kind == DATA and frame.stream in self.got:
                self.got[frame.stream] += frame.payload
                self._split(frame.stream)
            elif frame.kind == RST_STREAM:
                self.forget(frame.stream)

    def _split(self, stream: int) -> None:
        content = self.got[stream]
        while len(content) >= 5 and len(content) >= 5 + int.from_bytes(content[1:5], "big"):
            size = int.from_bytes(content[1:5], "big")
            self.owed[stream].append(pb.ModelInferRequest.FromString(content[5 : 5 + size]))
            content = content[5 + size :]
        self.got[stream] = content

    def forget(self, stream: int) -> None:
        self.got.pop(stream, None)
        self.owed.pop(stream, None)

    def answer(self, size: int, *, part: bool) -> None:
        for stream, requests in self.owed.items():
            if not requests:
                continue
            if stream not in self.headed:
                self.headed.add(stream)
                self.side.sends(headers(stream, RESPONSE_FIELDS))
            asked = requests[0]
            message = result(asked.model_name, asked.id, bytes(size))
            if part:
                self.side.sends(data(stream, message[: len(message) // 2]))
                self.look()
                if stream in self.owed:
                    self.side.sends(data(stream, message[len(message) // 2 :]))
            else:
                self.side.sends(data(stream, message))
            requests.pop(0)
            return

    def end(self, how: str) -> None:
        for stream in list(self.got):
            if how == "reset":
                self.side.sends(rst(stream, 2))
            elif how == "refuse" and stream not in self.headed:
                self.side.sends(rst(stream, 7))
            else:
                status = b"0" if how == "ok" else b"14"
                fields: Any = [(b"grpc-status", status)]
                if stream not in self.headed:
                    fields = [*RESPONSE_FIELDS, *fields]
                self.side.sends(headers(stream, fields, end=True))
            self.forget(stream)

    def close_half_closed(self) -> None:
        for stream in list(self.got):
            if stream not in self.headed:
                self.headed.add(stream)
                self.side.sends(headers(stream, RESPONSE_FIELDS))
            self.side.sends(headers(stream, OK_TRAILERS, end=True))
            self.forget(stream)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 6), st.integers(0, 3000)),
        st.tuples(st.just("free"), st.integers(0, 3), st.integers(0, 3000)),
        st.tuples(st.just("answer"), st.integers(0, BACKENDS - 1), st.integers(0, 2500)),
        st.tuples(st.just("part"), st.integers(0, BACKENDS - 1), st.integers(0, 2500)),
        st.tuples(st.just("credit"), st.just(0), st.integers(1, 9000)),
        st.tuples(
            st.sampled_from(["reset", "refuse", "ok", "unavailable"]),
            st.integers(0, BACKENDS - 1),
            st.just(0),
        ),
    ),
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(ACTS, st.booleans(), st.booleans())
def test_nothing_is_lost_or_left(
    acts: list[tuple[str, int, int]], ends_well: bool, at_first_error: bool
) -> None:
    errors: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = errors.append  # type: ignore[method-assign]
    logger = logging.getLogger("lb")
    logger.addHandler(handler)
    try:
        asyncio.run(play(acts, ends_well=ends_well, at_first_error=at_first_error))
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in errors] == []


async def play(acts: list[tuple[str, int, int]], *, ends_well: bool, at_first_error: bool) -> None:
    fields = [(b"triton_grpc_error", b"true")] if at_first_error else []
    paper = PaperStreams(*fields, backends=BACKENDS, options=OPTIONS)
    paper.client.sends(settings_frame({INITIAL_WINDOW_SIZE: 2000}))
    servers = [Server(paper, number) for number in range(BACKENDS)]
    begun: set[tuple[str, int]] = set()
    asked: list[str] = []
    decoupled: set[str] = set()
    room = 5000
    got = bytearray()

    async def settle() -> None:
        nonlocal room
        for _ in range(3):
            for server in servers:
                server.look()
            await paper.turn()
            for frame in paper.looks():
                if frame.kind == DATA:
                    got.extend(frame.payload)
                elif frame.kind == 8 and frame.stream == 1:
                    room += frame.increment

    def is_over() -> bool:
        return bool(paper.bench.finished.records)

    for name, number, size in acts:
        if is_over():
            break
        if name in {"ask", "free"}:
            model = "seq" if name == "ask" else "free"
            label = f"{name}{len(asked)}"
            is_start = number > 0 and (model, number) not in begun
            message = request(model, number, label, start=is_start, tensor=bytes(size))
            if len(message) <= room:
                begun.add((model, number))
                room -= len(message)
                if name == "ask":
                    asked.append(label)
                else:
                    asked.append("")
                    if not number:
                        decoupled.add(label)
                paper.send(message)
        elif name in {"answer", "part"}:
            servers[number].answer(size, part=name == "part")
        elif name == "credit":
            paper.client.sends(window_update(1, size))
        else:
            servers[number].end(name)
        await settle()
        assert paper.bench.memory_budget.held <= 5000 + 8000 + BACKENDS * 8000 + 20_000
    if ends_well and not is_over():
        paper.client.sends(window_update(1, 2**20))
        paper.send(end=True)
        for _ in range(60):
            await settle()
            for server in servers:
                server.answer(10, part=False)
        await settle()
        for server in servers:
            server.close_half_closed()
        await settle()
        assert is_over()
        (record,) = paper.bench.finished.records
        if record.grpc_status == 0:
            found = answers(bytes(got))
            counted = [name for name in found if name.startswith("ask")]
            # A backend that ends well may leave requests without an answer, as it may alone.
            wanted = [name for name in asked if name]
            if not any(name == "ok" for name, _, _ in acts):
                assert counted == wanted
                assert decoupled <= set(found)
    elif not is_over():
        paper.client.sends(rst(1, CANCEL))
    await settle()
    assert paper.bench.is_clean()
    for server in servers:
        assert not server.side.facts.streams
    paper.client.goes()
    paper.bench.timers.close()


def answers(stream: bytes) -> list[str]:
    """The ids of all answers; the last one may be cut."""
    found = []
    while len(stream) >= 5:
        size = int.from_bytes(stream[1:5], "big")
        if len(stream) < 5 + size:
            break
        found.append(pb.ModelStreamInferResponse.FromString(stream[5 : 5 + size]).infer_response.id)
        stream = stream[5 + size :]
    return found
