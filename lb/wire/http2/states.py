"""Which frames may come when: the states of streams and connections (RFC 9113 3.4, 5.1, 6.10).

The tables say what becomes of a frame in every state; the codec looks them up for all frames but
the common ones, of which its loop knows by itself that they are fine. What a frame does once it
is accepted, and what is wrong with its content, is not said here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from lb.wire.http2 import frames as fr
from lb.wire.http2.frames import ErrorCode


class StreamState(IntEnum):
    """Of one stream, as we see it. Where RFC 9113 has one state `closed`, here are three."""

    IDLE = 0
    OPEN = 1
    HALF_CLOSED_LOCAL = 2
    """We have ended it, the peer has not."""
    HALF_CLOSED_REMOTE = 3
    """The peer has ended it, we have not."""
    RESET_BY_US = 4
    """The peer may not know yet: whatever comes was on its way."""
    RESET_BY_PEER = 5
    CLOSED = 6
    """Both sides ended it, or it was reset very long ago."""
    SKIPPED = 7
    """Never used and never to be: a later one was opened before it (5.1.1). Also what cannot be
    told from it: any closed stream of a peer that skipped one."""

    @property
    def words(self) -> str:
        """For messages."""
        return self.name.lower().replace("_", " ")


class FrameFate(IntEnum):
    """What becomes of a frame."""

    ACCEPTED = 0
    IGNORED = 1
    ENDS_STREAM = 2
    """RST_STREAM."""
    ENDS_CONNECTION = 3
    """GOAWAY."""


class Verdict(NamedTuple):
    """A fate, and the error code where it has one."""

    fate: FrameFate
    code: ErrorCode = ErrorCode.NO_ERROR


_OK: Final = Verdict(FrameFate.ACCEPTED)
_NO: Final = Verdict(FrameFate.IGNORED)
_RST: Final = Verdict(FrameFate.ENDS_STREAM, ErrorCode.STREAM_CLOSED)
_END: Final = Verdict(FrameFate.ENDS_CONNECTION, ErrorCode.STREAM_CLOSED)
_BAD: Final = Verdict(FrameFate.ENDS_CONNECTION, ErrorCode.PROTOCOL_ERROR)

Row = tuple[Verdict, Verdict, Verdict, Verdict, Verdict]

COLUMNS: Final = (fr.DATA, fr.HEADERS, fr.PRIORITY, fr.RST_STREAM, fr.WINDOW_UPDATE)
"""Frames that belong to a stream. CONTINUATION belongs to its HEADERS; PUSH_PROMISE is always
wrong, since we never enable it (8.4)."""

AS_SERVER: Final[dict[StreamState, Row]] = {
    # what a client sends:           DATA  HEADERS PRIORITY RST WINDOW_UPDATE
    StreamState.IDLE:               (_BAD, _OK,   _NO,   _BAD, _BAD),
    StreamState.OPEN:               (_OK,  _OK,   _NO,   _OK,  _OK),
    StreamState.HALF_CLOSED_LOCAL:  (_OK,  _OK,   _NO,   _OK,  _OK),
    StreamState.HALF_CLOSED_REMOTE: (_RST, _RST,  _NO,   _OK,  _OK),
    StreamState.RESET_BY_US:        (_NO,  _NO,   _NO,   _NO,  _NO),
    StreamState.RESET_BY_PEER:      (_RST, _RST,  _NO,   _NO,  _NO),
    StreamState.CLOSED:             (_RST, _END,  _NO,   _NO,  _NO),
    StreamState.SKIPPED:            (_RST, _BAD,  _NO,   _NO,  _NO),
}  # fmt: skip
"""For streams of a client."""

AS_CLIENT: Final[dict[StreamState, Row]] = {
    # what a backend sends:          DATA  HEADERS PRIORITY RST WINDOW_UPDATE
    StreamState.IDLE:               (_BAD, _BAD,  _NO,   _BAD, _BAD),
    StreamState.OPEN:               (_OK,  _OK,   _NO,   _OK,  _OK),
    StreamState.HALF_CLOSED_LOCAL:  (_OK,  _OK,   _NO,   _OK,  _OK),
    # Triton repeats the trailers of calls that failed early: a connection that others use must
    # not end for what comes late.
    StreamState.HALF_CLOSED_REMOTE: (_RST, _NO,   _NO,   _OK,  _OK),
    StreamState.RESET_BY_US:        (_NO,  _NO,   _NO,   _NO,  _NO),
    StreamState.RESET_BY_PEER:      (_NO,  _NO,   _NO,   _NO,  _NO),
    StreamState.CLOSED:             (_NO,  _NO,   _NO,   _NO,  _NO),
    StreamState.SKIPPED:            (_BAD, _BAD,  _NO,   _BAD, _BAD),
}  # fmt: skip
"""For streams of ours, of which a backend opens none."""

StreamTable = tuple[tuple[Verdict, ...], ...]
"""By state and kind of frame."""


def stream_table(rows: dict[StreamState, Row]) -> StreamTable:
    """A table as it is looked up: by numbers."""
    columns = [COLUMNS.index(kind) if kind in COLUMNS else None for kind in range(fr.CONTINUATION)]
    return tuple(
        tuple(_BAD if column is None else rows[state][column] for column in columns)
        for state in StreamState
    )


class ExpectedFrame(IntEnum):
    """Of a connection: what it waits for."""

    SETTINGS = 0
    """The first frame of all (3.4)."""
    ANY = 1
    BLOCK = 2
    """The rest of a header block, of which nothing may come between the parts (4.3, 6.10)."""


def breaks_turn(turn: ExpectedFrame, kind: int, flags: int, *, same_stream: bool) -> str:
    """Whether a frame comes out of turn, which ends the connection with PROTOCOL_ERROR.

    Args:
        turn: of the connection.
        kind: of the frame; unknown ones are fine where any is.
        flags: of the frame.
        same_stream: it has the stream of the header block under way.

    Returns:
        What is wrong; empty when nothing is.
    """
    if turn is ExpectedFrame.SETTINGS:
        is_wrong = kind != fr.SETTINGS or bool(flags & fr.ACK)
        return "SETTINGS must come first" if is_wrong else ""
    if turn is ExpectedFrame.BLOCK:
        is_wrong = kind != fr.CONTINUATION or not same_stream
        return "frame inside a header block" if is_wrong else ""
    return "CONTINUATION without HEADERS" if kind == fr.CONTINUATION else ""


class Lately:
    """The last streams of which something is to be known, without a list that grows: at least
    `least` of them, at most twice as many."""

    __slots__ = ("_least", "_new", "_old")

    def __init__(self, least: int) -> None:
        self._least = least
        self._new: set[int] = set()
        self._old: set[int] | frozenset[int] = frozenset()

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._new or stream_id in self._old

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def add(self, stream_id: int) -> None:
        """Remember a stream."""
        if len(self._new) >= self._least:
            self._old, self._new = self._new, set()
        self._new.add(stream_id)
