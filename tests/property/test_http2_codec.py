"""However the bytes are cut and whatever they are, the codec tells the same or refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from lb.wire.http2 import frames as fr
from lb.wire.http2.flow import Payload, Pipe
from tests.fakes.codec import NotingCodec
from tests.reference.http2_receive import receive_plainly
from tests.wire.frames import frame as raw_frame

STREAM = st.sampled_from([1, 3, 5])
CUTS = st.lists(st.integers(0, 4000), max_size=12) | st.just(range(4000))


def flags(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True, max_size=len(names))


@st.composite
def data_frames(draw: st.DrawFn) -> list[Frame]:
    names = draw(flags(("END_STREAM", "PADDED")))
    payload = draw(st.binary(max_size=40)) * draw(st.sampled_from([1, 1, 30]))
    return [DataFrame(draw(STREAM), payload, flags=names, pad_length=draw(st.integers(0, 20)))]


@st.composite
def header_frames(draw: st.DrawFn) -> list[Frame]:
    stream = draw(STREAM)
    parts = draw(st.lists(st.binary(max_size=30) | st.just(b"bad"), min_size=1, max_size=4))
    names = draw(flags(("END_STREAM", "PADDED", "PRIORITY")))
    pad = draw(st.integers(0, 20))
    frames: list[Frame] = [HeadersFrame(stream, parts[0], flags=names, pad_length=pad)]
    frames += [ContinuationFrame(stream, part) for part in parts[1:]]
    frames[-1].flags.add("END_HEADERS")
    return frames


SETTINGS = st.dictionaries(
    st.sampled_from([1, 2, 3, 4, 5, 6, 9]), st.sampled_from([0, 1, 100, 16_384, 70_000]), max_size=3
)
CONTROL: st.SearchStrategy[Frame] = st.one_of(
    st.builds(PingFrame, st.just(0), st.binary(min_size=8, max_size=8), flags=flags(("ACK",))),
    st.builds(SettingsFrame, st.just(0), SETTINGS),
    st.just(SettingsFrame(0, flags=["ACK"])),
    st.builds(RstStreamFrame, STREAM, st.integers(0, 14)),
    st.builds(WindowUpdateFrame, STREAM | st.just(0), st.sampled_from([1, 1000, 2**31 - 1])),
    st.builds(GoAwayFrame, st.just(0), st.integers(0, 9), st.integers(0, 14), st.binary()),
    st.builds(PriorityFrame, STREAM),
    st.builds(ExtensionFrame, st.just(0xAB), STREAM, st.just(0), st.binary(max_size=40)),
)
TRAFFIC = st.lists(
    st.one_of(data_frames(), header_frames(), header_frames(), CONTROL.map(lambda f: [f])),
    max_size=12,
).map(lambda groups: b"".join(frame.serialize() for group in groups for frame in group))
RAW = st.builds(
    raw_frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 2**31 + 1]),
    st.binary(max_size=40),
)
MANGLED = st.lists(RAW | st.binary(max_size=20), max_size=10).map(b"".join)


class PlainCodec(NotingCodec):
    """Knows no short way."""

    def receive(self, data: bytes) -> None:
        receive_plainly(self, data)


class RunningCodec(NotingCodec):
    """Lets most payload pass unseen."""

    def run_room(self, pipe: Pipe[Any], length: int) -> int:
        return 0 if pipe.ended else 3 * length + 5

    def on_run(self, pipe: Pipe[Any], pieces: list[Payload], length: int) -> None:
        assert all(len(piece) == length for piece in pieces)
        for piece in pieces:
            self.on_data(pipe, piece, 0)


def outcome(
    data: bytes, cuts: list[int], make: Callable[[], NotingCodec] = NotingCodec
) -> tuple[object, ...]:
    """Everything that shows of a codec which received `data`."""
    codec = make()
    error = codec.feed(data, *(cut for cut in cuts if cut < len(data)))
    windows = {number: pipe.window for number, pipe in codec.streams.items()}
    credits = {number: pipe.opposite.credit for number, pipe in codec.streams.items()}
    state = (codec.credit, codec.owed, codec.going_away, codec.peer_ready, codec.last_peer_id)
    said = b"".join(bytes(part) for part in codec.out)
    return codec.events, error and error.code, windows, credits, state, said


@given(TRAFFIC, CUTS)
def test_frames_mean_the_same_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    assert outcome(data, cuts) == outcome(data, [])


@given(TRAFFIC | MANGLED, CUTS)
def test_common_frames_are_judged_as_the_tables_say(data: bytes, cuts: list[int]) -> None:
    assert outcome(data, cuts) == outcome(data, cuts, PlainCodec)


LARGE = st.builds(
    lambda stream, size, count, ends: [
        DataFrame(
            stream, bytes([number]) * size, flags=["END_STREAM"] * (ends and number == count - 1)
        )
        for number in range(count)
    ],
    STREAM,
    st.sampled_from([4095, 4096, 5000]),
    st.integers(1, 12),
    st.booleans(),
)
LARGE_TRAFFIC = st.lists(st.one_of(LARGE, LARGE, data_frames(), header_frames()), max_size=6).map(
    lambda groups: b"".join(frame.serialize() for group in groups for frame in group)
)


@given(LARGE_TRAFFIC, st.lists(st.integers(0, 200_000), max_size=5))
def test_runs_of_large_frames_are_what_their_frames_are(data: bytes, cuts: list[int]) -> None:
    for window in (2000, 9000, 100_000):
        assert outcome(data, cuts, partial(RunningCodec, window=window)) == outcome(
            data, cuts, partial(PlainCodec, window=window)
        )


@given(MANGLED, CUTS)
def test_no_bytes_raise_anything_but_the_error_of_a_connection(
    data: bytes, cuts: list[int]
) -> None:
    codec = NotingCodec()
    error = codec.feed(data, *(cut for cut in cuts if cut < len(data)))
    if error is not None:
        codec.fail(error)
        assert codec.out[-1][3] == fr.GOAWAY


@given(MANGLED, CUTS)
def test_bad_frames_are_judged_alike_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    """Up to the error, which a lone frame header may show before its payload has come."""
    whole, cut = outcome(data, []), outcome(data, cuts)
    if whole[1] is None and cut[1] is None:
        assert cut == whole
    else:
        assert cut[1] is not None
        assert cut[0] == whole[0]
