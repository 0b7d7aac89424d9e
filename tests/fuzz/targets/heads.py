"""HTTP/1.1 messages from their first byte to their last, without a relay around them."""

from __future__ import annotations

from typing import Any

from lb.wire.http1.body import Payload, make_decoder
from lb.wire.http1.collect import HeadCollector
from lb.wire.http1.errors import MessageError
from lb.wire.http1.limits import HeadLimits
from lb.wire.http1.request import RequestHead, parse_request_head
from lb.wire.http1.response import ResponseHead, parse_response_head
from tests.corpus import http1
from tests.fuzz.oracles import (
    Fields,
    Message,
    h11_requests,
    h11_response,
    httptools_requests,
)
from tests.fuzz.target import Target, same_for_every_cutting

_LIMITS = HeadLimits()
_STATUSES = {400, 405, 414, 417, 431, 501, 505}
_HOPS = set(
    b"connection expect keep-alive te trailer upgrade http2-settings proxy-connection "
    b"proxy-authenticate proxy-authorization transfer-encoding content-length "
    b"x-vertex-ai-triton-redirect".split()
)
"""Fields that may go, or change, between the client and the backend."""
_KNOWN_METHODS = set(b"GET HEAD POST PUT DELETE OPTIONS PATCH".split())
"""httptools refuses methods that nobody registered."""
_REWRITTEN = {b"transfer-encoding", b"content-length"}


class _Reader:
    """Reads one message after the other, as a connection does."""

    def __init__(self, *, of_request: bool, to_head: bool = False) -> None:
        self.heads: list[RequestHead | ResponseHead] = []
        self.messages: list[tuple[Any, ...]] = []
        """Start, head for the other side, body and trailers of each complete one."""
        self.fault: int = 0
        self.pieces: list[Payload] = []
        self._of_request = of_request
        self._to_head = to_head
        self._collector = HeadCollector(_LIMITS, of_request=of_request)
        self._decoder: Any = None
        self.done = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        try:
            while data and not self.done:
                data = self._step(data)
        except MessageError as error:
            assert error.status in _STATUSES
            assert len(error.text) < 100
            self.fault = error.status
            self.done = True

    def _step(self, data: bytes) -> bytes:
        if self._decoder is None:
            head = self._collector.feed(data)
            if head is None:
                return b""
            data = self._collector.rest
            self._begin(head)
        most = len(self.pieces) + len(data)
        data = data[self._decoder.decode(data, 0, self.pieces, most) :] if data else data
        if self._decoder.ended:
            self._complete()
        return data

    def _begin(self, head: bytes) -> None:
        message: RequestHead | ResponseHead
        if self._of_request:
            message = parse_request_head(head, _LIMITS)
            assert len(message.upstream) <= len(head) + 40
        else:
            message = parse_response_head(head, _LIMITS, to_head=self._to_head)
            assert len(message.plain) <= len(head) + 40
        self.heads.append(message)
        self.pieces = []
        self._decoder = make_decoder(message.length)

    def _complete(self) -> None:
        head = self.heads[-1]
        body = b"".join(self.pieces)
        trailers = getattr(self._decoder, "trailers", b"")
        out = head.upstream if isinstance(head, RequestHead) else head.plain
        self.messages.append((out, head.keep_alive, body, trailers))
        self._decoder = None
        self.done = not head.keep_alive


def _read(pieces: list[bytes], **kind: bool) -> _Reader:
    reader = _Reader(**kind)
    for piece in pieces:
        reader.feed(piece)
    return reader


def _fields_of(head: bytes) -> Fields:
    """The plain way: the head was checked."""
    lines = head.split(b"\r\n")[1:-2]
    pairs = [line.partition(b":") for line in lines]
    return [(name.lower(), value.strip(b" \t")) for name, _, value in pairs]


def _agree(ours: Fields, theirs: Message) -> None:
    """We pass on what they read, in its order, and leave out only what belongs to a hop."""
    kept = [pair for pair in ours if pair[0] not in _REWRITTEN]
    left_out = [pair for pair in theirs.fields if pair[0] not in _REWRITTEN]
    for pair in kept:
        while left_out and left_out[0] != pair:
            name = left_out.pop(0)[0]
            assert name in _HOPS or name in theirs.options or b"_" in name, name
        assert left_out or pair == (b"host", b"localhost"), pair
        if left_out:
            del left_out[0]


def _check_requests(data: bytes) -> None:
    def read(pieces: list[bytes]) -> object:
        reader = _read(pieces, of_request=True)
        return reader.messages, bool(reader.fault)

    same_for_every_cutting(read, data)
    reader = _read([data], of_request=True)
    heads = [head for head in reader.heads if isinstance(head, RequestHead)]
    for judge in (h11_requests, httptools_requests):
        for ours, head, theirs in zip(reader.messages, heads, judge(data), strict=False):
            if theirs.method:
                assert theirs.method == head.method
            assert theirs.target == head.target
            assert theirs.body == ours[2]
            fields = _fields_of(ours[0])
            if head.host is None:
                fields.remove((b"host", b"localhost"))
            _agree(fields, theirs)
    for ours, head in zip(reader.messages, heads, strict=False):
        _check_forwarded(ours, head)


def _check_forwarded(ours: tuple[Any, ...], head: RequestHead) -> None:
    """What goes to the backend is one request for everybody."""
    body = ours[2]
    if head.length < 0:
        body = (b"%X\r\n%b\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"
    wire = ours[0] + body
    for judge in (h11_requests, httptools_requests):
        if judge is httptools_requests and head.method not in _KNOWN_METHODS:
            continue
        found = judge(wire)
        assert len(found) == 1, (judge.__name__, found, wire)
        assert found[0].target == head.target
        assert found[0].body == ours[2]
        assert len(found[0].values(b"host")) == 1


def _check_responses(data: bytes) -> None:
    for to_head in (False, True):

        def read(pieces: list[bytes], to_head: bool = to_head) -> object:
            reader = _read(pieces, of_request=False, to_head=to_head)
            return reader.messages, bool(reader.fault)

        same_for_every_cutting(read, data)
        reader = _read([data], of_request=False, to_head=to_head)
        final = [head for head in reader.heads if isinstance(head, ResponseHead)]
        final = [head for head in final if not head.is_interim]
        if not final or reader.fault:
            continue
        at = reader.heads.index(final[0])
        method = b"HEAD" if to_head else b"GET"
        theirs = h11_response(data, method=method, ended=final[0].length == -2)
        if theirs is None or at >= len(reader.messages):
            continue
        ours = reader.messages[at]
        assert theirs.target == b"%d" % final[0].status
        assert theirs.body == ours[2]
        _agree(_fields_of(ours[0]), theirs)


REQUEST_WORDS = (
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b"\0", b"\x0b", b"\x7f", b"\x80", b"\xff",
    b":", b",", b"Host: a\r\n", b"Host: b\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n",
    b"Content-Length: 5, 5\r\n", b"Content_Length: 6\r\n", b"Transfer-Encoding: chunked\r\n",
    b"transfer-encoding:\tCHUNKED\r\n", b"Transfer-Encoding: gzip, chunked\r\n",
    b"Connection: close\r\n", b"Connection: keep-alive, X\r\n",
    b"Connection: transfer-encoding\r\n", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n",
    b"TE: trailers\r\n", b"Trailer: x\r\n", b"X: y\r\n", b" folded\r\n", b"GET ", b"POST ",
    b"HEAD ", b"OPTIONS * ", b"CONNECT a:1 ", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n",
    b" HTTP/2.0\r\n", b"/v2/models/m/infer", b"?x=1", b"/../", b"%2e%2e/", b"http://a/",
    b"0\r\n\r\n", b"5\r\nhello\r\n", b"5;a=b\r\nhello\r\n", b"hello", b"0\r\nX: y\r\n\r\n",
    b"ffffffffffffffff\r\n", b"0005\r\nhello\r\n", b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n",
)  # fmt: skip
RESPONSE_WORDS = (
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204 No Content\r\n",
    b"HTTP/1.1 304 Not Modified\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 101 Switching\r\n",
    b"HTTP/1.1 103 \r\n", b"HTTP/1.1 ", b" 200", b"Set-Cookie: a=b\r\n", *REQUEST_WORDS,
)  # fmt: skip
REQUESTS = (
    *(row.wire for row in http1.ALL if len(row.wire) <= 12_000),
    b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /v2/models/m/infer HTTP/1.0\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello"
    b"GET /2 HTTP/1.0\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    b"GET /2 HTTP/1.1\r\nHost: a\r\nX-Request-Id: 7\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: [::1]:8000\r\nUser-Agent: x\r\nAccept: */*\r\n\r\n",
)  # fmt: skip
RESPONSES = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nok",
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n",
    b"HTTP/1.1 304\r\nETag: x\r\nContent-Length: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n0\r\nx: y\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nConnection: Keep-Alive, X\r\nX: y\r\n"
    b"Content-Length: 02\r\n\r\nok",
)

TARGETS = (
    Target("http1_request", _check_requests, REQUESTS, REQUEST_WORDS),
    Target("http1_response", _check_responses, RESPONSES, RESPONSE_WORDS),
)
