"""The directory and its probe loops over real processes that die, stop and come back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import monotonic

import pytest
import uvloop

from lb.control.directory import BackendDirectory
from lb.control.loops import ProbeLoops
from lb.control.record import Member
from lb.domain.backend import Address, AppProtocol, BackendSpec, BackendState
from lb.domain.outcome import Outcome
from lb.health.thresholds import Thresholds
from lb.net.iteration import IterationBudget
from tests.fakes.process import ChildProcess, free_ports, wait_until
from tests.fakes.relay import named_policy

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC
GIVE_UP_S = 30.0
USUAL = Thresholds()
STOPPED_IS_OUT_S = 2.5
TRIES = 4
"""To be as quick as promised, on a busy machine."""


class Simulated:
    """A simulated Triton on fixed ports, as a process."""

    def __init__(self, name: str, directory: Path) -> None:
        self.http, self.grpc = free_ports(2)
        self._log = directory / f"{name}.log"
        self.spec = BackendSpec(
            name=name,
            http=Address(host="127.0.0.1", port=self.http),
            grpc=Address(host="127.0.0.1", port=self.grpc),
        )
        self.process = self.start()

    def start(self) -> ChildProcess:
        ports = ("--http-port", str(self.http), "--grpc-port", str(self.grpc))
        command = (sys.executable, "-m", "lb.simulator", *ports)
        self.process = ChildProcess(command, log=self._log, env=os.environ)
        return self.process

    def listens(self) -> bool:
        """Whether probes of both ports get through."""
        try:
            for port in (self.http, self.grpc):
                socket.create_connection(("127.0.0.1", port), timeout=30).close()
        except ConnectionRefusedError:
            return False
        return True


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[tuple[Simulated, Simulated]]:
    pair = Simulated("a", tmp_path), Simulated("b", tmp_path)
    yield pair
    for each in pair:
        each.process.close()


class Watched:
    """A directory under real probes; waits by its publications."""

    def __init__(self, *simulated: Simulated, rules: Thresholds) -> None:
        self.directory = BackendDirectory(named_policy("least_loaded"))
        self.directory.replace([Member(each.spec, rules) for each in simulated], monotonic())
        self.loops = ProbeLoops(
            self.directory, Random(1), IterationBudget(asyncio.get_running_loop())
        )
        self._published = asyncio.Event()
        self.directory.ref.subscribe(lambda _snapshot: self._published.set())

    def names(self, protocol: AppProtocol) -> str:
        eligible = self.directory.ref.current.placement(protocol).eligible
        return "".join(sorted(backend.name for backend in eligible))

    def changes(self, name: str) -> int:
        """How often the ports of one backend have changed state."""
        return sum(port.changes for port in self.directory.find(name).ports)

    def probes(self, name: str) -> list[int]:
        """How many were sent to each of its ports."""
        return [port.health.probes_sent for port in self.directory.find(name).ports]

    async def until(self, http: str, grpc: str) -> float:
        """Wait until exactly these are eligible; returns the seconds that took."""
        began = monotonic()
        async with asyncio.timeout(GIVE_UP_S):
            while (self.names(HTTP), self.names(GRPC)) != (http, grpc):
                self._published.clear()
                await self._published.wait()
        return monotonic() - began


@asynccontextmanager
async def watched(*simulated: Simulated, rules: Thresholds = USUAL) -> AsyncIterator[Watched]:
    watch = Watched(*simulated, rules=rules)
    watch.loops.start()
    try:
        yield watch
    finally:
        await watch.loops.aclose()


Run = Callable[..., None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return uvloop.run if request.param == "uvloop" else asyncio.run


def test_a_killed_backend_goes_and_comes_back_by_itself(
    simulated: tuple[Simulated, Simulated],
) -> None:
    a, b = simulated

    async def scenario() -> None:
        async with watched(a, b) as watch:
            await watch.until("ab", "ab")
            before = watch.changes("b")
            a.process.close()
            sent = watch.probes("a")
            await watch.until("b", "b")
            # One that is refused is enough; another port may have had its next one meanwhile.
            assert all(now - then <= 2 for now, then in zip(watch.probes("a"), sent, strict=True))
            assert watch.directory.find("a").state is BackendState.DOWN
            a.start()
            await watch.until("ab", "ab")
            assert watch.directory.find("a").state is BackendState.UP
            assert watch.changes("b") == before

    asyncio.run(scenario())


def test_a_refusal_seen_by_live_traffic_takes_a_backend_out_at_once(
    simulated: tuple[Simulated, Simulated],
) -> None:
    a, b = simulated
    for each in simulated:
        wait_until(each.listens, timeout_s=GIVE_UP_S, what="it listens")
    rare = Thresholds(interval_s=15.0)

    async def scenario() -> None:
        async with watched(a, b, rules=rare) as watch:
            await watch.until("ab", "ab")
            backend = watch.directory.find("a").backend
            watch.directory.report(backend, HTTP, Outcome.CONNECT_REFUSED, monotonic())
            assert (watch.names(HTTP), watch.names(GRPC)) == ("b", "b")
            # It was a false alarm: two good probes, 100 ms apart, bring it back.
            assert await watch.until("ab", "ab") < 12.0  # the next regular one

    asyncio.run(scenario())


def test_a_stopped_backend_is_out_within_two_and_a_half_seconds(
    simulated: tuple[Simulated, Simulated], run: Run
) -> None:
    a, b = simulated

    async def scenario() -> None:
        async with watched(a, b) as watch:
            await watch.until("ab", "ab")
            tries: list[tuple[bool, bool, int]] = []
            while len(tries) < TRIES and (True, True, 0) not in tries:
                before = watch.changes("b")
                a.process.signal(signal.SIGSTOP)
                is_out = await watch.until("b", "b") < STOPPED_IS_OUT_S
                a.process.signal(signal.SIGCONT)
                is_back = await watch.until("ab", "ab") < STOPPED_IS_OUT_S
                tries.append((is_out, is_back, watch.changes("b") - before))
            assert (True, True, 0) in tries

    run(scenario())


def test_the_first_round_is_over_as_soon_as_all_have_answered(
    simulated: tuple[Simulated, Simulated],
) -> None:
    a, b = simulated
    b.process.close()

    async def scenario() -> None:
        async with watched(a, b) as watch:
            await watch.loops.first_round()
            for port in watch.directory.ports():
                assert port.health.state is not BackendState.STARTING

    asyncio.run(scenario())
