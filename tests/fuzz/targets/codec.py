"""HTTP/2 frames to calls, without streams that mean anything, against hyperframe."""

from __future__ import annotations

from typing import Any

from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
)

from lb.wire.http2 import frames as fr
from tests.corpus import grpc, http2
from tests.fakes.codec import NotingCodec
from tests.fuzz.target import Target, same_for_every_cutting
from tests.wire import frames as f

_ANSWER = 17
"""Bytes of the longest frame that one frame of the peer makes us write at once, a PING's."""


def _check(data: bytes) -> None:
    def read(pieces: list[bytes]) -> tuple[Any, ...]:
        codec = NotingCodec()
        error = None
        for piece in pieces:
            error = error or codec.feed(piece)
        # An error may show in a frame's first bytes, before what stands behind it has come.
        told = None if error else (codec.credit, codec.owed, codec.going_away, codec.last_peer_id)
        if error is not None:
            codec.fail(error)
            assert bytes(codec.out[-1])[3] == fr.GOAWAY
        said = b"".join(map(bytes, codec.out))
        assert len(said) <= 200 + 2 * _ANSWER * (1 + len(data) // 9)
        return codec.events, error and error.code, told, said if error is None else b""

    events, error, _, _ = same_for_every_cutting(read, data)
    if error is None and not [event for event in events if event[0] == "error"]:
        _compare_with_hyperframe(data, events)


def _compare_with_hyperframe(data: bytes, events: list[tuple[Any, ...]]) -> None:
    frames = _frames(data)
    if frames is None:
        return
    blocks: list[bytes] = []
    resets, pongs = [], []
    payload: dict[int, bytes] = {}
    for frame in frames:
        match frame:
            case HeadersFrame() | ContinuationFrame():
                if isinstance(frame, HeadersFrame):
                    blocks.append(b"")
                blocks[-1] += frame.data
            case DataFrame():
                payload[frame.stream_id] = payload.get(frame.stream_id, b"") + frame.data
            case RstStreamFrame():
                resets.append(frame.error_code)
            case PingFrame() if "ACK" in frame.flags:
                pongs.append(frame.opaque_data)
    told: dict[str, list[Any]] = {"head": [], "reset": [], "pong": []}
    ours: dict[int, bytes] = {}
    for kind, *what in events:
        if kind == "data":
            ours[what[0]] = ours.get(what[0], b"") + what[1]
        elif kind in told:
            told[kind].append(what[1 if kind != "pong" else 0])
    # A block may be under way at the end; streams that are gone take neither data nor resets.
    assert told["head"] == blocks[: len(told["head"])]
    assert len(told["head"]) >= len(blocks) - 1
    assert told["pong"] == pongs
    assert len(told["reset"]) <= len(resets)
    assert all(payload[stream].startswith(got) for stream, got in ours.items())


def _frames(data: bytes) -> list[Frame] | None:
    """All whole frames; None where the library refuses one or the last is cut."""
    found = []
    view = memoryview(data)
    while view:
        if len(view) < 9:
            return None
        try:
            frame, length = Frame.parse_frame_header(view[:9])
            if len(view) < 9 + length:
                return None
            frame.parse_body(view[9 : 9 + length])
        except HyperframeError:
            return None
        found.append(frame)
        view = view[9 + length :]
    return found


BLOCK = f.literals(f.request_fields())
_SEEDS = (
    f.headers(1, BLOCK) + f.data(1, f.named(), end=True),
    f.headers(1, BLOCK, end=True) + f.headers(3, BLOCK, pad=9) + f.rst(1) + f.rst(3),
    f.headers(1, BLOCK[:9], done=False) + f.continuation(1, BLOCK[9:]) + f.data(1, b"x", pad=5),
    f.headers(1, BLOCK, priority=b"\0\0\0\0\x10") + f.headers(1, b"\0\1a\1b", end=True),
    f.settings({4: 10, 5: 16_384, 3: 0, 1: 0, 99: 9}) + f.SETTINGS_ACK + f.ping(),
    f.ping(ack=True) + f.headers(5, BLOCK) + f.window_update(0, 9) + f.goaway(5, 0, b"x"),
    f.headers(5, BLOCK) + f.window_update(5, 2**31 - 1) + f.headers(7, BLOCK),
    f.headers(1, BLOCK) + f.data(1, b"y" * 2500, end=True) + f.data(1, b"z"),
    f.frame(2, 0, 1, bytes(5)) + f.frame(0x22, 9, 1, b"?") + f.headers(1, b"bad"),
    f.headers(1, b"a", done=False) + f.continuation(1, b"b", done=False) * 10,
)
FRAME_WORDS = (
    b"\0\0\0\0\1\0\0\0\1", b"\0\0\5\0\0\0\0\0\1hello", b"\0\0\4\0\x08\0\0\0\1\3\0\0\0",
    b"\0\0\0\1\4\0\0\0\3", b"\0\0\0\1\0\0\0\0\5", b"\0\0\0\x09\4\0\0\0\5",
    b"\0\0\4\3\0\0\0\0\1\0\0\0\x08", b"\x80\0\0\1", b"\0\0\6\4\0\0\0\0\0\0\4\0\0\0\0",
    b"\0\0\0\4\1\0\0\0\0", b"\0\0\x08\6\0\0\0\0\0pingping",
    b"\0\0\x08\7\0\0\0\0\0\0\0\0\1\0\0\0\0", b"\0\0\4\x08\0\0\0\0\1\x7f\xff\xff\xff",
    b"\0\0\4\x08\0\0\0\0\0\0\0\0\0", b"\0\0\5\2\0\0\0\0\1\0\0\0\1\0", b"\xff\xff\xff",
    b"\0\0\4\5\4\0\0\0\1\0\0\0\2", b"\0\0\3\x22\xff\0\0\0\1???", )  # fmt: skip

LONGEST = 3000
"""Bytes of a row that makes a good seed."""
ROWS = tuple(
    row.sent for row in (*http2.ROWS, *grpc.ROWS) if row.greets and len(row.sent) < LONGEST
)

TARGETS = (Target("http2_codec", _check, (*_SEEDS, *ROWS), FRAME_WORDS),)
