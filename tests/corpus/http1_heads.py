"""Lines, targets, hosts, sizes, options of the connection, pipelining."""

from __future__ import annotations

from typing import Final

from tests.corpus.http1_rows import CL5, HELLO, HOST, SECOND, SMUGGLED, TE, Row, get, post

_LINE_END: Final = "RFC 9112 2.2"
_START: Final = "RFC 9112 3"
_VERSION: Final = "RFC 9112 2.3, RFC 9110 2.5"
_NAME: Final = "RFC 9110 5.1, RFC 9112 5"
_VALUE: Final = "RFC 9110 5.5"
_FOLD: Final = "RFC 9112 5.2"
_HOST: Final = "RFC 9112 3.2, RFC 9110 7.2"
_TARGET: Final = "RFC 9112 3.2"
_PATH: Final = "RFC 3986 5.2.4, 6.2; access rules by path"
_METHOD: Final = "RFC 9110 9.3"


def _bad(id: str, what: str, wire: bytes, source: str, status: int = 400) -> Row:
    return Row(id, what, wire, status, source)


def _field(id: str, what: str, line: bytes, source: str) -> Row:
    """A malformed field line, and a request behind it."""
    return Row(id, what, get(HOST + line + b"\r\n") + SMUGGLED, 400, source)


def _kept(id: str, what: str, line: bytes, source: str) -> Row:
    """A field line that is odd but legal, and arrives as it is."""
    return Row(id, what, get(HOST + line + b"\r\n"), 200, source, 1, holds=(line,))


def _start(id: str, what: str, line: bytes, source: str = _START, status: int = 400) -> Row:
    return Row(id, what, get(HOST, line) + SMUGGLED, status, source)


LINES: Final = (
    _bad("LN-1", "bare LF", b"GET / HTTP/1.1\nHost: a\n\n", _LINE_END),
    _bad("LN-2", "bare CR", b"GET / HTTP/1.1\rHost: a\r\r", _LINE_END),
    _field("LN-3", "folded field", b"X: a\r\n b", _FOLD),
    _bad("LN-4", "space before first field", get(b" X: 1\r\n" + HOST), _START),
    _field("LN-5", "CR in value", b"X: a\rb", _VALUE),
    _field("LN-6", "NUL in value", b"X: a\x00b", _VALUE),
    _field("LN-7", "DEL in value", b"X: a\x7fb", _VALUE),
    _field("LN-8", "space in name", b"X Y: b", _NAME),
    _field("LN-9", "empty name", b": b", _NAME),
    _field("LN-10", "no colon", b"NoColon", _NAME),
    _field("LN-11", "non-ASCII name", b"X\xc3\xa9: b", _NAME),
    _bad("LN-12", "CR in the empty line",
         b"GET / HTTP/1.1\r\nHost: a\r\n\rZGET /evil: HTTP/1.1\r\nHost: smuggled\r\n\r\n",
         "HTTP Garden: llhttp"),
    Row("LN-13", "one empty line before", b"\r\n" + get(HOST), 200, _LINE_END, 1),
    _start("LN-14", "two spaces", b"GET  / HTTP/1.1"),
    _start("LN-15", "tab", b"GET\t/ HTTP/1.1"),
    _start("LN-16", "lower-case version", b"GET / http/1.1", _VERSION),
    Row("LN-17", "version 1.2", get(HOST, b"GET / HTTP/1.2"), 200, _VERSION, 1),
    _start("LN-18", "version 2.0", b"GET / HTTP/2.0", _VERSION, 505),
    _bad("LN-19", "no version", b"GET /\r\n\r\n", _VERSION),
    _start("LN-20", "method", b'G=":<>(e),[T];?" /get HTTP/1.1', _METHOD),
    _start("LN-21", "fragment", b"GET /a#b HTTP/1.1", _TARGET),
    _start("LN-22", "overlong UTF-8", b"GET /\xc0\xaf HTTP/1.1", _TARGET),
    _start("LN-23", "space at the end of the line", b"GET / HTTP/1.1 "),
    _bad("LN-24", "HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "RFC 9113 3.4"),
    _start("LN-25", "NUL in target", b"GET /\x00 HTTP/1.1", _TARGET),
    _bad("LN-26", "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "RFC 8446 5.1"),
    _start("LN-27", "version 1.10", b"GET / HTTP/1.10", _VERSION),
    _bad("LN-28", "two empty lines before", b"\r\n\r\n" + get(HOST), _LINE_END),
    _start("LN-29", "version 0.9", b"GET / HTTP/0.9", _VERSION),
    _bad("LN-30", "byte order mark", b"\xef\xbb\xbf" + get(HOST), _START),
    _start("LN-31", "leading space", b" GET / HTTP/1.1"),
    _start("LN-32", "no minor version", b"GET / HTTP/1", _VERSION),
    _start("LN-33", "padded version", b"GET / HTTP/01.01", _VERSION),
    _start("LN-34", "space in version", b"GET / HTTP/ 1.1", _VERSION),
    _start("LN-35", "no target", b"GET HTTP/1.1"),
    _start("LN-36", "space in target", b"GET /a b HTTP/1.1"),
    _start("LN-37", "version 9.9", b"GET / HTTP/9.9", _VERSION, 505),
    _start("LN-38", "another protocol", b"GET / ICY/1.1", _VERSION),
    _field("LN-39", "BEL in value", b"X: \x07", _VALUE),
    _field("LN-40", "tab in name", b"X\tY: b", _NAME),
    _field("LN-41", "bracket in name", b"X[Y: b", _NAME),
    _field("LN-42", "NUL in name", b"X\x00Y: b", _NAME),
    _field("LN-43", "space before colon", b"X : b", "RFC 9112 5.1"),
    _field("LN-44", "tab before colon", b"X\t: b", "RFC 9112 5.1"),
    _field("LN-45", "folded by tab", b"X: a\r\n\tb", _FOLD),
    _field("LN-46", "line of white space", b" ", _FOLD),
    _field("LN-47", "CR CR LF", b"X: a\r", _LINE_END),
    _field("LN-48", "bare LF behind a field", b"X: a\nY: b", _LINE_END),
    _field("LN-49", "vertical tab in value", b"X: a\x0bb", _VALUE),
    _field("LN-50", "escape in value", b"X: \x1b[2J", _VALUE),
    _bad("LN-51", "white space only", b"   \r\n\r\n", _START),
    _bad("LN-52", "garbage", bytes(range(128, 256)) + b"\r\n\r\n", _START),
    Row("LN-53", "head ends early", get(HOST)[:-2], 400, "RFC 9112 8", half_close=True),
    Row("LN-54", "nothing at all", b"", 0, "RFC 9112 9.5", half_close=True, of_relay=True),
    _kept("LN-55", "Latin-1 in value", b"X: caf\xe9", _VALUE),
    _kept("LN-56", "empty value", b"X:", _VALUE),
    _kept("LN-57", "token of all kinds", b"!#$%&'*+-.^`|~0a: b", "RFC 9110 5.6.2"),
    _kept("LN-58", "tab in value", b"X:\ta\tb ", _VALUE),
    Row("LN-59", "same field twice", get(HOST + b"X: 1\r\nX: 2\r\n"), 200, "RFC 9110 5.3", 1,
        holds=(b"X: 1", b"X: 2")),
    # A Triton closes its connection upon these: a client could use up the pool's connections.
    _bad("LN-60", "lower-case method", get(HOST, b"get / HTTP/1.1"), "RFC 9110 9.1", 501),
    _bad("LN-60a", "hyphen in a method", get(HOST, b"M-SEARCH / HTTP/1.1"), "RFC 9110 9.1", 501),
    Row("LN-61", "unknown method", get(HOST, b"BREW / HTTP/1.1"), 200, "RFC 9110 9.1", 1),
    _start("LN-62", "vertical tab after method", b"GET\x0b/ HTTP/1.1"),
    _start("LN-63", "no-break space after method", b"GET\xa0/ HTTP/1.1"),
    _start("LN-64", "CR in target", b"GET /\rX HTTP/1.1"),
    Row("LN-65", "HTTP/0.9", b"GET /\r\n", 400, _VERSION, half_close=True),
    _start("LN-66", "DEL in target", b"GET /\x7f HTTP/1.1", _TARGET),
    _kept("LN-67", "underscore in a name of no meaning", b"my_field: b", _NAME),
)  # fmt: skip


def _host(id: str, what: str, value: bytes) -> Row:
    return Row(id, what, get(b"Host:" + value + b"\r\n") + SMUGGLED, 400, _HOST)


def _target(id: str, what: str, target: bytes, source: str = _TARGET) -> Row:
    return Row(id, what, get(HOST, b"GET " + target + b" HTTP/1.1") + SMUGGLED, 400, source)


def _same(id: str, what: str, target: bytes, source: str = _PATH) -> Row:
    """An odd target that arrives as it is: a Triton compares it raw, and so do we."""
    line = b"GET " + target + b" HTTP/1.1"
    return Row(id, what, get(HOST, line), 200, source, 1, holds=(line,))


HOSTS_AND_TARGETS: Final = (
    _bad("HO-1", "no Host", get(b""), _HOST),
    _bad("HO-2", "two Hosts", get(b"Host: a\r\nHost: b\r\n"), _HOST),
    _bad("HO-3", "twice the same", get(HOST + HOST), _HOST),
    _host("HO-4", "comma", b" a, b"),
    _host("HO-5", "user", b" user@a"),
    _host("HO-6", "path", b" a/b"),
    _target("HO-7", "absolute form, other host", b"http://b/v2"),
    _target("HO-8", "asterisk with GET", b"*", "RFC 9112 3.2.4"),
    _bad("HO-9", "CONNECT", get(HOST, b"CONNECT a:443 HTTP/1.1"), "RFC 9110 9.3.6"),
    _bad("HO-10", "TRACE", get(HOST + b"Authorization: x\r\n", b"TRACE / HTTP/1.1"),
         "RFC 9110 9.3.8", 405),
    _target("HO-11", "relative", b"v2"),
    _same("HO-12", "encoded letter", b"/v2/%72epository/index"),
    _target("HO-13", "dot segments", b"/v2/../evil", _PATH),
    _target("HO-14", "encoded dot segments", b"/v2/models/a%2F..%2F..%2Frepository/index", _PATH),
    _target("HO-15", "encoded NUL", b"/v2/a%00b", _PATH),
    _same("HO-16", "encoded line end", b"/v2/models/x%0d%0aX:1/ready", "RFC 3986 2.1"),
    _host("HO-17", "bad port", b" a:8x"),
    Row("HO-18", "IPv6", get(b"Host: [::1]:8000\r\n"), 200, _HOST, 1,
        holds=(b"Host: [::1]:8000",)),
    Row("HO-19", "OPTIONS *", get(HOST, b"OPTIONS * HTTP/1.1") + SECOND, 200, "RFC 9110 9.3.7", 1,
        (200,), of_relay=True),
    _host("HO-20", "empty", b""),
    _host("HO-21", "two words", b" a b"),
    _host("HO-22", "long port", b" a:123456"),
    _host("HO-23", "open bracket", b" [::1"),
    _host("HO-24", "Latin-1", b" caf\xe9"),
    _host("HO-25", "query", b" a?b"),
    _host("HO-26", "broken percent encoding", b" a%zz"),
    _host("HO-27", "scheme", b" http://a"),
    _host("HO-28", "backslash", b" a\\b"),
    _host("HO-29", "fragment", b" a#b"),
    _bad("HO-30", "two Hosts in HTTP/1.0", get(b"Host: a\r\nHost: b\r\n", b"GET / HTTP/1.0"),
         _HOST),
    Row("HO-31", "no Host in HTTP/1.0", get(b"", b"GET / HTTP/1.0"), 200, _HOST, 1, closes=True,
        holds=(b"Host: localhost",)),
    _target("HO-32", "absolute form, same host", b"http://a/v2", "RFC 9112 3.2.2"),
    _target("HO-33", "absolute form, other scheme", b"file:///etc/passwd"),
    _target("HO-34", "authority form", b"a:80", "RFC 9112 3.2.3"),
    _target("HO-35", "encoded dots", b"/v2/%2e%2e/evil", _PATH),
    _target("HO-36", "single dot", b"/v2/./models", _PATH),
    _target("HO-37", "backslashes", b"/v2\\..\\evil", _PATH),
    _target("HO-38", "encoded backslash", b"/v2/..%5cevil", _PATH),
    _target("HO-39", "dots at the end", b"/v2/..", _PATH),
    _same("HO-40", "two slashes", b"//v2//models"),
    _same("HO-41", "dots in the query", b"/v2/models/m?x=../..&y=%00", "RFC 3986 3.4"),
    _same("HO-42", "dots in a word", b"/v2/models/a..b.c", "RFC 3986 3.3"),
    _same("HO-43", "semicolon", b"/v2;x=1", "RFC 3986 3.3"),
    _bad("HO-44", "TRACE with a body", post(CL5, HELLO, b"TRACE / HTTP/1.1"), "RFC 9110 9.3.8",
         405),
    _bad("HO-45", "CONNECT in origin form", get(HOST, b"CONNECT / HTTP/1.1"), "RFC 9110 9.3.6"),
    # RFC 3986 wants it escaped, a Triton takes it raw: taken raw, and escaped for the backend.
    Row("HO-46", "raw UTF-8", get(HOST, b"GET /caf\xc3\xa9?\xe2\x82\xac HTTP/1.1"), 200, _TARGET, 1,
        holds=(b"GET /caf%C3%A9?%E2%82%AC HTTP/1.1",)),
    _target("HO-46a", "raw Latin-1", b"/caf\xe9"),
    _target("HO-46b", "overlong UTF-8", b"/\xc0\xae\xc0\xae/evil"),
    _target("HO-46c", "half a surrogate pair", b"/\xed\xa0\x80"),
    _bad("HO-47", "two Hosts, other case", get(HOST + b"hOST: b\r\n"), _HOST),
    _bad("HO-48", "space before the second Host's colon", get(HOST + b"Host : b\r\n"), _HOST),
)  # fmt: skip


def _long(id: str, what: str, line: bytes, fields: bytes, status: int, source: str) -> Row:
    return Row(id, what, get(HOST + fields, line), status, source, 1 if status == 200 else 0)


_GET: Final = b"GET / HTTP/1.1"
_SIZE: Final = "RFC 6585 5, RFC 9110 5.4"
_URI: Final = "RFC 9112 3, RFC 9110 4.1, 15.5.15"
SIZES: Final = (
    _long("SZ-1", "long target", b"GET /" + b"a" * 9000 + b" HTTP/1.1", b"", 414, _URI),
    _long("SZ-2", "long value", _GET, b"X: " + b"a" * 100_000 + b"\r\n", 431, _SIZE),
    _long("SZ-3", "many fields", _GET, b"X: a\r\n" * 100, 431, _SIZE),
    _long("SZ-4", "long method", b"A" * 100_000 + b" / HTTP/1.1", b"", 400, _URI),
    _long("SZ-5", "long name", _GET, b"X" * 100_000 + b": a\r\n", 431, _SIZE),
    _long("SZ-6", "head of 33 KiB", _GET, (b"X: " + b"a" * 410 + b"\r\n") * 81, 431, _SIZE),
    _long("SZ-7", "head of 31 KiB", _GET, (b"X: " + b"a" * 410 + b"\r\n") * 76, 200, _SIZE),
    _long("SZ-8", "as many fields as may be", _GET, b"X: a\r\n" * 99, 200, _SIZE),
    _long("SZ-9", "target of 8,000 bytes", b"GET /" + b"a" * 7999 + b" HTTP/1.1", b"", 200, _URI),
    _long("SZ-10", "long query", b"GET /?" + b"a" * 100_000 + b" HTTP/1.1", b"", 414, _URI),
    _long("SZ-11", "long version", b"GET / HTTP/1." + b"1" * 100_000, b"", 414, _URI),
    _long("SZ-12", "very many fields", _GET, b"X: a\r\n" * 20_000, 431, _SIZE),
    Row("SZ-13", "endless line", b"a" * 20_000, 400, _URI),
)  # fmt: skip


def _option(id: str, what: str, fields: bytes, source: str, *, holds: tuple[bytes, ...] = (),
            lacks: tuple[bytes, ...] = (b"connection",), closes: bool = False) -> Row:  # fmt: skip
    """A legal request whose fields for the connection go no further."""
    wire = get(HOST + fields)
    return Row(id, what, wire, 200, source, 1, closes=closes, holds=holds, lacks=lacks)


_HOP: Final = "RFC 9110 7.6.1"
_UPGRADE: Final = "RFC 9110 7.8, RFC 9113 3.2"
_EXPECT: Final = "RFC 9110 10.1.1"
_PIPELINE: Final = "RFC 9112 9.3.2"
_UNTRUSTED: Final = "Http11Probe, HTTP Garden: CGI spelling of a field about the client"
OPTIONS: Final = (
    _option("UP-1", "h2c", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n", _UPGRADE,
            lacks=(b"connection", b"upgrade", b"http2-settings")),
    _option("UP-2", "WebSocket", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n",
            _UPGRADE, lacks=(b"connection", b"upgrade")),
    _option("UP-3", "nominated end-to-end fields",
            b"X-Forwarded-For: 1.2.3.4\r\nConnection: X-Forwarded-For, Host\r\n", _HOP,
            holds=(b"X-Forwarded-For: 1.2.3.4",)),
    _bad("UP-4", "not a list", get(HOST + b'Connection: "close"\r\n'), _HOP),
    _option("UP-5", "upgrade that is not nominated", b"Upgrade: h2c\r\n", _UPGRADE,
            lacks=(b"upgrade",)),
    _option("UP-6", "nominated field", b"X-Mine: 1\r\nx-mine: 2\r\nConnection: X-Mine\r\n", _HOP,
            lacks=(b"connection", b"x-mine")),
    _option("UP-7", "fields of the connection", b"Keep-Alive: timeout=5\r\nTE: trailers\r\n"
            b"Trailer: X\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: x\r\n", _HOP,
            lacks=(b"keep-alive", b"te", b"trailer", b"proxy-connection", b"proxy-authorization")),
    Row("UP-8", "nominated Content-Length", post(CL5 + b"Connection: Content-Length\r\n", HELLO),
        200, _HOP, 1, body=HELLO, holds=(b"Content-Length: 5",)),
    Row("UP-9", "nominated Transfer-Encoding",
        post(TE + b"Connection: transfer-encoding\r\n", b"5\r\nhello\r\n0\r\n\r\n"), 200, _HOP, 1,
        body=HELLO, holds=(b"Transfer-Encoding: chunked",)),
    _option("UP-10", "nominated credentials", b"Authorization: x\r\nConnection: authorization\r\n",
            _HOP, holds=(b"Authorization: x",)),
    _option("UP-11", "empty options", b"Connection: ,, keep-alive ,\r\nConnection:\r\n",
            "RFC 9110 5.6.1"),
    _option("UP-12", "close in another case", b"Connection: x, CLOSE\r\n", "RFC 9112 9.6",
            closes=True),
    Row("UP-13", "nominated length of Triton's header",
        post(CL5 + b"Inference-Header-Content-Length: 5\r\n"
             b"Connection: Inference-Header-Content-Length\r\n", HELLO), 200, _HOP, 1, body=HELLO,
        holds=(b"Inference-Header-Content-Length: 5",)),
    Row("UP-14", "upgrade with a body", post(CL5 + b"Connection: upgrade\r\nUpgrade: h2c\r\n",
        HELLO) + SECOND, 200, _UPGRADE, 2, (200,), body=HELLO, lacks=(b"upgrade", b"connection")),
    _bad("UP-15", "option is no token", get(HOST + b"Connection: a b\r\n"), _HOP),
    _option("UP-16", "underscore twin of X-Forwarded-For", b"X_Forwarded_For: 6.6.6.6\r\n",
            _UNTRUSTED, lacks=(b"x_forwarded_for",)),
    _option("UP-17", "underscore twin of Authorization", b"authoriza_tion: x\r\n"
            b"X_Real_IP: 6.6.6.6\r\n", _UNTRUSTED, holds=(b"authoriza_tion: x",),
            lacks=(b"x_real_ip",)),
    Row("EX-1", "100-continue", post(CL5 + b"Expect: 100-continue\r\n", HELLO), 200, _EXPECT, 1,
        body=HELLO, lacks=(b"expect",)),
    _bad("EX-2", "unknown expectation", post(CL5 + b"Expect: banana\r\n", HELLO), _EXPECT, 417),
    Row("EX-3", "100-continue in HTTP/1.0", post(CL5 + b"Expect: 100-continue\r\n", HELLO,
        b"POST / HTTP/1.0"), 200, _EXPECT, 1, closes=True, body=HELLO, lacks=(b"expect",)),
    Row("EX-4", "another case", post(CL5 + b"Expect: 100-Continue\r\n", HELLO) + SECOND, 200,
        _EXPECT, 2, (200,), body=HELLO, lacks=(b"expect",)),
    _bad("EX-5", "two expectations", post(CL5 + b"Expect: 100-continue, x\r\n", HELLO), _EXPECT,
         417),
    Row("EX-6", "nothing to continue with", get(HOST + b"Expect: 100-continue\r\n"), 200, _EXPECT,
        1, lacks=(b"expect",)),
    Row("PI-1", "two requests", get(HOST, b"GET /1 HTTP/1.1") + SECOND, 200, _PIPELINE, 2, (200,)),
    Row("PI-2", "GET with a body", get(HOST + CL5, b"GET /1 HTTP/1.1") + HELLO + SECOND, 200,
        "RFC 9110 9.3.1", 2, (200,), body=HELLO),
    Row("PI-3", "bad behind good", get(HOST) + get(b"") + SMUGGLED, 200, _PIPELINE, 1, (400,)),
    Row("PI-4", "nothing after close",
        get(HOST + b"Connection: close\r\n", b"GET /1 HTTP/1.1") + SMUGGLED, 200, "RFC 9112 9.6",
        1, closes=True),
    Row("PI-5", "twenty requests", get(HOST, b"GET /1 HTTP/1.1") * 20, 200, _PIPELINE, 20,
        (200,) * 19),
    Row("PI-6", "OPTIONS with a body", post(CL5, HELLO, b"OPTIONS / HTTP/1.1") + SECOND, 200,
        "RFC 9110 9.3.7", 2, (200,), body=HELLO),
    Row("PI-7", "a request in a body", post(b"Content-Length: %d\r\n" % len(SMUGGLED), SMUGGLED)
        + SECOND, 200, _PIPELINE, 2, (200,), body=SMUGGLED),
    Row("PI-8", "empty line between", post(CL5, HELLO) + b"\r\n" + SECOND, 200, _LINE_END, 2,
        (200,), body=HELLO),
    Row("PI-9", "HTTP/1.0 without keep-alive", get(HOST, b"GET / HTTP/1.0") + SMUGGLED, 200,
        "RFC 9112 9.3", 1, closes=True),
    Row("PI-10", "HTTP/1.0 with keep-alive",
        get(HOST + b"Connection: keep-alive\r\n", b"GET / HTTP/1.0") + SECOND, 200,
        "RFC 9112 9.3", 2, (200,)),
    Row("PI-11", "half-closed after the request", get(HOST), 200, "RFC 9112 9.6", 1,
        half_close=True),
    Row("PI-12", "HEAD with a body", post(CL5, HELLO, b"HEAD / HTTP/1.1"), 200, "RFC 9110 9.3.2",
        1, body=HELLO),
)  # fmt: skip

ALL: Final = LINES + HOSTS_AND_TARGETS + SIZES + OPTIONS
