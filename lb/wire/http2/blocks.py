"""Header blocks of one connection to heads, through process-wide bounded caches.

Which decoder applies is the connection's state: until the peer acknowledges our table size of 0
its blocks may use a dynamic table and are decoded by `hpack`; afterwards equal bytes mean equal
heads, on every connection, and a cache entry never has to be invalidated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKDecodingError, OversizedHeaderListError

from lb.wire.cache import HeadCache
from lb.wire.http2.beginnings import Beginning, Beginnings
from lb.wire.http2.fields import Field, FieldCache, field_of, passed_on, skip_size_updates
from lb.wire.http2.frames import ErrorCode, Http2Error, Malformed, StreamError
from lb.wire.http2.heads import (
    RequestHead,
    ResponseHead,
    build_request,
    build_response,
    check_trailers,
    refused_request,
)
from lb.wire.http2.traced import TracedHeads, Untraced, name_of
from lb.wire.trace_context import TRACEPARENT

_LEARNED_FROM: Final = 1024
"""Bytes of a block beyond which it is not kept to compare others with."""


class HeadCaches:
    """What all connections of a process share."""

    __slots__ = (
        "added", "beginnings", "fields", "hide", "noted", "private", "requests", "responses",
        "traced",
    )  # fmt: skip

    def __init__(
        self,
        private: frozenset[bytes] = frozenset(),
        noted: frozenset[bytes] = frozenset(),
        hide: Callable[[bytes], bytes] = bytes,
        added: bytes = b"",
    ) -> None:
        """
        Args:
            private: names of request fields that are dropped, in lower case and with hyphens,
                which here also stand for underscores.
            noted: names of request fields that a head keeps, passed on or not.
            hide: gives a `grpc-message` as clients may see it.
            added: fields that requests go on with, behind their own.
        """
        self.private = private
        self.noted = noted
        self.hide = hide
        self.added = added
        self.fields = FieldCache()
        self.beginnings = Beginnings(private, noted, added)
        self.traced = TracedHeads(private, noted)
        self.requests: HeadCache[RequestHead] = HeadCache()
        self.responses: HeadCache[ResponseHead] = HeadCache()


def _unknown(_block: bytes) -> None:
    """While a dynamic table is in use, equal bytes do not mean equal heads."""


class BlockReader:
    """Decodes the header blocks of one connection in the order they come."""

    __slots__ = (
        "_before", "_beginning", "_caches", "_decoder", "_limit", "_parent_name", "_untraced",
        "known_request", "known_response",
    )  # fmt: skip

    def __init__(self, caches: HeadCaches, limit: int) -> None:
        self._caches = caches
        self._limit = limit
        decoder = Decoder(max_header_list_size=2 * limit)
        self._decoder: Decoder | None = decoder
        """None once the peer has acknowledged our table size of 0."""
        self._beginning: Beginning | None = None
        """What requests begin with lately."""
        self._before = b""
        """The last block that did not begin so, as far as it may be kept."""
        self._parent_name = b""
        """How the peer writes the name of a `traceparent`; empty until it has sent one."""
        self._untraced: Untraced | None = None
        """What its last request with a `traceparent` said beside that, if it was known."""
        self.known_request: Callable[[bytes], RequestHead | None] = _unknown
        """The head of a block that was seen lately; hot."""
        self.known_response: Callable[[bytes], ResponseHead | None] = _unknown

    def use(self, caches: HeadCaches) -> None:
        """Decode through other caches from now on."""
        self._caches = caches
        self._beginning = None
        self._before = self._parent_name = b""
        self._untraced = None
        if self._decoder is None:
            self.acknowledged()

    @property
    def is_stateless(self) -> bool:
        """Whether equal blocks mean equal heads by now."""
        return self._decoder is None

    def acknowledged(self) -> None:
        """The peer has applied our SETTINGS: no block refers to a dynamic table any more."""
        self._decoder = None
        self.known_request = self._caches.requests.get
        self.known_response = self._caches.responses.get

    def _known(self, block: bytes) -> RequestHead | None:
        """`known_request` of a peer that sends a `traceparent`."""
        # HOT PATH (benchmarks/bench_http2_headers.py).
        if self._untraced is not None:
            head = self._untraced.head_of(block)
            if head is not None:
                return head
        caches = self._caches
        found = caches.traced.find(self._parent_name, block)
        if found is None:
            return caches.requests.get(block)
        self._untraced = found
        return found.head_of(block) or caches.requests.get(block)

    def request(self, block: bytes) -> RequestHead:
        """The head of a request that `known_request` does not know. A malformed one of gRPC has a
        `fault`.

        Raises:
            Http2Error: the block cannot be decoded; the connection is lost.
            Malformed: the head is malformed, and not of gRPC.
        """
        # HOT PATH (benchmarks/bench_http2_headers.py). A repeated block is one look-up, and of one
        # that begins like those before it only the rest is read.
        if self._decoder is not None:
            fields, plain = self._plain(block)
            return self._build(fields, plain)
        requests = self._caches.requests
        head = requests.get(block) or requests.revive(block)
        if head is not None:
            return head
        beginnings = self._caches.beginnings
        key = self._caches.traced.missed if self._parent_name else b""
        if key and not beginnings.came_before(key):
            key = b""
        beginning = self._beginning
        if beginning is not None and not key and block.startswith(beginning.block):
            head = beginnings.complete(beginning, block)
            if head is not None:
                if head.facts.cacheable and beginnings.came_before(block):
                    requests.put(block, head)
                return head
        start = skip_size_updates(block)
        plain = block[start:] if start else block
        fields = self._caches.fields.split(plain)
        head = self._build(fields, plain)
        if head.facts.cacheable:
            requests.put(block, head)
        if len(plain) <= _LEARNED_FROM:
            self._learn(fields, plain)
            if key:
                self._caches.traced.learn(key, head, fields)
        return head

    def _learn(self, fields: list[Field], block: bytes) -> None:
        if self._before:
            self._beginning = self._caches.beginnings.learn(fields, block, self._before)
        size = 0
        for field in fields:
            if field.never_indexed:
                break  # such fields are kept nowhere
            size += len(field.raw)
            if field.name == TRACEPARENT and not self._parent_name:
                self._parent_name = name_of(field)
                self.known_request = self._known
        self._before = block[:size]

    def response(self, block: bytes) -> ResponseHead:
        """The head of a response or its trailers.

        Raises:
            Http2Error: the block cannot be decoded; the connection is lost.
            Malformed: the head is malformed.
        """
        # HOT PATH (benchmarks/bench_http2_headers.py). As `request`.
        if self._decoder is not None:
            fields, plain = self._plain(block)
            return build_response(fields, plain, self._caches.hide)
        responses = self._caches.responses
        head = responses.get(block) or responses.revive(block)
        if head is not None:
            return head
        start = skip_size_updates(block)
        plain = block[start:] if start else block
        head = build_response(self._caches.fields.split(plain), plain, self._caches.hide)
        if head.cacheable:
            responses.put(block, head)
        return head

    def trailers(self, block: bytes) -> bytes:
        """The trailers of a request, ready to send on. Raises like `response`.

        Raises:
            StreamError: they are too large.
        """
        if self._decoder is not None:
            fields, plain = self._plain(block)
        else:
            plain = block[skip_size_updates(block) :]
            fields = self._caches.fields.split(plain)
        if check_trailers(fields) > self._limit:
            raise StreamError(ErrorCode.ENHANCE_YOUR_CALM, "trailers too large")
        return passed_on(fields, self._caches.private)

    def skip(self, block: bytes) -> None:
        """A block of a stream that is gone: keeps a dynamic table in step, drops the rest."""
        if self._decoder is not None:
            self._plain(block)

    def _build(self, fields: list[Field], plain: bytes) -> RequestHead:
        caches = self._caches
        try:
            head = build_request(fields, plain, caches.private)
        except Malformed as fault:
            return refused_request(fields, fault)
        head.block += caches.added
        noted = caches.noted
        if noted:
            head.noted = tuple((f.name, f.value) for f in fields if f.name in noted)
        return head

    def _plain(self, block: bytes) -> tuple[list[Field], bytes]:
        assert self._decoder is not None
        try:
            fields = [field_of(header) for header in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "header list too large") from error
        except HPACKDecodingError as error:
            # Without the library's text, which repeats the block.
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, "undecodable header block") from error
        return fields, b"".join([field.raw for field in fields])
