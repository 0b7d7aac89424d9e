"""A SETTINGS frame is one change, however often it repeats itself."""

from __future__ import annotations

from lb.wire.http2.codec import Http2Codec
from lb.wire.http2.frames import DEFAULT_WINDOW, MAX_WINDOW
from tests.fakes.codec import NotingCodec
from tests.wire.frames import INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, settings


class Counting(NotingCodec):
    """Counts how often the windows of all streams are moved."""

    shifts = 0

    def _shift_windows(self, delta: int) -> None:
        self.shifts += 1
        Http2Codec._shift_windows(self, delta)


def test_repeated_windows_move_the_streams_once() -> None:
    codec = Counting()
    codec.shifts = 0
    outbound = codec.open(1).opposite
    codec.feed(settings([(INITIAL_WINDOW_SIZE, value) for value in (0, MAX_WINDOW, 5) * 10]))
    assert codec.shifts == 1
    assert (codec.peer_window, outbound.credit) == (5, 5)


def test_other_settings_do_not_move_the_streams() -> None:
    codec = Counting()
    codec.shifts = 0
    codec.feed(settings({MAX_FRAME_SIZE: 20_000}) + settings({INITIAL_WINDOW_SIZE: DEFAULT_WINDOW}))
    assert codec.shifts == 0
