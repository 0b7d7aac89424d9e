"""Asking: one fresh connection per probe, dialled the way live traffic is.

A pooled connection would go on saying "ready" while a Triton shuts down, because only new
connections are refused then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, cast

from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.health.port import Finding
from lb.net.dial import connect_failure, dial, is_numeric
from lb.net.iteration import IterationBudget
from lb.net.timeouts import FairTimer, fair_timeout
from lb.net.tls.client import ClientTlsBook
from lb.probes.brief import BriefClientCall, answer_of_loss
from lb.probes.grpc import GrpcCall
from lb.probes.http import HttpGet
from lb.probes.plan import READY, Conversation, ProbeAnswer, ProbePlan, ProbeQuestion


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One finished probe."""

    finding: Finding
    detail: str = ""
    """Why, in words for people; empty when it is ready."""
    latency_s: float = 0.0
    ready_through: tuple[bytes, ...] = ()
    """See `ProbeAnswer`."""


class Probe(Protocol):
    """Asks one port how it is. May be asked any number of times, one after the other."""

    async def check(self, timeout_s: float) -> ProbeResult:
        """Ask once; whatever the backend does is a finding, never an exception."""
        ...


class NetworkProbe:
    """Carries out a plan."""

    def __init__(
        self,
        plan: ProbePlan,
        tls: ClientTlsBook | None = None,
        iteration: IterationBudget | None = None,
    ) -> None:
        self._plan = plan
        self._tls = tls or ClientTlsBook()
        self._iteration = iteration
        client_call = _conversation(plan)
        self._opening = b"" if client_call is None else client_call.opening()
        self._is_plain = plan.tls is None and is_numeric(plan.address.host)

    async def check(self, timeout_s: float) -> ProbeResult:
        """Ask once; takes at most `timeout_s` seconds."""
        began = monotonic()  # uvloop's own clock counts whole milliseconds
        try:
            ask = self._ask_briefly if self._is_plain else self._ask
            answer = await ask(asyncio.get_running_loop(), timeout_s)
        except UpstreamError as error:
            answer = ProbeAnswer(_CONNECT_FINDINGS.get(error.outcome, Finding.ERROR), error.detail)
        latency_s = monotonic() - began
        return ProbeResult(answer.finding, answer.detail, latency_s, answer.ready_through)

    async def _ask_briefly(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> ProbeAnswer:
        outcome: asyncio.Future[ProbeAnswer] = loop.create_future()
        client_call, address = _conversation(self._plan), self._plan.address
        try:
            call = BriefClientCall(loop, address, self._opening, client_call, outcome)
        except OSError as error:
            raise connect_failure(address, error) from error
        timer = FairTimer(loop, timeout_s, lambda: _time_out(outcome, timeout_s))
        try:
            call.begin()
            return await outcome
        finally:
            timer.cancel()
            call.close()

    async def _ask(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> ProbeAnswer:
        outcome: asyncio.Future[ProbeAnswer] = loop.create_future()
        client_call = _conversation(self._plan)
        try:
            async with fair_timeout(loop, timeout_s):
                transport, _ = await dial(
                    loop,
                    self._plan.address,
                    lambda: _Connection(self._opening, client_call, outcome),
                    timeout_s,
                    tls=self._tls.find(self._plan.tls, self._plan.protocol),
                    handshake_s=timeout_s,
                    iteration=self._iteration,
                )
                try:
                    return await outcome
                finally:
                    transport.abort()
        except TimeoutError:
            return _silence(timeout_s)


def _silence(timeout_s: float) -> ProbeAnswer:
    return ProbeAnswer(Finding.TIMEOUT, f"no answer within {timeout_s:g}s")


def _time_out(outcome: asyncio.Future[ProbeAnswer], timeout_s: float) -> None:
    if not outcome.done():
        outcome.set_result(_silence(timeout_s))


_CONNECT_FINDINGS = {
    Outcome.CONNECT_REFUSED: Finding.REFUSED,
    Outcome.CONNECT_TIMEOUT: Finding.TIMEOUT,
}


def _conversation(plan: ProbePlan) -> Conversation | None:
    """The language of the question; None when connecting is the whole of it."""
    match plan.question:
        case ProbeQuestion.HTTP_GET | ProbeQuestion.MODEL_STATUS_GET:
            return HttpGet(plan)
        case (
            ProbeQuestion.SERVER_READY | ProbeQuestion.GRPC_HEALTH | ProbeQuestion.MODEL_STATUS_CALL
        ):
            return GrpcCall(plan)
        case ProbeQuestion.CONNECT:
            return None


class _Connection(asyncio.Protocol):
    """Carries bytes between a transport and a conversation until that has its answer."""

    def __init__(
        self, opening: bytes, client_call: Conversation | None, outcome: asyncio.Future[ProbeAnswer]
    ) -> None:
        self._opening = opening
        self._client_call = client_call
        self._outcome = outcome
        self._transport: asyncio.Transport | None = None
        self._heard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the opening."""
        # Not an isinstance: uvloop's transports are not asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        if self._client_call is None:
            self._settle(READY)
        else:
            self._transport.write(self._opening)

    def data_received(self, data: bytes) -> None:
        """Feed the conversation."""
        self._heard = True
        client_call = self._client_call
        if client_call is None or self._transport is None or self._outcome.done():
            return
        reply = client_call.receive(data)
        if client_call.answer is not None:
            self._settle(client_call.answer)
        elif reply:
            self._transport.write(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """The backend closed before it answered."""
        self._settle(answer_of_loss(exc, heard=self._heard))

    def _settle(self, answer: ProbeAnswer) -> None:
        if not self._outcome.done():
            self._outcome.set_result(answer)
