"""What independent libraries make of HTTP/1.1 bytes: h11 and httptools.

Both accept more than we do, so they only have a say where we accept as well; there they must mean
the same. Each reader gives complete messages until the first that it refuses or cannot finish.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import h11
import httptools

Fields = list[tuple[bytes, bytes]]


@dataclass
class Message:
    """A request, or a response when `method` is empty and `target` the status."""

    method: bytes = b""
    target: bytes = b""
    fields: Fields = field(default_factory=list)
    """Names in lower case, values without white space around them."""
    body: bytes = b""

    def values(self, name: bytes) -> list[bytes]:
        """All values of a field."""
        return [value for each, value in self.fields if each == name]

    @property
    def options(self) -> set[bytes]:
        """Connection options in lower case."""
        listed = b",".join(self.values(b"connection")).lower()
        return {option.strip(b" \t") for option in listed.split(b",")}


def h11_requests(data: bytes) -> list[Message]:
    """As a server that answers every request at once."""
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 17)
    server.receive_data(data)
    found: list[Message] = []
    try:
        while True:
            request = server.next_event()
            if not isinstance(request, h11.Request):
                return found
            message = Message(request.method, request.target, list(request.headers))
            if not _read_body(server, message):
                return found
            found.append(message)
            server.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            server.send(h11.EndOfMessage())
            if server.our_state is not h11.DONE:
                return found
            server.start_next_cycle()
    except h11.ProtocolError:
        return found


def h11_response(data: bytes, *, method: bytes, ended: bool) -> Message | None:
    """The final response to a request; None where it is refused or not complete."""
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 17)
    client.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    if ended:
        client.receive_data(b"")
    try:
        event = client.next_event()
        while isinstance(event, h11.InformationalResponse):
            event = client.next_event()
        if not isinstance(event, h11.Response):
            return None
        message = Message(b"", b"%d" % event.status_code, list(event.headers))
        return message if _read_body(client, message) else None
    except h11.ProtocolError:
        return None


def _read_body(connection: h11.Connection, message: Message) -> bool:
    while True:
        event = connection.next_event()
        if isinstance(event, h11.EndOfMessage):
            return True
        if not isinstance(event, h11.Data):
            return False
        message.body += bytes(event.data)


class _Httptools:
    """Callbacks of httptools."""

    def __init__(self) -> None:
        self.found: list[Message] = []
        self._now = Message()
        self._in_body = False

    def on_message_begin(self) -> None:
        self._now = Message()
        self._in_body = False

    def on_url(self, url: bytes) -> None:
        self._now.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # trailers come the same way
            self._now.fields.append((name.lower(), (value or b"").strip(b" \t")))

    def on_headers_complete(self) -> None:
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._now.body += body

    def on_message_complete(self) -> None:
        self.found.append(self._now)


def httptools_requests(data: bytes) -> list[Message]:
    """All requests; `method` is that of the last that was begun, so it is left empty."""
    calls = _Httptools()
    parser = httptools.HttpRequestParser(calls)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        del calls.found[-1:]  # it leaves what follows the head to others
    except httptools.HttpParserError:
        pass
    return calls.found
