"""A backend whose answers are as long as the request says, and that keeps to its windows."""

from __future__ import annotations

from typing import Final

from tests.wire.frames import (
    HEADERS,
    INITIAL_WINDOW_SIZE,
    OK_TRAILERS,
    RESPONSE_FIELDS,
    RST_STREAM,
    WINDOW_UPDATE,
    FieldPair,
    Frame,
    data,
    headers,
)
from tests.wire.http2 import Peer, RawBackend, Script

POUR_PATH: Final = b"/test.Service/Pour"
CHUNK: Final = bytes(16_384)


def sized(size: int) -> FieldPair:
    """The field that says how long the answer is."""
    return (b"x-size", b"%d" % size)


class Pourer:
    """The sending side of one connection."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.room = 65_535
        """What the connection takes."""
        self.rooms: dict[int, int] = {}
        """What each stream takes."""
        self.left: dict[int, int] = {}
        """What each stream still has to send."""

    def note(self, found: Frame) -> None:
        """Take a frame of the relay into account."""
        stream = found.stream
        if found.kind == HEADERS and stream not in self.rooms:
            self.rooms[stream] = self.peer.values.get(INITIAL_WINDOW_SIZE, 65_535)
        elif found.kind == WINDOW_UPDATE and not stream:
            self.room += found.increment
        elif found.kind == WINDOW_UPDATE:
            self.rooms[stream] += found.increment
        elif found.kind == RST_STREAM:
            self.left.pop(stream, None)
        if found.ends_stream:
            self.left[stream] = int(self.peer.fields(stream, 0)[b"x-size"])
            self.peer.send(headers(stream, RESPONSE_FIELDS))

    async def pour(self) -> None:
        """Send on every stream as far as the windows allow."""
        for stream in tuple(self.left):
            while self.left[stream]:
                size = min(self.left[stream], self.rooms[stream], self.room, len(CHUNK))
                if not size:
                    break
                self.peer.send(data(stream, CHUNK[:size]))
                self.left[stream] -= size
                self.rooms[stream] -= size
                self.room -= size
            if not self.left[stream]:
                del self.left[stream]
                self.peer.send(headers(stream, OK_TRAILERS, end=True))
        await self.peer.writer.drain()


def pours(_: RawBackend) -> Script:
    """Answer requests to `POUR_PATH`."""

    async def play(peer: Peer) -> None:
        pourer = Pourer(peer)
        while (found := await peer.next()) is not None:
            pourer.note(found)
            await pourer.pour()

    return play
