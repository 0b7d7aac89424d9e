"""Asking: one call at a time on a connection, dialled the way live traffic is.

Each call has a fresh connection, unless connections are kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from ssl import SSLError
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from lb.domain.backend import Address, AppProtocol, BackendPort, BackendSpec, BackendTls
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask.client_call import (
    ANSWER_BYTES,
    PIECE_BYTES,
    ClientCall,
    Fields,
    Payload,
    authority,
    marked,
    with_operator_fields,
)
from lb.net.ask.grpc import GrpcAnswer, GrpcClientCall, GrpcSession
from lb.net.ask.http import HttpAnswer, HttpClientCall
from lb.net.dial import dial
from lb.net.iteration import IterationBudget
from lb.net.timeouts import fair_timeout
from lb.net.tls.client import ClientTlsBook
from lb.net.tls.contexts import describe
from lb.settings.limits import TimeoutSettings

AnswerT = TypeVar("AnswerT")

_MakeClientCall: TypeAlias = Callable[[ClientCall[Any] | None], ClientCall[AnswerT]]
"""Makes a talk that follows another one on a connection, or is the first."""

Keep: TypeAlias = Callable[[int], bool]
"""Told how many bytes more are kept of an answer; False ends the call."""

_TURN_BYTES: Final = 2**20
"""What all uploads together send in one iteration of the loop: half a millisecond."""

_IDLE_S: Final = 10.0
"""An idle connection is closed after so long: pauses between calls are mostly shorter."""

_PORTS = (BackendPort.HTTP, BackendPort.GRPC)


class BackendClient:
    """Asks backends on behalf of ourselves or of one client."""

    def __init__(
        self,
        tls: ClientTlsBook | None = None,
        *,
        connect_timeout_s: float = 1.0,
        handshake_timeout_s: float = 10.0,
        answer_bytes: int = ANSWER_BYTES,
        identity: bytes = b"",
        iteration: IterationBudget | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Take what holds for all calls.

        Args:
            tls: how backends are spoken to that want TLS.
            connect_timeout_s: for a connection.
            handshake_timeout_s: for its TLS.
            answer_bytes: longest answer that is taken.
            identity: ours, in the hop marker; empty: there is none.
            iteration: the budget that decrypting counts against, see `dial`.
            clock: monotonic seconds; with it connections are kept for further calls, and `sweep`
                is to be called now and then. A call whose connection closes before anything came
                of an answer is made again, so it must be one that may run twice.
        """
        self._tls = tls or ClientTlsBook()
        self.connect_timeout_s = connect_timeout_s
        self._handshake_timeout_s = handshake_timeout_s
        self._answer_bytes = answer_bytes
        self._identity = identity
        self._iteration = iteration
        self._turns = _Turns()
        self._clock = clock
        self._idle: dict[tuple[AppProtocol, Address], _IdleConnections] = {}

    def configure(self, timeouts: TimeoutSettings) -> None:
        """Go by other times from now on."""
        self.connect_timeout_s = timeouts.connect

    async def http(
        self,
        spec: BackendSpec,
        method: bytes,
        target: bytes,
        fields: Fields = (),
        body: Payload = b"",
        *,
        timeout_s: float,
        keep: Keep | None = None,
    ) -> HttpAnswer:
        """One HTTP request.

        Args:
            spec: whom to ask; its `headers` go with the request.
            method: of the request.
            target: of the request.
            fields: end-to-end fields, names in lower case.
            body: as it goes on the wire.
            timeout_s: seconds for everything.
            keep: accounts for the answer's bytes.

        Raises:
            UpstreamError: there is no answer; DEADLINE when the time is over, CANCELLED when
                `keep` says no.
        """
        address, tls = _port(spec, AppProtocol.HTTP)
        sent = marked(with_operator_fields(fields, spec.headers), self._identity)
        host = authority(spec.headers, address)

        def make(_: ClientCall[Any] | None) -> HttpClientCall:
            return HttpClientCall(
                method,
                target,
                sent,
                body,
                authority=host,
                limit=self._answer_bytes,
                keeps=self._clock is not None,
            )

        return await self._converse(AppProtocol.HTTP, address, tls, make, timeout_s, keep)

    async def grpc(
        self,
        spec: BackendSpec,
        path: bytes,
        message: Payload = b"",
        metadata: Fields = (),
        *,
        timeout_s: float,
        keep: Keep | None = None,
    ) -> GrpcAnswer:
        """One unary gRPC call. Arguments and errors are as for `http`; see `GrpcClientCall`."""
        address, tls = _port(spec, AppProtocol.GRPC)
        sent = marked(with_operator_fields(metadata, spec.headers), self._identity)
        host = authority(spec.headers, address)

        def make(last: ClientCall[Any] | None) -> GrpcClientCall:
            return GrpcClientCall(
                path,
                sent,
                message,
                authority=host,
                is_secure=tls is not None,
                limit=self._answer_bytes,
                session=last.session if isinstance(last, GrpcClientCall) else GrpcSession(),
            )

        return await self._converse(AppProtocol.GRPC, address, tls, make, timeout_s, keep)

    async def _converse(
        self,
        protocol: AppProtocol,
        address: Address,
        tls: BackendTls | None,
        make: _MakeClientCall[AnswerT],
        timeout_s: float,
        keep: Keep | None,
    ) -> AnswerT:
        loop = asyncio.get_running_loop()

        def begin() -> _Connection[AnswerT]:
            return _Connection(make(None), keep, self._turns)

        found: AnswerT | _Failure
        try:
            async with fair_timeout(loop, timeout_s):
                idle = self._idle_connections(protocol, address)
                while idle is not None and (kept := idle.take()) is not None:
                    kept.ask(make(kept.client_call), keep)
                    found = await self._end_of(kept, idle)
                    if found is not _STALE:
                        return _answer(found)
                _, fresh = await dial(
                    loop,
                    address,
                    begin,
                    self.connect_timeout_s,
                    tls=self._tls.find(tls, protocol),
                    handshake_s=self._handshake_timeout_s,
                    iteration=self._iteration,
                )
                found = await self._end_of(fresh, idle)
                return _answer(found)
        except TimeoutError as error:
            detail = f"no answer within {timeout_s:g}s"
            raise UpstreamError(Outcome.DEADLINE, detail) from error

    def _idle_connections(self, protocol: AppProtocol, address: Address) -> _IdleConnections | None:
        """The connections to an address that are kept; None where none are."""
        if self._clock is None:
            return None
        found = self._idle.get((protocol, address))
        if found is None:
            found = self._idle[protocol, address] = _IdleConnections(self._clock)
        return found

    async def _end_of(
        self, connection: _Connection[AnswerT], idle: _IdleConnections | None
    ) -> AnswerT | _Failure:
        """Wait for the end of a talk. The connection is idle then, or closed."""
        try:
            return await connection.outcome
        finally:
            if idle is None:
                connection.close()
            else:
                idle.add(connection)

    # Connections that are kept

    def sweep(self, now: float) -> None:
        """Close connections that have been idle for long."""
        for each in self._idle.values():
            each.sweep(now)

    def close_idle(self, spec: BackendSpec) -> None:
        """Close the idle connections to a backend; those in use are closed after their call."""
        for protocol in AppProtocol:
            address = spec.address(protocol)
            found = None if address is None else self._idle.pop((protocol, address), None)
            if found is not None:
                found.close()

    def close(self) -> None:
        """Close all idle connections."""
        for each in self._idle.values():
            each.close()
        self._idle.clear()


class _IdleConnections:
    """Connections to one address that wait for a call. There are as many as calls ran at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, _Connection[Any]]] = []
        """Since when, in monotonic seconds, and the connection; the newest at the end."""
        self._is_closed = False

    def take(self) -> _Connection[Any] | None:
        """Take the one that was used last."""
        while self._waiting:
            _, connection = self._waiting.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None

    def add(self, connection: _Connection[Any]) -> None:
        """Keep one whose call is over, if another one may follow."""
        if self._is_closed or not connection.is_usable:
            connection.close()
        else:
            connection.rest()
            self._waiting.append((self._clock(), connection))

    def sweep(self, now: float) -> None:
        """Close those that have been idle for long."""
        waiting, self._waiting = self._waiting, []
        for since, connection in waiting:
            if connection.is_usable and now - since < _IDLE_S:
                self._waiting.append((since, connection))
            else:
                connection.close()

    def close(self) -> None:
        """Close all, and those that come back."""
        self._is_closed = True
        for _, connection in self._waiting:
            connection.close()
        self._waiting.clear()


def _port(spec: BackendSpec, protocol: AppProtocol) -> tuple[Address, BackendTls | None]:
    address = spec.address(protocol)
    if address is None:
        raise LookupError(f"backend {spec.name} has no {protocol.label} port")
    return address, spec.tls_of(_PORTS[protocol])


class _Turns:
    """Lets uploads take turns: so much is sent in one iteration of the loop, to however many
    backends.

    What 200 of them are told at the same time would otherwise stop everybody else for as long as
    it takes to hand it to the kernel.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], int]] = deque()
        self._is_due = False

    def wait(self, send: Callable[[], int]) -> None:
        """Call `send` soon, once; it returns how many bytes it has sent."""
        self._waiting.append(send)
        self._see_to_it()

    def _see_to_it(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        size = 0
        for _ in range(len(self._waiting)):
            size += self._waiting.popleft()()
            if size >= _TURN_BYTES:
                break
        self._see_to_it()


class _Failure(NamedTuple):
    """Why there is no answer.

    It is no exception: that would refer to the frame that waits, which refers to the future that
    would have the exception. All that has come of an answer would wait for the collector, which
    hardly ever runs.
    """

    outcome: Outcome
    detail: str


_STALE: Final = _Failure(Outcome.LOST, "the connection has closed before anything came")
"""How a talk ends on a connection that was kept and is closed."""


def _answer(found: AnswerT | _Failure) -> AnswerT:
    """The answer, if it is one.

    Raises:
        UpstreamError: it is none.
    """
    if isinstance(found, _Failure):
        raise UpstreamError(found.outcome, found.detail)
    return found


class _Connection(asyncio.Protocol, Generic[AnswerT]):
    """Carries bytes between a transport and a talk; one talk after another where it is kept."""

    def __init__(self, client_call: ClientCall[AnswerT], keep: Keep | None, turns: _Turns) -> None:
        self.client_call = client_call
        """The newest."""
        self.outcome: asyncio.Future[AnswerT | _Failure]
        """That of the newest talk."""
        self.outcome = asyncio.get_running_loop().create_future()
        self._keep = keep
        self._turns = turns
        self._transport: asyncio.Transport | None = None
        self._is_first = True
        """There was no other talk before."""
        self._heard = False
        """Something came since the talk began."""
        self._is_paused = False
        self._has_turn = False
        """It will go on with the upload when its turn comes."""

    @property
    def is_usable(self) -> bool:
        """Whether another talk may follow."""
        return self._transport is not None and self.client_call.is_reusable

    def ask(self, client_call: ClientCall[AnswerT], keep: Keep | None) -> None:
        """Begin another talk."""
        self.client_call, self._keep = client_call, keep
        self.outcome = asyncio.get_running_loop().create_future()
        self._is_first = self._heard = False
        self._begin()

    def rest(self) -> None:
        """Hold nothing of the talk that is over but what the next one needs."""
        self.client_call.release()
        self.outcome = asyncio.get_running_loop().create_future()
        self.outcome.cancel()
        self._keep = None

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the opening."""
        # Not an isinstance: uvloop's transports are not asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._begin()

    def _begin(self) -> None:
        if self._transport is not None:
            self._transport.writelines([self.client_call.opening(), *self.client_call.upload()])
            self._upload()

    def pause_writing(self) -> None:
        """The backend takes less than we have."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """It took what was written."""
        self._is_paused = False
        self._upload()

    def _upload(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            self._turns.wait(self.send_some)

    def send_some(self) -> int:
        """Its turn has come. How many bytes it has sent."""
        self._has_turn = False
        transport = self._transport
        if self._is_paused or transport is None or self.outcome.done():
            return 0
        pieces: list[Payload] = []
        size = 0
        while size < PIECE_BYTES and (more := self.client_call.upload()):
            pieces += more
            size += sum(map(len, more))
        if pieces:
            self._upload()
            transport.writelines(pieces)
        return size

    def data_received(self, data: bytes) -> None:
        """Feed the talk."""
        self._heard = True
        transport, client_call, is_over = self._transport, self.client_call, self.outcome.done()
        if transport is None or (is_over and client_call.answer is None):
            return
        if self._keep is not None and not is_over and not self._keep(len(data)):
            self._settle(_Failure(Outcome.CANCELLED, "too little memory for the answer"))
            return
        try:
            reply = client_call.receive(data)
        except UpstreamError as error:
            self._settle(_Failure(error.outcome, error.detail))
            return
        if client_call.answer is not None:
            self._settle(client_call.answer)
        if reply:
            transport.write(reply)
        if client_call.answer is None:
            self._upload()

    def connection_lost(self, exc: Exception | None) -> None:
        """The backend closed; a reset before any byte of an answer is a refusal."""
        self._transport = None
        if not self._heard and not self._is_first:
            self._settle(_STALE)
            return
        if isinstance(exc, ConnectionError) and not self._heard:
            self._settle(_Failure(Outcome.CONNECT_REFUSED, "connection reset"))
            return
        if exc is None:
            self.client_call.closed()
        if self.client_call.answer is not None:
            self._settle(self.client_call.answer)
            return
        why = f": {describe(exc)}" if isinstance(exc, SSLError) else ""
        self._settle(_Failure(Outcome.LOST, f"connection closed without an answer{why}"))

    def _settle(self, found: AnswerT | _Failure) -> None:
        if not self.outcome.done():
            self.outcome.set_result(found)
