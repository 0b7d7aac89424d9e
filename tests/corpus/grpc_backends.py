"""gRPC backends that break the rules: rows U of the corpus.

Each row is what a backend says on a new connection and to the first request there, and what the
client hears while a good backend stands beside it. U-9 to U-14, U-16 and U-20 are HTTP/1.1.
"""
# ruff: noqa: E501  # a row is a line where it can be

from __future__ import annotations

from dataclasses import dataclass

from tests.corpus.http2_row import Reset, Status
from tests.wire.frames import (
    CANCEL,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    ENHANCE_YOUR_CALM,
    INITIAL_WINDOW_SIZE,
    INTERNAL_ERROR,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    NO_ERROR,
    OK_TRAILERS,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    SETTINGS_ACK,
    FieldPair,
    answer,
    continuation,
    data,
    frame,
    goaway,
    headers,
    literal,
    literals,
    message,
    ping,
    rst,
    settings,
    window_update,
)

CANCELLED, DEADLINE, PERMISSION, EXHAUSTED, INTERNAL, UNAVAILABLE = 1, 4, 7, 8, 13, 14
PROTOCOL = "gRPC over HTTP2"


@dataclass(frozen=True)
class BackendRow:
    """What a bad backend does, and what follows."""

    id: str
    about: str
    reply: bytes
    """Sent when the first request of a new connection is complete."""
    right: Status | Reset
    """What the client of that request hears."""
    source: str
    keeps: bool = False
    """The connection to the backend is used again; else it is closed."""
    retried: bool = False
    """The request goes to the good backend: the bad one surely did not run it."""
    greeting: bytes | None = settings()
    """Sent when the preface has come; None: not even SETTINGS."""
    acknowledges: bool = True
    """Our SETTINGS are acknowledged."""
    hangs_up: bool = False
    """The backend closes after the reply."""
    carries: tuple[FieldPair, ...] = ()
    """Fields that the client must hear at the end, in this order, the last of all."""
    timeout: bytes = b""
    """The client's `grpc-timeout`."""

    def __str__(self) -> str:
        return f"{self.id} {self.about}"


HEAD = headers(1, RESPONSE_FIELDS)
TRAILERS = headers(1, OK_TRAILERS, end=True)
WHOLE = answer(1)
BROKEN = Status(INTERNAL)
UNKNOWN = 2
CUT = Reset(INTERNAL_ERROR)


def http(status: bytes, content_type: bytes = b"text/html") -> bytes:
    """An answer that is not gRPC."""
    fields = [(b":status", status), (b"content-type", content_type)]
    return headers(1, fields) + data(1, b"<p>no</p>", end=True)


def head(*fields: FieldPair, status: bytes = b"200") -> bytes:
    """A head with other fields."""
    return headers(1, [(b":status", status), RESPONSE_FIELDS[1], *fields])


def broken(id_: str, about: str, reply: bytes, source: str = "RFC 9113 8.1.1") -> BackendRow:
    """A malformed answer before anything of it could be passed on."""
    return BackendRow(id_, about, reply, BROKEN, source)


def lost(id_: str, about: str, reply: bytes, source: str) -> BackendRow:
    """A broken connection: whether the request ran, nobody knows, so it is not sent again."""
    return BackendRow(id_, about, reply, BROKEN, source)


STATUSES = [
    *(
        BackendRow(f"U-1{letter}", f"HTTP {status.decode()} without grpc-status", http(status), Status(None, http=status), "http-grpc-status-mapping", keeps=True)
        for letter, status in zip("abcdefghijk", (b"400", b"401", b"403", b"404", b"429", b"431", b"500", b"502", b"503", b"504", b"418"), strict=True)
    ),
    BackendRow("U-1l", "HTTP 503 with grpc-status", headers(1, [(b":status", b"503"), (b"content-type", b"application/grpc"), (b"grpc-status", b"14")], end=True), Status(UNAVAILABLE, http=b"503"), PROTOCOL, keeps=True),
    BackendRow("U-1m", "HTTP 200 with HTML", headers(1, [(b":status", b"200"), (b"content-type", b"text/html")]) + data(1, b"<p>", end=True), Status(UNKNOWN), PROTOCOL, keeps=True),
    *(
        BackendRow(f"U-2{letter}", f"reset with code {code}", rst(1, code), Status(INTERNAL), PROTOCOL, keeps=True)
        for letter, code in zip("abcdefghij", (NO_ERROR, 1, 2, 3, 4, 5, 6, 9, 10, 13), strict=True)
    ),
    BackendRow("U-2k", "reset with an unknown code", rst(1, 0xFFFF), Status(INTERNAL), PROTOCOL, keeps=True),
    BackendRow("U-2l", "reset after the answer began", HEAD + data(1, message()) + rst(1, 2), Reset(2), PROTOCOL, keeps=True),
    BackendRow("U-3", "REFUSED_STREAM", rst(1, REFUSED_STREAM), Status(), "RFC 9113 8.7", keeps=True, retried=True),
    BackendRow("U-3a", "REFUSED_STREAM after the head of the answer", HEAD + rst(1, REFUSED_STREAM), Status(UNAVAILABLE), "gRFC A6", keeps=True),
    BackendRow("U-4", "CANCEL", rst(1, CANCEL), Status(CANCELLED), PROTOCOL, keeps=True),
    BackendRow("U-4a", "ENHANCE_YOUR_CALM", rst(1, ENHANCE_YOUR_CALM), Status(EXHAUSTED), PROTOCOL, keeps=True),
    BackendRow("U-4b", "INADEQUATE_SECURITY", rst(1, 12), Status(PERMISSION), PROTOCOL, keeps=True),
    BackendRow("U-5", "the end on DATA", HEAD + data(1, message(), end=True), Status(None), PROTOCOL, keeps=True),
    BackendRow("U-5a", "nothing but a head", headers(1, RESPONSE_FIELDS, end=True), Status(None), PROTOCOL, keeps=True),
    BackendRow("U-5c", "an answer in 3,000 frames of one byte", HEAD + 3000 * data(1, b"\0") + TRAILERS, Status(), PROTOCOL, keeps=True),
    BackendRow("U-5d", "an answer of 3,000 small messages", HEAD + 3000 * data(1, message(b"token")) + TRAILERS, Status(), PROTOCOL, keeps=True),
    BackendRow("U-5b", "trailers without a status", HEAD + headers(1, [(b"x", b"y")], end=True), Status(None), PROTOCOL, keeps=True),
]  # fmt: skip


def worded(letter: str, about: str, text: bytes, *, begun: bool) -> BackendRow:
    """A status with a text, which is passed on as it came."""
    fields = ((b"grpc-status", b"3"), (b"grpc-message", text), (b"grpc-status-details-bin", b"CAM"))
    reply = (
        HEAD + headers(1, fields, end=True)
        if begun
        else headers(1, [*RESPONSE_FIELDS, *fields], end=True)
    )
    return BackendRow(
        f"G-15{letter}", about, reply, Status(3), PROTOCOL, keeps=True, carries=fields
    )


TEXTS = [
    worded(letter, name + (", in trailers" if begun else ", in the head"), text, begun=begun)
    for begun, letters in ((True, "abcdefg"), (False, "hijklmn"))
    for letter, name, text in zip(
        letters,
        ("encoded CRLF", "bad escapes", "UTF-8", "bytes", "empty", "20 kB", "quotes and control"),
        (b"%0d%0a", b"%zz %", "nö".encode(), b"\xff\xfe", b"", b"x" * 20_000, b'"\x1b[31m"\x7f'),
        strict=True,
    )
]
ANSWERS = [
    broken("U-6", "DATA before a head", data(1, message()) + WHOLE),
    broken("U-6a", "empty DATA with the end before a head", data(1, end=True)),
    broken("U-6b", "trailers before a head", TRAILERS),
    broken("U-7", "two final heads", HEAD + HEAD, "RFC 9113 8.1"),
    broken("U-7a", "no status", headers(1, RESPONSE_FIELDS[1:]) + TRAILERS),
    *(
        broken(f"U-7b{number}", f"status {status.decode()!r}", head(status=status) + TRAILERS)
        for number, status in enumerate((b"2000", b"abc", b"+200", b"20", b"", b"099", b"600", b" 200", b"-20", b"2e2", b"0x1"))
    ),
    broken("U-7c", "two statuses", headers(1, [(b":status", b"200"), *RESPONSE_FIELDS])),
    broken("U-7d", "a pseudo-field of requests", headers(1, [RESPONSE_FIELDS[0], (b":path", b"/")])),
    broken("U-7e", "a status after other fields", headers(1, RESPONSE_FIELDS[::-1])),
    broken("U-7f", "a connection field", head((b"connection", b"x"))),
    broken("U-7g", "transfer-encoding", head((b"transfer-encoding", b"chunked"))),
    broken("U-7h", "upper case", head((b"X", b"x"))),
    broken("U-7i", "NUL in a value", head((b"x", b"\0"))),
    broken("U-7j", "CRLF in a value", head((b"x", b"\r\nset-cookie: a"))),
    broken("U-7k", "a space in a name", head((b"x y", b"a"))),
    broken("U-7l", "status 101", head(status=b"101") + WHOLE, "RFC 9113 8.6"),
    broken("U-7m", "status 100 and the end", headers(1, [(b":status", b"100")], end=True)),
    broken("U-7n", "a status in trailers", HEAD + headers(1, [*RESPONSE_FIELDS, *OK_TRAILERS], end=True), "RFC 9113 8.1"),
    broken("U-7o", "CR in trailers", HEAD + headers(1, [*OK_TRAILERS, (b"x", b"a\rb")], end=True), "RFC 9113 8.2.1"),
    broken("U-7p", "more than the window", HEAD + 2 * data(1, bytes(2**19)) + data(1, b"x"), "RFC 9113 6.9.1"),
    BackendRow("U-7q", "HEADERS after the end", WHOLE + TRAILERS, Status(), "RFC 9113 5.1", keeps=True),
    BackendRow("U-7r", "DATA after the end", WHOLE + data(1, b"late"), Status(), "RFC 9113 5.1", keeps=True),
    BackendRow("U-7s", "a reset after the end", WHOLE + rst(1, NO_ERROR), Status(), "RFC 9113 8.1", keeps=True),
    BackendRow("U-8", "five early hints", 5 * headers(1, [(b":status", b"103"), (b"link", b"</a>")]) + WHOLE, Status(), "RFC 9110 15.2", keeps=True),
    broken("U-8a", "10,000 early hints", 10_000 * headers(1, [(b":status", b"103")])),
]  # fmt: skip

CONNECTIONS = [
    BackendRow("U-15", "an answer before any request", WHOLE, Status(), "RFC 9113 5.1", retried=True, greeting=settings() + HEAD),
    BackendRow("U-15a", "DATA before any request", WHOLE, Status(), "RFC 9113 5.1", retried=True, greeting=settings() + data(1, b"x")),
    BackendRow("U-15b", "a reset before any request", WHOLE, Status(), "RFC 9113 5.1", retried=True, greeting=settings() + rst(1)),
    BackendRow("U-15c", "an answer to a later request", WHOLE + answer(3), Status(), "RFC 9113 5.1"),
    lost("U-17a", "PUSH_PROMISE", frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + literals(RESPONSE_FIELDS)), "RFC 9113 8.4"),
    lost("U-17b", "a head on a stream of its own", headers(2, RESPONSE_FIELDS), "RFC 9113 5.1"),
    lost("U-17c", "MAX_FRAME_SIZE of 1", settings({MAX_FRAME_SIZE: 1}), "RFC 9113 6.5.2"),
    lost("U-17d", "ENABLE_PUSH of 1", settings({ENABLE_PUSH: 1}), "RFC 9113 6.5.2"),
    lost("U-17e", "INITIAL_WINDOW_SIZE above 2^31-1", settings({INITIAL_WINDOW_SIZE: 2**31}), "RFC 9113 6.5.2"),
    lost("U-17f", "a connection window above 2^31-1", window_update(0, 2**31 - 1), "RFC 9113 6.9.1"),
    lost("U-17g", "an undecodable head", headers(1, b"\xff" * 9), "RFC 9113 4.3"),
    lost("U-17h", "a bomb", headers(1, literals(RESPONSE_FIELDS) + literal(b"x", bytes(4000), 0x40) + 24_000 * b"\xbe"), "RFC 9113 10.5.1"),
    BackendRow("U-17i", "a head of 70 kB", headers(1, [*RESPONSE_FIELDS, (b"x", b"x" * 70_000)]), Status(EXHAUSTED), "RFC 9113 10.5.1", keeps=True),
    BackendRow("U-17D", "a head of 70 kB that may use a table", headers(1, [*RESPONSE_FIELDS, (b"x", b"x" * 70_000)]), BROKEN, "RFC 9113 10.5.1", acknowledges=False),
    lost("U-17j", "twenty CONTINUATIONs", headers(1, b"", done=False) + 20 * continuation(1, b"", done=False), "RFC 9113 10.5.1"),
    lost("U-17k", "PING inside a head", headers(1, b"", done=False) + ping(), "RFC 9113 6.10"),
    lost("U-17l", "a frame above our limit", b"\x10\0\1" + frame(DATA, 0, 1)[3:], "RFC 9113 4.2"),
    lost("U-17m", "PING of 7 bytes", frame(PING, 0, 0, bytes(7)), "RFC 9113 6.7"),
    lost("U-17n", "PING on a stream", frame(PING, 0, 1, bytes(8)), "RFC 9113 6.7"),
    lost("U-17o", "plain text", b"HTTP/1.1 400 Bad Request\r\n\r\n", "RFC 9113 3.4"),
    lost("U-17p", "GOAWAY that is too short", frame(7, 0, 0, bytes(7)), "RFC 9113 6.8"),
    BackendRow("U-17q", "GOAWAY(0) when the request has come", goaway(0), Status(), "gRFC A6", retried=True),
    BackendRow("U-17r", "GOAWAY(0) with an error", goaway(0, 2, b"dying"), Status(), "RFC 9113 6.8", retried=True),
    BackendRow("U-17s", "GOAWAY(1), then the answer", goaway(1) + WHOLE, Status(), "RFC 9113 6.8"),
    BackendRow("U-17t", "GOAWAY in two steps", goaway(2**31 - 1) + ping() + goaway(1) + WHOLE, Status(), "RFC 9113 6.8"),
    BackendRow("U-17u", "GOAWAY with a last stream that grows", goaway(1) + goaway(99) + WHOLE, Status(), "RFC 9113 6.8"),
    BackendRow("U-17v", "GOAWAY at once", b"", Status(), "gRFC A6", retried=True, greeting=settings() + goaway(0)),
    BackendRow("U-17w", "no streams at all", b"", Status(), "RFC 9113 6.5.2", keeps=True, retried=True, greeting=settings({MAX_CONCURRENT_STREAMS: 0})),
    BackendRow("U-17x", "a window of 0 for ever", b"", Status(DEADLINE), "RFC 9113 6.9.2", keeps=True, greeting=settings({INITIAL_WINDOW_SIZE: 0}), timeout=b"300m"),
    BackendRow("U-17y", "MAX_FRAME_SIZE of 1 at the beginning", b"", Status(), "RFC 9113 6.5.2", retried=True, greeting=settings({MAX_FRAME_SIZE: 1})),
    BackendRow("U-17z", "the connection ends without an answer", b"", Status(UNAVAILABLE), PROTOCOL, hangs_up=True),
    BackendRow("U-17A", "the connection ends within a message", HEAD + data(1, message(bytes(9000))[:-1]), CUT, PROTOCOL, hangs_up=True),
    BackendRow("U-17C", "the connection ends after a message", HEAD + data(1, message()), Status(UNAVAILABLE), PROTOCOL, hangs_up=True),
    BackendRow("U-17B", "the connection ends at once", b"", Status(), PROTOCOL, retried=True, greeting=b"", hangs_up=True),
    BackendRow("U-18", "no SETTINGS", b"", Status(), "RFC 9113 3.4", retried=True, greeting=None),
    BackendRow("U-18d", "SETTINGS are never acknowledged", WHOLE, Status(), "RFC 9113 6.5.3", acknowledges=False),
    BackendRow("U-18a", "PING in place of SETTINGS", b"", Status(), "RFC 9113 3.4", retried=True, greeting=ping() + settings()),
    BackendRow("U-18b", "an acknowledgement in place of SETTINGS", b"", Status(), "RFC 9113 3.4", retried=True, greeting=SETTINGS_ACK + settings()),
    BackendRow("U-18c", "HTTP/1.1 at once", b"", Status(), "RFC 9113 3.4", retried=True, greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n"),
]  # fmt: skip

FLOODS = [
    BackendRow(id_, f"a flood of {name}", HEAD + 3000 * one, BROKEN, "RFC 9113 10.5")
    for id_, name, one in (
        ("U-17F1", "PING", ping()),
        ("U-17F2", "SETTINGS", settings()),
        ("U-17F3", "PRIORITY", frame(PRIORITY, 0, 1, bytes(5))),
        ("U-17F4", "WINDOW_UPDATE", window_update(0, 1)),
        ("U-17F5", "empty DATA", data(1)),
        ("U-17F6", "unknown frames", frame(0x77, 0, 0, b"?")),
        ("U-17F7", "SETTINGS that move windows", settings({INITIAL_WINDOW_SIZE: 65_535})),
        ("U-17F8", "empty padded DATA", data(1, pad=0)),
    )
]

ROWS: list[BackendRow] = [*STATUSES, *TEXTS, *ANSWERS, *CONNECTIONS, *FLOODS]
BY_ID: dict[str, BackendRow] = {row.id: row for row in ROWS}
DEVIATIONS = {
    "U-1": "The backend's HTTP answer is passed on as it is; the client maps it to the same gRPC status as without us (test_http2_backends), and our metrics count that status.",
    "U-5": "Passed on as it came, for the same reason: gRPC clients make UNKNOWN or INTERNAL of it.",
}
