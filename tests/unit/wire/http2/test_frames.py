"""Frames as another library reads them, and SETTINGS as RFC 9113 6.5.2 bounds them."""

from __future__ import annotations

from typing import Any

import h2.errors
import pytest
from hyperframe.frame import (
    ContinuationFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from lb.wire.http2 import frames as fr
from lb.wire.http2.frames import ErrorCode, Http2Error


def parse(data: bytes) -> list[Any]:
    """All frames in `data`, read by hyperframe."""
    frames: list[Frame] = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        frames.append(frame)
        data = data[9 + length :]
    return frames


def test_error_codes_are_those_of_h2() -> None:
    theirs = {code.name: code.value for code in h2.errors.ErrorCodes}
    assert {code.name: code.value for code in ErrorCode} == theirs


def test_window_update() -> None:
    (frame,) = parse(fr.window_update(3, fr.MAX_WINDOW))
    assert isinstance(frame, WindowUpdateFrame)
    assert (frame.stream_id, frame.window_increment) == (3, fr.MAX_WINDOW)


def test_rst_stream() -> None:
    (frame,) = parse(fr.rst_stream(5, ErrorCode.CANCEL))
    assert isinstance(frame, RstStreamFrame)
    assert (frame.stream_id, frame.error_code) == (5, 8)


@pytest.mark.parametrize("ack", [False, True])
def test_ping(ack: bool) -> None:
    (frame,) = parse(fr.ping(b"12345678", ack=ack))
    assert isinstance(frame, PingFrame)
    assert (frame.opaque_data, "ACK" in frame.flags) == (b"12345678", ack)


def test_goaway() -> None:
    (frame,) = parse(fr.goaway(7, ErrorCode.ENHANCE_YOUR_CALM, b"why"))
    assert isinstance(frame, GoAwayFrame)
    assert (frame.last_stream_id, frame.error_code, frame.additional_data) == (7, 11, b"why")


def test_settings() -> None:
    values = {fr.SETTINGS_HEADER_TABLE_SIZE: 0, fr.SETTINGS_MAX_FRAME_SIZE: 2**20}
    ours, ack = parse(fr.settings(values) + fr.SETTINGS_ACK)
    assert isinstance(ours, SettingsFrame)
    assert isinstance(ack, SettingsFrame)
    assert (ours.settings, "ACK" in ours.flags) == (values, False)
    assert (ack.settings, "ACK" in ack.flags) == ({}, True)
    assert fr.parse_settings(fr.settings(values)[9:]) == list(values.items())


@pytest.mark.parametrize("end_stream", [False, True])
@pytest.mark.parametrize("size", [0, 1, 10, 11, 20, 25])
def test_header_block_is_cut_at_the_peers_frame_size(size: int, end_stream: bool) -> None:
    block = bytes(range(size))
    frames = parse(fr.header_frames(9, block, end_stream=end_stream, frame_size=10))
    assert isinstance(frames[0], HeadersFrame)
    assert all(isinstance(frame, ContinuationFrame) for frame in frames[1:])
    assert {frame.stream_id for frame in frames} == {9}
    assert b"".join(frame.data for frame in frames) == block
    assert all(len(frame.data) <= 10 for frame in frames)
    assert ("END_STREAM" in frames[0].flags) is end_stream
    ends = ["END_HEADERS" in frame.flags for frame in frames]
    assert ends == [False] * (len(frames) - 1) + [True]


@pytest.mark.parametrize("length", [1, 5, 7, 13])
def test_settings_of_a_broken_length_are_refused(length: int) -> None:
    """RFC 9113 6.5: a length other than a multiple of six."""
    with pytest.raises(Http2Error) as caught:
        fr.parse_settings(bytes(length))
    assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        (fr.SETTINGS_ENABLE_PUSH, 2, ErrorCode.PROTOCOL_ERROR),
        (fr.SETTINGS_INITIAL_WINDOW_SIZE, 2**31, ErrorCode.FLOW_CONTROL_ERROR),
        (fr.SETTINGS_MAX_FRAME_SIZE, fr.MIN_FRAME_SIZE - 1, ErrorCode.PROTOCOL_ERROR),
        (fr.SETTINGS_MAX_FRAME_SIZE, fr.MAX_FRAME_SIZE + 1, ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_settings_out_of_range_are_refused(key: int, value: int, code: ErrorCode) -> None:
    """RFC 9113 6.5.2: push beside 0 and 1, windows of 2^31, frame sizes outside their bounds."""
    with pytest.raises(Http2Error) as caught:
        fr.parse_settings(fr.settings({key: value})[9:])
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (fr.SETTINGS_ENABLE_PUSH, 0),
        (fr.SETTINGS_ENABLE_PUSH, 1),
        (fr.SETTINGS_INITIAL_WINDOW_SIZE, fr.MAX_WINDOW),
        (fr.SETTINGS_MAX_FRAME_SIZE, fr.MIN_FRAME_SIZE),
        (fr.SETTINGS_MAX_FRAME_SIZE, fr.MAX_FRAME_SIZE),
        (0xFE03, 2**32 - 1),
    ],
)
def test_settings_at_their_bounds_and_unknown_ones_are_taken(key: int, value: int) -> None:
    assert fr.parse_settings(fr.settings({key: value})[9:]) == [(key, value)]
