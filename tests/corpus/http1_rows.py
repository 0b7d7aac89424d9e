"""What a row of the HTTP/1.1 corpus says, and short ways to write one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes of a client and the right answer to them.

    `a` as the value of Host stands for the name by which a runner tells its requests apart:
    see `naming`.
    """

    id: str
    """Group and number, such as CLTE-1."""
    what: str
    wire: bytes
    status: int
    """Of the answer to the first request; 0 is a connection that is closed without one."""
    source: str
    """Section of a standard, advisory or document behind the rule."""
    reaches: int = 0
    """Requests that a backend gets completely."""
    then: tuple[int, ...] = ()
    """Status of the answers to the requests that follow on the connection."""
    closes: bool = False
    """The connection is closed although the first request was legal."""
    body: bytes | None = None
    """Of the first request that reaches a backend."""
    holds: tuple[bytes, ...] = ()
    """Lines that the first head at the backend has."""
    lacks: tuple[bytes, ...] = ()
    """Field names, in lower case, that it has not."""
    half_close: bool = False
    """The client sends nothing after these bytes, and says so."""
    late: bool = False
    """What is wrong comes behind a legal head: when the bytes arrive in pieces, the request may
    begin at a backend, which then sees it aborted."""
    of_relay: bool = False
    """Not decided by the codec alone."""
    keeps: bool = False
    """The connection may live on behind an error, when all of the request has come: the answer
    says whether it does."""
    chunks: int = 0
    """More chunks than this must not reach the backend; 0 asks nothing."""

    def __str__(self) -> str:
        return f"{self.id} {self.what}"

    @property
    def method(self) -> bytes:
        """Of the first request."""
        return self.wire.lstrip(b"\r\n").partition(b" ")[0]

    @property
    def is_refused(self) -> bool:
        """Whether the first request is answered with an error of ours."""
        return self.status >= 400

    @property
    def ends(self) -> bool:
        """Whether the connection is closed after the answers."""
        last = self.then[-1] if self.then else self.status
        return self.closes or self.half_close or last == 0 or (last >= 400 and not self.keeps)

    def naming(self, host: bytes) -> bytes:
        """The bytes with `host` in place of Host's `a`."""
        return _HOST_A.sub(b"Host: " + host, self.wire)

    def name_at_backend(self, host: bytes) -> bytes:
        """The Host that a backend sees when `host` was put in."""
        return next((line[6:] for line in self.holds if line.startswith(b"Host: ")), host)


_HOST_A: Final = re.compile(rb"(?<=\r\n)Host: a(?=\r\n)")
HOST: Final = b"Host: a\r\n"
HELLO: Final = b"hello"
TE: Final = b"Transfer-Encoding: chunked\r\n"
CL5: Final = b"Content-Length: 5\r\n"
SMUGGLED: Final = b"GET /smuggled HTTP/1.1\r\nHost: smuggled\r\n\r\n"
"""What must never be taken for a request. No name is put in: lengths in front of it must hold."""
SECOND: Final = b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n"


def get(fields: bytes, line: bytes = b"GET / HTTP/1.1") -> bytes:
    """A request without a body."""
    return line + b"\r\n" + fields + b"\r\n"


def post(fields: bytes, body: bytes = b"", line: bytes = b"POST / HTTP/1.1") -> bytes:
    """A request with Host, these fields, and a body as it stands."""
    return line + b"\r\nHost: a\r\n" + fields + b"\r\n" + body


def chunked(body: bytes) -> bytes:
    """A request with a chunked body, given with its framing."""
    return post(TE, body)
