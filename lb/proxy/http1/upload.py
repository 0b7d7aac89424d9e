"""The request's way to the backend: framed again, kept while it may have to be sent again.

A body in chunks is gathered after the first few chunks: a Triton counts chunks, and older ones
die of very many, so what a client sends in crumbs arrives in slices of 16 KiB.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from lb.domain.backend import AppProtocol
from lb.net.timers import Timer
from lb.proxy.exchange import Exchange
from lb.proxy.http1.client import JOIN_BYTES, ClientConnection
from lb.proxy.http1.heads import RequestPlan
from lb.wire.http1.body import CHUNKED, LAST_CHUNK, Payload, few
from lb.wire.http1.grammar import CRLF
from lb.wire.pieces import join_short

if TYPE_CHECKING:
    from lb.proxy.http1.relay import Http1Relay
    from lb.proxy.http1.server import ServerConnection

EAGER_CHUNKS: Final = 32
"""Chunks that are passed on as they come, so that a small live upload is not held up."""
GATHERED_CHUNK: Final = 16 * 1024
"""Size of later chunks at least, unless nothing came for a while."""
GATHER_S: Final = 0.1
PORTION: Final = 1 << 20
"""Bytes of a request that was held back which are sent at once: more would stop everybody else."""
UNCOUNTED: Final = 4096
"""Bytes that a connection may keep without asking the ledger: as much as its objects take."""


class Upload(Exchange):
    """The request side of an exchange."""

    __slots__ = (
        "_charged", "_chunks", "_gather_timer", "_gathered", "_kept", "_kept_size", "_unsent",
        "_unsent_size", "plan", "relay", "request_ended", "server", "upstream",
    )  # fmt: skip

    def __init__(
        self, relay: Http1Relay, server: ServerConnection, plan: RequestPlan, now: float
    ) -> None:
        super().__init__(AppProtocol.HTTP, plan.operation, server.client.name, now)
        self.method = plan.method
        self.path = plan.path
        self.model = plan.model
        self.request_id = plan.request_id
        self.relay = relay
        self.plan = plan
        self.server: ServerConnection | None = server
        """None once the client's side is over."""
        self.upstream: ClientConnection | None = None
        """The connection of the attempt under way, once there is one."""
        self.request_ended = False
        """All of the request has come from the client."""
        self._kept: list[Payload] | None = None
        """Everything that goes to a backend so far; None once it is too much to keep."""
        self._unsent: deque[Payload] | None = None
        """What was kept and goes to the backend bit by bit, if it is much; never little."""
        self._unsent_size = 0
        self._kept_size = 0
        """Bytes of what is kept, or if nothing is, of what is not sent yet."""
        self._charged = 0
        """Bytes on the ledger for what is kept and gathered."""
        self._chunks = 0
        self._gathered: bytearray | None = None
        """Payload that waits to become a chunk."""
        self._gather_timer: Timer | None = None

    @property
    def is_retained(self) -> bool:
        """Whether everything that was sent could be sent again."""
        return self._kept is not None

    def keep_whole(self, body: Payload) -> bool:
        """Take a request that is complete, to be sent once there is a backend.

        Args:
            body: all of it, not in chunks.

        Returns:
            False when memory is so short that the exchange was ended instead.
        """
        # HOT PATH (benchmarks/bench_http1_relay.py). What is short is joined here, which is what
        # the transport would do.
        self.request_ended = True
        plan = self.plan
        self.bytes_in = size = plan.length
        if size <= JOIN_BYTES:
            message = plan.upstream + body
            self._kept = [message]
            self._kept_size = size = len(message)
        else:
            self._kept = [plan.upstream, body]
            self._kept_size = size = len(plan.upstream) + size
        return size <= UNCOUNTED or self._settle()

    def share_kept(self, other: Upload) -> None:
        """Take what another exchange has kept, whose request is complete, to be sent as well. That
        one has it on the ledger."""
        self.request_ended = True
        self.bytes_in = other.bytes_in
        self._kept = other._kept
        self._kept_size = other._kept_size

    @property
    def is_uploading(self) -> bool:
        """Whether some of what was kept is still to be sent."""
        return self._unsent is not None

    def keep_first(self, head: bytes, pieces: list[Payload], *, ended: bool) -> bool:
        """Take the head and what there is of the body; as `keep_whole` otherwise."""
        self.request_ended = ended
        self.bytes_in = sum(map(len, pieces))
        message: list[Payload] = [head]
        if self.plan.length == CHUNKED:
            self._add_chunk(message, pieces, self.bytes_in)
        else:
            message += pieces
        self._kept = message
        self._kept_size = sum(map(len, message))
        return self._settle()

    def send_kept(self, upstream: ClientConnection) -> None:
        """Send what was kept over a new attempt's connection."""
        # HOT PATH (benchmarks/bench_http1_relay.py). `Port` counts are bumped in place.
        kept = self._kept
        upstream.port.bytes_sent += self.bytes_in
        if kept is None:
            raise RuntimeError("an attempt was made without the request")
        if self._kept_size > UNCOUNTED or self.plan.length > UNCOUNTED:
            self._send_much(upstream, kept)
        else:
            upstream.write(kept)

    def _send_much(self, upstream: ClientConnection, kept: list[Payload]) -> None:
        size = self._kept_size
        is_kept = self._may_keep(max(size, self.plan.length))
        if size > PORTION:
            self._unsent = deque(kept)
            self._unsent_size = size
            if not is_kept:
                self._kept = None
            self._send_on()
            return
        self._unsent = None
        upstream.write(kept)
        if not is_kept:
            self.forget()

    def _may_keep(self, size: int) -> bool:
        """Whether so much in all is kept for another attempt."""
        relay = self.relay
        return size <= relay.options.retained_size and (
            relay.ledger.may_keep(max(0, size - self._charged))
        )

    def _send_on(self) -> None:
        """Send the next part of what was kept, and the rest in later turns of the loop."""
        unsent, upstream = self._unsent, self.upstream
        if unsent is None or upstream is None or upstream.is_full:
            return
        portion: list[Payload] = []
        size = 0
        # The ledger counts no crumbs, and whatever is unsent is to be on it: they go along.
        while unsent and (size < PORTION or self._unsent_size - size <= UNCOUNTED):
            piece = unsent.popleft()
            portion.append(piece)
            size += len(piece)
        self._unsent_size -= size
        if self._kept is None:
            self._kept_size = self._unsent_size
        if not unsent:
            self._unsent = None
        self._settle()
        upstream.write(portion)
        if not unsent:
            self.upload_changed()
        elif not upstream.is_full:
            self.relay.loop.call_soon(self._send_on)

    def upload_changed(self) -> None:
        """The backend takes the request more slowly than it comes, or has caught up."""
        if self._unsent is not None:
            self._send_on()
        elif self.server is not None:
            self.server.update_reading()

    def add_body(self, pieces: list[Payload], *, ended: bool) -> None:
        """Pass on a part of the body as it was read."""
        size = sum(map(len, pieces))
        self.bytes_in += size
        self.request_ended = ended
        message = pieces
        if self.plan.length == CHUNKED:
            if not ended and self._gathers(pieces, size):
                return
            message = []
            self._add_chunk(message, pieces, size)
        self._send(message, size)

    def _keep_no_more(self) -> None:
        """Give back what was sent; what is to be sent yet stays."""
        if self._unsent is None:
            self.forget()
        else:
            self._kept = None
            self._kept_size = self._unsent_size
            self._settle()

    def passes(self, server: ServerConnection) -> asyncio.Transport | None:
        """Where what is left of the body may go unseen; None where it may not, or not yet."""
        upstream = self.upstream
        if (
            upstream is None
            or upstream.is_full
            or not upstream.is_plain
            or self._kept is not None
            or self._unsent is not None
            or self.plan.length == CHUNKED
            or self.server is not server
        ):
            return None
        return upstream.transport

    def count_request(self, size: int) -> None:
        """Some of the body has come and went to the backend."""
        self.bytes_in += size
        if self.upstream is not None:
            self.upstream.port.bytes_sent += size

    def forget(self) -> None:
        """Give back what was kept: there will be no other attempt."""
        if self._unsent is not None:
            self._unsent = None
            self.request_ended = False  # nor will this one see the end of the request
        self._kept = None
        self._kept_size = 0
        if self._charged:
            self._settle()

    def end_upload(self) -> None:
        """Drop everything that is held: the exchange is over, or its client is gone."""
        if self.server is not None:
            self.server.end_pump()
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
        if self.request_ended:
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
            self._gather_timer = self.relay.timers.after(GATHER_S, self._send_gathered)
        return True

    def _take_gathered(self) -> bytes:
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        if not self._gathered:
            return b""
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
        upstream = self.upstream
        if upstream is not None:
            upstream.port.bytes_sent += size
            if self._unsent is not None:
                self._unsent += message
                self._unsent_size += sum(map(len, message))
                if self._kept is None:
                    self._kept_size = self._unsent_size
                    self._settle()
                    return
            else:
                upstream.write(message)
        if self._kept is not None:
            self._keep(self._kept, message, may_drop=upstream is not None)

    def _keep(self, kept: list[Payload], message: list[Payload], *, may_drop: bool) -> None:
        size = sum(map(len, message))
        self._kept_size += size
        if may_drop and not self._may_keep(self._kept_size):
            self._keep_no_more()
            return
        kept += message
        # A body that comes in crumbs would otherwise cost many times its size.
        join_short(kept)
        self._settle()

    def _settle(self) -> bool:
        """Bring the ledger up to date. False when the exchange had to give way."""
        owed = self._kept_size if self._kept_size > UNCOUNTED else 0
        if self._gathered is not None:
            owed += GATHERED_CHUNK
        change = owed - self._charged
        if change and self.server is not None:
            if not self.server.charge(change):
                return False
            self._charged = owed
        return True
