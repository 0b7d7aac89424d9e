"""Under strict rules no region of shared memory gets through by HTTP."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from ipaddress import ip_network

import pytest

from lb.access.gate import ControlRule, Gate, GateRules
from lb.proxy.http1.heads import HeadReader
from tests.fakes.http1_sides import Sides

SHARED = b'{"inputs":[{"name":"I","parameters":{"shared_memory_region":"r"}}]}'
PLAIN = b'{"inputs":[{"name":"I","data":["shared_memory_region"]}]}'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Bench(Sides):
    """A remote client of a strict relay."""

    def __init__(self, *networks: str) -> None:
        super().__init__()
        control = ControlRule(networks=tuple(map(ip_network, networks)))
        gate = Gate(GateRules(control=control, strict_shared_memory=True))
        self.dispatcher.gate = gate
        self.relay.heads = HeadReader(self.relay.options.head, gate=gate)
        self.relay.known_plan = self.relay.heads.known_request
        self.relay.plan = self.relay.heads.plan
        self.server, self.sent = self.client()
        self.backend, self.wire = self.upstream()

    def infer(self, body: bytes, *fields: bytes, step: int = 1 << 20) -> None:
        """Send an inference in pieces."""
        lines = (b"POST /v2/models/m/infer HTTP/1.1", b"Host: a", *fields)
        head = b"\r\n".join((*lines, b"Content-Length: %d" % len(body), b"", b""))
        self.server.data_received(head)
        for at in range(0, len(body), step):
            if self.server.transport is not None:
                self.server.data_received(body[at : at + step])

    @property
    def is_clean(self) -> bool:
        return not (self.dispatcher.open_exchanges or self.memory_budget.held or self.in_flight)


@pytest.mark.parametrize("step", [1, 10, 1 << 20])
@pytest.mark.parametrize("coding", [b"", b"gzip"])
async def test_a_region_is_refused_before_the_backend_has_it(step: int, coding: bytes) -> None:
    bench = Bench()
    body = gzip.compress(SHARED) if coding else SHARED
    bench.infer(body, *([b"Content-Encoding: " + coding] if coding else []), step=step)
    answer = bench.sent.take()
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"access.control.networks" in answer
    assert body not in bench.wire.written
    bench.sent.lose()
    assert bench.is_clean


async def test_a_whole_request_in_one_read_is_refused() -> None:
    bench = Bench()
    bench.server.data_received(
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b"
        % (len(SHARED), SHARED)
    )
    assert bench.sent.take().startswith(b"HTTP/1.1 403 ")
    assert bench.wire.take() == b""
    bench.server.data_received(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
    assert bench.sent.take().startswith(b"HTTP/1.1 200 "), "the connection lives on"


async def test_other_inferences_pass() -> None:
    bench = Bench()
    tensors = b'"shared_memory_region":"r"'
    size = b"Inference-Header-Content-Length: %d" % len(PLAIN)
    for body, fields in ((PLAIN, []), (PLAIN + tensors, [size])):
        bench.infer(body, *fields)
        assert bench.wire.take().endswith(body)
        bench.backend.data_received(OK)
        assert bench.sent.take() == OK


async def test_a_client_that_may_control_may_use_memory() -> None:
    bench = Bench("10.0.0.0/8")
    bench.infer(SHARED)
    assert bench.wire.take().endswith(SHARED)


async def turns_until(is_so: Callable[[], bool]) -> int:
    """How many turns of the loop it takes until something is so."""
    for turn in range(1000):
        if is_so():
            return turn
        await asyncio.sleep(0)
    raise AssertionError("waited in vain")


GZIP = b"Content-Encoding: gzip"
MARKS = gzip.compress(b'{"x":"' + b'\\"' * (2 << 20) + b'"}')
"""Which inflates to 4 MiB that take long to be searched."""


@pytest.mark.parametrize("step", [1000, 1 << 20])
async def test_what_inflates_to_much_takes_many_turns(step: int) -> None:
    bench = Bench()
    bench.infer(MARKS, GZIP, step=step)
    assert MARKS[-1000:] not in bench.wire.written
    assert await turns_until(lambda: MARKS[-1000:] in bench.wire.written) > 4
    assert MARKS in bench.wire.take(), "nothing is missing, and nothing comes twice"
    bench.backend.data_received(OK)
    assert bench.sent.take() == OK
    assert not bench.memory_budget.held
    bench.server.data_received(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
    assert bench.sent.take().startswith(b"HTTP/1.1 200 ")


async def test_a_region_behind_much_is_refused() -> None:
    bench = Bench()
    body = gzip.compress(bytes(4 << 20) + SHARED)
    bench.infer(body, GZIP)
    assert not bench.sent.written
    await turns_until(lambda: bool(bench.sent.written))
    assert bench.sent.take().startswith(b"HTTP/1.1 403 ")
    assert body not in bench.wire.written
    assert bench.is_clean


async def test_what_is_held_for_inspection_is_on_the_memory_budget_until_its_client_leaves() -> (
    None
):
    bench = Bench()
    bench.infer(MARKS, GZIP)
    assert bench.memory_budget.held >= len(MARKS)
    assert not bench.sent.reading or bench.server.exchange is not None
    bench.sent.lose()
    assert bench.is_clean
    await asyncio.sleep(0)
    assert MARKS[-1000:] not in bench.wire.written


async def test_memory_that_runs_out_ends_an_inspection() -> None:
    bench = Bench()
    bench.memory_budget.resize(2000)
    bench.infer(MARKS, GZIP)
    assert bench.sent.take().startswith(b"HTTP/1.1 503 ")
    assert bench.is_clean


async def test_requests_that_come_together_are_inspected_as_far_as_the_budget_allows() -> None:
    bench = Bench()
    packed = gzip.compress(SHARED + b" " * 50_000)
    clients = [bench.client() for _ in range(18)]
    for server, _ in clients:
        server.data_received(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n%b\r\nContent-Length: %d\r\n\r\n%b"
            % (GZIP, len(packed), packed)
        )

    def refused() -> int:
        return sum(sent.written.startswith(b"HTTP/1.1 403 ") for _, sent in clients)

    counts = [refused()]
    while counts[-1] < 18:
        await asyncio.sleep(0)
        counts.append(refused())
    assert counts == [6, 12, 18]
    assert bench.is_clean
