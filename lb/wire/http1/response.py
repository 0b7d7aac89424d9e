"""Response heads: read strictly, rebuilt for the client (RFC 9112 4 and 6.3)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from lb.wire.hops import NOT_RUN
from lb.wire.http1.body import CHUNKED, UNTIL_CLOSE
from lb.wire.http1.collect import check_size
from lb.wire.http1.errors import MessageError
from lb.wire.http1.grammar import (
    CRLF,
    FIELD_LINES,
    Options,
    connection_options,
    is_canonical_length,
    parse_length,
    require_chunked,
    without_nominated,
)
from lb.wire.http1.limits import HeadLimits

CHUNKED_FIELD: Final = b"Transfer-Encoding: chunked\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_HEAD: Final = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9]{2})( [\t -~\x80-\xff]*+)?\r\n(" + FIELD_LINES + rb")\r\n"
)


class ResponseHead:
    """A response head that may be relayed."""

    __slots__ = (
        "head", "is_clean", "is_foreign", "is_http10", "keep_alive", "length", "not_run",
        "options", "plain", "status",
    )  # fmt: skip

    # Documented here: between the lines of the constructor each text would cost an instruction.
    length: int
    """Bytes of the body, `CHUNKED` or `UNTIL_CLOSE`."""
    options: Options
    """Connection options in lower case."""
    keep_alive: bool
    """Whether the connection to the backend may be used again."""
    head: bytes
    """Start line and end-to-end fields, without framing by chunks and the empty line."""
    plain: bytes
    """The head for an HTTP/1.1 client whose connection lives on, with its empty line."""
    not_run: bytes
    """Value of that field of another balancer (`lb.wire.hops`). It is not in what goes on."""
    is_foreign: bool
    """No server answers a request for a result so: see `leads_elsewhere`."""
    is_clean: bool
    """Nothing had to change: `plain` is the very head that was parsed."""

    def __init__(self, status: int, *, is_http10: bool) -> None:
        self.status = status
        self.is_http10 = is_http10
        self.length = UNTIL_CLOSE
        self.options = frozenset()
        self.keep_alive = not is_http10
        self.head = self.plain = self.not_run = b""
        self.is_foreign = self.is_clean = False

    @property
    def is_interim(self) -> bool:
        """Whether another head follows for the same request."""
        return self.status < 200

    @property
    def is_error(self) -> bool:
        """Whether the status says so."""
        return self.status >= 400

    @property
    def is_encoded(self) -> bool:
        """Whether its body is compressed."""
        return b"\r\ncontent-encoding:" in self.head.lower()

    def downstream(self, *, to_http10: bool, keep_alive: bool) -> bytes:
        """The head for a client, with its empty line."""
        if keep_alive and not to_http10:
            return self.plain
        framing = CHUNKED_FIELD if self.length < 0 and not to_http10 else b""
        option = b"Connection: keep-alive\r\n\r\n" if keep_alive else b"Connection: close\r\n\r\n"
        return self.head + framing + option


def leads_elsewhere(response: ResponseHead) -> bool:
    """Whether an answer is a redirection, or a page for people."""
    is_page = b"\r\ncontent-type: text/html" in response.head.lower()
    return is_page or 300 <= response.status < 400


def parse_response_head(head: bytes, limits: HeadLimits, *, to_head: bool) -> ResponseHead:
    """Read one complete head, its empty line included.

    Args:
        head: as the backend sent it.
        limits: what is too much.
        to_head: it answers a HEAD request, so that no body follows.

    Raises:
        MessageError: the head, or the framing that it announces, is not legal.
    """
    # HOT PATH (benchmarks/bench_http1_heads.py). As for requests: one expression, one loop.
    # Reference: tests/reference/http1_heads.py.
    match = _HEAD.fullmatch(head)
    if match is None or len(head) > limits.line_bytes:
        check_size(head, limits)
    if match is None:
        raise MessageError(400, "malformed response head")
    minor, code, reason, section = match.groups()
    response = ResponseHead(int(code), is_http10=minor == b"0")
    lines = section.split(CRLF)
    lines.pop()
    if len(lines) > limits.fields:
        raise MessageError(431, "too many fields")
    edited = response.is_http10 or reason is None
    for index, line in enumerate(lines):
        name, _, value = line.partition(b":")
        read = _FIELDS.get(name.lower())
        if read is not None:
            kept = read(response, line, value)
            if kept is not line:
                lines[index] = kept
                edited = True
    if response.status == 101:
        raise MessageError(400, "protocol switched without being asked to")
    bodyless = to_head or response.status in (204, 304) or response.is_interim
    if bodyless:
        edited |= _settle_bodyless(response, lines)
    if edited:
        start = b"HTTP/1.1 %b%b" % (code, b" " if reason is None else reason)
        _rebuild(response, start, lines)
    else:
        response.head = head[:-2]
    if response.length >= 0:
        response.plain = response.head + CRLF if edited else head
        response.is_clean = not edited
    else:
        response.plain = response.head + CHUNKED_FIELD + CRLF
        response.keep_alive = response.keep_alive and response.length == CHUNKED
    return response


def _settle_bodyless(response: ResponseHead, lines: list[bytes]) -> bool:
    """No body follows, whatever the fields say (RFC 9112 6.3 case 1). True if lines changed."""
    response.length = 0
    if response.status == 204 or response.is_interim:
        # RFC 9110 8.6: no Content-Length in these.
        for index, line in enumerate(lines):
            if line[:15].lower() == b"content-length:":
                lines[index] = b""
                return True
    return False


def _rebuild(response: ResponseHead, start: bytes, lines: list[bytes]) -> None:
    lines = [line for line in lines if line]
    if response.options:
        lines = without_nominated(lines, response.options)
        if b"close" in response.options:
            response.keep_alive = False
        elif response.is_http10:
            response.keep_alive = b"keep-alive" in response.options
    response.head = CRLF.join((start, *lines, b""))


# Readers of special fields, as for requests.


def _read_length(response: ResponseHead, line: bytes, value: bytes) -> bytes:
    if response.length != UNTIL_CLOSE:
        raise MessageError(400, "more than one Content-Length or Transfer-Encoding")
    response.length = parse_length(value)
    return line if is_canonical_length(value) else b"Content-Length: %d" % response.length


def _read_coding(response: ResponseHead, _line: bytes, value: bytes) -> bytes:
    if response.length != UNTIL_CLOSE:
        raise MessageError(400, "more than one Content-Length or Transfer-Encoding")
    if response.is_http10:
        raise MessageError(400, "Transfer-Encoding in HTTP/1.0")
    require_chunked(value)
    response.length = CHUNKED
    return b""


def _read_connection(response: ResponseHead, _line: bytes, value: bytes) -> bytes:
    response.options = connection_options(value, response.options)
    return b""


def _read_not_run(response: ResponseHead, _line: bytes, value: bytes) -> bytes:
    response.not_run = value.strip(b" \t")
    return b""


def _drop(_response: ResponseHead, _line: bytes, _value: bytes) -> bytes:
    return b""


_FIELDS: Final[dict[bytes, Callable[[ResponseHead, bytes, bytes], bytes]]] = {
    b"content-length": _read_length,
    b"transfer-encoding": _read_coding,
    b"connection": _read_connection,
    b"keep-alive": _drop,
    b"te": _drop,
    b"upgrade": _drop,  # nothing is ever upgraded through us
    b"http2-settings": _drop,
    b"proxy-connection": _drop,
    NOT_RUN: _read_not_run,
}
