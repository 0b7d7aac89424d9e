"""The connections to one backend's gRPC port, and the calls that wait for one."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import UpstreamError
from lb.net.dial import dial
from lb.proxy.http2.client import ClientLink

if TYPE_CHECKING:
    from lb.proxy.http2.call import Call
    from lb.proxy.http2.relay import Http2Relay

_log = logging.getLogger(__name__)

_MAX_DIALS: Final = 4
"""Connections opened at once to one backend, when many calls wait."""


class UpstreamPool:
    """Multiplexed connections to one backend. A new one only when streams run out."""

    def __init__(self, relay: Http2Relay, backend: Backend) -> None:
        self.relay = relay
        self.backend = backend
        self.port = backend.port(AppProtocol.GRPC)
        self.links: list[ClientLink] = []
        """Connections that take calls."""
        self._retired: set[ClientLink] = set()
        self._waiting: deque[Call] = deque()
        self._dials = 0
        self._closed = False

    def __len__(self) -> int:
        """Open connections, those that only finish their calls included."""
        return len(self.links) + len(self._retired)

    def start(self, call: Call) -> None:
        """Open `call` on a connection, now or when there is one."""
        # HOT PATH (benchmarks/load). Nearly always the first connection has room.
        for link in self.links:
            if len(link.streams) < link.stream_limit:
                link.open(call)
                return
        self._waiting.append(call)
        self._dial_if_needed()

    def start_whole(self, call: Call, payload: bytes, size: int) -> None:
        """As `start`, for a request that is complete and small."""
        # HOT PATH (benchmarks/bench_http2_relay.py).
        for link in self.links:
            if len(link.streams) < link.stream_limit:
                link.open_whole(call, payload, size)
                return
        if call.request.push(payload):
            self._waiting.append(call)
            self._dial_if_needed()

    def serve_waiting(self) -> None:
        """Start as many waiting calls as there is room for."""
        while self._waiting:
            call = self._waiting[0]
            if call.finished or call.upstream is not None or call.port is not self.port:
                self._waiting.popleft()  # cancelled, or placed anew elsewhere, while it waited
                continue
            link = next((link for link in self.links if link.room > 0), None)
            if link is None:
                self._dial_if_needed()
                return
            self._waiting.popleft()
            link.open(call)

    # Dialling

    def _dial_if_needed(self) -> None:
        if self._dials < min(_MAX_DIALS, 1 + len(self._waiting) // 256) and not self._closed:
            self._dials += 1
            self.relay.tasks.spawn(self._dial(), name=f"dial-grpc:{self.backend.name}")

    async def _dial(self) -> None:
        port = self.port
        try:
            _, link = await dial(
                self.relay.loop,
                port.address,
                lambda: ClientLink(self),
                self.relay.options.connect_timeout_s,
            )
        except UpstreamError as error:
            self.relay.now = self.relay.clock()
            self._dials -= 1
            port.connect_failures += 1
            self._fail_waiting(error)
            return
        self.relay.now = self.relay.clock()
        self._dials -= 1
        port.connects += 1
        if link.transport is None:
            # Closed between the connection and here: say what happened to those who wait.
            self._dial_if_needed() if self._waiting else None
            return
        if self._closed:
            link.abort()
            return
        if not link.retired:
            self.links.append(link)
        self.serve_waiting()

    def _fail_waiting(self, error: UpstreamError) -> None:
        if self.links or self._dials:
            return  # others may still serve them
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            if not call.finished and call.upstream is None and call.port is self.port:
                call.attempt_failed(error.outcome, error.detail)

    # Connections

    def retire(self, link: ClientLink) -> None:
        """`link` takes no more calls."""
        if link in self.links:
            self.links.remove(link)
        if link.transport is not None:
            self._retired.add(link)
        if self._waiting:
            self._dial_if_needed()

    def discard(self, link: ClientLink) -> None:
        """`link` is closed."""
        self._retired.discard(link)

    def retire_all(self) -> None:
        """The backend takes no new calls: close what is idle, let the rest finish."""
        for link in tuple(self.links):
            link.retire()
            link.close_if_over()

    def close(self) -> None:
        """Close everything now."""
        self._closed = True
        for link in (*self.links, *self._retired):
            link.abort()
