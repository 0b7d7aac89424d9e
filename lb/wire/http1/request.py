"""Request heads: read strictly, rebuilt for the backend.

What goes to the backend is made of checked lines only: the request line with our version, the
end-to-end fields byte for byte in their order, one canonical framing field. A head in which
nothing needs changing is its own rebuilt form, so the copy is saved, not the check.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from lb.wire.field_names import DROPPED
from lb.wire.hops import HOPS
from lb.wire.http1.body import CHUNKED
from lb.wire.http1.collect import check_size
from lb.wire.http1.errors import MessageError
from lb.wire.http1.grammar import (
    CRLF,
    FIELD_LINES,
    TOKEN,
    Options,
    connection_options,
    is_canonical_length,
    parse_length,
    require_chunked,
    trimmed,
    without_nominated,
)
from lb.wire.http1.limits import HeadLimits
from lb.wire.target import ORIGIN_FORM, escaped

_UNFRAMED: Final = -2
"""In place of a length while no framing field was seen."""
REQUEST_ID_BYTES: Final = 256
"""More of an X-Request-Id is not kept for the log."""

_KNOWN_METHOD: Final = rb"[A-Z_]++"
"""Other tokens are legal and no method of any server here: a Triton closes the connection upon
them, which would look like its own failure."""
_HEAD: Final = re.compile(
    rb"(" + _KNOWN_METHOD + rb") (" + ORIGIN_FORM + rb"|\*) HTTP/1\.([0-9])\r\n"
    rb"(" + FIELD_LINES + rb")\r\n"
)
"""A minor version above 1 is served as 1 (RFC 9110 2.5)."""
_LINE: Final = re.compile(rb"([^ ]+) ([^ ]+) HTTP/([0-9])\.([0-9])")
_METHOD: Final = re.compile(TOKEN)
_TARGET: Final = re.compile(ORIGIN_FORM)
_HOST: Final = re.compile(
    rb"[ \t]*((?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+;=-]|%[0-9A-Fa-f]{2})++)"
    rb"(?::[0-9]{0,5})?)[ \t]*"
)
"""RFC 3986 host, not empty, and port; without a comma, which joined duplicates would have."""
_TRAVERSAL: Final = re.compile(
    rb"(?:/|\\|%2f|%5c)(?:\.|%2e){1,2}(?:/|\\|%2f|%5c|$)|%00", re.IGNORECASE
)
"""Dot segments however spelled, and NUL: two servers may read different paths there."""
_JSON_LENGTH: Final = re.compile(rb"[ \t]*([0-9]{1,10})[ \t]*")
_LARGEST_JSON: Final = 2**31 - 1
_UNCOMPRESSED: Final = re.compile(rb"[ \t]*(?:identity[ \t]*)?", re.IGNORECASE)
_CONTINUE: Final = re.compile(rb"[ \t]*100-continue[ \t]*", re.IGNORECASE)


class RequestHead:
    """A request head that may be relayed."""

    __slots__ = (
        "expects_continue", "hops", "host", "is_http10", "json_length",
        "keep_alive", "length", "method", "options", "request_id", "target", "upstream",
    )  # fmt: skip

    # Documented here: between the lines of the constructor each text would cost an instruction.
    target: bytes
    """Origin form, or `*` of OPTIONS; its query included."""
    length: int
    """Bytes of the body, or `CHUNKED`."""
    options: Options
    """Connection options in lower case."""
    keep_alive: bool
    """Whether the client lets the connection live on."""
    expects_continue: bool
    """The client waits for 100 (Continue) before it sends the body."""
    host: bytes | None
    json_length: int
    """Bytes of the body before the binary tensors (Triton's Inference-Header-Content-Length); -1
    when it is not given."""
    hops: bytes
    """Values of the hop marker, see `lb.wire.hops`."""
    upstream: bytes
    """The head for the backend with its empty line."""

    def __init__(self, method: bytes, target: bytes, *, is_http10: bool) -> None:
        self.method = method
        self.target = target
        self.is_http10 = is_http10
        self.length = _UNFRAMED
        self.options = frozenset()
        self.keep_alive = not is_http10
        self.expects_continue = False
        self.host = None
        self.json_length = -1
        self.request_id = self.hops = self.upstream = b""


def parse_request_head(head: bytes, limits: HeadLimits) -> RequestHead:
    """Read one complete head, its empty line included.

    Raises:
        MessageError: with the status for the client: 400, 405, 414, 417, 431, 501 or 505.
    """
    # HOT PATH (benchmarks/bench_http1_heads.py). One expression checks the whole head and one
    # loop with a dictionary look-up per line reads it, instead of one small parser per part;
    # what is wrong is found out afterwards. Reference: tests/reference/http1_heads.py.
    match = _HEAD.fullmatch(head)
    if match is None or len(head) > limits.line_bytes:
        check_size(head, limits)
    if match is None:
        raise _fault(head)
    method, target, minor, section = match.groups()
    _check_target(method, target)
    edited = not target.isascii()
    if edited:
        target = escaped(target)
    request = RequestHead(method, target, is_http10=minor == b"0")
    lines = section.split(CRLF)
    lines.pop()
    if len(lines) > limits.fields:
        raise MessageError(431, "too many fields")
    for index, line in enumerate(lines):
        name, _, value = line.partition(b":")
        read = _FIELDS.get(name.lower())
        if read is not None:
            kept = read(request, line, value)
            if kept is not line:
                lines[index] = kept
                edited = True
    if edited or request.host is None or minor != b"1":
        _rebuild(request, lines)
    else:
        request.upstream = head
    if request.length == _UNFRAMED:
        request.length = 0
    if request.json_length > request.length >= 0 and not _is_compressed(lines):
        raise MessageError(400, "Inference-Header-Content-Length exceeds Content-Length")
    return request


def _rebuild(request: RequestHead, lines: list[bytes]) -> None:
    """Make the backend's head of the lines that are left; dropped ones are empty."""
    lines = [line for line in lines if line]
    if request.options:
        lines = without_nominated(lines, request.options)
        if b"close" in request.options:
            request.keep_alive = False
        elif request.is_http10:
            request.keep_alive = b"keep-alive" in request.options
    if request.host is None:
        if not request.is_http10:
            raise MessageError(400, "Host is missing")
        # HTTP/1.0 does without, the HTTP/1.1 that we speak to backends does not.
        lines.insert(0, b"Host: localhost")
    start = b"%b %b HTTP/1.1" % (request.method, request.target)
    request.upstream = CRLF.join((start, *lines, b"", b""))


def _is_compressed(lines: list[bytes]) -> bool:
    """Whether the body is in another coding, so that Triton counts its bytes differently."""
    fields = [line.partition(b":") for line in lines]
    return any(
        name.lower() == b"content-encoding" and _UNCOMPRESSED.fullmatch(value) is None
        for name, _, value in fields
    )


def _check_target(method: bytes, target: bytes) -> None:
    if method == b"TRACE":
        raise MessageError(405, "TRACE is not allowed")
    if method == b"CONNECT" or (target == b"*" and method != b"OPTIONS"):
        raise MessageError(400, "request target must be in origin form")
    if b"." in target or b"%" in target:
        path = target.partition(b"?")[0]
        if _TRAVERSAL.search(path) is not None:
            raise MessageError(400, "dot segments and NUL are not allowed in the path")


def _fault(head: bytes) -> MessageError:
    """What is wrong with a head that the grammar refused."""
    match = _LINE.fullmatch(head.partition(CRLF)[0])
    if match is None or _METHOD.fullmatch(match[1]) is None:
        return MessageError(400, "malformed request line")
    if re.fullmatch(_KNOWN_METHOD, match[1]) is None:
        return MessageError(501, "unknown method")
    if _TARGET.fullmatch(match[2]) is None and match.group(1, 2) != (b"OPTIONS", b"*"):
        return MessageError(400, "request target must be in origin form, in ASCII or UTF-8")
    if match[3] >= b"2":
        return MessageError(505, "HTTP version not supported")
    if match[3] == b"0":
        return MessageError(400, "invalid HTTP version")
    return MessageError(400, "malformed field line")


# Readers of special fields: each takes a line and gives what the backend gets in its place,
# the same object where it stays, nothing where it goes.


def _read_host(request: RequestHead, line: bytes, value: bytes) -> bytes:
    match = _HOST.fullmatch(value)
    if match is None or request.host is not None:
        raise MessageError(400, "Host is invalid or repeated")
    request.host = match[1]
    return line


def _read_length(request: RequestHead, line: bytes, value: bytes) -> bytes:
    if request.length != _UNFRAMED:
        raise MessageError(400, "more than one Content-Length or Transfer-Encoding")
    request.length = parse_length(value)
    return line if is_canonical_length(value) else b"Content-Length: %d" % request.length


def _read_coding(request: RequestHead, line: bytes, value: bytes) -> bytes:
    if request.length != _UNFRAMED:
        raise MessageError(400, "more than one Content-Length or Transfer-Encoding")
    if request.is_http10:
        raise MessageError(400, "Transfer-Encoding in HTTP/1.0")
    require_chunked(value)
    request.length = CHUNKED
    return b"Transfer-Encoding: chunked"


def _read_connection(request: RequestHead, _line: bytes, value: bytes) -> bytes:
    request.options = connection_options(value, request.options)
    return b""


def _read_expect(request: RequestHead, _line: bytes, value: bytes) -> bytes:
    if request.is_http10:
        return b""  # RFC 9110 10.1.1: no expectation in HTTP/1.0
    if _CONTINUE.fullmatch(value) is None:
        raise MessageError(417, "unknown expectation")
    request.expects_continue = True
    return b""


def _read_json_length(request: RequestHead, line: bytes, value: bytes) -> bytes:
    match = _JSON_LENGTH.fullmatch(value)
    length = -1 if match is None else int(match[1])
    if not 0 <= length <= _LARGEST_JSON or request.json_length >= 0:
        # Newer Tritons threw an uncaught exception on some of these.
        raise MessageError(400, "Inference-Header-Content-Length is invalid or repeated")
    request.json_length = length
    return line


def _read_request_id(request: RequestHead, line: bytes, value: bytes) -> bytes:
    request.request_id = trimmed(value)[:REQUEST_ID_BYTES]
    return line


def _read_hops(request: RequestHead, line: bytes, value: bytes) -> bytes:
    request.hops += value + b","
    return line


def _drop(_request: RequestHead, _line: bytes, _value: bytes) -> bytes:
    return b""


_FIELDS: Final[dict[bytes, Callable[[RequestHead, bytes, bytes], bytes]]] = {
    **dict.fromkeys(DROPPED, _drop),
    b"host": _read_host,
    b"content-length": _read_length,
    b"transfer-encoding": _read_coding,
    b"connection": _read_connection,
    b"expect": _read_expect,
    b"inference-header-content-length": _read_json_length,
    b"x-request-id": _read_request_id,
    HOPS: _read_hops,
    b"keep-alive": _drop,
    b"te": _drop,
    b"trailer": _drop,  # trailers of requests are not relayed
    b"upgrade": _drop,
    b"http2-settings": _drop,
    b"proxy-connection": _drop,
    b"proxy-authenticate": _drop,
    b"proxy-authorization": _drop,
}
