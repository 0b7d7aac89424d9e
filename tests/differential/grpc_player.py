"""Makes a call in plain frames and keeps all that a client can see of the answer."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from hpack import Decoder

from tests.differential.cases import GrpcCase, Pair
from tests.wire import frames as fr

SILENT_S = 20.0
"""Who says nothing for so long is silent. Loading a model takes seconds on a busy machine."""
_WINDOW = 2**24
_CALLS = 40
"""On one connection. Later ones are read otherwise than the first: their blocks stand alone."""
_FRAME = 16_384


@dataclass
class GrpcOutcome:
    """One answer."""

    heads: list[list[Pair]] = field(default_factory=list)
    """Head and trailers, or one block that is both."""
    data: bytes = b""
    reset: int | None = None
    """Code of an RST_STREAM that came before the end."""
    end: str = ""
    """Why there is no end of the answer: the connection was closed, or silent."""

    @property
    def status(self) -> int | None:
        """`grpc-status`."""
        found = [value for head in self.heads for name, value in head if name == b"grpc-status"]
        return int(found[-1]) if found else None

    @property
    def messages(self) -> list[bytes]:
        """What was answered, without prefixes; what is left over comes last."""
        found, at = [], 0
        while at + 5 <= len(self.data):
            size = int.from_bytes(self.data[at + 1 : at + 5], "big")
            found.append(self.data[at + 5 : at + 5 + size])
            at += 5 + size
        return found + ([self.data[at:]] if at < len(self.data) else [])


class GrpcPlayer:
    """Plays cases at one address, many on each connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._connection: _Connection | None = None

    def play(self, case: GrpcCase) -> GrpcOutcome:
        """Make a call and read its answer."""
        connection = self._connection
        if case.fresh or connection is None or connection.is_over or connection.calls >= _CALLS:
            self.close()
            connection = self._connection = _Connection(self._address)
        return connection.call(case)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=SILENT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._decoder = Decoder(max_header_list_size=2**20)
        self._decoder.max_allowed_table_size = 4096
        self._next = 1
        self.calls = 0
        self.is_over = False
        greeting = fr.settings({fr.INITIAL_WINDOW_SIZE: _WINDOW, fr.ENABLE_PUSH: 0})
        self._socket.sendall(fr.PREFACE + greeting + fr.window_update(0, _WINDOW))

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def call(self, case: GrpcCase) -> GrpcOutcome:
        """Make one call."""
        stream, self._next = self._next, self._next + 2
        self.calls += 1
        pseudo = (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", case.path),
            (b":authority", case.authority), (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )  # fmt: skip
        body = case.body
        parts = [body[at : at + _FRAME] for at in range(0, len(body), _FRAME)] or [b""]
        sent = [fr.headers(stream, (*pseudo, *case.metadata))]
        sent += [fr.data(stream, part, end=part is parts[-1]) for part in parts]
        outcome = GrpcOutcome()
        try:
            self._socket.sendall(b"".join(sent))
            while self._read(stream, outcome):
                pass
        except TimeoutError:
            outcome.end, self.is_over = "silent", True
        except OSError:
            outcome.end, self.is_over = "closed", True
        return outcome

    def _read(self, stream: int, outcome: GrpcOutcome) -> bool:
        """Take one frame. False once the call is over."""
        found = self._frame()
        if found.kind == fr.SETTINGS and not found.flags & fr.ACK:
            self._socket.sendall(fr.SETTINGS_ACK)
        elif found.kind == fr.PING and not found.flags & fr.ACK:
            self._socket.sendall(fr.ping(found.payload, ack=True))
        elif found.kind == fr.GOAWAY:
            self.is_over = True
        elif found.kind == fr.HEADERS:
            # Of an earlier stream, too: the table has to stay in step.
            head = self._decoder.decode(found.payload, raw=True)
            if found.stream == stream:
                outcome.heads.append([(bytes(name), bytes(value)) for name, value in head])
        elif found.kind == fr.DATA and found.stream == stream:
            outcome.data += found.payload
            if found.payload:
                self._socket.sendall(fr.window_update(0, len(found.payload)))
        elif found.kind == fr.RST_STREAM and found.stream == stream:
            outcome.reset = found.code
            return False
        return not (found.stream == stream and found.ends_stream)

    def _frame(self) -> fr.Frame:
        head = self._stream.read(9)
        size = int.from_bytes(head[:3], "big")
        payload = self._stream.read(size)
        if len(head) < 9 or len(payload) < size:
            raise ConnectionError("closed")
        return fr.Frame(head[3], head[4], int.from_bytes(head[5:9], "big"), payload)
