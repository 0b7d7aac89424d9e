"""An HTTP/1.1 request and its answer (RFC 9112), without IO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask.client_call import ANSWER_BYTES, PIECE_BYTES, Fields, Payload
from lb.wire.http1.body import CloseDecoder, few, make_decoder
from lb.wire.http1.collect import HeadCollector
from lb.wire.http1.errors import MessageError
from lb.wire.http1.grammar import CRLF, trimmed
from lb.wire.http1.limits import INTERIM_RESPONSES, HeadLimits
from lb.wire.http1.response import parse_response_head
from lb.wire.pieces import join_short

_LIMITS: Final = HeadLimits()
_MOST_CHUNKS: Final = 4096
"""Chunks of an answer, of whatever size. Each takes a microsecond or two."""
_CHUNK_BYTES: Final = 256
"""An answer with more chunks has so many bytes in each beyond them."""
_BODILESS: Final = frozenset({b"GET", b"HEAD"})


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer."""

    status: int
    fields: Fields
    body: bytes

    @property
    def content_type(self) -> bytes:
        """The media type; empty where none was given."""
        return next((value for name, value in self.fields if name == b"content-type"), b"")


class HttpClientCall:
    """One request on a connection, with no other beside it."""

    __slots__ = (
        "_body", "_chunks", "_decoder", "_fields", "_head", "_interim", "_is_kept", "_limit",
        "_method", "_pieces", "_sent", "_size", "_status", "answer", "request",
    )  # fmt: skip

    def __init__(
        self,
        method: bytes,
        target: bytes,
        fields: Fields,
        body: Payload = b"",
        *,
        authority: bytes,
        limit: int = ANSWER_BYTES,
        keeps: bool = False,
    ) -> None:
        """Prepare it.

        Args:
            method: of the request.
            target: request target.
            fields: end-to-end fields, without those that frame the body.
            body: as it goes on the wire.
            authority: value of `Host`.
            limit: bytes that the body of the answer may have.
            keeps: whether the connection is to stay open after the answer.
        """
        self.answer: HttpAnswer | None = None
        self._is_kept = keeps
        """The connection stays open, as far as is known."""
        self._method = method
        own = [(b"host", authority)]
        if not keeps:
            own.append((b"connection", b"close"))
        if body or method not in _BODILESS:
            own.append((b"content-length", b"%d" % len(body)))
        lines = [b"%b: %b" % field for field in (*own, *fields)]
        self.request = CRLF.join((b"%b %b HTTP/1.1" % (method, target), *lines, b"", b""))
        self._body = memoryview(body)
        self._sent = 0
        self._limit = limit
        self._head = HeadCollector(_LIMITS, of_request=False)
        self._interim = 0
        self._status = 0
        self._fields: Fields = ()
        self._decoder = make_decoder(0)
        self._pieces: list[Payload] = []
        self._size = 0
        self._chunks = 0

    @property
    def is_reusable(self) -> bool:
        """See `ClientCall`."""
        return self._is_kept and self.answer is not None and self._sent == len(self._body)

    def release(self) -> None:
        """See `ClientCall`."""
        self._body, self._sent, self._pieces = memoryview(b""), 0, []
        self.answer = HttpAnswer(self._status, (), b"")

    def opening(self) -> bytes:
        """See `ClientCall`."""
        return self.request

    def upload(self) -> list[Payload]:
        """See `ClientCall`."""
        piece = self._body[self._sent : self._sent + PIECE_BYTES]
        self._sent += len(piece)
        return [piece] if piece else []

    def receive(self, data: bytes) -> bytes:
        """See `ClientCall`."""
        if self.answer is not None:
            self._is_kept = False  # nobody has asked for more
            return b""
        try:
            self._take(data)
        except MessageError as error:
            raise UpstreamError(
                Outcome.PROTOCOL_ERROR, f"the answer is not HTTP/1.1: {error.text}"
            ) from error
        return b""

    def closed(self) -> None:
        """See `ClientCall`."""
        if self._status and isinstance(self._decoder, CloseDecoder):
            self._finish()

    def _take(self, data: bytes) -> None:
        while not self._status:
            head = self._head.feed(data)
            if head is None:
                return
            data = self._head.rest
            self._take_head(head)
        at = 0
        while at < len(data) and not self._decoder.ended:
            payload: list[Payload] = []
            at = self._decoder.decode(data, at, payload)
            self._size += sum(map(len, payload))
            self._chunks += len(payload)
            self._pieces += few(payload)
            join_short(self._pieces)
            if self._size > self._limit:
                raise UpstreamError(Outcome.PROTOCOL_ERROR, "the answer is too long")
            if self._chunks > _MOST_CHUNKS + self._size // _CHUNK_BYTES:
                raise UpstreamError(Outcome.PROTOCOL_ERROR, "the answer has too many chunks")
        if self._decoder.ended:
            if at < len(data):
                self._is_kept = False
            self._finish()

    def _take_head(self, head: bytes) -> None:
        found = parse_response_head(head, _LIMITS, to_head=self._method == b"HEAD")
        if found.is_interim:
            self._interim += 1
            if self._interim > INTERIM_RESPONSES:
                raise MessageError(400, "endless interim answers")
            return
        self._status = found.status
        self._is_kept = self._is_kept and found.keep_alive
        self._decoder = make_decoder(found.length)
        lines = (line.partition(b":") for line in head.split(CRLF)[1:-2])
        self._fields = tuple((name.lower(), trimmed(value)) for name, _, value in lines)

    def _finish(self) -> None:
        self.answer = HttpAnswer(self._status, self._fields, b"".join(self._pieces))
