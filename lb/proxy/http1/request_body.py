"""The request's way to the backend: framed again, kept while it may have to be sent again.

A body in chunks is gathered after the first few chunks: a Triton counts chunks, and older ones
die of very many, so what a client sends in crumbs arrives in slices of 16 KiB.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from lb.net.timers import Timer
from lb.proxy.http1.client import JOIN_BYTES, Http1ClientConnection
from lb.proxy.http1.shared import Http1Shared
from lb.proxy.http1.sides import ClientSide
from lb.proxy.request_trace import RequestTrace
from lb.wire.http1.body import CHUNKED, LAST_CHUNK, Payload, few
from lb.wire.http1.grammar import CRLF
from lb.wire.pieces import join_short
from lb.wire.rope import Held, Stored

EAGER_CHUNKS: Final = 32
"""Chunks that are passed on as they come, so that a small live upload is not held up."""
GATHERED_CHUNK: Final = 16 * 1024
"""Size of later chunks at least, unless nothing came for a while."""
GATHER_S: Final = 0.1
PORTION: Final = 1 << 20
"""Bytes of a request that was held back which are sent at once: more would stop everybody else."""
UNCOUNTED: Final = 4096
"""Bytes that a connection may keep without asking the memory budget: as much as its objects
take."""


class RequestBody:
    """A request on its way: what of it is kept, what is sent, and to whom."""

    __slots__ = (
        "_chunks", "_gather_timer", "_gathered", "_kept", "_kept_size", "_length", "_relay",
        "_unsent_size", "charged", "client", "connection", "ended",
        "unsent",
    )  # fmt: skip

    # Documented here: between the lines of the constructor each text would cost an instruction.
    client: ClientSide | None
    """None once the client's side is over; then nothing more is held."""
    connection: Http1ClientConnection | None
    """To which backend it goes, once there is one."""
    ended: bool
    """All of the request has come from the client."""
    _kept: list[Payload] | None
    """Everything that goes to a backend so far; None once it is too much to keep."""
    unsent: deque[Held] | None
    """What was kept and goes to the backend bit by bit, if it is much; never little."""
    _kept_size: int
    """Bytes of what is kept, or if nothing is, of what is not sent yet."""
    charged: int
    """Bytes in the memory budget for what is kept and gathered."""
    _gathered: bytearray | None
    """Payload that waits to become a chunk."""

    # Set when they first mean something.
    _unsent_size: int
    """Bytes of `unsent`; set with it."""
    _chunks: int
    """Chunks that were sent of a body in chunks, which alone has this and the next one."""
    _gather_timer: Timer | None

    def __init__(self, relay: Http1Shared, client: ClientSide | None, length: int) -> None:
        """
        Args:
            relay: its options, memory budget and timers hold.
            client: whose connection the body comes from, and what is held of it is charged to.
            length: of the body, as announced.
        """
        self._relay = relay
        self.client = client
        self._length = length
        self.connection = self._kept = self.unsent = self._gathered = None
        self.ended = False
        self._kept_size = self.charged = 0

    @property
    def is_retained(self) -> bool:
        """Whether everything that was sent could be sent again."""
        return self._kept is not None

    def keep_whole(self, head: bytes, body: Payload) -> bool:
        """Take a request that is complete, to be sent once there is a backend.

        Args:
            head: for the backend.
            body: all of it, not in chunks.

        Returns:
            False when memory is so short that the exchange was ended instead.
        """
        # HOT PATH (benchmarks/bench_http1_relay.py). What is short is joined here, which is what
        # the transport would do.
        self.ended = True
        size = self._length
        if size <= JOIN_BYTES:
            message = head + body
            self._kept = [message]
            self._kept_size = size = len(message)
        else:
            self._kept = [head, body]
            self._kept_size = size = len(head) + size
        return size <= UNCOUNTED or self._settle()

    def again(self) -> RequestBody:
        """Make the body of the same request, complete as it is, to be sent to a second backend as
        well. What is kept of it is in the memory budget once."""
        other = RequestBody(self._relay, None, self._length)
        other.ended = True
        other._kept = self._kept
        other._kept_size = self._kept_size
        return other

    def retell(self, trace: RequestTrace, span: int) -> None:
        """Have the next backend, which nothing was sent to yet, be told of this span."""
        kept = self._kept
        if kept:
            self._kept = [trace.retell(bytes(kept[0]), span), *kept[1:]]

    def keep_first(self, head: bytes, pieces: list[Payload], size: int, *, ended: bool) -> bool:
        """Take the head and what there is of the body, so many bytes; as `keep_whole` otherwise."""
        self.ended = ended
        message: list[Payload] = [head]
        if self._length == CHUNKED:
            self._chunks = 0
            self._gather_timer = None
            self._add_chunk(message, pieces, size)
        else:
            message += pieces
        self._kept = message
        self._kept_size = sum(map(len, message))
        return self._settle()

    def collect(self, pieces: list[Payload], size: int, *, ended: bool) -> list[Payload] | None:
        """Take a part of a request that goes to no backend as it is.

        Returns:
            All of it so far; None when memory is so short that the exchange was ended instead.
        """
        self.ended = ended
        kept = self._kept
        if kept is None:
            kept = self._kept = []
        self._kept_size += size
        kept += map(bytes, pieces)
        join_short(kept)
        return kept if self._settle() else None

    def send(self, connection: Http1ClientConnection) -> None:
        """Send what was kept over a new attempt's connection."""
        # HOT PATH (benchmarks/bench_http1_relay.py). Nearly all is one short piece.
        self.connection = connection
        kept = self._kept
        if kept is None:
            raise RuntimeError("an attempt was made without the request")
        if self._kept_size > UNCOUNTED or self._length > UNCOUNTED:
            self._send_much(connection, kept)
        elif len(kept) == 1 and (transport := connection.transport) is not None:
            transport.write(kept[0])
        else:
            connection.write(kept)

    def _send_much(self, connection: Http1ClientConnection, kept: list[Payload]) -> None:
        size = self._kept_size
        is_kept = self._admit_kept(max(size, self._length))
        if size > PORTION:
            self.unsent = deque(self._all_kept(kept))
            self._unsent_size = size
            if not is_kept:
                self._drop_kept()
            self._send_on()
            return
        self.unsent = None
        connection.write(kept)
        if not is_kept:
            self.forget()

    def _all_kept(self, kept: list[Payload]) -> Sequence[Held]:
        """All that goes to a backend."""
        return kept

    def _drop_kept(self) -> None:
        """Have no other attempt: what is not sent yet is kept elsewhere."""
        self._kept = None

    def _admit_kept(self, size: int) -> bool:
        """Admit that so much in all is kept for another attempt. False where there is no room."""
        relay = self._relay
        return size <= relay.options.retained_size and (
            relay.memory_budget.admit_kept(max(0, size - self.charged))
        )

    def _send_on(self) -> None:
        """Send the next part of what was kept, and the rest in later iterations of the loop."""
        unsent, connection = self.unsent, self.connection
        if unsent is None or connection is None or connection.is_full:
            return
        portion: list[Payload] = []
        size = 0
        # The memory budget counts no crumbs, and whatever is unsent is to be on it: they go along.
        while unsent and (size < PORTION or self._unsent_size - size <= UNCOUNTED):
            piece = unsent[0]
            if not isinstance(piece, bytes | memoryview):
                if not portion:
                    size = self._send_stored(connection, unsent, piece)
                break
            unsent.popleft()
            portion.append(piece)
            size += len(piece)
        self._unsent_size -= size
        if self._kept is None:
            self._kept_size = self._unsent_size
        if not unsent:
            self.unsent = None
        self._settle()
        if portion:
            connection.write(portion)
        if not unsent:
            self.upload_changed()
        elif not connection.is_full:
            self._relay.loop.call_soon(self._send_on)

    def _send_stored(
        self, connection: Http1ClientConnection, unsent: deque[Held], piece: Stored
    ) -> int:
        """Send some of the first piece, which is not in memory. Returns how many bytes."""
        size = connection.send_stored(piece.part(0, PORTION))
        if size < len(piece):
            unsent[0] = piece.part(size, len(piece))
        else:
            unsent.popleft()
        return size

    def upload_changed(self) -> None:
        """The backend takes the request more slowly than it comes, or has caught up."""
        if self.unsent is not None:
            self._send_on()
        elif self.client is not None:
            self.client.update_reading()

    def add(self, pieces: list[Payload], size: int, *, ended: bool) -> None:
        """Pass on a part of the body as it was read, so many bytes."""
        self.ended = ended
        message = pieces
        if self._length == CHUNKED:
            if not ended and self._gathers(pieces, size):
                return
            message = []
            self._add_chunk(message, pieces, size)
        self._send(message, size)

    def send_middle(self, data: bytes) -> bool:
        """Send a read in the middle of a body of known length. False where it cannot go on at
        once, or is to be kept, and `add` is to take it."""
        # HOT PATH (benchmarks/bench_http1_relay.py). `add` for most of a large request.
        connection = self.connection
        if connection is None or connection.is_full or self._kept is not None:
            return False
        transport = connection.transport
        if transport is None or self.unsent is not None:
            return False
        connection.port.bytes_sent += len(data)
        transport.write(data)
        return True

    def _keep_no_more(self) -> None:
        """Give back what was sent; what is to be sent yet stays."""
        if self.unsent is None:
            self.forget()
        else:
            self._kept = None
            self._kept_size = self._unsent_size
            self._settle()

    def passes(self, client: ClientSide) -> asyncio.Transport | None:
        """Where what is left of the body may go unseen; None where it may not, or not yet."""
        connection = self.connection
        if (
            connection is None
            or connection.is_full
            or not connection.is_plain
            or self._kept is not None
            or self.unsent is not None
            or self._length == CHUNKED
            or self.client is not client
        ):
            return None
        return connection.transport

    def replace_start(self, start: bytes, other: bytes) -> None:
        """Have a request, of which nothing was sent yet, begin otherwise than with `start`."""
        kept = self._kept
        if kept and start != other and bytes(kept[0][: len(start)]) == start:
            kept[0] = other + kept[0][len(start) :]
            self._kept_size += len(other) - len(start)
            self._settle()

    def forget(self) -> None:
        """Give back what was kept: there will be no other attempt."""
        if self.unsent is not None:
            self.unsent = None
            self.ended = False  # nor will this one see the end of the request
        self._kept = None
        self._kept_size = 0
        if self.charged:
            self._settle()

    def end(self) -> None:
        """Drop everything that is held: the exchange is over, or its client is gone."""
        if self.client is not None:
            self.client.end_pump()
        self._take_gathered()
        self._gathered = None
        self.forget()

    # Chunks

    def _add_chunk(self, message: list[Payload], pieces: list[Payload], size: int) -> None:
        """Frame what was gathered and `pieces` as one chunk, and the end if this is it."""
        gathered = self._take_gathered()
        size += len(gathered)
        if size:
            self._chunks += 1
            message.append(b"%x\r\n" % size)
            if gathered:
                message.append(gathered)
            message += few(pieces)
            message.append(CRLF)
        if self.ended:
            message.append(LAST_CHUNK)

    def _gathers(self, pieces: list[Payload], size: int) -> bool:
        """Hold a small part back if many were sent. True when it is held."""
        if self._chunks < EAGER_CHUNKS:
            return False
        if self._gathered is None:
            if size >= GATHERED_CHUNK:
                return False
            self._gathered = bytearray()
            if not self._settle():
                return True  # the exchange is over
        if len(self._gathered) + size >= GATHERED_CHUNK:
            return False
        for piece in pieces:
            self._gathered += piece
        if self._gather_timer is None:
            self._gather_timer = self._relay.timers.after(GATHER_S, self._send_gathered)
        return True

    def _take_gathered(self) -> bytes:
        if self._gathered is None:
            return b""
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        gathered = bytes(self._gathered)
        self._gathered.clear()
        return gathered

    def _send_gathered(self) -> None:
        self._gather_timer = None
        message: list[Payload] = []
        self._add_chunk(message, [], 0)
        if message:
            self._send(message, 0)

    # Keeping

    def _send(self, message: list[Payload], size: int) -> None:
        connection = self.connection
        if connection is not None:
            connection.port.bytes_sent += size
            if self.unsent is not None:
                self.unsent += message
                self._unsent_size += sum(map(len, message))
                if self._kept is None:
                    self._kept_size = self._unsent_size
                    self._settle()
                    return
            else:
                connection.write(message)
        if self._kept is not None:
            self._keep(self._kept, message, may_drop=connection is not None)

    def _keep(self, kept: list[Payload], message: list[Payload], *, may_drop: bool) -> None:
        size = sum(map(len, message))
        self._kept_size += size
        if may_drop and not self._admit_kept(self._kept_size):
            self._keep_no_more()
            return
        kept += message
        # A body that comes in crumbs would otherwise cost many times its size.
        join_short(kept)
        self._settle()

    def _settle(self) -> bool:
        """Bring the memory budget up to date. False when the exchange had to give way."""
        owed = self._kept_size if self._kept_size > UNCOUNTED else 0
        if self._gathered is not None:
            owed += GATHERED_CHUNK
        change = owed - self.charged
        if change and self.client is not None:
            if not self.client.charge(change):
                return False
            self.charged = owed
        return True


class HeldBody(RequestBody):
    """A long request that was held whole, and may be stored elsewhere than in memory."""

    __slots__ = ("_pieces",)

    def __init__(self, relay: Http1Shared, client: ClientSide | None, length: int) -> None:
        super().__init__(relay, client, length)
        self._pieces: Sequence[Held] = ()
        """The body."""

    def hold(self, head: bytes, pieces: Sequence[Held], size: int) -> bool:
        """Take the request; see `keep_whole`.

        Args:
            head: for the backend.
            pieces: the body.
            size: bytes of it, more than `PORTION`.
        """
        self.ended = True
        self._kept = [head]
        self._pieces = pieces
        self._kept_size = len(head) + size
        return self._settle()

    def again(self) -> RequestBody:
        """See `RequestBody`."""
        other = HeldBody(self._relay, None, self._length)
        other.ended = True
        other._kept = self._kept
        other._pieces = self._pieces
        other._kept_size = self._kept_size
        return other

    def forget(self) -> None:
        """See `RequestBody`."""
        self._pieces = ()
        super().forget()

    def _drop_kept(self) -> None:
        self._pieces = ()
        super()._drop_kept()

    def _all_kept(self, kept: list[Payload]) -> Sequence[Held]:
        return [*kept, *self._pieces]
