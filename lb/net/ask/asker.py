"""Asking: a fresh connection per call, dialled the way live traffic is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from ssl import SSLError
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from lb.domain.backend import Address, AppProtocol, BackendPort, BackendSpec, BackendTls
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.net.ask.grpc import GrpcAnswer, GrpcTalk
from lb.net.ask.http import HttpAnswer, HttpTalk
from lb.net.ask.talk import (
    ANSWER_BYTES,
    PIECE_BYTES,
    Fields,
    Payload,
    Talk,
    authority,
    marked,
    with_operator_fields,
)
from lb.net.dial import dial
from lb.net.iteration import IterationBudget
from lb.net.timeouts import fair_timeout
from lb.net.tls.client import ClientTlsBook
from lb.net.tls.contexts import describe
from lb.settings.limits import TimeoutSettings

AnswerT = TypeVar("AnswerT")

Keep: TypeAlias = Callable[[int], bool]
"""Told how many bytes more are kept of an answer; False ends the call."""

_TURN_BYTES: Final = 2**20
"""What all uploads together send in one turn of the loop: half a millisecond."""

_PORTS = (BackendPort.HTTP, BackendPort.GRPC)


class Asker:
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
    ) -> None:
        """Take what holds for all calls.

        Args:
            tls: how backends are spoken to that want TLS.
            connect_timeout_s: for a connection.
            handshake_timeout_s: for its TLS.
            answer_bytes: longest answer that is taken.
            identity: ours, in the hop marker; empty: there is none.
            iteration: the budget that decrypting counts against, see `dial`.
        """
        self._tls = tls or ClientTlsBook()
        self.connect_timeout_s = connect_timeout_s
        self._handshake_timeout_s = handshake_timeout_s
        self._answer_bytes = answer_bytes
        self._identity = identity
        self._iteration = iteration
        self._turns = _Turns()

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
        talk = HttpTalk(
            method,
            target,
            marked(with_operator_fields(fields, spec.headers), self._identity),
            body,
            authority=authority(spec.headers, address),
            limit=self._answer_bytes,
        )
        return await self._converse(AppProtocol.HTTP, address, tls, talk, timeout_s, keep)

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
        """One unary gRPC call. Arguments and errors are as for `http`; see `GrpcTalk`."""
        address, tls = _port(spec, AppProtocol.GRPC)
        talk = GrpcTalk(
            path,
            marked(with_operator_fields(metadata, spec.headers), self._identity),
            message,
            authority=authority(spec.headers, address),
            is_secure=tls is not None,
            limit=self._answer_bytes,
        )
        return await self._converse(AppProtocol.GRPC, address, tls, talk, timeout_s, keep)

    async def _converse(
        self,
        protocol: AppProtocol,
        address: Address,
        tls: BackendTls | None,
        talk: Talk[AnswerT],
        timeout_s: float,
        keep: Keep | None,
    ) -> AnswerT:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[AnswerT | _Failure] = loop.create_future()
        try:
            async with fair_timeout(loop, timeout_s):
                transport, _ = await dial(
                    loop,
                    address,
                    lambda: _Connection(talk, outcome, keep, self._turns),
                    self.connect_timeout_s,
                    tls=self._tls.find(tls, protocol),
                    handshake_s=self._handshake_timeout_s,
                    iteration=self._iteration,
                )
                try:
                    found = await outcome
                finally:
                    transport.abort()
        except TimeoutError as error:
            detail = f"no answer within {timeout_s:g}s"
            raise UpstreamError(Outcome.DEADLINE, detail) from error
        if isinstance(found, _Failure):
            raise UpstreamError(found.outcome, found.detail)
        return found


def _port(spec: BackendSpec, protocol: AppProtocol) -> tuple[Address, BackendTls | None]:
    address = spec.address(protocol)
    if address is None:
        raise LookupError(f"backend {spec.name} has no {protocol.label} port")
    return address, spec.tls_of(_PORTS[protocol])


class _Turns:
    """Lets uploads take turns: so much is sent in one turn of the loop, to however many backends.

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


class _Connection(asyncio.Protocol, Generic[AnswerT]):
    """Carries bytes between a transport and a talk until that has its answer."""

    def __init__(
        self,
        talk: Talk[AnswerT],
        outcome: asyncio.Future[AnswerT | _Failure],
        keep: Keep | None,
        turns: _Turns,
    ) -> None:
        self._talk = talk
        self._turns = turns
        self._outcome = outcome
        self._keep = keep
        self._transport: asyncio.Transport | None = None
        self._heard = False
        self._is_paused = False
        self._has_turn = False
        """It will go on with the upload when its turn comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the opening."""
        # Not an isinstance: uvloop's transports are not asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.writelines([self._talk.opening(), *self._talk.upload()])
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
        if self._is_paused or transport is None or self._outcome.done():
            return 0
        pieces: list[Payload] = []
        size = 0
        while size < PIECE_BYTES and (more := self._talk.upload()):
            pieces += more
            size += sum(map(len, more))
        if pieces:
            self._upload()
            transport.writelines(pieces)
        return size

    def data_received(self, data: bytes) -> None:
        """Feed the talk."""
        self._heard = True
        transport = self._transport
        if transport is None or self._outcome.done():
            return
        if self._keep is not None and not self._keep(len(data)):
            self._settle(_Failure(Outcome.CANCELLED, "too little memory for the answer"))
            return
        try:
            reply = self._talk.receive(data)
        except UpstreamError as error:
            self._settle(_Failure(error.outcome, error.detail))
            return
        if self._talk.answer is not None:
            self._settle(self._talk.answer)
            return
        if reply:
            transport.write(reply)
        self._upload()

    def connection_lost(self, exc: Exception | None) -> None:
        """The backend closed; a reset before any byte of an answer is a refusal."""
        if isinstance(exc, ConnectionError) and not self._heard:
            self._settle(_Failure(Outcome.CONNECT_REFUSED, "connection reset"))
            return
        if exc is None:
            self._talk.closed()
        if self._talk.answer is not None:
            self._settle(self._talk.answer)
            return
        why = f": {describe(exc)}" if isinstance(exc, SSLError) else ""
        self._settle(_Failure(Outcome.LOST, f"connection closed without an answer{why}"))

    def _settle(self, found: AnswerT | _Failure) -> None:
        if not self._outcome.done():
            self._outcome.set_result(found)
