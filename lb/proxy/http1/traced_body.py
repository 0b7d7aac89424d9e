"""The request of a trace on its way: each backend is told of another span."""

from __future__ import annotations

from typing import Final

from lb.proxy.http1.client import ClientConnection
from lb.proxy.http1.request_body import RequestBody
from lb.proxy.http1.shared import Http1Shared
from lb.proxy.http1.sides import ClientSide
from lb.proxy.request_trace import RequestTrace
from lb.wire.http1.trace_fields import span_at

_ID_BYTES: Final = 16


class TracedBody(RequestBody):
    """A `RequestBody` whose head has a `traceparent`, into which each attempt writes its own."""

    __slots__ = ("_trace",)

    def __init__(
        self,
        relay: Http1Shared,
        client: ClientSide | None,
        length: int,
        trace: RequestTrace,
    ) -> None:
        """
        Args:
            relay: see `RequestBody`.
            client: likewise.
            length: likewise.
            trace: has the ids.
        """
        super().__init__(relay, client, length)
        self._trace = trace

    def again(self) -> RequestBody:
        """See `RequestBody`."""
        other = TracedBody(self._relay, None, self._length, self._trace)
        self._share(other)
        return other

    def send(self, connection: ClientConnection) -> None:
        """See `RequestBody`."""
        kept, attempt = self._kept, connection.attempt
        if kept and attempt is not None:
            head = bytes(kept[0])
            at = span_at(head)  # whoever chooses a variant writes another request line
            span_id = self._trace.span_of(attempt)
            kept[0] = head[:at] + span_id + head[at + _ID_BYTES :]
        super().send(connection)
