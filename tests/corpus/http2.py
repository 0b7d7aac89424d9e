"""The corpus for HTTP/2: every row, and where our answer is not the one that is commonly asked."""

from __future__ import annotations

from typing import NamedTuple

from tests.corpus import http2_blocks, http2_frames, http2_messages
from tests.corpus.http2_row import Row

ROWS: list[Row] = [*http2_frames.ROWS, *http2_blocks.ROWS, *http2_messages.ROWS]
LATE: list[Row] = http2_frames.LATE
BY_ID: dict[str, Row] = {row.id: row for row in ROWS}


class Deviation(NamedTuple):
    """Rows whose answer differs from what the RFC's words or other lists ask, and why."""

    rows: tuple[str, ...]
    asked: str
    reason: str


DEVIATIONS = [
    Deviation(
        ("F-35b",),
        "RST_STREAM(FRAME_SIZE_ERROR), RFC 9113 6.3",
        "RST_STREAM may not be sent for an idle stream (6.4), so the connection ends.",
    ),
    Deviation(
        ("F-36", "F-36a"),
        "RST_STREAM(PROTOCOL_ERROR), RFC 7540 5.3.1",
        "RFC 9113 5.3.2 took priorities out: they are ignored, so they cannot be wrong either.",
    ),
    Deviation(
        ("F-40e", "F-40f", "F-40g"),
        "STREAM_CLOSED, RFC 7540 5.1",
        "CONTINUATION that follows no open header block is PROTOCOL_ERROR wherever it is (6.10).",
    ),
    Deviation(
        ("F-41", "F-41b"),
        "RST_STREAM(FRAME_SIZE_ERROR) would do for DATA, RFC 9113 4.2",
        "Its sender does not keep to our SETTINGS; nothing it sends can be relied on.",
    ),
    Deviation(
        ("F-42", "F-42a"),
        "closed at 32 KiB of header block",
        "The limit of 32 KiB is on decoded fields, which are answered RESOURCE_EXHAUSTED like any "
        "other; a block may be twice that, so that the answer is possible.",
    ),
    Deviation(
        ("K-13b",),
        "accepted (written for a table of 4,096 bytes)",
        "We advertise a table of 0; once that is acknowledged, any other size is a decoding error "
        "(RFC 7541 6.3).",
    ),
    Deviation(
        ("M-31",),
        "405",
        "Without :scheme and :path it is not a request for a server that tunnels nothing.",
    ),
    Deviation(
        ("M-31a",),
        "RST_STREAM(PROTOCOL_ERROR), RFC 9113 8.5",
        "We know no CONNECT, so it is a method like any other that is not POST.",
    ),
]
