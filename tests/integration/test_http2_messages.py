"""Requests that are malformed as messages (RFC 9113 section 8) or as gRPC: the stream gets the
right answer, the connection lives, and the backend hears nothing of what is malformed."""
# ruff: noqa: E501  # a case is a line where it can be

from __future__ import annotations

import pytest

from tests.fakes.frame_cases import Case, answers, resets, try_case
from tests.fakes.frames import (
    METHOD_PATH,
    NO_ERROR,
    PROTOCOL_ERROR,
    FieldPair,
    call,
    data,
    headers,
    message,
    named,
    request_fields,
)

BOTH_LOOPS = True
MODES = pytest.mark.parametrize("piecewise", [False, True], ids=["at once", "in pieces"])


def without(name: bytes) -> list[FieldPair]:
    """A good head but for one field."""
    return [pair for pair in request_fields() if pair[0] != name]


def instead(name: bytes, value: bytes) -> list[FieldPair]:
    """A good head with another value in one field."""
    return [(name, value) if pair[0] == name else pair for pair in request_fields()]


def bad(name: str, fields: list[FieldPair]) -> Case:
    """A head that is malformed, with a good body."""
    return Case(name, headers(1, fields) + data(1, named(), end=True), resets(PROTOCOL_ERROR))


def with_field(name: str, *more: FieldPair) -> Case:
    """A good head with malformed fields behind it."""
    return bad(name, request_fields(*more))


MALFORMED = [
    with_field("upper-case name", (b"X-Upper", b"a")),
    with_field("connection field", (b"connection", b"close")),
    with_field("proxy-connection field", (b"proxy-connection", b"close")),
    with_field("keep-alive field", (b"keep-alive", b"1")),
    with_field("transfer-encoding field", (b"transfer-encoding", b"chunked")),
    with_field("upgrade field", (b"upgrade", b"h2c")),
    with_field("two content-lengths", (b"content-length", b"8"), (b"content-length", b"8")),
    with_field("content-length +8", (b"content-length", b"+8")),
    with_field("content-length list", (b"content-length", b"8, 8")),
    with_field("content-length in other digits", (b"content-length", "٨".encode())),
    with_field("empty content-length", (b"content-length", b"")),
    bad("te other than trailers", instead(b"te", b"gzip")),
    bad("te with more than trailers", instead(b"te", b"trailers, gzip")),
    with_field("te twice", (b"te", b"trailers")),
    with_field("NUL in a value", (b"x", b"a\0b")),
    with_field("CR in a value", (b"x", b"a\rb")),
    with_field("LF in a value", (b"x", b"a\nb")),
    with_field("CRLF in a value", (b"x", b"a\r\nhost: b")),
    with_field("space before a value", (b"x", b" a")),
    with_field("tab after a value", (b"x", b"a\t")),
    with_field("CRLF in a name", (b"x\r\nhost: b", b"a")),
    with_field("colon in a name", (b"x:y", b"a")),
    with_field("space in a name", (b"x y", b"a")),
    with_field("NUL in a name", (b"x\0", b"a")),
    with_field("DEL in a name", (b"x\x7f", b"a")),
    with_field("high byte in a name", (b"x\xe4", b"a")),
    with_field("empty name", (b"", b"a")),
    with_field("colon only", (b":", b"a")),
    bad("no :method", without(b":method")),
    bad("no :path", without(b":path")),
    bad("no :scheme", without(b":scheme")),
    bad("nothing at all", []),
    bad("two :methods", [(b":method", b"POST"), *request_fields()]),
    bad("two :paths", [(b":path", METHOD_PATH), *request_fields()]),
    bad("two :schemes", [(b":scheme", b"http"), *request_fields()]),
    bad("two :authorities", [(b":authority", b"lb.test"), *request_fields()]),
    bad("unknown pseudo-field", [(b":protocol", b"websocket"), *request_fields()]),
    bad("pseudo-field of responses", [(b":status", b"200"), *request_fields()]),
    with_field("pseudo-field after the others", (b":method", b"POST")),
    bad("CRLF in :method", instead(b":method", b"POST / HTTP/1.1\r\nhost: b")),
    bad("empty :method", instead(b":method", b"")),
    bad("empty :path", instead(b":path", b"")),
    bad("unknown :scheme", instead(b":scheme", b"ftp")),
    bad("request in :scheme", instead(b":scheme", b"http://b/ HTTP/1.1\r\n")),
    bad("space in :path", instead(b":path", b"/a b")),
    bad("CRLF in :path", instead(b":path", b"/a\r\nx: y")),
    bad("fragment in :path", instead(b":path", METHOD_PATH + b"#x")),
    bad("raw bytes in :path", instead(b":path", b"/\xc3\xa4")),
    bad(":path without a slash", instead(b":path", b"v2/models")),
    bad("absolute :path", instead(b":path", b"http://b/v2")),
    bad("asterisk with POST", instead(b":path", b"*")),
    bad("user in :authority", instead(b":authority", b"a@b")),
    bad("path in :authority", instead(b":authority", b"a/b")),
    with_field("host other than :authority", (b"host", b"other.test")),
    with_field("two hosts", (b"host", b"lb.test"), (b"host", b"lb.test")),
    bad("CONNECT", [(b":method", b"CONNECT"), (b":authority", b"a:1")]),
    Case("second head without END_STREAM", headers(1, request_fields()) + headers(1, [(b"x", b"y")]), resets(PROTOCOL_ERROR)),
    Case("second head with pseudo-fields", headers(1, request_fields()) + headers(1, request_fields(), end=True), resets(PROTOCOL_ERROR)),
    Case("status in trailers", headers(1, request_fields()) + data(1, named()) + headers(1, [(b":status", b"200")], end=True), resets(PROTOCOL_ERROR)),
    Case("connection field in trailers", headers(1, request_fields()) + data(1, named()) + headers(1, [(b"te", b"trailers"), (b"connection", b"x")], end=True), resets(PROTOCOL_ERROR)),
    Case("content-length without a body", headers(1, request_fields((b"content-length", b"8")), end=True), resets(PROTOCOL_ERROR)),
    Case("less than content-length", call(1, named(), (b"content-length", b"9")), resets(PROTOCOL_ERROR)),
    Case("more than content-length", call(1, named(), (b"content-length", b"7")), resets(PROTOCOL_ERROR)),
    Case("less than content-length, then trailers", headers(1, request_fields((b"content-length", b"9"))) + data(1, named()) + headers(1, [(b"x", b"y")], end=True), resets(PROTOCOL_ERROR)),
]  # fmt: skip


UNUSUAL = [
    Case("underscore in a name", call(1, None, (b"x_y", b"a")), answers()),
    Case("bytes above ASCII in a value", call(1, None, (b"x", b"\xc3\xa4\xff")), answers()),
    Case("empty value", call(1, None, (b"x", b"")), answers()),
    Case("the same field many times", call(1, None, *[(b"x", b"%d" % n) for n in range(80)]), answers()),
    Case("host as :authority", call(1, None, (b"host", b"lb.test")), answers()),
    Case("host without :authority", headers(1, [*without(b":authority"), (b"host", b"lb.test")]) + data(1, named(), end=True), answers()),
    Case("no authority", headers(1, without(b":authority")) + data(1, named(), end=True), answers()),
    Case("scheme https", headers(1, instead(b":scheme", b"https")) + data(1, named(), end=True), answers()),
    Case("content-length that fits", call(1, named(), (b"content-length", b"8")), answers()),
    Case("content-length with zeros in front", call(1, named(), (b"content-length", b"0008")), answers()),
    Case("pseudo-fields in another order", headers(1, [request_fields()[i] for i in (3, 2, 1, 0, 4, 5)]) + data(1, named(), end=True), answers()),
    Case("trailers", headers(1, request_fields()) + data(1, named()) + headers(1, [(b"grpc-status", b"0")], end=True), answers()),
    Case("trailers alone", headers(1, request_fields()) + headers(1, [(b"x", b"y")], end=True), answers()),
    Case("no te", headers(1, without(b"te")) + data(1, named(), end=True), answers()),
    Case("no body", headers(1, request_fields(), end=True), answers()),
    Case("length of 4 GiB and five bytes", call(1, b"\0\xff\xff\xff\xff12345"), answers()),
    Case("compressed flag of 2", call(1, message(b"\x0a\x01m", flag=2)), answers()),
    Case("end inside the prefix", call(1, b"\0\0\0"), answers()),
    Case("end inside a message", call(1, b"\0\0\0\0\x09\x0a\x01m"), answers()),
    Case("reserved metadata", call(1, None, (b"grpc-internal-encoding-request", b"gzip"), (b"grpc-foo", b"x")), answers()),
    Case("invalid base64 in -bin", call(1, None, (b"x-bin", b"!!*")), answers()),
    Case("timeout of eight digits", call(1, None, (b"grpc-timeout", b"99999999H")), answers()),
    Case("a path with a query", headers(1, instead(b":path", METHOD_PATH + b"?x=1")) + data(1, named(), end=True), answers()),
    Case("a thousand messages in one frame", call(1, 1000 * named()), answers()),
    Case("a message in a thousand frames", headers(1, request_fields()) + b"".join(data(1, b"x") for _ in message(bytes(995))) + data(1, end=True), answers()),
]  # fmt: skip
"""Reaches the backend as it is."""

REFUSED = [
    Case("another content-type", headers(1, instead(b"content-type", b"application/json")) + data(1, b"{}", end=True), answers(None, http=b"415", then=NO_ERROR)),
    Case("another content-type, body to come", headers(1, instead(b"content-type", b"application/json")), answers(None, http=b"415", then=NO_ERROR)),
    Case("content-type that only begins so", headers(1, instead(b"content-type", b"application/grpcweb"), end=True), answers(None, http=b"415")),
    Case("no content-type", headers(1, without(b"content-type"), end=True), answers(None, http=b"415")),
    Case("GET", headers(1, instead(b":method", b"GET"), end=True), answers(None, http=b"405")),
    Case("lower-case post", headers(1, instead(b":method", b"post"), end=True), answers(None, http=b"405")),
    Case("timeout without a unit", call(1, None, (b"grpc-timeout", b"1X")), answers(13, then=NO_ERROR)),
    Case("timeout of nine digits", call(1, None, (b"grpc-timeout", b"123456789S")), answers(13, then=NO_ERROR)),
    Case("negative timeout", call(1, None, (b"grpc-timeout", b"-1S")), answers(13, then=NO_ERROR)),
    Case("empty timeout", call(1, None, (b"grpc-timeout", b"")), answers(13, then=NO_ERROR)),
    Case("timeout of digits only", call(1, None, (b"grpc-timeout", b"5")), answers(13, then=NO_ERROR)),
    Case("timeout of zero", call(1, None, (b"grpc-timeout", b"0n")), answers(4, then=NO_ERROR)),
    Case("timeout of zero, body to come", headers(1, request_fields((b"grpc-timeout", b"0n"))), answers(4, then=NO_ERROR)),
    Case("101 fields", call(1, None, *[(b"x", b"")] * 95), answers(8, then=NO_ERROR)),
    Case("40 kB of metadata", call(1, None, (b"x", b"v" * 40_000)), answers(8, then=NO_ERROR)),
]  # fmt: skip
"""Answered here; the backend hears nothing."""


@MODES
@pytest.mark.parametrize("case", MALFORMED, ids=str)
async def test_malformed(case: Case, piecewise: bool) -> None:
    _, reached = await try_case(case, piecewise=piecewise)
    assert reached == 0


@MODES
@pytest.mark.parametrize("case", UNUSUAL, ids=str)
async def test_unusual_and_passed_on(case: Case, piecewise: bool) -> None:
    _, reached = await try_case(case, piecewise=piecewise)
    assert reached == 1


@MODES
@pytest.mark.parametrize("case", REFUSED, ids=str)
async def test_refused_here(case: Case, piecewise: bool) -> None:
    _, reached = await try_case(case, piecewise=piecewise)
    assert reached == 0
