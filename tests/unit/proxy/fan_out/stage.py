"""A fan-out over backends that a test makes, and the requests that it gets."""

from __future__ import annotations

import asyncio
from time import monotonic

from lb.domain.backend import AppProtocol, Backend, BackendKind, BackendSpec, parse_address
from lb.domain.control import Reach
from lb.domain.operation import Operation
from lb.kserve.operations import grpc_operation, http_route
from lb.net.ask.backend_client import BackendClient
from lb.net.tasks import TaskOwner
from lb.proxy.fan_out.fan_out import BackendFanOut
from lb.proxy.fan_out.options import FanOutOptions
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest
from lb.telemetry.counts import OwnCalls
from lb.wire.memory_budget import MemoryBudget
from tests.wire.http1 import Peer, Script, reply


def serving(*answers: tuple[int, bytes] | bytes) -> Script:
    """A backend that gives its answers in turn, the last of them for ever: a JSON body alone, or
    with its status."""

    async def serve(peer: Peer) -> None:
        await peer.request()
        at = min(len(peer.backend.requests), len(answers)) - 1
        given = answers[at]
        status, body = (200, given) if isinstance(given, bytes) else given
        fields = b"Content-Type: application/json\r\n"
        await peer.send(reply(body, fields, b"%d Some" % status))

    return serve


async def silent(peer: Peer) -> None:
    """A backend that takes a request and says nothing."""
    await peer.request()
    await peer.closed()


def backend_at(name: str, target: str, *, kind: BackendKind = BackendKind.TRITON) -> Backend:
    """The record of a backend with HTTP alone."""
    return Backend(BackendSpec(name=name, http=parse_address(target), kind=kind))


def http_question(method: bytes, target: bytes, body: bytes = b"") -> FanOutRequest:
    """What a client asks over HTTP."""
    route = http_route(method, target)
    return FanOutRequest(
        protocol=AppProtocol.HTTP,
        operation=route.operation,
        model=route.model,
        method=method,
        target=target,
        fields=((b"x-client", b"1"), (b"accept-encoding", b"gzip")),
        body=body,
    )


def grpc_question(name: str, message: bytes = b"") -> FanOutRequest:
    """What a client asks over gRPC."""
    target = f"/inference.GRPCInferenceService/{name}".encode()
    return FanOutRequest(
        protocol=AppProtocol.GRPC,
        operation=grpc_operation(target),
        model=b"",
        method=b"POST",
        target=target,
        fields=((b"x-client", b"1"), (b"authorization", b"Bearer c")),
        body=message,
    )


class Stage:
    """A fan-out over backends that a test makes; it must be left with nothing behind."""

    def __init__(self, options: FanOutOptions | None = None, ceiling: int = 1 << 30) -> None:
        self.roster: list[Reach] = []
        self.tasks = TaskOwner()
        self.memory_budget = MemoryBudget(ceiling)
        self.own_calls = OwnCalls()
        self.news: list[tuple[str, bytes, str]] = []
        self.settled_on = ""
        self.fan_out = BackendFanOut(
            lambda: tuple(self.roster),
            BackendClient(),
            self.tasks,
            self.memory_budget,
            options or FanOutOptions(),
            clock=monotonic,
            own_calls=self.own_calls,
        )
        self.fan_out.news = self

    def add(self, backend: Backend, *, is_open: bool = True) -> Backend:
        """A further backend of the pool."""
        ports = tuple(is_open and port is not None for port in backend.ports)
        self.roster.append(Reach(backend, (ports[0], ports[1])))
        return backend

    def control_done(
        self, operation: Operation, model: bytes, backends: tuple[Backend, ...]
    ) -> None:
        """See `lb.domain.control.ControlNews`."""
        self.news.append((operation.name, model, "".join(each.name for each in backends)))

    async def settled(self, backends: tuple[Backend, ...]) -> None:
        """See `lb.domain.control.ControlNews`."""
        await asyncio.sleep(0)
        self.settled_on = "".join(each.name for each in backends)

    async def ask(self, question: FanOutRequest) -> FanOutReply:
        """Ask, and see that nothing is left behind."""
        answer = await self.fan_out.ask(question)
        await asyncio.sleep(0)
        assert self.memory_budget.held == 0
        return answer

    @property
    def outcomes(self) -> dict[str, str]:
        """What came of the calls, by backend."""
        return {backend.name: outcome for _, backend, outcome in self.own_calls.counts}
