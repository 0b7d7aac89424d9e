"""Requests that are malformed as messages (RFC 9113 section 8), or unusual: rows M of the corpus.

A malformed one is answered with INTERNAL and with what is wrong, because clients of gRPC show a
reset as a lost connection. Where it does not say that it is of gRPC, its stream is reset with
PROTOCOL_ERROR. The connection lives, and no backend hears of it, unless only its end shows that it
is malformed.
"""
# ruff: noqa: E501  # a row is a line where it can be

from __future__ import annotations

from tests.corpus.http2_row import (
    BEGUN,
    HEAD,
    NOTHING,
    ONE,
    Reach,
    Reset,
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
    PROTOCOL_ERROR,
    FieldPair,
    continuation,
    data,
    headers,
    literal,
    named,
)

TOLD = Status(13, then=NO_ERROR)
"""While more of the request is to come."""
TOLD_AT_END = Status(13)


def bad(id_: str, about: str, head: list[FieldPair], source: str) -> Row:
    """A head that is malformed, with a good body."""
    sent = headers(1, head) + data(1, named(), end=True)
    return Row(id_, about, sent, TOLD, source)


def flaw(id_: str, about: str, head: list[FieldPair], source: str) -> Row:
    """A head that is malformed and not of gRPC, with a good body."""
    sent = headers(1, head) + data(1, named(), end=True)
    return Row(id_, about, sent, Reset(PROTOCOL_ERROR), source)


def more(id_: str, about: str, source: str, *added: FieldPair) -> Row:
    """A good head with malformed fields behind it."""
    return bad(id_, about, fields(*added), source)


def good(id_: str, about: str, head: list[FieldPair], source: str) -> Row:
    """A head that is fine, with a good body."""
    sent = headers(1, head) + data(1, named(), end=True)
    return Row(id_, about, sent, Status(), source, ONE)


FIELDS = [
    more("M-1", "upper-case name", "8.2.1", (b"X-Upper", b"a")),
    more("M-1a", "upper-case last letter", "8.2.1", (b"x-uppeR", b"a")),
    bad("M-1b", "upper-case pseudo-field", [(b":Path", METHOD_PATH), *without(b":path")], "8.3"),
    more("M-2", "connection field", "8.2.2", (b"connection", b"close")),
    more("M-2a", "proxy-connection field", "8.2.2", (b"proxy-connection", b"close")),
    more("M-2b", "keep-alive field", "8.2.2", (b"keep-alive", b"1")),
    more("M-2c", "upgrade field", "8.2.2", (b"upgrade", b"h2c")),
    more("M-3", "transfer-encoding field", "8.2.2", (b"transfer-encoding", b"chunked")),
    more("M-3a", "transfer-encoding beside content-length", "8.2.2", (b"content-length", b"8"), (b"transfer-encoding", b"chunked")),
    more("M-3b", "transfer-encoding identity", "8.2.2", (b"transfer-encoding", b"identity")),
    more("M-6", "two content-lengths", "8.1.1", (b"content-length", b"8"), (b"content-length", b"8")),
    more("M-6a", "two content-lengths that differ", "8.1.1", (b"content-length", b"8"), (b"content-length", b"9")),
    more("M-6b", "content-length +8", "RFC 9110 8.6", (b"content-length", b"+8")),
    more("M-6c", "content-length list", "RFC 9110 8.6", (b"content-length", b"8, 8")),
    more("M-6d", "content-length in other digits", "RFC 9110 8.6", (b"content-length", "٨".encode())),
    more("M-6e", "empty content-length", "RFC 9110 8.6", (b"content-length", b"")),
    more("M-6f", "content-length -1", "RFC 9110 8.6", (b"content-length", b"-1")),
    more("M-6g", "content-length 0x8", "RFC 9110 8.6", (b"content-length", b"0x8")),
    more("M-6h", "content-length of 20 digits", "RFC 9110 8.6", (b"content-length", b"18446744073709551624")),
    bad("M-7", "te other than trailers", instead(b"te", b"gzip"), "8.2.2"),
    bad("M-7a", "te with more than trailers", instead(b"te", b"trailers, gzip"), "8.2.2"),
    bad("M-7b", "empty te", instead(b"te", b""), "8.2.2"),
    more("M-7c", "te twice", "8.2.2", (b"te", b"trailers")),
    more("M-8", "CR in a value", "8.2.1", (b"x", b"a\rb")),
    more("M-8a", "LF in a value", "8.2.1", (b"x", b"a\nb")),
    more("M-8b", "LF at the end of a value", "8.2.1", (b"x", b"a\n")),
    more("M-9", "NUL in a value", "8.2.1", (b"x", b"a\0b")),
    more("M-10", "CRLF in a value", "8.2.1", (b"x", b"a\r\nhost: b")),
    more("M-10a", "a whole request in a value", "8.2.1", (b"x", b"a\r\n\r\nGET /admin HTTP/1.1\r\nHost: b\r\n\r\n")),
    more("M-11", "CRLF and colon in a name", "8.2.1", (b"x\r\nhost: b", b"a")),
    more("M-11a", "colon in a name", "8.2.1", (b"x:y", b"a")),
    more("M-11b", "LF in a name", "8.2.1", (b"x\ny", b"a")),
    more("M-12", "empty name", "8.2.1", (b"", b"a")),
    more("M-12a", "empty name and value", "8.2.1", (b"", b"")),
    more("M-12b", "colon only", "8.3", (b":", b"a")),
    more("M-13", "space in a name", "8.2.1", (b"x y", b"a")),
    more("M-13a", "space after a name", "8.2.1", (b"content-length ", b"8")),
    more("M-13b", "NUL in a name", "8.2.1", (b"x\0", b"a")),
    more("M-13c", "DEL in a name", "8.2.1", (b"x\x7f", b"a")),
    more("M-13d", "high byte in a name", "8.2.1", (b"x\xe4", b"a")),
    more("M-13e", "tab in a name", "8.2.1", (b"x\ty", b"a")),
    more("M-13f", "brackets in a name", "RFC 9110 5.1", (b"x(y)", b"a")),
]  # fmt: skip

PSEUDO = [
    bad("M-14", "no :method", without(b":method"), "8.3.1"),
    bad("M-14a", "empty :method", instead(b":method", b""), "8.3.1"),
    bad("M-15", "no :path", without(b":path"), "8.3.1"),
    bad("M-16", "empty :path", instead(b":path", b""), "8.3.1"),
    bad("M-17", "no :scheme", without(b":scheme"), "8.3.1"),
    bad("M-17a", "empty :scheme", instead(b":scheme", b""), "8.3.1"),
    flaw("M-17b", "nothing at all", [], "8.3.1"),
    bad("M-18", "two :methods", [(b":method", b"POST"), *fields()], "8.3.1"),
    bad("M-18a", "two :methods that differ", [(b":method", b"GET"), *fields()], "8.3.1"),
    bad("M-19", "two :paths", [(b":path", METHOD_PATH), *fields()], "8.3.1"),
    bad("M-19a", "two :paths that differ", [(b":path", b"/"), *fields()], "8.3.1"),
    bad("M-20", "two :schemes", [(b":scheme", b"http"), *fields()], "8.3.1"),
    bad("M-20a", "two :authorities", [(b":authority", b"lb.test"), *fields()], "8.3.1"),
    bad("M-21", "unknown pseudo-field", [(b":test", b"x"), *fields()], "8.3"),
    bad("M-22", "pseudo-field of responses", [(b":status", b"200"), *fields()], "8.3"),
    more("M-23", "pseudo-field after the others", "8.3", (b":method", b"POST")),
    bad("M-23a", ":path after the others", [*without(b":path"), (b":path", METHOD_PATH)], "8.3"),
    bad("M-24", "CRLF in :path", instead(b":path", b"/a HTTP/1.1\r\nx: y"), "8.2.1"),
    bad("M-24a", "NUL in :path", instead(b":path", b"/a\0"), "8.2.1"),
    bad("M-25", "CRLF in :method", instead(b":method", b"POST / HTTP/1.1\r\nhost: b"), "8.2.1"),
    bad("M-25a", "space in :method", instead(b":method", b"POST /"), "8.3.1"),
    bad("M-26", "CRLF in :authority", instead(b":authority", b"a\r\nx: y"), "8.2.1"),
    bad("M-26a", "user in :authority", instead(b":authority", b"a@b"), "8.3.1"),
    bad("M-26b", "path in :authority", instead(b":authority", b"a/b"), "8.3.1"),
    bad("M-26c", "space in :authority", instead(b":authority", b"a b"), "8.3.1"),
    bad("M-27", "request in :scheme", instead(b":scheme", b"http://b/ HTTP/1.1\r\n"), "8.2.1"),
    bad("M-27a", "unknown :scheme", instead(b":scheme", b"ftp"), "8.3.1"),
    bad("M-27b", "path in :scheme", instead(b":scheme", b"https://b/admin?"), "8.3.1"),
    bad("M-28", ":path without a slash", instead(b":path", METHOD_PATH[1:]), "8.3.1"),
    bad("M-28a", "absolute :path", instead(b":path", b"http://b" + METHOD_PATH), "8.3.1"),
    bad("M-28b", "asterisk with POST", instead(b":path", b"*"), "8.3.1"),
    bad("M-29", "space in :path", instead(b":path", METHOD_PATH + b" HTTP/1.1"), "8.3.1"),
    bad("M-29a", "fragment in :path", instead(b":path", METHOD_PATH + b"#x"), "8.3.1"),
    bad("M-29c", "tab in :path", instead(b":path", METHOD_PATH + b"\tx"), "8.3.1"),
    bad("M-30b", "user in host", [*without(b":authority"), (b"host", b"a@b")], "8.3.1"),
    flaw("M-31", "CONNECT", [(b":method", b"CONNECT"), (b":authority", b"a:1")], "8.5"),
    Row("M-31a", "CONNECT with :scheme and :path", headers(1, instead(b":method", b"CONNECT")), Status(None, http=b"405", then=NO_ERROR), "8.5"),
    bad("M-31b", "extended CONNECT, which we do not offer", [(b":protocol", b"websocket"), *instead(b":method", b"CONNECT")], "RFC 8441 3"),
    bad("M-31c", ":protocol with POST", [(b":protocol", b"websocket"), *fields()], "RFC 8441 4"),
]  # fmt: skip

OPEN_HEAD = headers(1, fields())
BODIES = [
    Row("M-4", "more than content-length", call(1, named(), (b"content-length", b"7")), TOLD_AT_END, "8.1.1", BEGUN),
    Row("M-4a", "content-length of 0 and a body", call(1, named(), (b"content-length", b"0")), TOLD_AT_END, "8.1.1", BEGUN),
    Row("M-4b", "more than content-length, in frames", headers(1, fields((b"content-length", b"9"))) + data(1, named()) + data(1, b"xy", end=True), TOLD_AT_END, "8.1.1", BEGUN),
    Row("M-5", "less than content-length", call(1, named(), (b"content-length", b"9")), TOLD_AT_END, "8.1.1", BEGUN),
    Row("M-5a", "less than content-length, in frames", headers(1, fields((b"content-length", b"11"))) + data(1, named()) + data(1, b"xy", end=True), TOLD_AT_END, "8.1.1", BEGUN),
    Row("M-5b", "content-length without a body", headers(1, fields((b"content-length", b"8")), end=True), TOLD_AT_END, "8.1.1"),
    Row("M-5c", "less than content-length, then trailers", headers(1, fields((b"content-length", b"9"))) + data(1, named()) + headers(1, [(b"x", b"y")], end=True), TOLD_AT_END, "8.1.1", BEGUN),
    Row("M-5d", "padding counted for content-length", headers(1, fields((b"content-length", b"12"))) + data(1, named(), pad=3, end=True), TOLD_AT_END, "8.1.1", BEGUN),
    Row("M-32", "pseudo-field in trailers", OPEN_HEAD + data(1, named()) + headers(1, [(b":method", b"POST")], end=True), TOLD, "8.1", BEGUN),
    Row("M-32a", "status in trailers", OPEN_HEAD + data(1, named()) + headers(1, [(b":status", b"200")], end=True), TOLD, "8.1", BEGUN),
    Row("M-32b", "connection field in trailers", OPEN_HEAD + data(1, named()) + headers(1, [(b"x", b"y"), (b"connection", b"x")], end=True), TOLD, "8.2.2", BEGUN),
    Row("M-32c", "upper case in trailers", OPEN_HEAD + data(1, named()) + headers(1, [(b"X", b"y")], end=True), TOLD, "8.2.1", BEGUN),
    Row("M-32d", "CRLF in trailers", OPEN_HEAD + data(1, named()) + headers(1, [(b"x", b"y\r\nz: a")], end=True), TOLD, "8.2.1", BEGUN),
    Row("M-33", "second HEADERS without END_STREAM", OPEN_HEAD + headers(1, [(b"x", b"y")]), TOLD, "8.1"),
    Row("M-33a", "second HEADERS without END_STREAM, after DATA", OPEN_HEAD + data(1, named()) + headers(1, [(b"x", b"y")]), TOLD, "8.1", BEGUN),
    Row("M-33b", "second head with pseudo-fields", OPEN_HEAD + headers(1, fields(), end=True), TOLD, "8.1"),
]  # fmt: skip

UNUSUAL = [
    Row("M-34", "trailers", OPEN_HEAD + data(1, named()) + headers(1, [(b"grpc-status", b"0")], end=True), Status(), "8.1", ONE),
    Row("M-34a", "trailers alone", OPEN_HEAD + headers(1, [(b"x", b"y")], end=True), Status(), "8.1", ONE),
    Row("M-34b", "empty trailers", OPEN_HEAD + data(1, named()) + headers(1, b"", end=True), Status(), "8.1", ONE),
    Row("M-34c", "trailers in parts", OPEN_HEAD + data(1, named()) + headers(1, literal(b"x", b"y"), end=True, done=False) + continuation(1, literal(b"z", b"")), Status(), "8.1", ONE),
    Row("M-35", "a value of 16 kB in CONTINUATION", headers(1, HEAD, done=False) + continuation(1, literal(b"x-large", b"v" * 16_000)) + data(1, named(), end=True), Status(), "10.5.1", ONE),
    Row("M-36", "40 kB of fields", call(1, None, (b"x", b"v" * 40_000)), Status(8, then=NO_ERROR), "10.5.1"),
    Row("M-36a", "101 fields", call(1, None, *[(b"x", b"")] * 94), Status(8, then=NO_ERROR), "10.5.1"),
    Row("M-36b", "100 fields", call(1, None, *[(b"x", b"")] * 93), Status(), "10.5.1", ONE),
    good("M-37", "underscore in a name", fields((b"x_y", b"a")), "8.2.1"),
    Row("M-37a", "an underscore that makes a twin of content-length", call(1, None, (b"content_length", b"5")), Status(), "RFC 3875 4.1.18", ONE, absent=(b"content_length",)),
    Row("M-37b", "an underscore that makes a twin of x-forwarded-for", call(1, None, (b"x_forwarded_for", b"127.0.0.1")), Status(), "RFC 3875 4.1.18", ONE, absent=(b"x_forwarded_for",)),
    good("M-38", "bytes above ASCII in a value", fields((b"x", b"\xc3\xa4\xff")), "RFC 9110 5.5"),
    good("M-38a", "empty value", fields((b"x", b"")), "RFC 9110 5.5"),
    good("M-29b", "raw UTF-8 in :path", instead(b":path", METHOD_PATH + "/ä".encode()), "RFC 3986 2"),
    Row("M-10b", "space before a value", call(1, None, (b"x-a", b" v")), Status(), "RFC 9110 5.5", ONE, carries=((b"x-a", b"v"),)),
    Row("M-10c", "tab after a value", call(1, None, (b"x-a", b"v\t ")), Status(), "RFC 9110 5.5", ONE, carries=((b"x-a", b"v"),)),
    # RFC 9113 8.3.1 would have it refused; KServe and Istio route by it, and gRPC servers take it.
    Row("M-30", "host other than :authority", call(1, None, (b"host", b"other.test")), Status(), "8.3.1", ONE, carries=((b"host", b"other.test"),)),
    good("M-30a", "two hosts", fields((b"host", b"lb.test"), (b"host", b"other.test")), "8.3.1"),
    good("M-38b", "tab and space inside a value", fields((b"x", b"a \t b")), "RFC 9110 5.5"),
    good("M-38c", "the same field many times", fields(*[(b"x", b"%d" % n) for n in range(80)]), "RFC 9110 5.3"),
    good("M-38d", "every letter of a token as a name", fields((b"!#$%&'*+-.^`|~09az", b"a")), "RFC 9110 5.6.2"),
    good("M-39", "host as :authority", fields((b"host", b"lb.test")), "8.3.1"),
    good("M-39a", "host without :authority", [*without(b":authority"), (b"host", b"lb.test")], "8.3.1"),
    good("M-39b", "no authority", without(b":authority"), "8.3.1"),
    good("M-39c", "IPv6 and port as :authority", instead(b":authority", b"[::1]:8001"), "8.3.1"),
    good("M-39d", "scheme https", instead(b":scheme", b"https"), "8.3.1"),
    good("M-39e", "pseudo-fields in another order", [fields()[n] for n in (3, 2, 1, 0, 4, 5, 6)], "8.3"),
    good("M-40", "content-length that fits", fields((b"content-length", b"8")), "8.1.1"),
    good("M-40a", "content-length with zeros in front", fields((b"content-length", b"0008")), "RFC 9110 8.6"),
    good("M-40b", "te between other fields", [*without(b"te"), (b"a", b"b"), (b"te", b"trailers")], "8.2.2"),
    Row("M-40c", "content-length of 0 without a body", headers(1, fields((b"content-length", b"0")), end=True), Status(), "8.1.1", ONE),
    Row("M-41", "two calls, the second before the first is complete", headers(1, fields()) + call(3) + data(1, named(), end=True), Status(), "5.1.1", Reach(2, 2)),
    Row("M-42", "OPTIONS *", headers(1, [(b":method", b"OPTIONS"), *without(b":method")[:1], (b":path", b"*"), *without(b":method")[2:]], end=True), Status(None, http=b"405"), "8.3.1", NOTHING),
]  # fmt: skip

ROWS = [*FIELDS, *PSEUDO, *BODIES, *UNUSUAL]
