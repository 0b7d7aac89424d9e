"""Frames and header blocks that are wrong or unusual, sent to a running relay: each gets the
answer that RFC 9113 and RFC 7541 ask for, sent at once and in pieces."""

# ruff: noqa: E501  # a case is a line where it can be

from __future__ import annotations

import pytest

from tests.fakes.frame_cases import Case, answers, goes_away, lives, resets, try_case
from tests.fakes.frames import (
    ACK,
    COMPRESSION_ERROR,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HANG_PATH,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    call,
    continuation,
    data,
    frame,
    goaway,
    headers,
    literal,
    literals,
    named,
    ping,
    raw_backend,
    raw_client,
    request_fields,
    rst,
    settings,
    window_update,
)
from tests.fakes.relay import running_relay

BOTH_LOOPS = True
HEAD = literals(request_fields())
OPEN = headers(1, HEAD)
"""A request on stream 1 whose body is still to come."""
HANG = headers(1, request_fields(path=HANG_PATH))
"""A request that gets no answer."""
FOREIGN = [(name, value) for name, value in request_fields() if name != b"content-type"]
CLOSED = headers(1, FOREIGN, end=True)
"""A request that is complete, and answered at once."""
STOPPED = headers(1, FOREIGN)
"""A request that is answered at once, and reset because more of it was to come."""
WHOLE = call(1)
END = data(1, named(), end=True)
MAX_WINDOW = 2**31 - 1

FRAMES = [
    Case("unknown frame type is ignored", frame(0x16, 0, 0, bytes(8)) + WHOLE, answers()),
    Case("unknown frame on a stream is ignored", OPEN + frame(0xFF, 255, 1, b"x") + END, answers()),
    Case("undefined flags are ignored", frame(PING, 0xFE, 0, bytes(8)) + WHOLE, answers()),
    Case(
        "the reserved bit is ignored",
        frame(HEADERS, END_HEADERS, 1 | 1 << 31, HEAD)
        + frame(DATA, END_STREAM, 1 | 1 << 31, named())
        + call(3),
        answers(stream=3),
    ),
    Case("DATA on stream 0", data(0, b"x"), goes_away(PROTOCOL_ERROR)),
    Case("HEADERS on stream 0", headers(0, HEAD), goes_away(PROTOCOL_ERROR)),
    Case("an even stream id", headers(2, HEAD), goes_away(PROTOCOL_ERROR)),
    Case(
        "a stream id below one in use",
        headers(3, HEAD) + headers(1, HEAD),
        goes_away(STREAM_CLOSED),
    ),
    Case("DATA on an idle stream", data(1, b"x", end=True), goes_away(PROTOCOL_ERROR)),
    Case("RST_STREAM on an idle stream", rst(1), goes_away(PROTOCOL_ERROR)),
    Case("WINDOW_UPDATE on an idle stream", window_update(1, 100), goes_away(PROTOCOL_ERROR)),
    Case("CONTINUATION without HEADERS", continuation(1, HEAD), goes_away(PROTOCOL_ERROR)),
    Case("CONTINUATION after END_HEADERS", OPEN + continuation(1, b""), goes_away(PROTOCOL_ERROR)),
    Case(
        "PING inside a header block",
        headers(1, HEAD, done=False) + ping(),
        goes_away(PROTOCOL_ERROR),
    ),
    Case(
        "DATA inside a header block",
        headers(1, HEAD, done=False) + data(1, b"x"),
        goes_away(PROTOCOL_ERROR),
    ),
    Case(
        "HEADERS of another stream inside a header block",
        headers(1, HEAD, done=False) + headers(3, HEAD),
        goes_away(PROTOCOL_ERROR),
    ),
    Case(
        "CONTINUATION of another stream",
        headers(1, HEAD, done=False) + continuation(3, b""),
        goes_away(PROTOCOL_ERROR),
    ),
    Case(
        "an unknown frame inside a header block",
        headers(1, HEAD, done=False) + frame(0x16, 0, 0, b"x"),
        goes_away(PROTOCOL_ERROR),
    ),
    Case(
        "HEADERS padding as long as the frame",
        frame(HEADERS, 0xD, 1, b"\xff" + HEAD[:50]),
        goes_away(PROTOCOL_ERROR),
    ),
    Case(
        "DATA padding as long as the frame",
        OPEN + frame(DATA, 0x8, 1, b"\x05" + bytes(4)),
        goes_away(PROTOCOL_ERROR),
    ),
    Case("padded DATA without a length", OPEN + frame(DATA, 8, 1), goes_away(FRAME_SIZE_ERROR)),
    Case("padded HEADERS without a length", frame(HEADERS, 12, 1), goes_away(FRAME_SIZE_ERROR)),
    Case("PING of 7 bytes", frame(PING, 0, 0, bytes(7)), goes_away(FRAME_SIZE_ERROR)),
    Case("PING of 9 bytes", frame(PING, 0, 0, bytes(9)), goes_away(FRAME_SIZE_ERROR)),
    Case("PING on a stream", frame(PING, 0, 1, bytes(8)), goes_away(PROTOCOL_ERROR)),
    Case("PING acknowledgement of nothing", ping(ack=True), lives),
    Case(
        "SETTINGS acknowledgement with payload",
        frame(SETTINGS, ACK, 0, bytes(6)),
        goes_away(FRAME_SIZE_ERROR),
    ),
    Case("SETTINGS on a stream", frame(SETTINGS, 0, 1), goes_away(PROTOCOL_ERROR)),
    Case("SETTINGS of 5 bytes", frame(SETTINGS, 0, 0, bytes(5)), goes_away(FRAME_SIZE_ERROR)),
    Case("ENABLE_PUSH of 2", settings({ENABLE_PUSH: 2}), goes_away(PROTOCOL_ERROR)),
    Case(
        "INITIAL_WINDOW_SIZE above 2^31-1",
        settings({INITIAL_WINDOW_SIZE: 2**31}),
        goes_away(FLOW_CONTROL_ERROR),
    ),
    Case(
        "MAX_FRAME_SIZE below 2^14", settings({MAX_FRAME_SIZE: 16_383}), goes_away(PROTOCOL_ERROR)
    ),
    Case(
        "MAX_FRAME_SIZE above 2^24-1", settings({MAX_FRAME_SIZE: 2**24}), goes_away(PROTOCOL_ERROR)
    ),
    Case("an unknown setting is ignored", settings({0xFFFF: 7}) + WHOLE, answers()),
    Case("WINDOW_UPDATE of 0 on the connection", window_update(0, 0), goes_away(PROTOCOL_ERROR)),
    Case("WINDOW_UPDATE of 0 on a stream", OPEN + window_update(1, 0), resets(PROTOCOL_ERROR)),
    Case(
        "WINDOW_UPDATE of 3 bytes",
        frame(WINDOW_UPDATE, 0, 0, bytes(3)),
        goes_away(FRAME_SIZE_ERROR),
    ),
    Case(
        "connection window above 2^31-1",
        window_update(0, MAX_WINDOW),
        goes_away(FLOW_CONTROL_ERROR),
    ),
    Case(
        "stream window above 2^31-1",
        OPEN + window_update(1, MAX_WINDOW),
        resets(FLOW_CONTROL_ERROR),
    ),
    Case(
        "INITIAL_WINDOW_SIZE that lifts a stream above 2^31-1",
        OPEN + window_update(1, MAX_WINDOW - 65_535) + settings({INITIAL_WINDOW_SIZE: 65_536}),
        goes_away(FLOW_CONTROL_ERROR),
    ),
    Case("RST_STREAM on stream 0", rst(0), goes_away(PROTOCOL_ERROR)),
    Case(
        "RST_STREAM of 3 bytes",
        OPEN + frame(RST_STREAM, 0, 1, bytes(3)),
        goes_away(FRAME_SIZE_ERROR),
    ),
    Case("PRIORITY on stream 0", frame(PRIORITY, 0, 0, bytes(5)), goes_away(PROTOCOL_ERROR)),
    Case(
        "PRIORITY of 4 bytes", OPEN + frame(PRIORITY, 0, 1, bytes(4)), goes_away(FRAME_SIZE_ERROR)
    ),
    Case("PRIORITY is ignored", frame(PRIORITY, 0, 1, bytes(4) + b"\x10") + WHOLE, answers()),
    Case(
        "PRIORITY on itself is ignored",
        OPEN + frame(PRIORITY, 0, 1, b"\0\0\0\1\x10") + END,
        answers(),
    ),
    Case("GOAWAY on a stream", goaway(stream=1), goes_away(PROTOCOL_ERROR)),
    Case("GOAWAY of 7 bytes", frame(GOAWAY, 0, 0, bytes(7)), goes_away(FRAME_SIZE_ERROR)),
    Case(
        "PUSH_PROMISE of a client",
        OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + HEAD),
        goes_away(PROTOCOL_ERROR),
    ),
    Case(
        "DATA after END_STREAM",
        HANG + data(1, b"", end=True) + data(1, b"x"),
        resets(STREAM_CLOSED),
    ),
    Case(
        "CONTINUATION after END_STREAM",
        HANG + data(1, end=True) + continuation(1, b""),
        goes_away(PROTOCOL_ERROR),
    ),
    Case("DATA after RST_STREAM", OPEN + rst(1) + data(1, b"x"), resets(STREAM_CLOSED)),
    Case("HEADERS after RST_STREAM", OPEN + rst(1) + OPEN, goes_away(STREAM_CLOSED)),
    Case(
        "CONTINUATION after RST_STREAM",
        OPEN + rst(1) + continuation(1, b""),
        goes_away(PROTOCOL_ERROR),
    ),
    Case("DATA on a closed stream", CLOSED + data(1, b"x"), resets(STREAM_CLOSED)),
    Case("HEADERS on a closed stream", CLOSED + OPEN, goes_away(STREAM_CLOSED)),
    Case(
        "CONTINUATION on a closed stream", CLOSED + continuation(1, b""), goes_away(PROTOCOL_ERROR)
    ),
    Case("DATA on a stream that we reset", STOPPED + data(1, b"x") + call(3), answers(stream=3)),
    Case(
        "trailers on a stream that we reset",
        STOPPED + headers(1, [(b"x", b"y")], end=True) + call(3),
        answers(stream=3),
    ),
    Case(
        "WINDOW_UPDATE of 0 on a stream that we reset",
        STOPPED + window_update(1, 0) + call(3),
        answers(stream=3),
    ),
    Case("HEADERS after END_STREAM", HANG + data(1, end=True) + OPEN, resets(STREAM_CLOSED)),
    Case(
        "a frame above what we advertise",
        OPEN + frame(DATA, 0, 1)[3:].join((b"\x10\x00\x01", b"")),
        goes_away(FRAME_SIZE_ERROR),
    ),
    Case(
        "HEADERS above what we advertise",
        b"\x10\x00\x01" + frame(HEADERS, END_HEADERS, 1)[3:],
        goes_away(FRAME_SIZE_ERROR),
    ),
    Case(
        "a header block above our limit",
        headers(1, HEAD + literal(b"x", bytes(70_000))),
        goes_away(ENHANCE_YOUR_CALM),
    ),
    Case(
        "a header block above our limit, in parts",
        headers(1, HEAD, done=False) + 5 * continuation(1, bytes(16_384), done=False),
        goes_away(ENHANCE_YOUR_CALM),
    ),
    Case(
        "nine CONTINUATION frames",
        headers(1, HEAD, done=False) + 9 * continuation(1, b"", done=False),
        goes_away(ENHANCE_YOUR_CALM),
    ),
    Case(
        "a control frame that makes no sense",
        frame(GOAWAY, 0, 0, bytes(16_385)),
        goes_away(ENHANCE_YOUR_CALM),
    ),
]

TOO_LONG = b"\xff" * 10
BLOCKS = [
    Case("integer of 60,000 bytes", headers(1, b"\xff" * 60_000), goes_away(COMPRESSION_ERROR)),
    Case("integer overflow", headers(1, b"\xff" + TOO_LONG), goes_away(COMPRESSION_ERROR)),
    Case("index 0", headers(1, HEAD + b"\x80"), goes_away(COMPRESSION_ERROR)),
    Case("index outside the table", headers(1, HEAD + b"\xff\x20"), goes_away(COMPRESSION_ERROR)),
    Case(
        "a name outside the table",
        headers(1, HEAD + b"\x7f\x20\x01x"),
        goes_away(COMPRESSION_ERROR),
    ),
    Case("size update above ours", headers(1, b"\x3f\xe1\xff\x03" + HEAD), goes_away(COMPRESSION_ERROR)),
    Case("size update after fields", headers(1, HEAD + b"\x20"), goes_away(COMPRESSION_ERROR)),
    Case("size update between fields", headers(1, HEAD + b"\x20\x83"), goes_away(COMPRESSION_ERROR)),
    Case("padding of more than 7 bits", headers(1, HEAD + b"\x00\x81\x1f\x84\x1c\x64\xff\xff"), goes_away(COMPRESSION_ERROR)),
    Case("padding of zeros", headers(1, HEAD + b"\x00\x81\x18\x01a"), goes_away(COMPRESSION_ERROR)),
    Case("Huffman EOS", headers(1, HEAD + b"\x00\x84\xff\xff\xff\xff\x01a"), goes_away(COMPRESSION_ERROR)),
    Case("a string past the block", headers(1, HEAD + b"\x00\x01x\x7f\x10abc"), goes_away(COMPRESSION_ERROR)),
    Case("a field cut short", headers(1, HEAD + b"\x00\x01x"), goes_away(COMPRESSION_ERROR)),
    Case("an integer cut short", headers(1, HEAD + b"\x00\x7f"), goes_away(COMPRESSION_ERROR)),
]  # fmt: skip
"""Blocks that no decoder may accept (RFC 7541), whether a dynamic table was in use or not."""

BOMB = headers(1, HEAD + literal(b"x-bomb", bytes(4000), 0x40) + b"\xbe" * 24_000)
TOLERATED = [
    Case("padded HEADERS and DATA", headers(1, HEAD, pad=200) + data(1, named(), pad=255, end=True), answers()),
    Case("padding of no bytes", headers(1, HEAD, pad=0) + data(1, named(), pad=0, end=True), answers()),
    Case("DATA that is only padding", OPEN + data(1, b"", pad=255) + END, answers()),
    Case("the end in padding only", OPEN + data(1, named()) + data(1, pad=9, end=True), answers()),
    Case("HEADERS with priority", headers(1, HEAD, priority=b"\x80\0\0\0\xff") + END, answers()),
    Case("HEADERS with priority and padding", headers(1, HEAD, priority=bytes(5), pad=3) + END, answers()),
    Case("a block in eight CONTINUATIONs", headers(1, HEAD[:1], done=False) + b"".join(continuation(1, HEAD[n : n + 1], done=False) for n in range(1, 8)) + continuation(1, HEAD[8:]) + END, answers()),
    Case("an empty CONTINUATION", headers(1, HEAD, done=False) + continuation(1, b"") + END, answers()),
    Case("END_STREAM on HEADERS that go on", headers(1, HEAD, done=False, end=True) + continuation(1, b""), answers()),
    Case("a value of 16 kB in CONTINUATION", headers(1, HEAD, done=False) + continuation(1, literal(b"x-large", b"v" * 16_000)) + END, answers()),
    Case("settings twice in one frame", settings([(INITIAL_WINDOW_SIZE, 0), (INITIAL_WINDOW_SIZE, 65_535)]) + WHOLE, answers()),
    Case("unknown error codes", OPEN + rst(1, 0xFFFF) + call(3), answers(stream=3)),
    Case("RST_STREAM on a closed stream", OPEN + rst(1) + rst(1) + call(3), answers(stream=3)),
    Case("WINDOW_UPDATE on a closed stream", OPEN + rst(1) + window_update(1, 9) + call(3), answers(stream=3)),
    Case("PRIORITY on a closed stream", OPEN + rst(1) + frame(PRIORITY, 0, 1, bytes(5)) + call(3), answers(stream=3)),
    Case("a body of no bytes", OPEN + data(1, end=True), answers()),
    Case("empty DATA frames", OPEN + 50 * data(1) + END, answers()),
    Case("stream ids with gaps", call(7) + call(2**31 - 1), answers(stream=2**31 - 1)),
    Case("every kind of literal", headers(1, literals(request_fields()[:4]) + literal(b"content-type", b"application/grpc", 0x40) + literal(b"te", b"trailers", 0x10)) + END, answers()),
]  # fmt: skip


@pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("case", FRAMES, ids=str)
async def test_frame(case: Case, piecewise: bool) -> None:
    await try_case(case, piecewise=piecewise)


@pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("case", TOLERATED, ids=str)
async def test_unusual_and_legal(case: Case, piecewise: bool) -> None:
    _, reached = await try_case(case, piecewise=piecewise)
    assert reached >= 1


@pytest.mark.parametrize("acknowledged", [True, False], ids=["table of 0", "table of 4096"])
@pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("case", BLOCKS, ids=str)
async def test_undecodable_block(case: Case, piecewise: bool, acknowledged: bool) -> None:
    _, reached = await try_case(case, piecewise=piecewise, acknowledges=acknowledged)
    assert reached == 0


@pytest.mark.parametrize(
    ("acknowledged", "code"), [(True, COMPRESSION_ERROR), (False, ENHANCE_YOUR_CALM)]
)
async def test_header_bomb(acknowledged: bool, code: int) -> None:
    case = Case("24,000 references to 4 kB", BOMB, goes_away(code))
    _, reached = await try_case(case, piecewise=False, acknowledges=acknowledged)
    assert reached == 0


PREFACES = [
    ("no HTTP/2", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("another version", PREFACE.replace(b"2.0", b"3.0") + settings()),
    ("one byte too much", PREFACE + b"\n" + settings()),
    ("HEADERS first", PREFACE + WHOLE),
    ("PING first", PREFACE + ping() + settings()),
    ("an unknown frame first", PREFACE + frame(0x16, 0, 0) + settings()),
    ("an acknowledgement first", PREFACE + frame(SETTINGS, ACK, 0) + settings()),
]


@pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("sent", [pair[1] for pair in PREFACES], ids=[p[0] for p in PREFACES])
async def test_bad_beginning(sent: bytes, piecewise: bool) -> None:
    async with raw_backend() as backend, running_relay(backend.target) as relay:
        async with raw_client(relay.port, handshake=False, acknowledges=False) as peer:
            await peer.send_slowly(sent, 1 if piecewise else len(sent))
            assert (await peer.next() or peer.seen[0]).kind == SETTINGS
            await goes_away(PROTOCOL_ERROR)(peer)
        await relay.until_clean()
        assert not backend.peers
