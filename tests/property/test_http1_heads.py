"""Heads: hot code and reference agree, and h11 and httptools read what we rebuild alike."""

from __future__ import annotations

import h11
import httptools
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lb.wire.http1.collect import HeadCollector
from lb.wire.http1.errors import MessageError
from lb.wire.http1.limits import HeadLimits
from lb.wire.http1.request import RequestHead, parse_request_head
from lb.wire.http1.response import ResponseHead, parse_response_head
from tests.corpus.http1 import ALL
from tests.reference import http1_heads as reference

_LIMITS = HeadLimits()


def _mostly(usual: list[bytes], odd: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(st.sampled_from(usual), st.sampled_from(usual), st.sampled_from(odd))


_NAMES = _mostly(
    [b"Host", b"host", b"Content-Length", b"Connection", b"X-A", b"Accept", b"X-Request-Id"],
    [
        b"Transfer-Encoding", b"tRansfer-encoding", b"Expect", b"Keep-Alive", b"TE", b"Upgrade",
        b"Trailer", b"Proxy-Connection", b"HTTP2-Settings", b"X Y", b"", b"X\x00",
        b"Content_Length", b"X-Forwarded-For", b"Host ", b" Host", b"X\xe9", b"x_forwarded-for",
        b"Inference-Header-Content-Length", b"Content-Encoding", b"X-Vertex-AI-Triton-Redirect",
        b"x_b",
    ],
)  # fmt: skip
_VALUES = _mostly(
    [b"a", b"5", b"0", b"close", b"keep-alive", b"a.example:80", b"chunked", b"100-continue", b""],
    [
        b"05", b"+5", b"5, 5", b"5 5", b"1" * 20, b"Chunked ", b"gzip, chunked", b"x-a, close",
        b"host", b"[::1]:80", b"[x]", b"a b", b"a/b", b"u@h", b"a%zz", b"a%41", b"\xff", b"a\x00b",
        b"a\rb", b"a\nb", b"a\r\n b", b"\t5\t", b",,close,", b'"close"', b"identity", b"\x0b5",
    ],
)  # fmt: skip
_FIELD = st.tuples(_NAMES, st.sampled_from([b":", b": ", b":\t", b" :", b""]), _VALUES).map(
    b"".join
)
_FIELDS = st.lists(_FIELD, max_size=6)
_ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n"])
_REQUEST_LINES = st.tuples(
    _mostly(
        [b"GET", b"POST", b"HEAD", b"OPTIONS"],
        [b"", b"TRACE", b"CONNECT", b"G(T", b"get", b"A_B", b"A-B"],
    ),
    st.sampled_from([b" ", b" ", b" ", b" ", b"  ", b"\t"]),
    _mostly(
        [b"/", b"/v2/models/m/infer?a=b", b"*", b"/a%2Fb"],
        [
            b"",
            b"a",
            b"http://h/",
            b"/#",
            b"/\xe9",
            b"/\xc3\xa9?\xf0\x9f\x98\x80",
            b"/\xc0\xae",
            b"/\xed\xa0\x80",
            b"/a/../b",
            b"/%2e%2e",
            b"/%00",
            b"/..a",
            b"/a\x00",
        ],
    ),
    st.sampled_from([b" "]),
    _mostly(
        [b"HTTP/1.1", b"HTTP/1.0"],
        [b"HTTP/2.0", b"http/1.1", b"HTTP/1.2", b"HTTP/1.9", b"HTTP/1.10", b"HTTP/1.1 ", b""],
    ),
).map(b"".join)
_STATUS_LINES = st.tuples(
    _mostly([b"HTTP/1.1 ", b"HTTP/1.0 "], [b"HTTP/2.0 ", b"http/1.1 ", b"HTTP/1.1  ", b"HTTP/1.1"]),
    _mostly(
        [b"200", b"204", b"304", b"404", b"103"], [b"101", b"2000", b"20", b"abc", b"+20", b"000"]
    ),
    _mostly([b" OK", b""], [b" ", b"OK", b" \xff", b" a\x00", b"\tOK"]),
).map(b"".join)


@st.composite
def _heads(draw: st.DrawFn, lines: st.SearchStrategy[bytes]) -> bytes:
    head = draw(lines) + draw(_ENDS)
    if draw(st.booleans()):
        head += b"Host: a\r\n"
    for field in draw(_FIELDS):
        head += field + draw(_ENDS)
    return head + b"\r\n"


def _request(head: bytes) -> RequestHead | None:
    try:
        return parse_request_head(head, _LIMITS)
    except MessageError:
        return None


def _response(head: bytes, *, to_head: bool) -> ResponseHead | None:
    try:
        return parse_response_head(head, _LIMITS, to_head=to_head)
    except MessageError:
        return None


@settings(max_examples=200, deadline=None)
@given(_heads(_REQUEST_LINES))
def test_requests_are_read_as_by_the_reference(head: bytes) -> None:
    request = _request(head)
    try:
        expected = reference.read_request(head)
    except reference.Illegal:
        assert request is None
        return
    assert request is not None
    assert (request.method, request.target) == expected.start
    assert request.length == expected.length
    assert request.keep_alive == expected.keep_alive
    assert request.upstream == expected.rebuilt
    assert (request.upstream is head) == (request.upstream == head)


@settings(max_examples=200, deadline=None)
@given(_heads(_STATUS_LINES), st.booleans())
def test_responses_are_read_as_by_the_reference(head: bytes, to_head: bool) -> None:
    response = _response(head, to_head=to_head)
    try:
        expected = reference.read_response(head, to_head=to_head)
    except reference.Illegal:
        assert response is None
        return
    assert response is not None
    assert response.status == int(expected.start[0])
    assert (response.length, response.keep_alive) == (expected.length, expected.keep_alive)
    assert response.plain == expected.rebuilt


class _Parsed:
    """What httptools makes of a request."""

    def __init__(self, wire: bytes) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self.complete = False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(wire)
        self.method = parser.get_method()
        self.keep_alive = parser.should_keep_alive()

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.strip(b" \t")))

    def on_message_complete(self) -> None:
        self.complete = True


@settings(max_examples=150, deadline=None)
@given(_heads(_REQUEST_LINES))
def test_other_parsers_read_our_requests_as_we_meant_them(head: bytes) -> None:
    request = _request(head)
    if request is None or request.method == b"HEAD" or not request.method.isupper():
        return
    body = b"x" * min(request.length, 1000) if request.length >= 0 else b"0\r\n\r\n"
    if request.length > 1000:
        return
    wire = request.upstream + body
    server = h11.Connection(h11.SERVER)
    server.receive_data(wire)
    event = server.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (request.method, request.target)
    assert event.http_version == b"1.1"
    while not isinstance(event, h11.EndOfMessage):
        event = server.next_event()
    assert server.trailing_data[0] == b""
    parsed = _Parsed(wire)
    assert (parsed.method, parsed.target) == (request.method, request.target)
    assert parsed.complete
    assert parsed.keep_alive
    names = [name for name, _ in parsed.fields]
    assert names.count(b"host") == 1
    assert b"connection" not in names
    assert b"upgrade" not in names


@settings(max_examples=120, deadline=None)
@given(_heads(_REQUEST_LINES), st.integers(1, 40))
def test_pace_does_not_matter(head: bytes, step: int) -> None:
    at_once = _request(head.removeprefix(b"\r\n"))
    collector = HeadCollector(_LIMITS, of_request=True)
    collected = None
    try:
        for at in range(0, len(head), step):
            collected = collector.feed(head[at : at + step])
            if collected is not None:
                break
    except MessageError:
        assert at_once is None
        return
    if collected is None:
        assert at_once is None
    elif at_once is not None:
        assert collected == head.removeprefix(b"\r\n")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(ALL), st.integers(0, 400), st.integers(0, 30))
@example(b"\r\n\r\n", ALL[0], 0, 0)
def test_garbage_is_refused_and_nothing_else_happens(
    noise: bytes, row: object, at: int, size: int
) -> None:
    wire = row.wire[:2000]  # type: ignore[attr-defined]
    for text in (noise, noise + b"\r\n\r\n", wire[:at] + noise + wire[at + size :]):
        end = text.find(b"\r\n\r\n")
        head = text[: end + 4] if end >= 0 else text
        _request(head)
        _response(head, to_head=False)
        for of_request in (True, False):
            assert _status(text, of_request=of_request) in (0, 400, 414, 431)


def _status(text: bytes, *, of_request: bool) -> int:
    try:
        HeadCollector(_LIMITS, of_request=of_request).feed(text)
    except MessageError as error:
        return error.status
    return 0
