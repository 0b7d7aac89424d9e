"""Requests that clients should not send, and the right answer to each.

The rows name the rule, not one server's quirk. `status` is the answer to the first request;
`reaches_backend` says how many requests may be relayed. A row with status 200 is legal though
unusual and must be relayed in its clean form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BadRequest:
    """One row of the corpus."""

    name: str
    wire: bytes
    status: int
    reaches_backend: int = 0
    half_close: bool = False
    """The client shuts its writing side down after these bytes."""

    def __str__(self) -> str:
        return self.name


def _get(fields: bytes, line: bytes = b"GET / HTTP/1.1") -> bytes:
    return line + b"\r\n" + fields + b"\r\n"


def _post(fields: bytes, body: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n" + body


def _chunked(body: bytes) -> bytes:
    return _post(b"Transfer-Encoding: chunked\r\n", body)


_HOST: Final = b"Host: a\r\n"
_HELLO: Final = b"hello"
_TE: Final = b"Transfer-Encoding: chunked\r\n"

FRAMING: Final = (
    BadRequest("CLTE-1 both", _post(b"Content-Length: 6\r\n" + _TE, b"0\r\n\r\nG"), 400),
    BadRequest(
        "TECL-1 both, coding first",
        _post(
            _TE + b"Content-Length: 4\r\n", b"5c\r\nGPOST / HTTP/1.1\r\nHost: a\r\n\r\n0\r\n\r\n"
        ),
        400,
    ),
    BadRequest("TETE-1 two lines", _post(_TE + _TE, b"0\r\n\r\n"), 400),
    BadRequest("TETE-2 two lines, case", _post(_TE + b"tRANSFER-eNCODING: CHUNKED\r\n"), 400),
    BadRequest("TETE-3 twice", _post(b"Transfer-Encoding: chunked, chunked\r\n"), 400),
    BadRequest("TETE-4 gzip line first", _post(b"Transfer-Encoding: gzip\r\n" + _TE), 501),
    BadRequest("TETE-5 other coding first", _post(b"Transfer-Encoding: gzip, chunked\r\n"), 501),
    BadRequest("TE-1 unknown coding", _post(b"Transfer-Encoding: xchunked\r\n"), 501),
    BadRequest(
        "TE-2 identity", _post(b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n"), 501
    ),
    BadRequest("TE-3 leading comma", _post(b"Transfer-Encoding: ,chunked\r\n"), 400),
    BadRequest("TE-4 trailing comma", _post(b"Transfer-Encoding: chunked,\r\n"), 400),
    BadRequest("TE-5 empty", _post(b"Transfer-Encoding: \r\n"), 400),
    BadRequest("TE-6 NUL behind", _post(b"Transfer-Encoding: chunked\x00\r\n"), 400),
    BadRequest("TE-7 vertical tab before", _post(b"Transfer-Encoding: \x0bchunked\r\n"), 400),
    BadRequest("TE-8 quoted", _post(b'Transfer-Encoding: "chunked"\r\n'), 400),
    BadRequest("TE-9 no-break space behind", _post(b"Transfer-Encoding: chunked\xa0\r\n"), 400),
    BadRequest("TE-10 space before colon", _post(b"Transfer-Encoding : chunked\r\n"), 400),
    BadRequest("TE-11 folded", _post(b"Transfer-Encoding:\r\n chunked\r\n"), 400),
    BadRequest("TE-12 parameter", _post(b"Transfer-Encoding: chunked;ext=1\r\n"), 400),
    BadRequest("TE-14 in HTTP/1.0", _get(_HOST + _TE, b"POST / HTTP/1.0") + b"0\r\n\r\n", 400),
    BadRequest("TE-15 underscore", _post(b"Transfer_Encoding: chunked\r\n"), 200, 1),
    BadRequest("CL-1 two", _post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"helloX"), 400),
    BadRequest("CL-2 twice the same", _post(b"Content-Length: 5\r\nContent-Length: 5\r\n"), 400),
    BadRequest("CL-3 list", _post(b"Content-Length: 5, 6\r\n", b"helloX"), 400),
    BadRequest("CL-4 list of equals", _post(b"Content-Length: 5, 5\r\n", _HELLO), 400),
    BadRequest("CL-5 plus", _post(b"Content-Length: +5\r\n", _HELLO), 400),
    BadRequest("CL-6 minus", _post(b"Content-Length: -5\r\n", _HELLO), 400),
    BadRequest("CL-7 hexadecimal", _post(b"Content-Length: 0x5\r\n", _HELLO), 400),
    BadRequest("CL-8 underscore", _post(b"Content-Length: 1_0\r\n", _HELLO), 400),
    BadRequest("CL-9 inner space", _post(b"Content-Length: 5 5\r\n", _HELLO), 400),
    BadRequest("CL-10 empty", _post(b"Content-Length: \r\n"), 400),
    BadRequest(
        "CL-11 empty, then real",
        _post(b"Content-Length: \r\nContent-Length: 43\r\n", b"POST /evil HTTP/1.1\r\n"),
        400,
    ),
    BadRequest("CL-12 fraction", _post(b"Content-Length: 5.0\r\n", _HELLO), 400),
    BadRequest("CL-13 2^64+5", _post(b"Content-Length: 18446744073709551621\r\n", _HELLO), 400),
    BadRequest("CL-14 Unicode digits", _post(b"Content-Length: \xd9\xa5\r\n", _HELLO), 400),
    BadRequest("CL-15 vertical tab", _post(b"Content-Length: 5\x0b\r\n", _HELLO), 400),
    BadRequest("CL-16 next line", _post(b"Content-Length: 5\x85\r\n", _HELLO), 400),
    BadRequest("CL-17 leading zero", _post(b"Content-Length: 05\r\n", _HELLO), 200, 1),
    BadRequest("CL-18 white space", _post(b"Content-Length: \t 5 \t\r\n", _HELLO), 200, 1),
    BadRequest("CL-19 too short", _post(b"Content-Length: 10\r\n", _HELLO), 400, half_close=True),
)

CHUNKS: Final = (
    BadRequest("CK-1 plain", _chunked(b"5\r\nhello\r\n0\r\n\r\n"), 200, 1),
    BadRequest("CK-2 extension", _chunked(b"5;a=b\r\nhello\r\n0\r\n\r\n"), 200, 1),
    BadRequest("CK-3 endless extension", _chunked(b"5;" + b"a" * 300 + b"\r\nhello\r\n"), 400),
    BadRequest(
        "CK-4 CR in extension",
        _chunked(b"2\r\r;a\r\n02\r\n41\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"),
        400,
    ),
    BadRequest("CK-5 LF in extension", _chunked(b"5;a\nb\r\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-6 0x", _chunked(b"0x5\r\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-7 plus", _chunked(b"+5\r\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-8 minus", _chunked(b"-5\r\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-9 underscore", _chunked(b"0_5\r\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-10 leading space", _chunked(b" 5\r\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-11 trailing space", _chunked(b"5 \r\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-12 empty size", _chunked(b"\r\n\r\n"), 400),
    BadRequest("CK-13 sixteen digits", _chunked(b"0" * 15 + b"5\r\nhello\r\n0\r\n\r\n"), 200, 1),
    BadRequest("CK-14 seventeen digits", _chunked(b"0" * 16 + b"5\r\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-15 overflow", _chunked(b"10000000000000005\r\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-16 LF after data", _chunked(b"5\r\nhello\n0\r\n\r\n"), 400),
    BadRequest("CK-17 LF after size", _chunked(b"5\nhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-18 CR after size", _chunked(b"5\rhello\r\n0\r\n\r\n"), 400),
    BadRequest("CK-19 trailers", _chunked(b"5\r\nhello\r\n0\r\nx: y\r\n\r\n"), 200, 1),
    BadRequest(
        "CK-20 framing in trailers",
        _chunked(b"0\r\nContent-Length: 5\r\nHost: evil\r\nTransfer-Encoding: gzip\r\n\r\n"),
        200,
        1,
    ),
    BadRequest("CK-21 data too long", _chunked(b"5\r\nhelloX\r\n0\r\n\r\n"), 400),
    BadRequest("CK-22 not hexadecimal", _chunked(b"Z\r\nZZ\r\nZZZ\r\n\r\n"), 400),
    BadRequest("CK-23 malformed trailer", _chunked(b"0\r\nno colon\r\n\r\n"), 400),
    BadRequest(
        "CK-24 many trailers",
        _chunked(b"0\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(5000)) + b"\r\n"),
        431,
    ),
    BadRequest("CK-25 bare LF in trailers", _chunked(b"0\r\nx: y\n\r\n\r\n"), 400),
)

LINES: Final = (
    BadRequest("LN-1 bare LF", b"GET / HTTP/1.1\nHost: a\n\n", 400),
    BadRequest("LN-2 bare CR", b"GET / HTTP/1.1\rHost: a\r\r", 400),
    BadRequest("LN-3 folded field", _get(_HOST + b"X: a\r\n b\r\n"), 400),
    BadRequest("LN-4 space before first field", _get(b" X: 1\r\n" + _HOST), 400),
    BadRequest("LN-5 CR in value", _get(_HOST + b"X: a\rb\r\n"), 400),
    BadRequest("LN-6 NUL in value", _get(_HOST + b"X: a\x00b\r\n"), 400),
    BadRequest("LN-7 DEL in value", _get(_HOST + b"X: a\x7fb\r\n"), 400),
    BadRequest("LN-8 space in name", _get(_HOST + b"X Y: b\r\n"), 400),
    BadRequest("LN-9 empty name", _get(_HOST + b": b\r\n"), 400),
    BadRequest("LN-10 no colon", _get(_HOST + b"NoColon\r\n"), 400),
    BadRequest("LN-11 non-ASCII name", _get(_HOST + b"X\xc3\xa9: b\r\n"), 400),
    BadRequest(
        "LN-12 CR in the empty line",
        b"GET / HTTP/1.1\r\nHost: a\r\n\rZGET /evil: HTTP/1.1\r\nHost: a\r\n\r\n",
        400,
    ),
    BadRequest("LN-13 one empty line before", b"\r\n" + _get(_HOST), 200, 1),
    BadRequest("LN-13b two empty lines before", b"\r\n\r\n" + _get(_HOST), 400),
    BadRequest("LN-14 two spaces", _get(_HOST, b"GET  / HTTP/1.1"), 400),
    BadRequest("LN-15 tab", _get(_HOST, b"GET\t/ HTTP/1.1"), 400),
    BadRequest("LN-16 lower-case version", _get(_HOST, b"GET / http/1.1"), 400),
    BadRequest("LN-17 version 1.2", _get(_HOST, b"GET / HTTP/1.2"), 200, 1),
    BadRequest("LN-18 version 2.0", _get(_HOST, b"GET / HTTP/2.0"), 505),
    BadRequest("LN-18b version 0.9", _get(_HOST, b"GET / HTTP/0.9"), 400),
    BadRequest("LN-19 no version", b"GET /\r\n\r\n", 400),
    BadRequest("LN-20 method", _get(_HOST, b'G=":<>(e),[T];?" /get HTTP/1.1'), 400),
    BadRequest("LN-21 fragment", _get(_HOST, b"GET /a#b HTTP/1.1"), 400),
    BadRequest("LN-22 overlong UTF-8", _get(_HOST, b"GET /\xc0\xaf HTTP/1.1"), 400),
    BadRequest("LN-23 space at the end of the line", _get(_HOST, b"GET / HTTP/1.1 "), 400),
    BadRequest("LN-24 HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    BadRequest("LN-25 NUL in target", _get(_HOST, b"GET /\x00 HTTP/1.1"), 400),
    BadRequest("LN-26 TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    BadRequest("LN-27 version 1.10", _get(_HOST, b"GET / HTTP/1.10"), 400),
)

HOSTS_AND_TARGETS: Final = (
    BadRequest("HO-1 no Host", _get(b""), 400),
    BadRequest("HO-2 two Hosts", _get(b"Host: a\r\nHost: b\r\n"), 400),
    BadRequest("HO-3 twice the same", _get(_HOST + _HOST), 400),
    BadRequest("HO-4 comma", _get(b"Host: a, b\r\n"), 400),
    BadRequest("HO-5 user", _get(b"Host: user@a\r\n"), 400),
    BadRequest("HO-6 path", _get(b"Host: a/b\r\n"), 400),
    BadRequest("HO-7 absolute form", _get(_HOST, b"GET http://b/v2 HTTP/1.1"), 400),
    BadRequest("HO-8 asterisk with GET", _get(_HOST, b"GET * HTTP/1.1"), 400),
    BadRequest("HO-9 CONNECT", _get(_HOST, b"CONNECT a:443 HTTP/1.1"), 400),
    BadRequest("HO-10 TRACE", _get(_HOST, b"TRACE / HTTP/1.1"), 405),
    BadRequest("HO-11 relative", _get(_HOST, b"GET v2 HTTP/1.1"), 400),
    BadRequest("HO-13 dot segments", _get(_HOST, b"GET /v2/../evil HTTP/1.1"), 400),
    BadRequest(
        "HO-14 encoded dot segments",
        _get(_HOST, b"GET /v2/models/a%2F..%2F..%2Frepository/index HTTP/1.1"),
        400,
    ),
    BadRequest("HO-15 encoded NUL", _get(_HOST, b"GET /v2/a%00b HTTP/1.1"), 400),
    BadRequest(
        "HO-16 encoded line end", _get(_HOST, b"GET /v2/models/x%0d%0aX:1/ready HTTP/1.1"), 200, 1
    ),
    BadRequest("HO-17 bad port", _get(b"Host: a:8x\r\n"), 400),
    BadRequest("HO-18 IPv6", _get(b"Host: [::1]:8000\r\n"), 200, 1),
    BadRequest("HO-19 OPTIONS *", _get(_HOST, b"OPTIONS * HTTP/1.1"), 200),
)

SIZES: Final = (
    BadRequest("SZ-1 long target", _get(_HOST, b"GET /" + b"a" * 9000 + b" HTTP/1.1"), 414),
    BadRequest("SZ-2 long value", _get(_HOST + b"X: " + b"a" * 100_000 + b"\r\n"), 431),
    BadRequest("SZ-3 many fields", _get(_HOST + b"X: a\r\n" * 100), 431),
    BadRequest("SZ-4 long method", _get(_HOST, b"A" * 100_000 + b" / HTTP/1.1"), 400),
)

OPTIONS: Final = (
    BadRequest(
        "UP-1 h2c",
        _get(
            _HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n"
        ),
        200,
        1,
    ),
    BadRequest(
        "UP-3 nominated end-to-end fields",
        _get(_HOST + b"X-Forwarded-For: 1.2.3.4\r\nConnection: X-Forwarded-For, Host\r\n"),
        200,
        1,
    ),
    BadRequest("UP-4 not a list", _get(_HOST + b'Connection: "close"\r\n'), 400),
    BadRequest("EX-2 unknown expectation", _post(b"Expect: banana\r\n"), 417),
    BadRequest(
        "PI-4 nothing after close",
        _get(_HOST + b"Connection: close\r\n") + _get(_HOST, b"GET /2 HTTP/1.1"),
        200,
        1,
    ),
)


def _infer(fields: bytes, body: bytes = _HELLO, model: bytes = b"m") -> bytes:
    line = b"POST /v2/models/%b/infer HTTP/1.1\r\n" % model
    return line + _HOST + b"Content-Length: %d\r\n%b\r\n%b" % (len(body), fields, body)


def _json_length(value: bytes) -> bytes:
    return _infer(b"Inference-Header-Content-Length: " + value + b"\r\n")


def _register(path: bytes, body: bytes) -> bytes:
    line = b"POST /v2/%b/register HTTP/1.1\r\n" % path
    return line + _HOST + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


_RESERVED: Final = b"triton_python_backend_shm_region_"
_KEY: Final = b'{"key":"/%b7","offset":0,"byte_size":64}' % _RESERVED

TRITON: Final = (
    BadRequest("T-1 minus", _json_length(b"-1"), 400),
    BadRequest("T-1 plus", _json_length(b"+5"), 400),
    BadRequest("T-1 word", _json_length(b"abc"), 400),
    BadRequest("T-1 empty", _json_length(b""), 400),
    BadRequest("T-1 exponent", _json_length(b"1e3"), 400),
    BadRequest("T-1 more than there is", _json_length(b"6"), 400),
    BadRequest("T-1 2^31", _json_length(b"2147483648"), 400),
    BadRequest("T-1 23 digits", _json_length(b"9" * 23), 400),
    BadRequest("T-1 twice", _json_length(b"5\r\nInference-Header-Content-Length: 5"), 400),
    BadRequest("T-1 2^31 in chunks", _post(
        b"Inference-Header-Content-Length: 2147483648\r\n" + _TE), 400),
    BadRequest("T-1 without a body", _get(
        _HOST + b"Inference-Header-Content-Length: 1\r\n"), 400),
    BadRequest("T-1 all of it", _json_length(b"5"), 200, 1),
    BadRequest("T-1 raw tensor", _json_length(b" 0 "), 200, 1),
    BadRequest("T-1 of a compressed body", _infer(
        b"Inference-Header-Content-Length: 900\r\nContent-Encoding: gzip\r\n"), 200, 1),
    BadRequest("T-1 of a body as it is", _infer(
        b"Inference-Header-Content-Length: 900\r\nContent-Encoding: identity\r\n"), 400),
    BadRequest("T-10 parent", _infer(b"", model=b".."), 400),
    BadRequest("T-10 itself, encoded", _infer(b"", model=b"%2E"), 400),
    BadRequest("T-10 NUL", _infer(b"", model=b"a%00b"), 400),
    BadRequest("T-10 escapes", _infer(b"", model=b"a%20b%E2%80%AE"), 200, 1),
    BadRequest("T-10 255 bytes", _infer(b"", model=b"m" * 255), 200, 1),
    BadRequest("T-11 leading zeros", _infer(b"", model=b"m/versions/" + b"0" * 20 + b"1"), 200, 1),
    BadRequest("T-15 registration", _register(
        b"systemsharedmemory/region/r", b'{"key":"/k","offset":0,"byte_size":64}'), 200, 1),
    BadRequest("T-20 redirect", _infer(b"X-Vertex-Ai-Triton-Redirect: v2/logging\r\n"), 200, 1),
)  # fmt: skip

GATE: Final = (
    # Well-formed: what they ask for is what is wrong with them.
    BadRequest("T-10 slash", _infer(b"", model=b"a%2Fb"), 400),
    BadRequest("T-10 backslash", _infer(b"", model=b"a%5cb"), 400),
    BadRequest("T-10 256 bytes", _infer(b"", model=b"m" * 256), 400),
    BadRequest("T-11 twenty digits", _infer(b"", model=b"m/versions/" + b"9" * 20), 400),
    BadRequest("T-11 2^63", _infer(b"", model=b"m/versions/9223372036854775808"), 400),
    BadRequest("T-15 reserved name", _register(
        b"systemsharedmemory/region/" + _RESERVED + b"7", b'{"key":"/k"}'), 400),
    BadRequest("T-15 reserved name, encoded", _register(
        b"cudasharedmemory/region/%74riton%5Fpython_backend_shm_region_7", b"{}"), 400),
    BadRequest("T-15 reserved key", _register(b"systemsharedmemory/region/r", _KEY), 400),
    BadRequest("T-15 reserved key, escaped", _register(
        b"systemsharedmemory/region/r", _KEY.replace(b"t", b"\\u0074")), 400),
    BadRequest("T-15 endless registration", _register(
        b"systemsharedmemory/region/r", b'{"key":"' + b"k" * 70_000 + b'"}'), 400),
)  # fmt: skip

CODEC: Final = FRAMING + CHUNKS + LINES + HOSTS_AND_TARGETS + SIZES + OPTIONS + TRITON
"""Rows that head and body alone decide about."""
ALL: Final = CODEC + GATE
