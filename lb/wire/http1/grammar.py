"""Grammar that requests, responses and trailers share (RFC 9110 5, RFC 9112 5).

All expressions work on bytes and are anchored by `fullmatch`: `int()`, `strip()`, `isdigit()`
and `splitlines()` accept more than the grammar does, which is how smuggling begins.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from lb.wire.field_names import ACTED_UPON
from lb.wire.http1.errors import MessageError

CRLF: Final = b"\r\n"
Options: TypeAlias = set[bytes] | frozenset[bytes]
"""Of Connection fields; frozen while there are none."""
TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
VALUE: Final = rb"[\t -~\x80-\xff]*+"
"""field-value with optional white space: visible ASCII, space, tab, obs-text. No CR, LF, NUL."""
FIELD_LINES: Final = rb"(?:" + TOKEN + rb":" + VALUE + rb"\r\n)*+"
"""Field lines without obs-fold and without white space before the colon (RFC 9112 5.1, 5.2)."""

_FIELD_SECTION: Final = re.compile(FIELD_LINES)
_LENGTH: Final = re.compile(rb"[ \t]*([0-9]{1,19})[ \t]*")
_LONGEST: Final = 2**63 - 1
"""Above this some servers count below zero."""
_CANONICAL_LENGTH: Final = re.compile(rb" ?(?:0|[1-9][0-9]*)")
_CHUNKED: Final = re.compile(rb"[ \t]*chunked[ \t]*", re.IGNORECASE)
_CODINGS: Final = re.compile(
    rb"[ \t]*" + TOKEN + rb"(?:[ \t]*,[ \t]*" + TOKEN + rb")*[ \t]*", re.IGNORECASE
)
_OPTIONS: Final = re.compile(rb"[ \t,]*+(?:" + TOKEN + rb"[ \t]*+(?:,[ \t,]*+|$))*+")
_VIOLATION: Final = re.compile(rb"[^\t\r\n -~\x80-\xff]|\r[^\n]|(?<!\r)\n")

NOT_NOMINABLE: Final = ACTED_UPON | frozenset(
    b"accept authorization cache-control cdn-loop cookie endpoint-load-metrics forwarded host "
    b"location retry-after set-cookie traceparent tracestate www-authenticate".split(b" ")
)
"""End-to-end fields that a Connection field cannot have removed: stripping them would change
whom a request is from, for or about (RFC 9110 7.6.1 forbids senders to list such fields)."""


def is_field_section(section: bytes) -> bool:
    """Whether `section` is field lines and nothing else, each with its CRLF."""
    return _FIELD_SECTION.fullmatch(section) is not None


def has_violation(data: bytes | bytearray, start: int) -> bool:
    """Whether incomplete text holds from `start` on what no head or trailer may hold.

    That is a control character, or a CR or LF without its other half; a CR at the very end may
    still get its LF.
    """
    return _VIOLATION.search(data, start) is not None


def trimmed(value: bytes) -> bytes:
    """A field value without the optional white space around it (exactly SP and HTAB)."""
    return value.strip(b" \t")


def parse_length(value: bytes) -> int:
    """Read a Content-Length value.

    Raises:
        MessageError: it is not 1 to 19 digits, or does not fit 63 bits. A list of equal numbers,
            which RFC 9110 8.6 lets a recipient repair, is refused as well.
    """
    match = _LENGTH.fullmatch(value)
    if match is None or (length := int(match[1])) > _LONGEST:
        raise MessageError(400, "invalid Content-Length")
    return length


def is_canonical_length(value: bytes) -> bool:
    """Whether a valid Content-Length value may be passed on as it is."""
    return _CANONICAL_LENGTH.fullmatch(value) is not None


def require_chunked(value: bytes) -> None:
    """Check a Transfer-Encoding value.

    Raises:
        MessageError: 501 for other codings (RFC 9112 6.1), 400 for nonsense and for chunked
            twice.
    """
    if _CHUNKED.fullmatch(value) is not None:
        return
    if _CODINGS.fullmatch(value) is None or value.lower().count(b"chunked") > 1:
        raise MessageError(400, "invalid Transfer-Encoding")
    raise MessageError(501, "unsupported transfer coding")


def connection_options(value: bytes, before: Options = frozenset()) -> Options:
    """The options of a Connection value in lower case, with those of the fields before it.

    Raises:
        MessageError: it is not a list of tokens.
    """
    if _OPTIONS.fullmatch(value) is None:
        raise MessageError(400, "invalid Connection")
    options = value.lower().translate(None, b" \t").split(b",")
    if isinstance(before, set):
        # A hundred such fields must not copy thousands of options each time.
        before.update(options)
        found = before
    else:
        found = set(options)
    found.discard(b"")
    return found


def without_nominated(lines: list[bytes], options: Options) -> list[bytes]:
    """Drop the field lines that Connection options name (RFC 9110 7.6.1)."""
    names = [line[: line.index(b":")].lower() for line in lines]
    return [
        line
        for name, line in zip(names, lines, strict=True)
        if name not in options or name in NOT_NOMINABLE
    ]
