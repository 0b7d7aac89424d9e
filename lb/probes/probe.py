"""Asking: one fresh connection per probe, dialled the way live traffic is.

A pooled connection would go on saying "ready" while a Triton shuts down, because only new
connections are refused then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from ssl import SSLError
from time import monotonic
from typing import Protocol, cast

from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.health.port import Finding
from lb.net.dial import dial
from lb.net.tls.client import ClientTlsBook
from lb.net.tls.contexts import describe
from lb.probes.grpc import GrpcCall
from lb.probes.http import HttpGet
from lb.probes.plan import Answer, Conversation, ProbePlan, Question


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One finished probe."""

    finding: Finding
    detail: str = ""
    """Why, in words for people; empty when it is ready."""
    latency_s: float = 0.0


class Probe(Protocol):
    """Asks one port how it is. May be asked any number of times, one after the other."""

    async def check(self, timeout_s: float) -> ProbeResult:
        """Ask once; whatever the backend does is a finding, never an exception."""
        ...


class NetworkProbe:
    """Carries out a plan."""

    def __init__(self, plan: ProbePlan, tls: ClientTlsBook | None = None) -> None:
        self._plan = plan
        self._tls = tls or ClientTlsBook()

    async def check(self, timeout_s: float) -> ProbeResult:
        """Ask once; takes at most `timeout_s` seconds."""
        loop = asyncio.get_running_loop()
        began = monotonic()  # uvloop's own clock counts whole milliseconds
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._ask(loop, timeout_s)
        except TimeoutError:
            answer = Answer(Finding.TIMEOUT, f"no answer within {timeout_s:g} s")
        except UpstreamError as error:
            answer = Answer(_CONNECT_FINDINGS.get(error.outcome, Finding.ERROR), error.detail)
        return ProbeResult(answer.finding, answer.detail, monotonic() - began)

    async def _ask(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> Answer:
        outcome: asyncio.Future[Answer] = loop.create_future()
        talk = _conversation(self._plan)
        transport, _ = await dial(
            loop,
            self._plan.address,
            lambda: _Connection(talk, outcome),
            timeout_s,
            tls=self._tls.find(self._plan.tls, self._plan.protocol),
            handshake_s=timeout_s,
        )
        try:
            return await outcome
        finally:
            transport.abort()


_CONNECT_FINDINGS = {
    Outcome.CONNECT_REFUSED: Finding.REFUSED,
    Outcome.CONNECT_TIMEOUT: Finding.TIMEOUT,
}


def _conversation(plan: ProbePlan) -> Conversation | None:
    """The language of the question; None when connecting is the whole of it."""
    match plan.question:
        case Question.HTTP_GET | Question.MODEL_STATUS_GET:
            return HttpGet(plan)
        case Question.SERVER_READY | Question.GRPC_HEALTH | Question.MODEL_STATUS_CALL:
            return GrpcCall(plan)
        case Question.CONNECT:
            return None


class _Connection(asyncio.Protocol):
    """Carries bytes between a transport and a conversation until that has its answer."""

    def __init__(self, talk: Conversation | None, outcome: asyncio.Future[Answer]) -> None:
        self._talk = talk
        self._outcome = outcome
        self._transport: asyncio.Transport | None = None
        self._heard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say the opening."""
        # Not an isinstance: uvloop's transports are not asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        if self._talk is None:
            self._settle(Answer(Finding.READY))
        else:
            self._transport.write(self._talk.opening())

    def data_received(self, data: bytes) -> None:
        """Feed the conversation."""
        self._heard = True
        talk = self._talk
        if talk is None or self._transport is None or self._outcome.done():
            return
        reply = talk.receive(data)
        if talk.answer is not None:
            self._settle(talk.answer)
        elif reply:
            self._transport.write(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """The backend closed before it answered; a reset right away is a refusal."""
        if isinstance(exc, ConnectionError) and not self._heard:
            self._settle(Answer(Finding.REFUSED, "connection reset"))
        else:
            why = f": {describe(exc)}" if isinstance(exc, SSLError) else ""
            self._settle(Answer(Finding.ERROR, f"connection closed without an answer{why}"))

    def _settle(self, answer: Answer) -> None:
        if not self._outcome.done():
            self._outcome.set_result(answer)
