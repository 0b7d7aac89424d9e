"""Request and response heads of HTTP/2: validated, decided once, ready to send on.

RFC 9113 section 8. A head is immutable after it is built and may be shared by many streams, so
whoever caches it saves all of this work for the next request that looks the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from lb.wire.grpc.status import GrpcStatus
from lb.wire.grpc.timeout import parse_timeout
from lb.wire.http2 import fields as f
from lb.wire.http2.fields import Field, encode_field, passed_on
from lb.wire.http2.frames import HEADERS, ErrorCode, Malformed
from lb.wire.trace_context import TraceContext

is_base64: Final = re.compile(
    rb"[0-9A-Za-z+/]*+=*+(?:[ \t]*+,[ \t]*+[0-9A-Za-z+/]*+=*+)*+"
).fullmatch
"""What the value of a `-bin` field can be by "gRPC over HTTP2": values in base64, padded or not,
with commas between them; None for anything else. Servers may take less. Nothing is tried twice: a
blank between two commas could else belong to either, and time doubled with each."""
GRPC_TYPE: Final = b"application/grpc"
BAD_BINARY: Final = "malformed binary metadata: a field ending in -bin is not base64"
BAD_TIMEOUT: Final = "malformed grpc-timeout"
_CONTENT_LENGTH: Final = re.compile(rb"[0-9]{1,19}")
_STATUS: Final = re.compile(rb"[1-5][0-9][0-9]")
_STATUSES: Final = {b"%d" % status: int(status) for status in GrpcStatus}
_METHOD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PATH: Final = re.compile(rb"/[\x21\x22\x24-\x7e]*")
_AUTHORITY: Final = re.compile(rb"[A-Za-z0-9.\-_~%!$&'()*+,;=:\[\]]*")
TE_TRAILERS: Final = encode_field(b"te", b"trailers")
"""What a request gets that has none: gRPC servers may insist on it, to detect proxies that would
lose trailers."""
_REQUIRED: Final = 1 << f.METHOD | 1 << f.SCHEME | 1 << f.PATH
_REQUEST_PSEUDO: Final = _REQUIRED | 1 << f.AUTHORITY
_SINGLE: Final = _REQUEST_PSEUDO | 1 << f.STATUS | 1 << f.CONTENT_LENGTH | 1 << f.TE
_FORBIDDEN: Final = 1 << f.CONNECTION | 1 << f.MALFORMED | 1 << f.UNKNOWN_PSEUDO
_SHOWN_NAME: Final = 64
"""Bytes of a field's name that an error repeats."""
NO_LENGTH: Final = -1
NO_STATUS: Final = -1


def _malformed(detail: str) -> Malformed:
    return Malformed(ErrorCode.PROTOCOL_ERROR, detail)


class HeadFacts:
    """What is the same in the heads of all requests whose blocks differ only in their
    `traceparent`: what their other fields say, and what the owner of the cache made of that."""

    __slots__ = (
        "authority",
        "cacheable",
        "content_length",
        "count",
        "credentials",
        "discloses",
        "fault",
        "handler",
        "hops",
        "is_grpc",
        "is_plain",
        "loop",
        "method",
        "passed",
        "path",
        "request_id",
        "route",
        "size",
        "timeout_s",
        "unusable",
    )  # fmt: skip

    method: bytes
    path: bytes
    authority: bytes
    request_id: bytes
    cacheable: bool
    content_length: int
    is_grpc: bool
    timeout_s: float | None
    unusable: str
    """Why no gRPC server could make anything of it; empty for all others."""
    size: int
    """Decoded size as RFC 9113 10.5.1 counts it, in bytes."""
    count: int
    """Fields, pseudo-fields included."""
    fault: str
    """Why the request is malformed: it is answered here. Empty for all others."""
    hops: bytes
    """Values of the hop marker, see `lb.wire.hops`."""

    # Marks of the cache's owner

    route: Any
    """Whatever it has decided for the head; None: nothing yet."""
    passed: tuple[bytes, ...]
    """Identities of the balancers that such requests have passed."""
    loop: str
    """Why such requests must go no further; empty where they may."""
    credentials: object
    """What it asks of such requests before they may pass."""
    discloses: bool
    """Their clients may learn how they were served."""
    handler: Any
    """What serves such requests; None for the common way."""
    is_plain: bool
    """Nothing about such a request needs a second look."""

    def __init__(self, other: HeadFacts | None = None) -> None:
        """
        Args:
            other: facts to be like, with their owner's marks; None: those of an empty head.
        """
        # HOT PATH (benchmarks/bench_http2_headers.py). A copy is made once per request of a
        # client whose blocks never repeat.
        if other is not None:
            self.method = other.method
            self.path = other.path
            self.authority = other.authority
            self.request_id = other.request_id
            self.cacheable = other.cacheable
            self.content_length = other.content_length
            self.is_grpc = other.is_grpc
            self.timeout_s = other.timeout_s
            self.unusable = other.unusable
            self.size = other.size
            self.count = other.count
            self.fault = other.fault
            self.hops = other.hops
            self.route = other.route
            self.passed = other.passed
            self.loop = other.loop
            self.credentials = other.credentials
            self.discloses = other.discloses
            self.handler = other.handler
            self.is_plain = other.is_plain
            return
        self.method = self.path = self.authority = self.request_id = b""
        self.cacheable = True
        self.content_length = NO_LENGTH
        self.is_grpc = False
        self.timeout_s = None
        self.unusable = ""
        self.size = 0
        self.count = 0
        self.fault = ""
        self.hops = b""
        self.route = None
        self.passed = ()
        self.loop = ""
        self.credentials = None
        self.discloses = False
        self.handler = None
        self.is_plain = False


class RequestHead:
    """The head of a request, as a proxy needs it."""

    __slots__ = ("block", "context", "facts", "noted")

    def __init__(
        self,
        facts: HeadFacts,
        block: bytes,
        noted: tuple[tuple[bytes, bytes], ...] = (),
        context: TraceContext | None = None,
    ) -> None:
        # HOT PATH (benchmarks/bench_http2_headers.py). Once per request of a client whose
        # `traceparent` never repeats.
        self.facts = facts
        """Shared with heads whose blocks differ only in their `traceparent`."""
        self.block = block
        """What to send upstream: self-contained, no dynamic table."""
        self.noted = noted
        """Name and value of the fields that the owner of the cache wants to see."""
        self.context = context
        """Context of the trace of the request. A mark of the cache's owner, unless its
        `traceparent` is private."""

    def with_block(self, block: bytes) -> RequestHead:
        """Another one that sends something else on."""
        return RequestHead(self.facts, block, self.noted, self.context)


class ResponseHead:
    """The head of a response, or its trailers."""

    __slots__ = (
        "block", "cacheable", "content_length", "frame", "grpc_message", "grpc_status", "is_answer",
        "not_run", "size", "status",
    )  # fmt: skip

    frame: int
    """Length of `block` and the type of its frame, as both stand in the header of that."""
    # Documented here: between the lines of the constructor each text would cost an instruction.
    grpc_message: bytes
    """As on the wire, percent-encoded."""
    not_run: bytes
    """Value of that field of another balancer (`lb.wire.hops`). It is not in `block`."""
    status: int
    """0 for trailers."""
    is_answer: bool
    """It begins the answer of something that speaks gRPC, or an HTTP error: not so trailers,
    informational responses, and pages that something else has served with status 200."""

    def __init__(self) -> None:
        self.block = self.grpc_message = self.not_run = b""
        self.cacheable = True
        self.content_length = NO_LENGTH
        self.grpc_status = NO_STATUS
        self.status = self.size = 0
        self.is_answer = False


def _survey(fields: list[Field]) -> tuple[int, int, bool]:
    """Kinds present as a bit mask, decoded size, and whether the block may be cached.

    Raises:
        Malformed: what is wrong with any message: forbidden fields, order, repetition.
    """
    seen = 0
    size = 0
    cacheable = True
    regular = False
    for field in fields:
        kind = field.kind
        size += field.size
        if field.never_indexed:
            cacheable = False
        if not kind:
            regular = True
            continue
        bit = 1 << kind
        if bit & seen & _SINGLE:
            raise _malformed("repeated " + field.name.decode("latin-1"))
        seen |= bit
        if kind > f.LAST_PSEUDO:
            regular = True
        elif regular:
            raise _malformed("pseudo-field after a regular field")
    if seen & _FORBIDDEN:
        raise _forbidden(fields)
    return seen, size, cacheable


def _forbidden(fields: list[Field]) -> Malformed:
    """Say which field it is that no message may have."""
    field = next(each for each in fields if 1 << each.kind & _FORBIDDEN)
    name = field.name[:_SHOWN_NAME].decode("ascii", "backslashreplace")
    if field.kind == f.CONNECTION:
        return _malformed(f"{name} belongs to HTTP/1.1 connections")
    if field.kind == f.UNKNOWN_PSEUDO:
        return _malformed(f"unknown pseudo-field {name}")
    return _malformed(f"the name or the value of the field {name!r} is invalid")


def _length(value: bytes) -> int:
    if _CONTENT_LENGTH.fullmatch(value) is None:
        raise _malformed("bad content-length")
    return int(value)


def build_request(
    fields: list[Field], block: bytes, private: frozenset[bytes] = frozenset()
) -> RequestHead:
    """Validate and digest a request head.

    Args:
        fields: of the block, in order.
        block: the same fields without size updates and dynamic table.
        private: names of fields that are not passed on, as in `passed_on`.

    Raises:
        Malformed: see RFC 9113 8.1.1.
    """
    seen, size, cacheable = _survey(fields)
    if seen & _REQUIRED != _REQUIRED:
        raise _malformed("missing pseudo-field")
    if seen & 1 << f.STATUS:
        raise _malformed(":status in a request")
    facts = HeadFacts()
    facts.size = size
    facts.count = len(fields)
    facts.cacheable = cacheable
    takers = _TAKERS.get
    edited = bool(private or seen & 1 << f.DROPPED)
    for field in fields:
        if field.sent is not field.raw:
            edited = True
        taker = takers(field.kind)
        if taker is not None:
            taker(facts, field.value)
    if edited:
        block = passed_on(fields, private)
    if not seen & 1 << f.TE:
        block += TE_TRAILERS
    return RequestHead(facts, block)


def refused_request(fields: list[Field], fault: Malformed) -> RequestHead:
    """The head of a malformed request, if it is of gRPC: its client is to be told what is wrong.

    Raises:
        Malformed: the client speaks something else.
    """
    if not any(field.kind == f.CONTENT_TYPE and is_grpc_type(field.value) for field in fields):
        raise fault
    facts = HeadFacts()
    facts.is_grpc = True
    facts.fault = fault.detail
    facts.count = len(fields)
    for field in fields:
        facts.size += field.size
        facts.cacheable = facts.cacheable and not field.never_indexed
        if field.kind == f.METHOD:
            facts.method = field.value
        elif field.kind == f.PATH and _PATH.fullmatch(field.value) is not None:
            facts.path = field.value
        elif field.kind == f.REQUEST_ID:
            facts.request_id = field.value
    return RequestHead(facts, b"")


def _take_path(facts: HeadFacts, value: bytes) -> None:
    if _PATH.fullmatch(value) is None and not (value == b"*" and facts.method == b"OPTIONS"):
        raise _malformed("bad :path")
    facts.path = value


def _take_method(facts: HeadFacts, value: bytes) -> None:
    if _METHOD.fullmatch(value) is None:
        raise _malformed("bad :method")
    facts.method = value


def _take_scheme(facts: HeadFacts, value: bytes) -> None:
    if value not in (b"http", b"https"):
        raise _malformed("bad :scheme")


def _take_authority(facts: HeadFacts, value: bytes) -> None:
    if _AUTHORITY.fullmatch(value) is None:
        raise _malformed("bad authority")
    facts.authority = value


def _take_host(facts: HeadFacts, value: bytes) -> None:
    # Beside an :authority it is metadata like any other: meshes route by it (RFC 9113 8.3.1 would
    # have it refused where they differ).
    if not facts.authority:
        _take_authority(facts, value)


def _take_te(facts: HeadFacts, value: bytes) -> None:
    if value != b"trailers":
        raise _malformed("te other than trailers")


def is_grpc_type(value: bytes) -> bool:
    """Whether a `content-type` is that of gRPC."""
    return value.startswith(GRPC_TYPE) and value[16:17] in (b"", b"+", b";")


def _take_content_type(facts: HeadFacts, value: bytes) -> None:
    facts.is_grpc = is_grpc_type(value)


def _take_content_length(facts: HeadFacts, value: bytes) -> None:
    facts.content_length = _length(value)


def _take_timeout(facts: HeadFacts, value: bytes) -> None:
    facts.timeout_s = parse_timeout(value)
    if facts.timeout_s is None:
        facts.unusable = BAD_TIMEOUT


def _take_binary(facts: HeadFacts, value: bytes) -> None:
    if is_base64(value) is None:
        facts.unusable = BAD_BINARY


def _take_request_id(facts: HeadFacts, value: bytes) -> None:
    facts.request_id = value


def _take_hops(facts: HeadFacts, value: bytes) -> None:
    facts.hops += value + b","


_TAKERS: Final[dict[int, Callable[[HeadFacts, bytes], None]]] = {
    f.PATH: _take_path,
    f.METHOD: _take_method,
    f.SCHEME: _take_scheme,
    f.AUTHORITY: _take_authority,
    f.HOST: _take_host,
    f.TE: _take_te,
    f.CONTENT_TYPE: _take_content_type,
    f.CONTENT_LENGTH: _take_content_length,
    f.GRPC_TIMEOUT: _take_timeout,
    f.REQUEST_ID: _take_request_id,
    f.HOPS: _take_hops,
    f.BINARY: _take_binary,
}


def check_trailers(fields: list[Field]) -> int:
    """Validate the trailers of a request; returns their decoded size.

    Raises:
        Malformed: pseudo-fields or forbidden fields (RFC 9113 8.1).
    """
    seen, size, _ = _survey(fields)
    if seen & ((1 << f.LAST_PSEUDO + 1) - 1):
        raise _malformed("pseudo-field in trailers")
    return size


def build_response(
    fields: list[Field], block: bytes, hide: Callable[[bytes], bytes] = bytes
) -> ResponseHead:
    """Validate and digest a response head or its trailers. White space around values stays: some of
    Triton's errors end with a space.

    Args:
        fields: of the block, in order.
        block: the same fields without size updates and dynamic table.
        hide: gives a `grpc-message` as the client may see it.

    Raises:
        Malformed: as for requests.
    """
    seen, size, cacheable = _survey(fields)
    if seen & _REQUEST_PSEUDO:
        raise _malformed("request pseudo-field in a response")
    head = ResponseHead()
    head.block = block
    head.size = size
    head.cacheable = cacheable
    foreign = False
    for field in fields:
        kind = field.kind
        if not kind:
            continue
        value = field.value
        if kind == f.STATUS:
            if _STATUS.fullmatch(value) is None:
                raise _malformed("bad :status")
            head.status = status = int(value)
            head.is_answer = status >= 200
        elif kind == f.CONTENT_TYPE:
            foreign = value != GRPC_TYPE and not is_grpc_type(value)
        elif kind == f.GRPC_STATUS:
            head.grpc_status = _STATUSES.get(value, int(GrpcStatus.UNKNOWN))
        elif kind == f.CONTENT_LENGTH:
            head.content_length = _length(value)
        elif kind == f.NOT_RUN:
            head.not_run = value
        elif kind == f.GRPC_MESSAGE:
            head.grpc_message = value
    if foreign and head.status == 200 and head.grpc_status == NO_STATUS:
        head.is_answer = False
    text = head.grpc_message
    if head.not_run or (text and hide(text) != text):
        head.block = _as_shown(fields, hide)
    head.frame = len(head.block) << 8 | HEADERS
    return head


def _as_shown(fields: list[Field], hide: Callable[[bytes], bytes]) -> bytes:
    return b"".join([
        encode_field(field.name, hide(field.value)) if field.kind == f.GRPC_MESSAGE else field.raw
        for field in fields
        if field.kind != f.NOT_RUN
    ])  # fmt: skip
