"""The gRPC relay as a whole, without sockets: whatever one side sends, the other gets what h2
accepts, and nothing is left when all have gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import h2.config
import h2.connection
import h2.events as ev
import h2.exceptions

from lb.wire.field_names import REDIRECT
from lb.wire.hops import HOPS
from lb.wire.http2 import frames as fr
from tests.fakes.http2_connections import PaperRelay, Side
from tests.fuzz.target import Target, cuttings
from tests.fuzz.targets.codec import FRAME_WORDS, ROWS
from tests.fuzz.watching import no_failure_is_logged
from tests.wire import frames as f

_CEILING = 1 << 20
_MATTERS_OF_TASTE = (
    "does not have an :authority or Host",  # gRPC clients on Unix sockets may have none
    "mismatched :authority and Host",  # KServe and Istio route by a host of their own:
    "multiple Host headers",  # it is metadata like any other, for Tritons as well
    "InvalidBodyLengthError",  # we do not count what a backend says of an answer's length
)
"""What h2 refuses and we pass on."""
_ADDED = (b"te", b"trailers")
_Header = tuple[bytes, bytes]


class _Judge:
    """An h2 connection that raises when the relay breaks a rule, and keeps what it got."""

    def __init__(self, *, client: bool) -> None:
        config = h2.config.H2Configuration(
            client_side=client, header_encoding=None, normalize_inbound_headers=False
        )
        self.connection = h2.connection.H2Connection(config)
        self.connection.initiate_connection()
        self.heads: dict[int, list[_Header]] = {}
        self.bodies: dict[int, bytes] = {}
        self.trailers: dict[int, list[_Header]] = {}
        self.ended: list[int] = []
        self.resets: set[int] = set()
        self.is_over = False

    def takes(self, data: bytes) -> list[int]:
        """Bytes from the relay; returns the streams that they ended.

        Raises:
            h2.exceptions.ProtocolError: they are not legal.
        """
        ended = []
        for event in self._events(data):
            match event:
                case ev.RequestReceived() | ev.ResponseReceived():
                    self.heads[event.stream_id] = list(event.headers)
                case ev.TrailersReceived():
                    self.trailers[event.stream_id] = list(event.headers)
                case ev.DataReceived():
                    body = self.bodies.get(event.stream_id, b"")
                    self.bodies[event.stream_id] = body + event.data
                case ev.StreamEnded():
                    ended.append(event.stream_id)
                case ev.StreamReset():
                    self.resets.add(event.stream_id)
        self.ended += ended
        return ended

    def _events(self, data: bytes) -> list[ev.Event]:
        if self.is_over:
            return []
        try:
            return self.connection.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            if not any(text in str(error) for text in _MATTERS_OF_TASTE):
                raise
            self.is_over = True
            return []

    def complete(self) -> dict[int, tuple[Any, ...]]:
        """Messages that came whole."""
        heads, bodies, trailers = self.heads, self.bodies, self.trailers
        return {
            stream: (heads.get(stream, []), bodies.get(stream, b""), trailers.get(stream, []))
            for stream in self.ended
            if stream not in self.resets
        }


class _World:
    """A relay between one client and one backend."""

    def __init__(self) -> None:
        self.relay = PaperRelay(ceiling=_CEILING)
        self.backend = self.relay.backend()
        self.client = self.relay.silent_client()

    def send(self, side: Side, data: bytes) -> None:
        """Bytes of a peer, unless the relay has closed."""
        if not side.transport.is_closing() and not side.transport.eof:
            side.sends(data)

    def is_open(self, side: Side) -> bool:
        """Whether the relay still talks to a peer."""
        return not side.transport.is_closing() and not side.transport.eof

    async def end(self) -> None:
        """Everybody leaves."""
        for side in (self.client, self.backend):
            side.transport.closed = True
            side.goes()
        await self.relay.tasks.aclose()
        assert self.relay.is_clean(), self.relay.leftovers()
        assert not self.relay.loop.errors
        assert not self.relay.finished.meter.traffic[1].connections


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    with no_failure_is_logged():
        return asyncio.run(work)


async def _of_client(pieces: list[bytes]) -> Any:
    world = _World()
    judge = _Judge(client=False)
    judge.takes(fr.PREFACE + fr.settings({}))
    judge.connection.data_to_send()
    world.send(world.client, fr.PREFACE + fr.settings({}) + fr.SETTINGS_ACK)
    for piece in pieces:
        world.send(world.client, piece)
        for stream in judge.takes(world.backend.transport.take()):
            world.send(world.backend, f.answer(stream))
        assert world.relay.memory_budget.held <= _CEILING
    went_well = world.is_open(world.client) and not judge.resets and not judge.is_over
    said = world.client.gets()
    assert sum(len(frame.payload) for frame in said) <= 2000 * (2 + len(b"".join(pieces)) // 9)
    went_well = went_well and not [frame for frame in said if frame.kind == f.RST_STREAM]
    await world.end()
    # How far a call had come that was cut off depends on when its frames were read.
    return sorted(judge.complete().values(), key=repr) if went_well else None


async def _of_backend(pieces: list[bytes]) -> Any:
    world = _World()
    judge = _Judge(client=True)
    for stream in (1, 3, 5):
        fields = f.request_fields()
        judge.connection.send_headers(stream, fields)
        judge.connection.send_data(stream, f.named(), end_stream=True)
    world.send(world.client, judge.connection.data_to_send())
    judge.takes(world.client.transport.take())
    world.send(world.client, judge.connection.data_to_send())
    world.backend.gets()
    for piece in pieces:
        world.send(world.backend, piece)
        judge.takes(world.client.transport.take())
        if judge.is_over:
            break
        world.send(world.client, judge.connection.data_to_send())
        assert world.relay.memory_budget.held <= _CEILING
        assert world.is_open(world.client)
    went_well = world.is_open(world.backend) and not judge.resets and not judge.is_over
    world.backend.gets()
    answers = judge.complete()
    await world.end()
    return answers if went_well else None


def _as_h2_has_it(data: bytes) -> list[tuple[Any, ...]] | None:
    """The whole requests of a client; None where h2 refuses something."""
    judge = _Judge(client=False)
    try:
        judge.takes(fr.PREFACE + fr.settings({}) + fr.SETTINGS_ACK + data)
    except h2.exceptions.ProtocolError:
        return None
    return None if judge.is_over else list(judge.complete().values())


def _essence(fields: list[_Header]) -> list[_Header]:
    """Without what we add, and what we leave out: white space around values, and names that some
    server takes for others. What is above ASCII in a path is escaped."""
    return [
        (name, _escaped(value) if name == b":path" else value.strip(b" \t"))
        for name, value in fields
        if (name, value) != _ADDED and b"_" not in name and name not in (REDIRECT, HOPS)
    ]


def _escaped(path: bytes) -> bytes:
    return b"".join(b"%%%02X" % byte if byte > 0x7F else bytes((byte,)) for byte in path)


def _check_client(data: bytes) -> None:
    whole, *others = (_run(_of_client(pieces)) for pieces in cuttings(data))
    theirs = _as_h2_has_it(data)
    if whole is not None and theirs is not None:
        asked = [(_essence(head), body, _essence(more)) for head, body, more in theirs]
        for head, body, more in whole:
            assert (_essence(head), body, _essence(more)) in asked, (head, body, more, asked)
    for other in others:
        assert None in (whole, other) or other == whole, (
            f"in pieces: {other!r}\nas a whole: {whole!r}"
        )


def _check_backend(data: bytes) -> None:
    whole, *others = (_run(_of_backend(pieces)) for pieces in cuttings(data))
    for other in others:
        assert None in (whole, other) or other == whole, (
            f"in pieces: {other!r}\nas a whole: {whole!r}"
        )


_STREAM_PATH = f.METHOD_PATH.replace(b"ModelInfer", b"ModelStreamInfer")
_HEAD = f.request_fields()
_CLIENTS = (
    f.call(1),
    f.call(1) + f.call(3, f.named(more=bytes(600))) + f.call(5, b""),
    f.headers(1, f.request_fields(path=_STREAM_PATH)) + f.data(1, f.named()) + f.data(1, f.named())
    + f.data(1, b"", end=True),
    f.headers(1, f.request_fields((b"grpc-timeout", b"1S"), (b"x", b"y"))) + f.rst(1),
    f.headers(1, f.request_fields((b"content-length", b"8"))) + f.data(1,
    f.named(), end=True, pad=3), f.headers(1, _HEAD) + f.data(1,
    f.named()) + f.headers(1, [(b"x", b"trailer")], end=True), f.headers(1,
    f.request_fields(path=b"/grpc.health.v1.Health/Check")) + f.data(1, bytes(5), end=True),
    f.ping() + f.settings({4: 10, 3: 1}) + f.call(1) + f.window_update(1, 100) + f.goaway(0),
    f.headers(1, f.literals(_HEAD)[:30], done=False) + f.continuation(1, f.literals(_HEAD)[30:])
    + f.data(1, f.named(), end=True),
)  # fmt: skip
_BACKENDS = (
    f.answer(1) + f.answer(3) + f.answer(5),
    f.headers(1, f.RESPONSE_FIELDS) + f.data(1, f.message(bytes(900)), pad=7)
    + f.headers(1, f.OK_TRAILERS, end=True) + f.rst(3, 7) + f.answer(5),
    f.headers(1, [*f.RESPONSE_FIELDS, *f.OK_TRAILERS], end=True) + f.goaway(1) + f.ping(),
    f.headers(3, [(b":status", b"103")]) + f.answer(3) + f.settings({4: 5}) + f.rst(1, 8),
    f.headers(1, [(b":status", b"503")], end=True) + f.answer(3) + f.rst(3, 0),
    f.headers(1, f.RESPONSE_FIELDS) + f.rst(1, 2) + f.data(3, b"early"),
    f.headers(5, [*f.RESPONSE_FIELDS, (b"content-length", b"4")]) + f.data(5,
    f.message(), end=True), )  # fmt: skip
_WORDS = (
    *FRAME_WORDS, f.literals(_HEAD), f.literals(f.RESPONSE_FIELDS), f.literals(f.OK_TRAILERS),
    f.named(), f.message(), f.literal(b"grpc-timeout", b"0S"), f.literal(b"connection", b"x"),
    f.literal(b"content-length", b"3"), f.literal(b"te", b"trailers"), f.literal(b"Bad", b"x"),
    f.literal(b":status", b"200"), b"\x88", b"\xbe",
)  # fmt: skip

TARGETS = (
    Target("grpc_clients", _check_client, (*_CLIENTS, *ROWS), _WORDS),
    Target("grpc_backends", _check_backend, _BACKENDS, _WORDS),
)
