"""HTTP/1.1 spoken by hand: exactly these bytes out, and the answer as it stood on the wire."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from tests.triton.target import WAIT_S

CONNECTION_LEVEL = {b"connection", b"keep-alive", b"transfer-encoding"}
"""Fields between neighbours, which a proxy decides for itself (RFC 9110 section 7.6.1)."""


def anonymous(text: bytes) -> bytes:
    """Hide which Triton wrote it: tracebacks of models name the folder of their server."""
    return re.sub(rb"triton-\d", b"triton-N", text)


@dataclass(frozen=True)
class RawAnswer:
    """One answer; field names keep their case, fields their order, the body is without chunks."""

    status_line: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.status_line.split(b" ")[1])

    @property
    def end_to_end(self) -> RawAnswer:
        """What must arrive unchanged through a proxy, whichever of the Tritons said it."""
        kept = tuple(field for field in self.fields if field[0].lower() not in CONNECTION_LEVEL)
        return RawAnswer(self.status_line, kept, anonymous(self.body))

    def field(self, name: bytes) -> bytes | None:
        """The first value of a field."""
        for present, value in self.fields:
            if present.lower() == name.lower():
                return value
        return None


class RawConnection:
    """One client connection; `ask` may be called again while the server keeps it open."""

    def __init__(self, address: str, *, timeout_s: float = WAIT_S) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, data: bytes) -> RawAnswer:
        """Send one request and read its whole answer."""
        self.send(data)
        return self.read_answer(to_head=data.startswith(b"HEAD "))

    def read_line(self) -> bytes:
        """Read to the next CRLF.

        Raises:
            EOFError: when the server closed first.
        """
        line = self._stream.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError(f"closed after {line!r}")
        return line[:-2]

    def read_head(self) -> RawAnswer:
        """Read status line and fields of the next answer, interim ones included."""
        status_line = self.read_line()
        fields = []
        while line := self.read_line():
            name, _, value = line.partition(b":")
            fields.append((name, value.strip()))
        return RawAnswer(status_line, tuple(fields), b"")

    def read_answer(self, *, to_head: bool = False) -> RawAnswer:
        """Read the next answer that is not an interim one, body included."""
        head = self.read_head()
        while 100 <= head.status < 200:
            head = self.read_head()
        if to_head:
            body = b""
        elif head.field(b"transfer-encoding") == b"chunked":
            body = b"".join(iter(self.read_chunk, b""))
        else:
            body = self._read_exactly(int(head.field(b"content-length") or 0))
        return RawAnswer(head.status_line, head.fields, body)

    def read_chunk(self) -> bytes:
        """Read one chunk of a body; empty at its end."""
        size = int(self.read_line().partition(b";")[0], 16)
        data = self._read_exactly(size)
        if self.read_line():
            raise ValueError("a chunk is longer than it said, or there are trailers")
        return data

    def _read_exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise EOFError(f"closed after {len(data)} of {size} bytes")
        return data


def message(method: str, path: str, body: bytes | None = None, *extra: str) -> bytes:
    """A request with a Content-Length when it has a body; `extra` are more field lines."""
    lines = [f"{method} {path} HTTP/1.1", "Host: triton.test", *extra]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def ask_once(address: str, data: bytes) -> RawAnswer:
    """One request on a connection of its own."""
    with RawConnection(address) as connection:
        return connection.ask(data)
