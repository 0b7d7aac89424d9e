from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from lb.balancing.policies import make_policy
from lb.control.backend_registry import ENDED_AT_ONCE
from lb.control.directory import BackendDirectory
from lb.control.loops import ProbeLoops, network_probe
from lb.control.record import Member, PortRecord
from lb.domain.backend import AppProtocol, BackendState
from lb.domain.outcome import Outcome
from lb.health.port import Finding
from lb.health.thresholds import Thresholds
from lb.net.iteration import IterationBudget
from lb.probes.probe import NetworkProbe, ProbeResult
from tests.fakes.backends import make_spec
from tests.wire.waiting import stand_still

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC
FAR = Thresholds(interval_s=3600.0, timeout_s=5.0)
"""No probe but the first comes by itself within a test."""
NEAR = Thresholds(interval_s=0.01, timeout_s=5.0)


class Scripted:
    """A probe that finds what the test says, when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)
        self.findings: asyncio.Queue[Finding | Exception] = asyncio.Queue()
        self.always: Finding | None = None

    async def check(self, timeout_s: float) -> ProbeResult:
        self.asked.release()
        if self.always is not None:
            return ProbeResult(self.always)
        finding = await self.findings.get()
        if isinstance(finding, Exception):
            raise finding
        return ProbeResult(finding)


class Bench:
    """A directory under probe loops with scripted probes."""

    def __init__(self, rules: Thresholds, *names: str) -> None:
        self.rules = rules
        self.probes: dict[tuple[str, AppProtocol], Scripted] = {}
        self.news = asyncio.Event()
        """A probe was made."""
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.replace(*names)
        iteration = IterationBudget(asyncio.get_running_loop())
        self.loops = ProbeLoops(self.directory, Random(1), iteration, make_probe=self.make_probe)
        self.published = asyncio.Event()
        self.directory.ref.subscribe(lambda _snapshot: self.published.set())

    def make_probe(self, member: Member, protocol: AppProtocol) -> Scripted:
        probe = self.probes.setdefault((member.spec.name, protocol), Scripted())
        self.news.set()
        return probe

    async def made(self, name: str) -> None:
        """Wait until there is a probe of a backend."""
        while (name, HTTP) not in self.probes:
            self.news.clear()
            async with asyncio.timeout(30):
                await self.news.wait()

    def replace(self, *names: str, weight: float = 1.0) -> None:
        members = [Member(make_spec(name, weight=weight), self.rules) for name in names]
        self.directory.replace(members, asyncio.get_running_loop().time())

    def probe(self, name: str, protocol: AppProtocol = HTTP) -> Scripted:
        return self.probes[name, protocol]

    def port(self, name: str, protocol: AppProtocol = HTTP) -> PortRecord:
        port = self.directory.find(name).port(protocol)
        assert port is not None
        return port

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for something that comes with a change of eligibility."""
        while not reached():
            self.published.clear()
            await self.published.wait()


@asynccontextmanager
async def running(rules: Thresholds, *names: str) -> AsyncIterator[Bench]:
    bench = Bench(rules, *names)
    bench.loops.start()
    async with asyncio.timeout(30):
        yield bench
        await bench.loops.aclose()
    mine = asyncio.current_task()
    assert [task for task in asyncio.all_tasks() if task is not mine] == []


async def test_the_first_round_ends_when_every_port_has_answered() -> None:
    async with running(FAR, "a", "b") as bench:
        waiter = asyncio.ensure_future(bench.loops.first_round())
        for (name, _), probe in bench.probes.items():
            await probe.asked.acquire()
            assert not waiter.done()
            probe.findings.put_nowait(Finding.READY if name == "a" else Finding.REFUSED)
        await waiter
        assert bench.directory.find("a").state is BackendState.UP
        assert bench.directory.find("b").state is BackendState.DOWN


async def test_the_first_round_of_an_empty_pool_is_over_at_once() -> None:
    async with running(FAR) as bench:
        await bench.loops.first_round()
        assert bench.probes == {}


async def test_the_first_round_waits_for_silent_ports_one_timeout_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Thresholds(timeout_s=0.05), "a") as bench:
        await bench.loops.first_round()
        assert bench.port("a").health.state is BackendState.STARTING
    assert [record.message for record in caplog.records] == ["not every backend has answered"]


async def test_the_first_round_does_not_end_while_we_stand_still_ourselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Thresholds(timeout_s=0.3), "a") as bench:
        waiter = asyncio.ensure_future(bench.loops.first_round())
        for probe in bench.probes.values():
            await probe.asked.acquire()
        stand_still(0.6)
        for _ in range(3):
            await asyncio.sleep(0)
        for probe in bench.probes.values():
            probe.findings.put_nowait(Finding.READY)
        await waiter
        assert bench.port("a").health.state is BackendState.UP
    assert caplog.records == []


async def test_a_port_that_leaves_is_not_waited_for() -> None:
    async with running(FAR, "a", "b") as bench:
        for protocol in AppProtocol:
            bench.probe("a", protocol).findings.put_nowait(Finding.READY)
        waiter = asyncio.ensure_future(bench.loops.first_round())
        await bench.until(lambda: bench.directory.find("a").state is BackendState.UP)
        bench.replace("a")
        await waiter


async def test_probes_come_again_and_again() -> None:
    async with running(NEAR, "a") as bench:
        probe = bench.probe("a")
        for finding in (Finding.READY, Finding.READY, Finding.REFUSED, Finding.READY):
            await probe.asked.acquire()
            probe.findings.put_nowait(finding)
        await probe.asked.acquire()
        assert bench.port("a").health.state is BackendState.DOWN
        probe.findings.put_nowait(Finding.READY)
        await probe.asked.acquire()
        assert bench.port("a").health.state is BackendState.UP


async def test_doubt_of_live_traffic_brings_a_probe_at_once() -> None:
    async with running(FAR, "a") as bench:
        probe, port = bench.probe("a"), bench.port("a")
        await probe.asked.acquire()
        probe.findings.put_nowait(Finding.READY)
        await bench.until(lambda: port.health.state is BackendState.UP)
        bench.directory.report(port.backend, HTTP, Outcome.LOST, 0.0)
        await probe.asked.acquire()
        assert port.health.probes_sent == 2


async def test_doubt_during_a_probe_brings_another_one() -> None:
    async with running(FAR, "a") as bench:
        probe, port = bench.probe("a"), bench.port("a")
        await probe.asked.acquire()
        bench.directory.report(port.backend, HTTP, Outcome.LOST, 0.0)
        probe.findings.put_nowait(Finding.READY)
        await probe.asked.acquire()
        assert port.health.probes_sent == 2


async def test_a_new_backend_is_probed_and_one_that_left_is_not() -> None:
    async with running(FAR, "a") as bench:
        await bench.probe("a").asked.acquire()
        bench.replace("b")
        await bench.probe("b").asked.acquire()
        bench.probe("a").findings.put_nowait(Finding.READY)
        bench.probe("b").findings.put_nowait(Finding.READY)
        await bench.until(lambda: bench.port("b").health.state is BackendState.UP)
        assert not bench.probe("a").findings.empty()


async def test_changed_settings_make_a_new_probe() -> None:
    async with running(FAR, "a") as bench:
        await bench.probe("a").asked.acquire()
        first = bench.probes.pop(("a", HTTP))
        bench.rules = Thresholds(bench.rules.interval_s, bench.rules.timeout_s + 1.0)
        bench.replace("a")
        second = bench.probe("a")
        await second.asked.acquire()
        second.findings.put_nowait(Finding.READY)
        await bench.until(lambda: bench.port("a").health.state is BackendState.UP)
        assert first is not second


async def test_settings_that_probes_do_not_depend_on_leave_them_alone() -> None:
    async with running(FAR, "a") as bench:
        await bench.probe("a").asked.acquire()
        first = bench.probes.pop(("a", HTTP))
        bench.replace("a", weight=2.0)
        assert ("a", HTTP) not in bench.probes
        first.findings.put_nowait(Finding.READY)
        await bench.until(lambda: bench.port("a").health.state is BackendState.UP)


async def test_probes_of_many_new_backends_begin_one_after_the_other() -> None:
    async with running(FAR, "a") as bench:
        names = [f"b{number}" for number in range(50)]
        bench.replace("a", *names)
        assert 0 < len(bench.probes) < 30
        for name in names:
            await bench.made(name)


async def test_probes_of_many_backends_that_leave_end_a_few_in_an_iteration() -> None:
    names = [f"b{number}" for number in range(100)]
    async with running(FAR, "a", *names) as bench:
        for name in names:
            await bench.probe(name).asked.acquire()
        before = len(asyncio.all_tasks())
        bench.replace("a")
        last = before
        while last > before - 2 * len(names):
            await asyncio.sleep(0)
            now = len(asyncio.all_tasks())
            assert last - now <= ENDED_AT_ONCE
            last = now


async def test_probes_that_are_due_at_once_begin_a_few_in_an_iteration() -> None:
    names = [f"b{number}" for number in range(200)]
    async with running(FAR, *names) as bench:
        begun = before = 0
        while begun < len(bench.probes):
            await asyncio.sleep(0)
            begun = sum(not probe.asked.locked() for probe in bench.probes.values())
            assert begun - before <= 20
            before = begun


async def test_a_probe_that_fails_by_itself_counts_as_missed_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(NEAR, "a") as bench:
        probe = bench.probe("a")
        await probe.asked.acquire()
        probe.findings.put_nowait(ZeroDivisionError())
        await probe.asked.acquire()
        port = bench.port("a")
        assert port.health.state is BackendState.DOWN
        assert port.why == "the probe itself failed"
    assert "probe failed" in [record.message for record in caplog.records]


async def test_a_silent_port_is_suspected_while_its_probe_is_under_way() -> None:
    async with running(Thresholds(interval_s=0.01, timeout_s=0.2), "a", "b") as bench:
        bench.probe("b").always = Finding.READY
        bench.probe("b").findings.put_nowait(Finding.READY)
        probe, port = bench.probe("a"), bench.port("a")
        probe.findings.put_nowait(Finding.READY)
        await bench.until(lambda: port.health.state is BackendState.SUSPECTED)
        probe.findings.put_nowait(Finding.READY)
        await bench.until(lambda: port.health.state is BackendState.UP)


async def test_network_probes_follow_the_plan() -> None:
    probe = network_probe(Member(make_spec()), GRPC)
    assert isinstance(probe, NetworkProbe)


async def test_time_outs_while_we_are_late_ourselves_do_not_count() -> None:
    rules = Thresholds(interval_s=0.05, timeout_s=0.4, fall=1)
    async with running(rules, "a") as bench:
        probe = bench.probe("a")
        probe.findings.put_nowait(Finding.READY)
        await probe.asked.acquire()
        await bench.until(lambda: bench.port("a").health.state is BackendState.UP)
        for _ in range(3):
            await probe.asked.acquire()
            stand_still(0.35)
            probe.findings.put_nowait(Finding.TIMEOUT)
        await probe.asked.acquire()
        assert bench.port("a").health.state is BackendState.UP
        # Until one counts: others may let us be late, too.
        probe.always = Finding.TIMEOUT
        probe.findings.put_nowait(Finding.TIMEOUT)
        await bench.until(lambda: bench.port("a").health.state is BackendState.DOWN)


async def test_a_backend_that_is_back_has_its_other_port_probed_at_once() -> None:
    async with running(FAR, "a") as bench:
        http, grpc = bench.probe("a", HTTP), bench.probe("a", GRPC)
        for probe in (http, grpc):
            await probe.asked.acquire()
            probe.findings.put_nowait(Finding.REFUSED)
        await bench.loops.first_round()
        bench.port("a", HTTP).health.awaited()
        bench.port("a", HTTP).wake()
        await http.asked.acquire()
        http.findings.put_nowait(Finding.READY)
        await grpc.asked.acquire()
