"""The request of a trace on its way: each backend is told of another span."""

from __future__ import annotations

from typing import Final

from lb.proxy.http1.client import ClientConnection
from lb.proxy.http1.request_body import RequestBody
from lb.proxy.http1.shared import Http1Shared
from lb.proxy.http1.sides import ClientSide
from lb.proxy.request_trace import RequestTrace

_ID_BYTES: Final = 16


class TracedBody(RequestBody):
    """A `RequestBody` whose head has a `traceparent`, into which each attempt writes its own."""

    __slots__ = ("_at", "_trace")

    def __init__(
        self,
        relay: Http1Shared,
        client: ClientSide | None,
        length: int,
        trace: RequestTrace,
        at: int,
    ) -> None:
        """
        Args:
            relay: see `RequestBody`.
            client: likewise.
            length: likewise.
            trace: has the ids.
            at: where in the head the id of the span stands.
        """
        super().__init__(relay, client, length)
        self._trace = trace
        self._at = at

    def again(self) -> RequestBody:
        """See `RequestBody`."""
        other = TracedBody(self._relay, None, self._length, self._trace, self._at)
        self._share(other)
        return other

    def send(self, connection: ClientConnection) -> None:
        """See `RequestBody`."""
        kept, attempt = self._kept, connection.attempt
        if kept and attempt is not None:
            head, at = bytes(kept[0]), self._at
            span_id = self._trace.span_of(attempt)
            kept[0] = head[:at] + span_id + head[at + _ID_BYTES :]
        super().send(connection)
