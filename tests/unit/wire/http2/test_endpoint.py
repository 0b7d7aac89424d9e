"""States of streams as a codec follows them, and what frames in the wrong one cost."""

from __future__ import annotations

import pytest

from lb.wire.http2.budget import Allowance, FloodGuard, Spending
from lb.wire.http2.frames import ErrorCode, Http2Error
from lb.wire.http2.states import FrameFate, StreamState
from tests.fakes.codec import NotingCodec
from tests.wire.frames import DATA, HEADERS, RST_STREAM, WINDOW_UPDATE, data, rst


def codec_with(stream: StreamState) -> NotingCodec:
    """A codec whose stream 1 is in a state."""
    codec = NotingCodec()
    if stream is StreamState.IDLE:
        return codec
    pipe = codec.open(1)
    if stream is StreamState.HALF_CLOSED_LOCAL:
        pipe.opposite.finished = True
    elif stream is StreamState.HALF_CLOSED_REMOTE:
        assert codec.feed(data(1, end=True)) is None
    elif stream is StreamState.RESET_BY_US:
        codec.write_reset(1, ErrorCode.CANCEL)
        del codec.streams[1]
    elif stream is StreamState.RESET_BY_PEER:
        assert codec.feed(rst(1)) is None
    elif stream is not StreamState.OPEN:
        del codec.streams[1]
    codec.events.clear()
    return codec


STATES = [state for state in StreamState if state is not StreamState.SKIPPED]


@pytest.mark.parametrize("state", STATES)
def test_states_are_told_apart(state: StreamState) -> None:
    assert codec_with(state).state(1) is state


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", [DATA, HEADERS, RST_STREAM, WINDOW_UPDATE])
def test_what_becomes_of_a_frame_is_what_the_table_says(state: StreamState, kind: int) -> None:
    codec = codec_with(state)
    fate, code = codec.table[state][kind]
    if fate is FrameFate.ENDS_CONNECTION:
        with pytest.raises(Http2Error) as caught:
            codec.admit_frame(kind, 1)
        assert caught.value.code is code
        return
    assert codec.admit_frame(kind, 1) == (fate is FrameFate.ACCEPTED)
    assert codec.events == ([("error", 1, code)] if fate is FrameFate.ENDS_STREAM else [])


def test_frames_for_streams_that_are_over_are_counted() -> None:
    codec = codec_with(StreamState.CLOSED)
    codec._guard = FloodGuard({Spending.STRAY: Allowance(burst=3, per_s=1)})
    assert codec.feed(rst(1) * 3) is None
    error = codec.feed(rst(1))
    assert error is not None
    assert (error.code, error.detail) == (ErrorCode.ENHANCE_YOUR_CALM, Spending.STRAY.detail)


def test_time_brings_tokens_back() -> None:
    codec = codec_with(StreamState.CLOSED)
    codec._guard = FloodGuard({Spending.STRAY: Allowance(burst=3, per_s=1)})
    for _ in range(20):
        assert codec.feed(rst(1)) is None
        codec.now += 1.0
