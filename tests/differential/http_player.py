"""Sends a request and keeps all that a client can see of the answer."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from io import BufferedReader

from tests.differential.cases import HttpCase, Pair

SILENT_S = 20.0
"""Who says nothing for so long is silent. Loading a model takes seconds on a busy machine."""
_NEXT = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
SILENT, GONE = b"silent", b"closed without an answer"


@dataclass(frozen=True)
class HttpOutcome:
    """One answer. Without one, `line` says why."""

    line: bytes
    fields: tuple[Pair, ...] = ()
    body: bytes = b""
    is_chunked: bool = False
    is_cut: bool = False
    """The body ends before its end."""
    interim: tuple[bytes, ...] = ()
    """Status lines of interim answers."""
    stays_open: bool = False
    """The next request on the same connection is answered."""

    @property
    def status(self) -> int:
        words = self.line.split(b" ")
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    def field(self, name: bytes) -> bytes:
        """The first value of a field; empty where there is none."""
        return next((value for present, value in self.fields if present.lower() == name), b"")


class HttpPlayer:
    """Plays cases at one address, each on a connection of its own."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))

    def play(self, case: HttpCase) -> HttpOutcome:
        """Send a case and read its answer."""
        with socket.create_connection(self._address, timeout=SILENT_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection.makefile("rb") as stream:
                return _ask(connection, stream, case)

    def close(self) -> None:
        """Nothing is open."""


def _ask(connection: socket.socket, stream: BufferedReader, case: HttpCase) -> HttpOutcome:
    reader = _Reader(stream)
    try:
        connection.sendall(case.wire)
        outcome = reader.answer(to_head=case.method == b"HEAD")
    except TimeoutError:
        return HttpOutcome(SILENT)
    except OSError:
        return HttpOutcome(GONE)
    if outcome.is_cut or not outcome.status:
        return outcome
    if case.method == b"HEAD":
        # A Triton answers with a body, so that what comes next cannot be told from it.
        return outcome
    return replace(outcome, stays_open=_stays_open(connection, reader))


def _stays_open(connection: socket.socket, reader: _Reader) -> bool:
    try:
        connection.sendall(_NEXT)
        return reader.answer(to_head=False).status == 200
    except OSError:
        return False


class _Reader:
    """Reads answers off a connection."""

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream

    def answer(self, *, to_head: bool) -> HttpOutcome:
        """The next answer that is no interim one."""
        interim: list[bytes] = []
        while True:
            line = self._line()
            if not line:
                return HttpOutcome(GONE, interim=tuple(interim))
            fields = self._fields()
            outcome = HttpOutcome(line, fields, interim=tuple(interim))
            if 100 <= outcome.status < 200:
                interim.append(line)
                continue
            return outcome if to_head else self._body(outcome)

    def _body(self, head: HttpOutcome) -> HttpOutcome:
        if head.field(b"transfer-encoding").lower() == b"chunked":
            body, is_whole = self._chunks()
            return replace(head, body=body, is_chunked=True, is_cut=not is_whole)
        length = head.field(b"content-length")
        if not length.isdigit():
            return replace(head, body=self._read(-1))
        body = self._read(int(length))
        return replace(head, body=body, is_cut=len(body) < int(length))

    def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        while True:
            line = self._line()
            if not line:
                return body, False
            size = int(line.partition(b";")[0], 16)
            part = self._read(size)
            body += part
            self._line()
            if len(part) < size:
                return body, False
            if not size:
                return body, True

    def _fields(self) -> tuple[Pair, ...]:
        fields = []
        while line := self._line():
            name, _, value = line.partition(b":")
            fields.append((name, value.strip()))
        return tuple(fields)

    def _line(self) -> bytes:
        line = self._stream.readline()
        return line[:-2] if line.endswith(b"\r\n") else b""

    def _read(self, size: int) -> bytes:
        return self._stream.read(size)
