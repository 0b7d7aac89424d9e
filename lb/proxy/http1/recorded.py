"""Inferences whose payload is noted for the payload log, as the client sends and gets it."""

from __future__ import annotations

from lb.kserve.gate import NameMask
from lb.payloads.log import Recording
from lb.proxy.http1.sides import RequestHandler, RequestTaker
from lb.wire.http1.body import Payload


class RecordedRequest:
    """Notes the parts of a request before whoever takes them. A `RequestHandler`."""

    __slots__ = ("_handler", "_recording", "_taker")

    def __init__(
        self, recording: Recording, exchange: RequestTaker, handler: RequestHandler | None
    ) -> None:
        """
        Args:
            recording: notes them.
            exchange: of the request.
            handler: takes them before the exchange, or in its place; None: nobody does.
        """
        self._recording = recording
        self._taker = handler or exchange
        self._handler = handler

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestTaker`."""
        self._note(pieces)
        self._taker.start(head, pieces, ended=ended)

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestTaker`."""
        self._note(pieces)
        self._taker.add(pieces, ended=ended)

    def _note(self, pieces: list[Payload]) -> None:
        for piece in pieces:
            self._recording.add_request(piece)

    @property
    def collects(self) -> bool:
        """See `RequestHandler`."""
        return self._handler is not None and self._handler.collects

    @property
    def is_busy(self) -> bool:
        """See `RequestHandler`."""
        return self._handler is not None and self._handler.is_busy

    def prepare_placing(self) -> bool:
        """See `RequestHandler`."""
        return self._handler is None or self._handler.prepare_placing()

    def close(self) -> None:
        """See `RequestHandler`."""
        if self._handler is not None:
            self._handler.close()


class RecordedResponse(NameMask):
    """Notes what the client gets of a response, masked where that is to be. It extends the mask,
    since that is what every part of a response passes that must not go on unseen."""

    __slots__ = ("_mask", "_recording")

    def __init__(self, recording: Recording, head: bytes, mask: NameMask | None) -> None:
        """
        Args:
            recording: notes it.
            head: for the client.
            mask: of the response; None where it goes on as it comes.
        """
        super().__init__()
        recording.begin_response(head)
        self._recording = recording
        self._mask = mask

    def passes(self, data: bytes) -> bool:
        """See `NameMask`: all of it is to be fed."""
        return False

    def feed(self, piece: bytes) -> bytes:
        """See `NameMask`."""
        if self._mask is not None:
            piece = self._mask.feed(piece)
        self._recording.add_response(piece)
        return piece
