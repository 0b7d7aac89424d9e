"""What a client asks of all backends, and the one answer that it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Protocol

from lb.domain.backend import AppProtocol
from lb.domain.operation import Operation
from lb.domain.outcome import Reason
from lb.wire.memory_budget import SharedBytes

QUESTION_BYTES: Final = 64 * 1024
"""A question that changes nothing needs hardly a body, and everybody may ask it."""


class Departure:
    """Tells that the client of a request has left."""

    __slots__ = ("_then", "has_happened")

    def __init__(self) -> None:
        self.has_happened = False
        self._then: Callable[[], None] | None = None

    def happen(self) -> None:
        """The client has left, or needs the answer no more."""
        if not self.has_happened:
            self.has_happened = True
            if self._then is not None:
                self._then()

    def then(self, act: Callable[[], None] | None) -> None:
        """Have `act` called when it happens, at once if it has; None calls nobody."""
        self._then = act
        if act is not None and self.has_happened:
            act()


@dataclass(slots=True)
class Conversion:
    """What an HTTP request says as a gRPC message: made once, for however many backends.

    A load of 16 MiB takes 50 ms, much of it while nothing else can run. Bodies that would take
    longer, for all that they say, are not converted (`lb.kserve.conversion.read_body`).
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_alike: bool | None = None
    """Whether Triton reads it alike in both protocols; None: not looked at yet."""
    message: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutRequest:
    """A complete request."""

    protocol: AppProtocol
    operation: Operation
    model: bytes
    """As it stands in the path; empty where the message names it, or nothing does."""
    method: bytes
    target: bytes
    """Request target of HTTP with its query; `:path` of gRPC."""
    fields: tuple[tuple[bytes, bytes], ...]
    """End-to-end header fields of the client, names in lower case."""
    body: bytes
    """The body of HTTP as it came; the message of gRPC without its prefix, not compressed."""
    client: Hashable = field(default=None, repr=False, compare=False)
    """Who asks; see `Exchange.client_key`."""
    departure: Departure = field(default_factory=Departure, repr=False, compare=False)
    """The departure of its client. A view ends then, and a change that has not begun does not
    begin."""
    conversion: Conversion = field(
        init=False, default_factory=Conversion, repr=False, compare=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutReply:
    """One answer for the client."""

    status: int
    """HTTP status, or gRPC status."""
    body: bytes = b""
    """Body of HTTP; message of gRPC without its prefix."""
    detail: str = ""
    """`grpc-message`."""
    content_type: bytes = b"application/json"
    """The type of the body over HTTP."""
    reason: Reason | None = None
    """Where the error is ours."""
    backends: tuple[str, ...] = ()
    """Names of the backends that were asked."""
    shared: SharedBytes | None = None
    """Account of the body, where many clients may get it."""


class FanOut(Protocol):
    """Asks the backends that a question concerns."""

    async def ask(self, question: FanOutRequest) -> FanOutReply:
        """Answer it; whatever backends do is in the reply, never an exception.

        The body is on its account from the call on, until it returns.
        """
        ...
