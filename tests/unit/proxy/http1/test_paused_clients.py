"""Clients that leave while nothing is read from them."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from lb.domain.schedule import Capacity, QueuePlan
from lb.net.iteration import IterationBudget
from lb.proxy.http1.server import Http1ServerConnection
from lb.proxy.monitor import Monitor
from tests.fakes.clock import FakeLoop
from tests.fakes.gated import FACTS
from tests.fakes.http1_sides import FakeTransport, Sides
from tests.fakes.relay import snapshot_of

_ESTABLISHED, _CLOSE, _CLOSE_WAIT = 1, 7, 8
_HEAD = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: 2\r\n"
    b"Content-Length: %d\r\n\r\n"
)

_PART = 40_000
"""Bytes of a body that make its request wait, though there are more to come."""


class Socket:
    """A socket whose kernel tells the state of the connection."""

    family = socket.AF_INET

    def __init__(self, state: int) -> None:
        self._info = bytes((state,)) + bytes(191)

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._info[:size]


class Waiting(Sides):
    """A busy backend, and requests that wait for it, which nothing is read from."""

    def __init__(self) -> None:
        self.fake = FakeLoop()
        super().__init__(ceiling=1 << 26, loop=self.fake)
        self.paused = self.relay.paused_clients
        self.relay.iteration = IterationBudget(self.fake)
        self.monitor.close()
        self.monitor = Monitor(self.fake, self.relay.iteration, self.dispatcher, [self.paused])
        plan = QueuePlan(limits={}, default=Capacity(1, instances=1))
        route = replace(self.pool.current.routes[b"m"], facts=FACTS, plan=plan, is_plain=False)
        self.pool.publish(replace(snapshot_of(self.backends), routes={b"m": route}))
        self.upstream()
        self.client()[0].data_received(_HEAD % 2 + b"{}")
        self.memory_budget.take(self, self.memory_budget.keep_up_to)

    held = 0

    def evict(self) -> None:
        raise AssertionError("nothing gives way")

    def asks(self, sock: Any, size: int = 100_000) -> tuple[Http1ServerConnection, FakeTransport]:
        """A part of a request; what the kernel says of its connection."""
        server, transport = self.client()
        says(transport, sock)
        server.data_received(_HEAD % size + b"{}" + bytes(_PART))
        assert not transport.reading
        assert server.is_waiting
        return server, transport

    def end(self) -> None:
        for server in tuple(self.relay.servers):
            server.connection_lost(None)
        assert len(self.paused) == 0
        self.monitor.close()


def says(transport: FakeTransport, sock: Any) -> None:
    transport._extra["socket"] = sock  # type: ignore[attr-defined]


@pytest.fixture
async def waiting() -> AsyncIterator[Waiting]:
    waiting = Waiting()
    yield waiting
    waiting.end()
    await waiting.tasks.aclose()


@pytest.mark.parametrize(
    ("sock", "why"),
    [
        (Socket(_ESTABLISHED), "it is open"),
        (None, "nobody can tell"),
    ],
)
async def test_everybody_else_waits_on(waiting: Waiting, sock: Any, why: str) -> None:
    server, _ = waiting.asks(sock)
    waiting.fake.advance(5.0)
    assert server.is_waiting, why


async def test_other_systems_do_not_tell(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    server, _ = waiting.asks(Socket(_CLOSE))
    waiting.fake.advance(5.0)
    assert server.is_waiting


async def test_who_leaves_later_is_noticed_within_a_second(waiting: Waiting) -> None:
    server, transport = waiting.asks(Socket(_ESTABLISHED))
    waiting.fake.advance(3.5)
    assert server.is_waiting
    says(transport, Socket(_CLOSE_WAIT))
    waiting.fake.advance(1.05)
    assert transport.ended == "close"


async def test_what_runs_is_left_alone(waiting: Waiting) -> None:
    server, transport = waiting.client()
    says(transport, Socket(_CLOSE))
    server.data_received(_HEAD.replace(b"/m/", b"/simple/") % 9 + b"{}")
    assert not transport.reading
    assert not server.is_waiting
    waiting.fake.advance(3.0)
    assert server.exchange is not None
    assert len(waiting.paused) == 1


async def test_very_many_are_all_checked(waiting: Waiting) -> None:
    for _ in range(250):
        waiting.asks(Socket(_CLOSE))
    waiting.fake.advance(1.1)
    assert len(waiting.dispatcher.queue) == 0
