"""Framing, the order of frames, windows, SETTINGS, PING and GOAWAY of one connection."""

from __future__ import annotations

import pytest

from lb.wire.http2 import frames as fr
from lb.wire.http2.codec import CONNECTION_WINDOW, COPY_BELOW
from lb.wire.http2.frames import ErrorCode
from lb.wire.http2.states import StreamState
from tests.fakes.codec import FRAME_LIMIT, HEADER_LIMIT, WINDOW, NotingCodec
from tests.wire.frames import continuation, data, frame, headers, ping, rst, window_update

SETTINGS, PING, GOAWAY, DATA, PRIORITY = 4, 6, 7, 0, 2


def noted(*frames: bytes, open_stream: int | None = 1) -> NotingCodec:
    """A codec that took `frames` at once, without an error."""
    codec = NotingCodec()
    if open_stream:
        codec.open(open_stream)
    assert codec.feed(b"".join(frames)) is None
    return codec


def test_heads_and_data_are_handed_on() -> None:
    codec = noted(headers(1, b"head"), data(1, b"abc"), data(1, b"", end=True), open_stream=None)
    assert codec.events == [("head", 1, b"head", False), ("data", 1, b"abc", True)]
    assert codec.owed == 3


def test_a_head_may_end_its_stream() -> None:
    assert noted(headers(1, b"x", end=True)).events == [("head", 1, b"x", True)]


def test_data_is_handed_on_before_its_frame_is_complete() -> None:
    codec = noted(data(1, bytes(100), end=True)[:59])
    assert codec.events == [("data", 1, bytes(50), False)]
    assert codec.feed(bytes(50)) is None
    assert codec.events == [("data", 1, bytes(100), True)]


def test_large_payload_is_not_copied() -> None:
    seen: list[object] = []

    class Keeping(NotingCodec):
        def on_data(self, pipe: object, payload: object, end_stream: int) -> None:
            seen.append(payload)

    codec = Keeping(window=2**20)
    codec.open(1)
    codec.feed(data(1, bytes(COPY_BELOW - 1)) + data(1, bytes(COPY_BELOW)))
    assert [type(payload) for payload in seen] == [bytes, memoryview]


def test_padding_is_removed_and_credited_at_once() -> None:
    codec = noted(data(1, b"abc", pad=10, end=True), open_stream=1)
    assert codec.events == [("data", 1, b"abc", True)]
    assert codec.streams[1].window == WINDOW - 3
    assert codec.out == [fr.window_update(1, 11)]
    assert codec.owed == 14


def test_nothing_but_padding_is_no_payload() -> None:
    assert noted(data(1, b"", pad=0)).events == [("data", 1, b"", False)]


def test_head_is_put_together_without_padding_and_priority() -> None:
    codec = noted(
        headers(3, b"ab", done=False, pad=3, priority=bytes(5), end=True),
        continuation(3, b"cd", done=False),
        continuation(3, b"ef"),
    )
    assert codec.events == [("head", 3, b"abcdef", True)]


def test_stream_errors_of_heads_leave_the_connection() -> None:
    codec = noted(headers(1, b"bad"), headers(3, b"bad", pad=0), ping())
    assert [event for event in codec.events if event[0] == "error"] == [
        ("error", 1, 1),
        ("error", 3, 1),
    ]
    assert fr.ping(b"12345678", ack=True) in codec.out


def test_pings_are_answered_and_answers_noted() -> None:
    codec = noted(ping(b"abcdefgh"), ping(b"12345678", ack=True))
    assert codec.out == [fr.ping(b"abcdefgh", ack=True)]
    assert codec.events == [("pong", b"12345678")]


def test_unknown_frames_and_priority_are_ignored() -> None:
    codec = noted(frame(0xAB, 255, 7, bytes(5000)), frame(PRIORITY, 0, 99, bytes(5)), ping())
    assert codec.events == []
    assert len(codec.out) == 1


def test_settings_are_applied_and_acknowledged() -> None:
    codec = noted(
        fr.settings(
            {
                fr.SETTINGS_MAX_FRAME_SIZE: 20_000,
                fr.SETTINGS_MAX_CONCURRENT_STREAMS: 7,
                fr.SETTINGS_INITIAL_WINDOW_SIZE: 10,
            }
        )
    )
    assert (codec.peer_frame_size, codec.peer_max_streams, codec.peer_window) == (20_000, 7, 10)
    assert codec.peer_ready
    assert codec.out == [fr.SETTINGS_ACK]
    assert codec.events == [("settings", 10, 20_000), ("credit", None)]


def test_open_streams_move_with_the_initial_window_below_zero_too() -> None:
    codec = noted(
        window_update(1, 5), fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: 0}), open_stream=1
    )
    outbound = codec.streams[1].opposite
    assert outbound.credit == 5
    outbound.credit -= 5
    assert codec.feed(fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: 3})) is None
    outbound.credit -= 3
    assert codec.feed(fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: 1})) is None
    assert outbound.credit == -2


def test_acknowledgement_ends_the_dynamic_table() -> None:
    codec = noted()
    assert not codec.blocks.is_stateless
    assert codec.feed(fr.SETTINGS_ACK * 2) is None
    assert codec.blocks.is_stateless


def test_credit_is_handed_on_where_something_waits() -> None:
    codec = noted()
    codec.streams[1].opposite.push(b"x")
    assert codec.feed(window_update(0, 7) + window_update(1, 8)) is None
    assert codec.events == [("credit", None), ("credit", 1)]
    assert (codec.credit, codec.streams[1].opposite.credit) == (65_542, 65_543)


def test_connection_window_is_credited_on_receipt_in_quarters() -> None:
    codec = NotingCodec(window=2**30)
    codec.open(1)
    frames = data(1, bytes(FRAME_LIMIT)) * 256
    assert codec.feed(frames, len(frames) - 1) is None
    assert codec.out == [fr.window_update(0, CONNECTION_WINDOW // 4)]
    assert codec.owed == 0


def test_goaway_is_noted() -> None:
    codec = noted(fr.goaway(5, ErrorCode.NO_ERROR, b"bye"))
    assert codec.going_away
    assert codec.events == [("goaway", 5, 0)]


def test_reset_of_an_open_stream_is_noted_and_of_a_closed_one_ignored() -> None:
    codec = noted(rst(1, 8), rst(1, 8))
    assert codec.events == [("reset", 1, 8)]


def test_overrun_of_a_stream_window_resets_the_stream_only() -> None:
    overrun = data(1, bytes(WINDOW + 1))
    for cut in (0, 50):
        codec = NotingCodec()
        codec.open(1)
        assert codec.feed(overrun + ping(), cut) is None
        assert codec.events == [("error", 1, ErrorCode.FLOW_CONTROL_ERROR)]
        assert codec.owed == WINDOW + 1


def test_what_still_comes_for_a_stream_that_was_reset_is_ignored() -> None:
    codec = noted(open_stream=1)
    codec.write_reset(1, ErrorCode.CANCEL)
    del codec.streams[1]
    assert codec.state(1) is StreamState.RESET_BY_US
    assert codec.feed(data(1, b"late") + window_update(1, 5) + rst(1)) is None
    assert codec.events == []


def test_the_rest_of_a_frame_is_thrown_away_when_its_stream_was_reset_meanwhile() -> None:
    frame = data(1, b"half" * 10)
    codec = noted(frame[:19])
    before = len(codec.events)
    codec.write_reset(1, ErrorCode.CANCEL)
    del codec.streams[1]
    assert codec.feed(frame[19:] + ping()) is None
    assert codec.events[before:] == []


def test_data_after_the_end_is_an_error_of_the_stream() -> None:
    codec = noted(data(1, b"", end=True), data(1, b"more"))
    assert codec.events[-1] == ("error", 1, ErrorCode.STREAM_CLOSED)


@pytest.mark.parametrize(
    ("increments", "code"),
    [((0,), ErrorCode.PROTOCOL_ERROR), ((2**31 - 1,), ErrorCode.FLOW_CONTROL_ERROR)],
)
def test_bad_credit_of_a_stream_resets_it(increments: tuple[int, ...], code: ErrorCode) -> None:
    """An increment of 0, and a window above 2^31 - 1."""
    codec = noted(*(window_update(1, increment) for increment in increments))
    assert codec.events == [("error", 1, code)]


P, F = ErrorCode.PROTOCOL_ERROR, ErrorCode.FLOW_CONTROL_ERROR
S, E = ErrorCode.FRAME_SIZE_ERROR, ErrorCode.ENHANCE_YOUR_CALM
BROKEN = {
    "frame above the limit": (frame(DATA, 0, 1, bytes(FRAME_LIMIT + 1)), S),
    "headers above the limit": (headers(1, bytes(HEADER_LIMIT + 1)), E),
    "padded headers above the limit": (headers(1, bytes(HEADER_LIMIT + 1), pad=0), E),
    "block above the limit": (headers(1, bytes(400), done=False) + continuation(1, bytes(400)), E),
    "continuation flood": (headers(1, b"", done=False) + continuation(1, b"", done=False) * 9, E),
    "data on stream 0": (data(0, b"x"), P),
    "data on an idle stream": (data(3, b"x"), P),
    "headers on stream 0": (headers(0, b"x"), P),
    "padded headers on stream 0": (headers(0, b"x", pad=0), P),
    "reset on stream 0": (rst(0), P),
    "reset of an idle stream": (rst(3), P),
    "credit of an idle stream": (window_update(3, 1), P),
    "no credit": (window_update(0, 0), P),
    "connection window overflow": (window_update(0, 2**31 - 1), F),
    "ping on a stream": (frame(PING, 0, 1, bytes(8)), P),
    "settings on a stream": (frame(SETTINGS, 0, 1), P),
    "goaway on a stream": (frame(GOAWAY, 0, 1, bytes(8)), P),
    "short ping": (frame(PING, 0, 0, bytes(7)), S),
    "short reset": (frame(3, 0, 1, bytes(3)), S),
    "long credit": (frame(8, 0, 0, bytes(5)), S),
    "short priority on an idle stream": (frame(PRIORITY, 0, 3, bytes(4)), S),
    "many settings": (fr.settings(dict.fromkeys(range(9, 42), 0)), E),
    "short goaway": (frame(GOAWAY, 0, 0, bytes(7)), S),
    "settings length": (frame(SETTINGS, 0, 0, bytes(5)), S),
    "acknowledgement with payload": (frame(SETTINGS, 1, 0, bytes(6)), S),
    "initial window overflow": (
        window_update(1, 2**30) + fr.settings({fr.SETTINGS_INITIAL_WINDOW_SIZE: 2**31 - 1}),
        F,
    ),
    "push promise": (frame(5, 4, 1, bytes(4)), P),
    "lone continuation": (continuation(1, b"x"), P),
    "frame inside a block": (headers(1, b"x", done=False) + ping(), P),
    "data inside a block": (headers(1, b"x", done=False) + data(1, b"x"), P),
    "headers inside a block": (headers(1, b"x", done=False) + headers(1, b"x"), P),
    "continuation of another stream": (headers(1, b"x", done=False) + continuation(3, b"x"), P),
    "padding without its length": (frame(DATA, 8, 1), S),
    "padding longer than data": (frame(DATA, 8, 1, b"\5abcd"), P),
    "headers without a pad length": (frame(1, 12, 1), S),
    "padding longer than headers": (frame(1, 12, 1, b"\5abcd"), P),
    "priority cut off": (frame(1, 0x24, 1, bytes(4)), S),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("step", [1, 9, 10**6])
def test_broken_frames_end_the_connection_however_they_are_cut(name: str, step: int) -> None:
    frames, code = BROKEN[name]
    codec = NotingCodec()
    codec.open(1)
    error = codec.feed(frames, *range(step, len(frames), step))
    assert error is not None
    assert error.code is code


class SkippingCodec(NotingCodec):
    """Notes blocks that are too large, and skips them."""

    def on_large_block(self, stream_id: int, end_stream: bool) -> None:
        self.events.append(("large", stream_id, end_stream))


LARGE = {
    "in one frame": headers(1, bytes(2 * HEADER_LIMIT), end=True),
    "in one frame that its padding leaves": headers(1, bytes(HEADER_LIMIT + 1), end=True, pad=9),
    "in the second frame": (
        headers(1, bytes(HEADER_LIMIT), end=True, done=False) + continuation(1, b"x")
    ),
    "in the first of three frames": (
        headers(1, bytes(HEADER_LIMIT + 300), end=True, done=False)
        + continuation(1, b"x", done=False)
        + continuation(1, b"x")
    ),
    "in many long frames": (
        headers(1, b"", end=True, done=False)
        + continuation(1, bytes(FRAME_LIMIT), done=False) * 20
        + continuation(1, b"")
    ),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("step", [1, 9, 10**6])
def test_a_block_that_is_too_large_may_be_skipped(name: str, step: int) -> None:
    codec = SkippingCodec()
    codec.open(1)
    codec.open(3)
    rest = data(3, b"abc") + headers(3, bytes(HEADER_LIMIT), end=True)
    frames = LARGE[name] + rest
    assert codec.feed(frames, *range(step, len(frames), step)) is None
    assert codec.events == [
        ("large", 1, True),
        ("data", 3, b"abc", False),
        ("head", 3, bytes(HEADER_LIMIT), True),
    ]
    assert codec.owed == 3
    assert not codec.is_within_block


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (ping(), P),
        (data(1, b"x"), P),
        (headers(3, b"x"), P),
        (continuation(3, b"x"), P),
        (continuation(1, b"x", done=False) * 8, E),
    ],
)
def test_a_block_that_is_skipped_is_still_a_block(frames: bytes, code: ErrorCode) -> None:
    codec = SkippingCodec()
    codec.open(1)
    assert codec.feed(headers(1, bytes(HEADER_LIMIT), done=False)) is None
    begun = codec.begun()
    assert codec.feed(continuation(1, b"x", done=False)) is None
    assert codec.is_within_block
    assert codec.is_still_begun(*begun)
    assert sum(map(len, begun[1])) == 0
    error = codec.feed(frames)
    assert error is not None
    assert error.code is code


@pytest.mark.parametrize("first", [ping(), fr.SETTINGS_ACK, headers(1, b"x"), data(1, b"x")])
def test_settings_come_first(first: bytes) -> None:
    """RFC 9113 3.4: PING, an acknowledgement, a head or data before them."""

    class Fresh(NotingCodec):
        def receive(self, data: bytes) -> None:
            if data != fr.settings({}):
                super().receive(data)

    error = Fresh().feed(first)
    assert error is not None
    assert error.code is ErrorCode.PROTOCOL_ERROR


def test_too_long_frames_are_refused_before_they_come() -> None:
    codec = NotingCodec()
    error = codec.feed(frame(0xAB, 0, 0, bytes(FRAME_LIMIT + 1))[:9])
    assert error is not None


def test_the_end_of_a_connection_says_why() -> None:
    codec = noted(headers(5, b"x"), open_stream=None)
    error = codec.feed(ping()[:-1] + ping())
    assert error is not None
    codec.out.clear()
    codec.fail(error)
    assert codec.out == [fr.goaway(5, error.code, error.detail.encode())]


def test_preamble_opens_the_connection_window() -> None:
    codec = NotingCodec()
    codec.write_preamble({fr.SETTINGS_HEADER_TABLE_SIZE: 0})
    assert codec.out[0] == fr.settings({fr.SETTINGS_HEADER_TABLE_SIZE: 0})
    assert codec.out[1] == fr.window_update(0, CONNECTION_WINDOW - 65_535)
