"""Running a table of frame cases against a relay: what is sent, and the right answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.fakes.frames import (
    GOAWAY,
    RST_STREAM,
    Peer,
    raw_backend,
    raw_client,
)
from tests.fakes.relay import RunningRelay, running_relay

Right = Callable[[Peer], Awaitable[None]]
"""Checks the answer; raises AssertionError where it is not the right one."""


@dataclass(frozen=True)
class Case:
    """Frames sent after the SETTINGS exchange, and the right answer."""

    name: str
    sent: bytes
    right: Right

    def __str__(self) -> str:
        return self.name


def goes_away(code: int) -> Right:
    """GOAWAY(code), then the connection is closed."""

    async def check(peer: Peer) -> None:
        found = await peer.until_kind(GOAWAY)
        assert found.code == code, found
        assert len(found.payload) <= 8 + 100, "a short text"
        await peer.until_closed()

    return check


def resets(code: int, stream: int = 1) -> Right:
    """RST_STREAM(code), and the connection lives."""

    async def check(peer: Peer) -> None:
        found = await peer.until(
            lambda f: f.kind == GOAWAY or (f.kind == RST_STREAM and f.stream == stream)
        )
        assert (found.kind, found.code) == (RST_STREAM, code), found
        assert await peer.is_alive()

    return check


def answers(
    status: int | None = 0, stream: int = 1, *, http: bytes = b"200", then: int | None = None
) -> Right:
    """A complete answer with a gRPC status, and the connection lives.

    Args:
        status: None where the answer is not gRPC.
        stream: of the call.
        http: the HTTP status.
        then: code of the RST_STREAM that follows, because the request was not complete.
    """

    async def check(peer: Peer) -> None:
        await peer.until_over(stream)
        assert stream in peer.ended, peer.resets
        assert peer.heads[stream][0][0] == (b":status", http)
        assert peer.status(stream) == status
        assert await peer.is_alive()
        assert peer.resets.get(stream) == then

    return check


async def lives(peer: Peer) -> None:
    """No reaction: a PING is answered."""
    assert await peer.is_alive()
    assert not peer.resets


PIECES = 400
"""Long cases are sent in about so many pieces where short ones go byte by byte."""


async def try_case(
    case: Case, *, piecewise: bool, acknowledges: bool = True
) -> tuple[RunningRelay, int]:
    """Play a case, check its answer and that nothing is left behind.

    Returns the relay and how many requests reached the backend complete.
    """
    async with raw_backend() as backend, running_relay(backend.target) as relay:
        async with raw_client(relay.port, acknowledges=acknowledges) as peer:
            if piecewise:
                await peer.send_slowly(case.sent, 1 + len(case.sent) // PIECES)
            else:
                peer.send(case.sent)
            await case.right(peer)
        await relay.until_clean()
        return relay, len(backend.requests)
