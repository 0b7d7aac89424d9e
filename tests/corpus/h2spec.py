"""The 147 cases of h2spec (summerwind/h2spec, numbered by its RFC 7540 and 7541 sections) for a gRPC
proxy: each with the one answer that is right here, where h2spec takes any close for most.

Requests are gRPC calls, so that answers come from the backend, as h2spec's come from a server's
root. Where the corpus has the frames already, its row stands for the case.
"""
# ruff: noqa: E501  # a case is a line where it can be

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.corpus.http2 import BY_ID
from tests.corpus.http2_messages import TOLD, TOLD_AT_END
from tests.corpus.http2_row import (
    BEGUN,
    END,
    HEAD,
    MAYBE,
    NOTHING,
    ONE,
    OPEN,
    WHOLE,
    Acknowledged,
    GoAway,
    Ignored,
    Payload,
    Pong,
    Reach,
    Reset,
    Right,
    Row,
    SettingsFirst,
    Status,
    Step,
    call,
    fields,
    instead,
)
from tests.wire.frames import (
    COMPRESSION_ERROR,
    DATA,
    ENABLE_PUSH,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    HANG_PATH,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    NO_ERROR,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    continuation,
    data,
    frame,
    goaway,
    headers,
    literal,
    named,
    ping,
    rst,
    settings,
    window_update,
)

STREAMS: Final = 100
"""MAX_CONCURRENT_STREAMS of the process that the cases are played against."""
OBSOLETE: Final = {
    "http2/5.3.1/1": "HEADERS that depend on their own stream: RFC 9113 5.3.2 took priorities out, they are ignored (row F-36a)",
    "http2/5.3.1/2": "PRIORITY that depends on its own stream: the same (row F-36)",
}
"""Cases that are not played as h2spec asks, and why."""

CALL = headers(1, fields(), end=True)
"""A request that HEADERS end, as most of h2spec's; the backend answers."""
SILENT = headers(1, fields(path=HANG_PATH), end=True)
"""The same without an answer: the stream stays half-closed."""
DUMMY = literal(b"x-dummy0", b"0" * 64)
UNDONE = headers(1, HEAD, done=False, end=True)
WEIGHT_1, WEIGHT_256, EXCLUSIVE = b"\0\0\0\0\0", b"\0\0\0\0\xff", b"\x80\0\0\0\0"
ANSWERED, LOST = Status(), GoAway(PROTOCOL_ERROR)
BIG = 16_384


def _as(number: str, id_: str) -> Row:
    """A row of the corpus as a case."""
    return replace(BY_ID[id_], id=number)


def _case(
    number: str,
    about: str,
    sent: bytes,
    right: Right,
    reaches: Reach = NOTHING,
    *before: Step,
    greets: bool = True,
) -> Row:
    return Row(number, about, sent, right, "h2spec", reaches, before, greets)


GENERIC = [
    _case("generic/1/1", "client connection preface", PREFACE, SettingsFirst(), greets=False),
    _case("generic/2/1", "PRIORITY on idle stream", frame(PRIORITY, 0, 1, WEIGHT_256), Ignored()),
    _case("generic/2/2", "WINDOW_UPDATE on half-closed (remote) stream", window_update(1, 1), Payload(1), ONE, settings({INITIAL_WINDOW_SIZE: 0}) + CALL, Payload(0)),
    _case("generic/2/3", "PRIORITY on half-closed (remote) stream", frame(PRIORITY, 0, 1, WEIGHT_256) + window_update(1, 1), Payload(1), ONE, settings({INITIAL_WINDOW_SIZE: 0}) + CALL, Payload(0)),
    _case("generic/2/4", "RST_STREAM on half-closed (remote) stream", SILENT + rst(1), Ignored(), MAYBE),
    _case("generic/2/5", "PRIORITY on closed stream", frame(PRIORITY, 0, 1, WEIGHT_256), Ignored(), ONE, CALL, ANSWERED),
    _case("generic/3.1/1", "a DATA frame", OPEN + END, ANSWERED, ONE),
    _case("generic/3.1/2", "multiple DATA frames", OPEN + data(1, named()[:3]) + data(1, named()[3:], end=True), ANSWERED, ONE),
    _case("generic/3.1/3", "a DATA frame with padding", OPEN + data(1, named(), pad=6, end=True), ANSWERED, ONE),
    _case("generic/3.2/1", "a HEADERS frame", CALL, ANSWERED, ONE),
    _case("generic/3.2/2", "a HEADERS frame with padding", headers(1, HEAD, pad=6, end=True), ANSWERED, ONE),
    _case("generic/3.2/3", "a HEADERS frame with priority", headers(1, HEAD, priority=WEIGHT_256, end=True), ANSWERED, ONE),
    _case("generic/3.3/1", "PRIORITY with weight 1", frame(PRIORITY, 0, 1, WEIGHT_1) + CALL, ANSWERED, ONE),
    _case("generic/3.3/2", "PRIORITY with weight 256", frame(PRIORITY, 0, 1, WEIGHT_256) + CALL, ANSWERED, ONE),
    _case("generic/3.3/3", "PRIORITY with stream dependency", frame(PRIORITY, 0, 1, WEIGHT_256) + frame(PRIORITY, 0, 3, b"\0\0\0\1\xff") + CALL, ANSWERED, ONE),
    _case("generic/3.3/4", "PRIORITY with exclusive", frame(PRIORITY, 0, 1, EXCLUSIVE) + CALL, ANSWERED, ONE),
    _case("generic/3.3/5", "PRIORITY for an idle stream, then HEADERS for a lower one", frame(PRIORITY, 0, 3, WEIGHT_256) + CALL, ANSWERED, ONE),
    _case("generic/3.4/1", "a RST_STREAM frame", OPEN + rst(1), Ignored()),
    _case("generic/3.5/1", "a SETTINGS frame", settings({MAX_CONCURRENT_STREAMS: 100}), Acknowledged(2)),
    _case("generic/3.7/1", "a PING frame", ping(b"h2spec\0\0"), Pong(b"h2spec\0\0")),
    _case("generic/3.8/1", "a GOAWAY frame", goaway(0, NO_ERROR, b"h2spec"), Ignored()),
    _case("generic/3.9/1", "WINDOW_UPDATE with stream ID 0", window_update(0, 1), Ignored()),
    _case("generic/3.9/2", "WINDOW_UPDATE with stream ID 1", CALL + window_update(1, 1), ANSWERED, ONE),
    _case("generic/3.10/1", "a CONTINUATION frame", UNDONE + continuation(1, DUMMY), ANSWERED, ONE),
    _case("generic/3.10/2", "multiple CONTINUATION frames", UNDONE + continuation(1, DUMMY, done=False) + continuation(1, DUMMY), ANSWERED, ONE),
    _case("generic/4/1", "GET", headers(1, instead(b":method", b"GET"), end=True), Status(None, http=b"405")),
    _case("generic/4/2", "HEAD", headers(1, instead(b":method", b"HEAD"), end=True), Status(None, http=b"405")),
    _case("generic/4/3", "POST", WHOLE, ANSWERED, ONE),
    _case("generic/4/4", "POST with trailers", OPEN + data(1, named()) + headers(1, [(b"x-test", b"ok")], end=True), ANSWERED, ONE),
    _as("generic/5/1", "K-10"),
    _as("generic/5/2", "K-12a"),
    _as("generic/5/3", "K-12b"),
    _as("generic/5/4", "K-12c"),
    _as("generic/5/5", "K-12d"),
    _as("generic/5/6", "K-12e"),
    _as("generic/5/7", "K-12f"),
    _as("generic/5/8", "K-12g"),
    _as("generic/5/9", "K-12h"),
    _as("generic/5/10", "K-12i"),
    _as("generic/5/11", "K-12j"),
    _as("generic/5/12", "K-12k"),
    _as("generic/5/13", "K-12l"),
    _as("generic/5/14", "K-13c"),
    _as("generic/5/15", "K-13d"),
]  # fmt: skip

FRAMING = [
    _case("http2/3.5/1", "the server's SETTINGS come first", PREFACE + settings(), SettingsFirst(), greets=False),
    _as("http2/3.5/2", "P-4a"),
    _case("http2/4.1/1", "unknown type", frame(0x16, 0, 0, bytes(8)), Ignored()),
    _case("http2/4.1/2", "undefined flag", frame(PING, 0x16, 0, b"h2spec\0\0"), Pong(b"h2spec\0\0")),
    _case("http2/4.1/3", "reserved bit", frame(PING, 0, 1 << 31, b"h2spec\0\0"), Pong(b"h2spec\0\0")),
    _as("http2/4.2/1", "F-41f"),
    _as("http2/4.2/2", "F-41"),
    _as("http2/4.2/3", "F-41a"),
    _case("http2/4.3/1", "invalid header block", headers(1, b"\x40", end=True), GoAway(COMPRESSION_ERROR)),
    _as("http2/4.3/2", "F-11e"),
    _as("http2/4.3/3", "F-12"),
    _as("http2/5.1/1", "F-7"),
    _as("http2/5.1/2", "F-8"),
    _as("http2/5.1/3", "F-9"),
    _as("http2/5.1/4", "F-10"),
    _as("http2/5.1/5", "F-39b"),
    _case("http2/5.1/6", "half closed (remote): HEADERS", SILENT + SILENT, Reset(STREAM_CLOSED), MAYBE),
    _case("http2/5.1/7", "half closed (remote): CONTINUATION", SILENT + continuation(1, HEAD), LOST, MAYBE),
    _case("http2/5.1/8", "closed by RST_STREAM: DATA", OPEN + rst(1) + data(1, b"test", end=True), Reset(STREAM_CLOSED)),
    _case("http2/5.1/9", "closed by RST_STREAM: HEADERS", OPEN + rst(1) + CALL, Reset(STREAM_CLOSED)),
    _case("http2/5.1/10", "closed by RST_STREAM: CONTINUATION", OPEN + rst(1) + continuation(1, DUMMY), LOST),
    _case("http2/5.1/11", "closed: DATA", data(1, b"test", end=True), Reset(STREAM_CLOSED), ONE, CALL, ANSWERED),
    _case("http2/5.1/12", "closed: HEADERS", CALL, GoAway(STREAM_CLOSED), ONE, CALL, ANSWERED),
    _case("http2/5.1/13", "closed: CONTINUATION", continuation(1, DUMMY), LOST, ONE, CALL, ANSWERED),
    _as("http2/5.1.1/1", "F-5"),
    _case("http2/5.1.1/2", "a stream id below the one before", headers(5, HEAD, end=True) + headers(3, HEAD, end=True), LOST, MAYBE),
    _case("http2/5.1.2/1", "one stream too many", b"".join(headers(1 + 2 * n, HEAD) for n in range(STREAMS + 1)), Reset(REFUSED_STREAM, 1 + 2 * STREAMS)),
    _case("http2/5.4.1/1", "invalid PING: close", frame(PING, 0, 3, bytes(8)), LOST),
    _case("http2/5.4.1/2", "invalid PING: GOAWAY first (strict)", frame(PING, 0, 3, bytes(8)), LOST),
    _case("http2/5.5/1", "unknown extension frame", frame(0x16, 0, 0, bytes(8)) + ping(bytes(8)), Pong(bytes(8))),
    _as("http2/5.5/2", "F-14"),
]  # fmt: skip

FRAMES = [
    _as("http2/6.1/1", "F-3"),
    _as("http2/6.1/2", "F-39b"),
    _case("http2/6.1/3", "DATA with invalid pad length", headers(1, fields((b"content-length", b"4"))) + frame(DATA, 9, 1, b"\x06Test"), LOST),
    _as("http2/6.2/1", "F-11e"),
    _as("http2/6.2/2", "F-12"),
    _as("http2/6.2/3", "F-4a"),
    _case("http2/6.2/4", "HEADERS with invalid pad length", frame(HEADERS, 0xD, 1, bytes((len(HEAD) + 2,)) + HEAD), LOST),
    _as("http2/6.3/1", "F-34"),
    _case("http2/6.3/2", "PRIORITY of 4 bytes", SILENT + frame(PRIORITY, 0, 1, b"\x80\0\0\1"), Reset(FRAME_SIZE_ERROR), MAYBE),
    _as("http2/6.4/1", "F-32"),
    _as("http2/6.4/2", "F-8"),
    _case("http2/6.4/3", "RST_STREAM of 3 bytes", SILENT + frame(RST_STREAM, 0, 1, bytes(3)), GoAway(FRAME_SIZE_ERROR), MAYBE),
    _as("http2/6.5/1", "F-19a"),
    _case("http2/6.5/2", "SETTINGS on a stream", frame(SETTINGS, 0, 1, b"\0\3\0\0\0\x64"), LOST),
    _case("http2/6.5/3", "SETTINGS of 3 bytes", frame(SETTINGS, 0, 0, b"\0\3\0"), GoAway(FRAME_SIZE_ERROR)),
    _as("http2/6.5.2/1", "F-22"),
    _as("http2/6.5.2/2", "F-23"),
    _as("http2/6.5.2/3", "F-24"),
    _as("http2/6.5.2/4", "F-25"),
    _case("http2/6.5.2/5", "unknown setting", settings({0xFF: 1}) + ping(b"h2spec\0\0"), Pong(b"h2spec\0\0")),
    _case("http2/6.5.3/1", "INITIAL_WINDOW_SIZE twice", CALL, Payload(1), ONE, settings([(INITIAL_WINDOW_SIZE, 100), (INITIAL_WINDOW_SIZE, 1)]), Acknowledged(2)),
    _case("http2/6.5.3/2", "SETTINGS are acknowledged at once", settings({ENABLE_PUSH: 0}), Acknowledged(2)),
    _case("http2/6.7/1", "PING comes back", ping(b"h2spec\0\0"), Pong(b"h2spec\0\0")),
    _case("http2/6.7/2", "PING with ACK does not", ping(b"invalid\0", ack=True), Ignored()),
    _as("http2/6.7/3", "F-18"),
    _case("http2/6.7/4", "PING of 6 bytes", frame(PING, 0, 0, bytes(6)), GoAway(FRAME_SIZE_ERROR)),
    _as("http2/6.8/1", "F-37"),
    _as("http2/6.9/1", "F-27"),
    _as("http2/6.9/2", "F-28"),
    _as("http2/6.9/3", "F-29"),
    _case("http2/6.9.1/1", "a window of 1", CALL, Payload(1), ONE, settings({INITIAL_WINDOW_SIZE: 1}), Acknowledged(2)),
    _case("http2/6.9.1/2", "connection window above 2^31-1", 2 * window_update(0, 2**31 - 1), GoAway(FLOW_CONTROL_ERROR)),
    _case("http2/6.9.1/3", "stream window above 2^31-1", OPEN + window_update(1, 2**31 - 1), Reset(FLOW_CONTROL_ERROR)),
    _case("http2/6.9.2/1", "INITIAL_WINDOW_SIZE moves open streams", settings({INITIAL_WINDOW_SIZE: 1}), Payload(1), ONE, settings({INITIAL_WINDOW_SIZE: 0}), Acknowledged(2), CALL, Payload(0)),
    _case("http2/6.9.2/2", "a window below 0", window_update(1, 2), Payload(4), ONE, settings({INITIAL_WINDOW_SIZE: 3}), Acknowledged(2), CALL, Payload(3), settings({INITIAL_WINDOW_SIZE: 2}), Payload(3)),
    _as("http2/6.9.2/3", "F-23"),
    _case("http2/6.10/1", "CONTINUATIONs", UNDONE + continuation(1, DUMMY, done=False) + continuation(1, DUMMY), ANSWERED, ONE),
    _case("http2/6.10/2", "CONTINUATION followed by DATA", UNDONE + continuation(1, DUMMY, done=False) + data(1, b"test", end=True), LOST),
    _as("http2/6.10/3", "F-10c"),
    _as("http2/6.10/4", "F-10a"),
    _case("http2/6.10/5", "CONTINUATION after the last CONTINUATION", UNDONE + continuation(1, DUMMY) + continuation(1, DUMMY), LOST, MAYBE),
    _as("http2/6.10/6", "F-10b"),
    _case("http2/7/1", "GOAWAY with unknown code", goaway(0, 0xFF), Ignored()),
    _case("http2/7/2", "RST_STREAM with unknown code", OPEN + rst(1, 0xFF), Ignored()),
]  # fmt: skip

MESSAGES = [
    _case("http2/8.1/1", "second HEADERS without END_STREAM", OPEN + OPEN, TOLD),
    _as("http2/8.1.2/1", "M-1"),
    _as("http2/8.1.2.1/1", "M-21"),
    _as("http2/8.1.2.1/2", "M-22"),
    _as("http2/8.1.2.1/3", "M-32"),
    _as("http2/8.1.2.1/4", "M-23"),
    _as("http2/8.1.2.2/1", "M-2"),
    _case("http2/8.1.2.2/2", "te with more than trailers", headers(1, instead(b"te", b"trailers, deflate;q=0.5"), end=True), TOLD_AT_END),
    _as("http2/8.1.2.3/1", "M-16"),
    _as("http2/8.1.2.3/2", "M-14"),
    _as("http2/8.1.2.3/3", "M-17"),
    _as("http2/8.1.2.3/4", "M-15"),
    _as("http2/8.1.2.3/5", "M-18"),
    _as("http2/8.1.2.3/6", "M-20"),
    _as("http2/8.1.2.3/7", "M-19"),
    _case("http2/8.1.2.6/1", "content-length is not the body's", call(1, named(), (b"content-length", b"1")), TOLD_AT_END, BEGUN),
    _case("http2/8.1.2.6/2", "content-length is not the sum of the frames", headers(1, fields((b"content-length", b"1"))) + data(1, named()) + data(1, b"test", end=True), TOLD_AT_END, BEGUN),
    _as("http2/8.2/1", "F-38"),
]  # fmt: skip

HPACK = [
    _as("hpack/2.3.3/1", "K-3a"),
    _as("hpack/2.3.3/2", "K-3b"),
    _as("hpack/4.2/1", "K-5b"),
    _as("hpack/5.2/1", "K-6"),
    _as("hpack/5.2/2", "K-6a"),
    _as("hpack/5.2/3", "K-6b"),
    _as("hpack/6.1/1", "K-2"),
    _case("hpack/6.3/1", "table size of 1 above ours", headers(1, b"\x21" + HEAD, end=True), GoAway(COMPRESSION_ERROR)),
]  # fmt: skip

ROWS: list[Row] = [*GENERIC, *FRAMING, *FRAMES, *MESSAGES, *HPACK]
