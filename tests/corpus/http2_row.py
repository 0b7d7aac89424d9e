"""What a row of the HTTP/2 corpus is: frames as bytes, the right answer as data, and a source.

Frames are built by `tests.wire.frames`, which shares nothing with the product. Who plays a row:
`tests.corpus.http2_play`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.wire.frames import (
    HANG_PATH,
    METHOD_PATH,
    FieldPair,
    data,
    headers,
    literals,
    named,
    request_fields,
)

TOKEN = b"@token--@@"
"""Stands in every head; replaced by a name of the same length for each time a row is played, so
that one backend can tell what came of which."""
TOKEN_FIELD = b"x-row"


# The right answers


@dataclass(frozen=True)
class GoAway:
    """GOAWAY with this code, and the connection is closed."""

    code: int


@dataclass(frozen=True)
class Reset:
    """RST_STREAM with this code; the connection lives."""

    code: int
    stream: int = 1


@dataclass(frozen=True)
class Status:
    """A complete answer; the connection lives."""

    grpc: int | None = 0
    """None where the answer is not gRPC."""
    stream: int = 1
    http: bytes = b"200"
    then: int | None = None
    """Code of the RST_STREAM that follows, because the request was not complete."""


@dataclass(frozen=True)
class Ignored:
    """No reaction at all, but a PING is answered."""


@dataclass(frozen=True)
class Payload:
    """So many bytes of DATA have come on a stream, and no more come."""

    size: int
    stream: int = 1


@dataclass(frozen=True)
class Pong:
    """The PING with this payload comes back."""

    payload: bytes


@dataclass(frozen=True)
class Acknowledged:
    """SETTINGS were acknowledged so often, those of the beginning included."""

    times: int


@dataclass(frozen=True)
class SettingsFirst:
    """The first frame that comes is SETTINGS, and no acknowledgement."""


Right = GoAway | Reset | Status | Ignored | Payload | Pong | Acknowledged | SettingsFirst
Step = bytes | Right


@dataclass(frozen=True)
class Reach:
    """How many requests of a row arrive at a backend."""

    least: int
    """Complete ones."""
    most: int
    begun: bool = False
    """Others may begin to arrive, and are reset."""


NOTHING = Reach(0, 0)
BEGUN = Reach(0, 0, begun=True)
MAYBE = Reach(0, 1, begun=True)
ONE = Reach(1, 1)
ONE_OF_TWO = Reach(1, 1, begun=True)
TWO = Reach(2, 2)


@dataclass(frozen=True)
class Row:
    """Frames sent after preface and SETTINGS were exchanged, and what is right."""

    id: str
    about: str
    sent: bytes
    right: Right
    source: str
    """A section of RFC 9113 where nothing else is said."""
    reaches: Reach = NOTHING
    before: tuple[Step, ...] = ()
    """What is sent and awaited, in turn, before `sent`."""
    greets: bool = True
    """False: not even the preface was sent before."""
    acknowledges: bool = True
    """Our SETTINGS are acknowledged: from then on no dynamic table is in use."""
    absent: tuple[bytes, ...] = ()
    """Names of fields that must not arrive at a backend."""
    carries: tuple[FieldPair, ...] = ()
    """Fields that must arrive with a complete request, in its head or its trailers."""
    body: bytes | None = None
    """What a complete request's body must be when it arrives."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """All that is sent and awaited, in turn."""
        return (*self.before, self.sent, self.right)

    @property
    def lives(self) -> bool:
        """Whether the connection lives on."""
        return not isinstance(self.right, GoAway)

    def __str__(self) -> str:
        return f"{self.id} {self.about}"


# What rows are made of


def fields(*more: FieldPair, path: bytes = METHOD_PATH) -> list[FieldPair]:
    """A good request head that carries the token."""
    return request_fields((TOKEN_FIELD, TOKEN), *more, path=path)


def without(name: bytes) -> list[FieldPair]:
    """A good head but for one field."""
    return [pair for pair in fields() if pair[0] != name]


def instead(name: bytes, value: bytes) -> list[FieldPair]:
    """A good head with another value in one field."""
    return [(name, value) if pair[0] == name else pair for pair in fields()]


def call(stream: int, body: bytes | None = None, *more: FieldPair) -> bytes:
    """A whole unary request."""
    return headers(stream, fields(*more)) + data(stream, body or named(), end=True)


HEAD = literals(fields())
OPEN = headers(1, HEAD)
"""A request on stream 1 whose body is still to come; nothing of it is sent on before."""
HANG = headers(1, fields(path=HANG_PATH))
"""A request that is sent on at once, and gets no answer."""
FOREIGN = without(b"content-type")
CLOSED = headers(1, FOREIGN, end=True)
"""A request that is complete, and answered by us at once."""
STOPPED = headers(1, FOREIGN)
"""A request that is answered by us at once, and reset because more of it was to come."""
WHOLE = call(1)
END = data(1, named(), end=True)
MAX_WINDOW = 2**31 - 1
