"""The connections to one backend's gRPC port, and the calls that wait for one."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from lb.balancing.sequences import Pin
from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.dial import dial
from lb.net.timeouts import fair_timeout
from lb.proxy.http2.attempt import GrpcAttempt
from lb.proxy.http2.client import Http2ClientConnection
from lb.proxy.http2.shared import Http2Shared

_log = logging.getLogger(__name__)

_MAX_DIALS: Final = 4
"""Connections opened at once to one backend, when many calls wait."""


class UpstreamPool:
    """Multiplexed connections to one backend. A new one only when streams run out."""

    def __init__(self, relay: Http2Shared, backend: Backend) -> None:
        self.relay = relay
        self.backend = backend
        self.port = backend.port(AppProtocol.GRPC)
        self.connections: list[Http2ClientConnection] = []
        """Connections that take calls."""
        self.waiting: deque[GrpcAttempt] = deque()
        """Attempts that wait for room on any connection; those that must go over a certain one are
        in its `bound`."""
        self._others: set[Http2ClientConnection] = set()
        """Connections that do not take calls yet, or not any more."""
        self._retirements = 0
        """How often all connections were to take no more calls."""
        self._dials = 0
        """Connections on their way, until their backend has sent its SETTINGS."""
        self._closed = False

    def __len__(self) -> int:
        """Open connections, those that only begin or finish included."""
        return len(self.connections) + len(self._others)

    @property
    def is_empty(self) -> bool:
        """Nothing is open, on its way, or waited for."""
        return not (len(self) or self._dials or self.waiting)

    def start(self, attempt: GrpcAttempt) -> None:
        """Give an attempt a stream on a connection, now or when there is one."""
        # HOT PATH (benchmarks/load). Nearly always the first connection has room.
        hints = attempt.exchange.hints
        if hints is not None and hints.pin is not None:
            self._start_step(attempt, hints.pin)
            return
        for connection in self.connections:
            if len(connection.streams) < connection.stream_limit:
                connection.open(attempt)
                return
        self._wait(attempt)

    def _start_step(self, attempt: GrpcAttempt, pin: Pin) -> None:
        """Steps of a sequence stay in order: one behind the other on the same connection."""
        if (self.waiting and pin.steps > 1) or not self._open(attempt):
            self._wait(attempt)

    def _open(self, attempt: GrpcAttempt) -> bool:
        """Open a stream where there is room, or let the attempt wait for the one connection that it
        must go over. False when any would do and none has room."""
        hints = attempt.exchange.hints
        pin = hints.pin if hints is not None else None
        connection = None if pin is None else self._pinned_connection(pin)
        if connection is not None and (connection.bound or connection.room <= 0):
            connection.bound.append(attempt)
            return True
        if connection is None:
            connection = next(
                (connection for connection in self.connections if connection.room > 0), None
            )
        if connection is None:
            return False
        if pin is not None:
            pin.connection = connection
        connection.open(attempt)
        return True

    def _pinned_connection(self, pin: Pin) -> Http2ClientConnection | None:
        """The connection that a step must go over, because others are under way there.

        What is under way on a connection that takes nothing new any more cannot be followed.
        """
        if pin.steps == 1:
            return None
        return next(
            (
                connection
                for connection in self.connections
                if connection is pin.connection and connection.stream_limit
            ),
            None,
        )

    def start_whole(self, attempt: GrpcAttempt, payload: bytes, size: int) -> None:
        """As `start`, for a request that is complete and small; the call itself has looked at the
        first connection."""
        for connection in self.connections:
            if len(connection.streams) < connection.stream_limit:
                connection.open_whole(attempt, payload, size)
                return
        if attempt.request.push(payload):
            self._wait(attempt)

    def _wait(self, attempt: GrpcAttempt) -> None:
        self.waiting.append(attempt)
        if self._takes_no_calls:
            self._fail_waiting(Outcome.REFUSED, "it takes no streams")
        else:
            self._dial_if_needed()

    @property
    def _takes_no_calls(self) -> bool:
        """Whether the backend says so (RFC 9113 6.5.2: MAX_CONCURRENT_STREAMS of 0)."""
        return bool(self.connections) and not any(
            connection.stream_limit for connection in self.connections
        )

    def serve_waiting(self) -> None:
        """Start as many waiting calls as there is room for."""
        self._serve()
        if self.waiting:
            if self._takes_no_calls:
                self._fail_waiting(Outcome.REFUSED, "it takes no streams")
            else:
                self._dial_if_needed()

    def _serve(self) -> None:
        for connection in tuple(self.connections):
            if not connection.stream_limit:
                self._unbind(connection)
            while connection.bound and connection.room > 0:
                attempt = connection.bound.popleft()
                if self._still_waits(attempt):
                    connection.open(attempt)
        while self.waiting:
            attempt = self.waiting.popleft()
            if self._still_waits(attempt) and not self._open(attempt):
                self.waiting.appendleft(attempt)
                break

    def _still_waits(self, attempt: GrpcAttempt) -> bool:
        """Whether it was neither cancelled nor given up meanwhile."""
        return (
            attempt.outcome is None and attempt.connection is None and not attempt.exchange.finished
        )

    def _unbind(self, connection: Http2ClientConnection) -> None:
        """Calls that waited for room on `connection` go over any other, before all who came
        later."""
        self.waiting.extendleft(reversed(connection.bound))
        connection.bound.clear()

    # Dialling

    def _dial_if_needed(self) -> None:
        if self._closed:
            self._fail_waiting(Outcome.CONNECT_FAILED, "it has left the pool")
        elif self._dials < min(_MAX_DIALS, 1 + len(self.waiting) // 256):
            self._dials += 1
            self.relay.parts.tasks.spawn(self._dial(), name=f"dial-grpc:{self.backend.name}")

    async def _dial(self) -> None:
        port = self.port
        retirements = self._retirements
        options = self.relay.options
        try:
            _, connection = await dial(
                self.relay.loop,
                port.address,
                lambda: Http2ClientConnection(self),
                options.connect_timeout_s,
                tls=self.relay.parts.tls.find(port.tls, AppProtocol.GRPC),
                handshake_s=options.handshake_timeout_s,
                iteration=self.relay.iteration,
            )
            await self._greet(connection)
        except UpstreamError as error:
            self.relay.now = self.relay.clock()
            self._dials -= 1
            port.connect_failures += 1
            if self.connections:
                self._serve()  # calls of a connection that has gone may go over another one
            elif not self._dials:  # otherwise others will serve them
                self._fail_waiting(error.outcome, error.detail)
            return
        self.relay.now = self.relay.clock()
        self._dials -= 1
        port.connects += 1
        if self._closed:
            connection.abort()
            return
        self._others.discard(connection)
        self.connections.append(connection)
        self.serve_waiting()
        if retirements != self._retirements:
            # It may lead where the backend was before. A step may have waited for it, of a sequence
            # that the backend runs.
            connection.retire()
            connection.close_if_over()

    async def _greet(self, connection: Http2ClientConnection) -> None:
        """Wait for the backend's SETTINGS: how many streams it takes, and that it speaks HTTP/2.

        Raises:
            UpstreamError: they do not come; nothing of any call was sent.
        """
        try:
            async with fair_timeout(self.relay.loop, self.relay.options.head_timeout_s):
                greeted = await connection.greeted
        except TimeoutError as error:
            connection.abort()
            raise UpstreamError(Outcome.CONNECT_TIMEOUT, "it sent no SETTINGS in time") from error
        if not greeted or connection.retired or connection.transport is None:
            raise UpstreamError(Outcome.CONNECT_FAILED, "it closed the new connection")

    def _fail_waiting(self, outcome: Outcome, detail: str) -> None:
        waiting = tuple(self.waiting)
        self.waiting.clear()  # the same one for good: connections have it, too
        for attempt in waiting:
            if self._still_waits(attempt):
                attempt.failed(outcome, detail)

    # Connections

    def connected(self, connection: Http2ClientConnection) -> None:
        """`connection` is up and takes no calls yet."""
        self._others.add(connection)

    def retire(self, connection: Http2ClientConnection) -> None:
        """`connection` takes no more calls."""
        if connection in self.connections:
            self.connections.remove(connection)
        self._unbind(connection)
        if connection.transport is not None:
            self._others.add(connection)
        if self.waiting:
            self._dial_if_needed()

    def discard(self, connection: Http2ClientConnection) -> None:
        """`connection` is closed."""
        self._others.discard(connection)

    def retire_all(self) -> None:
        """The backend takes no new calls: close what is idle, let the rest finish. Connections on
        their way take the calls that wait for them first."""
        self._retirements += 1
        for connection in (*self.connections, *self._others):
            if connection in self.connections or connection.retired:
                connection.retire()
                connection.close_if_over()

    def leave_hung(self) -> None:
        """The backend is silent: let attempts go elsewhere that may."""
        for attempt in self.attempts():
            attempt.backend_hung()

    def all_links(self) -> tuple[Http2ClientConnection, ...]:
        """Open connections, those included that take no calls."""
        return (*self.connections, *self._others)

    def attempts(self) -> list[GrpcAttempt]:
        """The attempts that are under way here, or wait for any connection. Those that are `bound`
        to one are not among them: steps must not overtake those before them. They are in `waiting`
        once their connection takes no more calls, as when the backend is silent."""
        owners = [
            pipe.owner
            for connection in (*self.connections, *self._others)
            for pipe in connection.streams.values()
        ]
        attempts = [each for each in (*owners, *self.waiting) if each is not None]
        return [attempt for attempt in attempts if attempt.outcome is None]

    def close(self) -> None:
        """Close everything now, and take nothing any more."""
        self._closed = True
        for connection in (*self.connections, *self._others):
            connection.abort()
        self._fail_waiting(Outcome.CONNECT_FAILED, "it has left the pool")
