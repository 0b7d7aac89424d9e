"""gRPC requests that are malformed or unusual: rows G of the corpus, as raw frames.

Sources: "gRPC over HTTP2" (PROTOCOL-HTTP2.md) where none is named. Rows that need a clock, a
particular backend or many streams are tests of their own in `test_corpus_grpc`.
"""
# ruff: noqa: E501  # a row is a line where it can be

from __future__ import annotations

from tests.corpus.http2_row import (
    BEGUN,
    NOTHING,
    ONE,
    OPEN,
    Reach,
    Row,
    Status,
    call,
    fields,
    instead,
    without,
)
from tests.wire.frames import (
    METHOD_PATH,
    NO_ERROR,
    FieldPair,
    data,
    headers,
    literal,
    literals,
    message,
    named,
)

PROTOCOL = "gRPC over HTTP2"
INVALID_TIMEOUT = Status(13, then=NO_ERROR)
NOT_GRPC = Status(None, http=b"415")


def not_grpc(id_: str, about: str, head: list[FieldPair]) -> Row:
    """A head that is not gRPC, and ends the request."""
    return Row(id_, about, headers(1, head, end=True), NOT_GRPC, PROTOCOL)


def timeout(id_: str, value: bytes) -> Row:
    """A malformed deadline: INTERNAL, as grpc-go's and grpc-java's servers answer."""
    sent = call(1, None, (b"grpc-timeout", value))
    return Row(id_, f"timeout {value.decode()!r}", sent, INVALID_TIMEOUT, PROTOCOL)


def passed(id_: str, about: str, body: bytes, *frames: bytes) -> Row:
    """A body that is passed on byte for byte; in one frame unless `frames` says how."""
    sent = OPEN + (b"".join(frames) if frames else data(1, body, end=True))
    return Row(id_, about, sent, Status(), PROTOCOL, ONE, body=body)


def cut(id_: str, about: str, body: bytes, reach: Reach = NOTHING) -> Row:
    """A request that ends within its message: INTERNAL, as gRPC's C library answers."""
    return Row(id_, about, OPEN + data(1, body, end=True), Status(13), PROTOCOL, reach)


def carried(id_: str, about: str, *more: FieldPair) -> Row:
    """Fields that are passed on unchanged."""
    return Row(id_, about, call(1, None, *more), Status(), PROTOCOL, ONE, carries=more)


def path(id_: str, about: str, value: bytes) -> Row:
    """Another spelling of a path: whoever knows it answers, here the backend, as it came."""
    sent = headers(1, instead(b":path", value)) + data(1, named(), end=True)
    return Row(id_, about, sent, Status(), PROTOCOL, ONE, carries=((b":path", value),))


KINDS = [
    not_grpc("G-1", "content-type application/json", instead(b"content-type", b"application/json")),
    Row("G-1a", "content-type application/json with a body", headers(1, instead(b"content-type", b"application/json")) + data(1, b"{}", end=True), Status(None, http=b"415", then=NO_ERROR), PROTOCOL),
    Row("G-1b", "content-type application/json, body to come", headers(1, instead(b"content-type", b"application/json")), Status(None, http=b"415", then=NO_ERROR), PROTOCOL),
    not_grpc("G-1c", "no content-type", without(b"content-type")),
    not_grpc("G-1d", "empty content-type", instead(b"content-type", b"")),
    not_grpc("G-1e", "content-type that only begins so", instead(b"content-type", b"application/grpcweb")),
    not_grpc("G-1f", "content-type of gRPC-Web", instead(b"content-type", b"application/grpc-web+proto")),
    not_grpc("G-1g", "text/html", instead(b"content-type", b"text/html")),
    carried("G-1h", "a second content-type of gRPC", (b"x-content-type", b"application/json")),
    Row("G-1i", "content-type application/grpc+proto", headers(1, instead(b"content-type", b"application/grpc+proto")) + data(1, named(), end=True), Status(), PROTOCOL, ONE, carries=((b"content-type", b"application/grpc+proto"),)),
    Row("G-1j", "content-type application/grpc;charset=utf-8", headers(1, instead(b"content-type", b"application/grpc;charset=utf-8")) + data(1, named(), end=True), Status(), PROTOCOL, ONE),
    Row("G-2", "GET", headers(1, instead(b":method", b"GET"), end=True), Status(None, http=b"405"), PROTOCOL),
    Row("G-2a", "lower-case post", headers(1, instead(b":method", b"post"), end=True), Status(None, http=b"405"), PROTOCOL),
    Row("G-2b", "PUT with a message", headers(1, instead(b":method", b"PUT")) + data(1, named(), end=True), Status(None, http=b"405", then=NO_ERROR), PROTOCOL),
    Row("G-2c", "TRACE", headers(1, instead(b":method", b"TRACE"), end=True), Status(None, http=b"405"), PROTOCOL),
    Row("G-3", "no te", headers(1, without(b"te")) + data(1, named(), end=True), Status(), PROTOCOL, ONE, carries=((b"te", b"trailers"),)),
]  # fmt: skip

TIMEOUTS = [
    *(
        timeout(f"G-4{chr(97 + number)}", value)
        for number, value in enumerate(
            (b"1X", b"123456789S", b"-1S", b"", b"5", b"S", b"1.5S", b"1 S", b"0x1S", b"1s", b"1SS", b"+1S", b"1e3S", "٣S".encode())
        )
    ),
    carried("G-4y", "timeout twice", (b"grpc-timeout", b"10S"), (b"grpc-timeout", b"20S")),
    carried("G-4z", "timeout of eight digits", (b"grpc-timeout", b"99999999H")),
    Row("G-5", "timeout of 0n", call(1, None, (b"grpc-timeout", b"0n")), Status(4, then=NO_ERROR), PROTOCOL),
    Row("G-5a", "timeout of zero, body to come", headers(1, fields((b"grpc-timeout", b"0n"))), Status(4, then=NO_ERROR), PROTOCOL),
    Row("G-5b", "timeout of zero hours", call(1, None, (b"grpc-timeout", b"00000000H")), Status(4, then=NO_ERROR), PROTOCOL),
    Row("G-5c", "timeout of zero without a message", headers(1, fields((b"grpc-timeout", b"0m")), end=True), Status(4), PROTOCOL),
]  # fmt: skip

THOUSAND = 1000 * named()
SPLIT = message(b"\x0a\x01m" + bytes(992))
BODIES = [
    cut("G-6", "length of 4 GiB and five bytes", b"\0\xff\xff\xff\xff12345", BEGUN),
    cut("G-6a", "length of 2^31", b"\0\x80\0\0\0\x0a\x01m", BEGUN),
    passed("G-7", "compressed flag of 2", message(b"\x0a\x01m", flag=2)),
    passed("G-7a", "compressed flag of 255", message(b"\x0a\x01m", flag=255)),
    passed("G-7b", "compressed flag without grpc-encoding", message(b"\x0a\x01m", flag=1)),
    cut("G-8", "end inside the prefix", b"\0\0\0"),
    cut("G-8a", "end after one byte of the prefix", b"\0"),
    cut("G-8b", "end after the prefix", b"\0\0\0\0\x03"),
    cut("G-8c", "end inside a message", b"\0\0\0\0\x09\x0a\x01m", BEGUN),
    passed("G-8d", "end inside the second message", named() + b"\0\0\0\0\x09\x0a\x01m"),
    Row("G-9", "no message, HEADERS end", headers(1, fields(), end=True), Status(), PROTOCOL, ONE, body=b""),
    passed("G-9a", "no message, DATA ends", b""),
    passed("G-9b", "an empty message", message()),
    passed("G-10", "a thousand messages in one frame", THOUSAND),
    passed("G-10a", "a message in a thousand frames", SPLIT, *(data(1, SPLIT[at : at + 1]) for at in range(len(SPLIT))), data(1, end=True)),
    passed("G-10g", "5,000 small messages, a frame each", 5000 * named(), *(5000 * [data(1, named())]), data(1, end=True)),
    passed("G-10b", "two messages in three frames", 2 * named(), data(1, named()[:5]), data(1, named()[5:] + named()[:3]), data(1, named()[3:], end=True)),
    passed("G-10c", "a message of 300 kB in padded frames", message(b"\x0a\x01m" + bytes(300_000)), data(1, b"\0" + (300_003).to_bytes(4, "big") + b"\x0a\x01m", pad=255), *(data(1, bytes(10_000), pad=7) for _ in range(30)), data(1, pad=1, end=True)),
    passed("G-10d", "not protobuf", message(b"\xff" * 64)),
    passed("G-10e", "a field of 2^63 bytes", message(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")),
    passed("G-10f", "groups in groups", message(b"\x0b" * 200)),
]  # fmt: skip

NAMES = [
    path("G-11", "unknown service", b"/nobody.Knows/It"),
    path("G-11a", "unknown method", METHOD_PATH + b"X"),
    path("G-11b", "no method", b"/inference.GRPCInferenceService/"),
    path("G-11c", "nothing", b"/"),
    path("G-13", "two slashes in front", b"/" + METHOD_PATH),
    path("G-13a", "a query", METHOD_PATH + b"?x=1"),
    path("G-13b", "a slash behind", METHOD_PATH + b"/"),
    path("G-13c", "lower case", METHOD_PATH.lower()),
    path("G-13d", "percent-encoded", METHOD_PATH.replace(b"M", b"%4d")),
    path("G-13e", "dot segments", b"/x/.." + METHOD_PATH),
    path("G-13f", "a semicolon", METHOD_PATH + b";x=1"),
    path("G-13g", "a backslash", METHOD_PATH.replace(b"/M", b"\\M")),
]  # fmt: skip

FAKE_TRAILERS = [(b"grpc-status", b"0"), (b"grpc-message", b"all is well")]
METADATA = [
    Row("G-14", "request trailers with a status", OPEN + data(1, named()) + headers(1, FAKE_TRAILERS, end=True), Status(), PROTOCOL, ONE, body=named()),
    Row("G-14a", "request trailers with another status", OPEN + data(1, named()) + headers(1, [(b"grpc-status", b"13")], end=True), Status(0), PROTOCOL, ONE),
    Row("G-14b", "a status in the head of a request", call(1, None, (b"grpc-status", b"13")), Status(0), PROTOCOL, ONE),
    carried("G-16", "reserved metadata", (b"grpc-internal-encoding-request", b"gzip"), (b"grpc-foo", b"x")),
    carried("G-16a", "encodings", (b"grpc-encoding", b"gzip"), (b"grpc-accept-encoding", b"identity,deflate,gzip")),
    carried("G-16b", "earlier attempts", (b"grpc-previous-rpc-attempts", b"3")),
    carried("G-16c", "tags and traces", (b"grpc-tags-bin", b"AAAA"), (b"grpc-trace-bin", b"AAAA"), (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")),
    Row("G-17", "invalid base64 in -bin", call(1, None, (b"x-bin", b"!!*")), Status(13, then=NO_ERROR), PROTOCOL, NOTHING),
    carried("G-17a", "base64 with padding in -bin", (b"x-bin", b"AAA=")),
    carried("G-17b", "empty -bin", (b"x-bin", b"")),
    carried("G-17c", "two values of -bin", (b"x-bin", b"AAA"), (b"x-bin", b"BBB,CCC")),
    carried("G-17d", "metadata that is not ASCII", (b"x", b"\xc3\xa4\xff")),
    Row("G-17e", "metadata that must not be indexed", headers(1, literals(fields()) + literal(b"authorization", b"secret", 0x10)) + data(1, named(), end=True), Status(), PROTOCOL, ONE, carries=((b"authorization", b"secret"),)),
    Row("G-17f", "20 kB of metadata", call(1, None, *[(b"x-%d" % n, b"v" * 1000) for n in range(20)]), Status(), PROTOCOL, ONE),
    Row("G-17g", "40 kB of metadata", call(1, None, *[(b"x-%d" % n, b"v" * 1000) for n in range(40)]), Status(8, then=NO_ERROR), PROTOCOL),
    Row("G-17h", "three calls at once", call(1) + call(3) + call(5), Status(stream=5), PROTOCOL, Reach(3, 3)),
]  # fmt: skip

SERVICE = b"/inference.GRPCInferenceService/"
HEALTH = b"/grpc.health.v1.Health/Check"
OURS = [
    Row("G-11d", "ServerLive is ours", headers(1, fields(path=SERVICE + b"ServerLive")) + data(1, message(), end=True), Status(), PROTOCOL, NOTHING),
    Row("G-11e", "ServerLive without a message", headers(1, fields(path=SERVICE + b"ServerLive"), end=True), Status(13), PROTOCOL, NOTHING),  # as a Triton
    Row("G-11f", "ServerReady is ours", headers(1, fields(path=SERVICE + b"ServerReady")) + data(1, message(), end=True), Status(), PROTOCOL, NOTHING),
    Row("G-11g", "a health check is ours", headers(1, fields(path=HEALTH)) + data(1, message(b"\x0a\x01x"), end=True), Status(), PROTOCOL, NOTHING),
    Row("G-11h", "a health check with a body that is none", headers(1, fields(path=HEALTH)) + data(1, b"\xff" * 100, end=True), Status(13), PROTOCOL, NOTHING),  # as a Triton
    Row("G-11i", "another method of health is not ours", headers(1, fields(path=HEALTH + b"X")) + data(1, message(), end=True), Status(), PROTOCOL, ONE),
]  # fmt: skip

CONTROL = [
    b"RepositoryModelLoad",
    b"RepositoryModelUnload",
    b"SystemSharedMemoryRegister",
    b"SystemSharedMemoryUnregister",
    b"CudaSharedMemoryRegister",
    b"CudaSharedMemoryUnregister",
    b"TraceSetting",
    b"LogSettings",
]
"""Methods that change a server."""
LOAD = SERVICE + b"RepositoryModelLoad"


def denied(id_: str, about: str, value: bytes) -> Row:
    """A request that may not pass, whoever would take it for control."""
    sent = headers(1, instead(b":path", value)) + data(1, message(), end=True)
    return Row(id_, about, sent, Status(7, then=NO_ERROR), "KServe v2")


DENIED: list[Row] = [
    *(
        denied(f"G-12{chr(97 + number)}", name.decode(), SERVICE + name)
        for number, name in enumerate(CONTROL)
    ),
    Row("G-12m", "without a message", headers(1, instead(b":path", LOAD), end=True), Status(7), "KServe v2"),
    denied("G-13m", "a query", LOAD + b"?x=1"),
    denied("G-13n", "a slash behind", LOAD + b"/"),
    denied("G-13o", "two slashes in front", b"/" + LOAD),
    denied("G-13p", "lower case", LOAD.lower()),
    denied("G-13q", "percent-encoded", LOAD.replace(b"Repository", b"%52epository")),
    denied("G-13r", "percent-encoded twice", LOAD.replace(b"Repository", b"%2552epository")),
    denied("G-13s", "a semicolon", LOAD + b";x=1"),
    denied("G-13t", "two slashes inside", LOAD.replace(b"/Rep", b"//Rep")),
    path("G-12n", "what only looks is not denied", SERVICE + b"RepositoryIndex"),
    path("G-12o", "inference is not denied", METHOD_PATH),
]  # fmt: skip
"""For a process that lets nobody change a server."""

LIMIT = 65_536
"""`limits.body_bytes` of the process for `LIMITED`."""


def prefix(size: int) -> bytes:
    """What comes before a message of so many bytes, and how it begins."""
    return b"\0" + size.to_bytes(4, "big") + b"\x0a\x01m"


TOO_LONG = Status(8, then=NO_ERROR)
LIMITED: list[Row] = [
    Row("G-20", "a message one byte over the limit is refused by its prefix", OPEN + data(1, prefix(LIMIT + 1)), TOO_LONG, PROTOCOL),
    Row("G-20a", "a message of 4 GiB is refused by its prefix", OPEN + data(1, prefix(2**32 - 1)), TOO_LONG, PROTOCOL),
    Row("G-20b", "a message of 2 GiB is refused by its prefix", OPEN + data(1, prefix(2**31)), TOO_LONG, PROTOCOL),
    Row("G-20c", "the prefix in two frames", OPEN + data(1, prefix(LIMIT + 1)[:3]) + data(1, prefix(LIMIT + 1)[3:]), TOO_LONG, PROTOCOL, BEGUN),
    Row("G-20d", "the second message is over the limit", OPEN + data(1, named()) + data(1, prefix(LIMIT + 1)), TOO_LONG, PROTOCOL, BEGUN),
    passed("G-20e", "a message at the limit", prefix(LIMIT) + bytes(LIMIT - 3)),
    passed("G-20f", "messages below the limit, more than it together", 40 * (prefix(3000) + bytes(2997))),
]  # fmt: skip
"""For a process with a limit on messages."""

ROWS: list[Row] = [*KINDS, *TIMEOUTS, *BODIES, *NAMES, *METADATA, *OURS]
BY_ID: dict[str, Row] = {row.id: row for row in ROWS}
