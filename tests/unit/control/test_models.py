from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from lb.balancing.policies import make_policy
from lb.control.backend_registry import ENDED_AT_ONCE
from lb.control.directory import BackendDirectory
from lb.control.models import ModelWatch
from lb.control.questions import Questions, Reply
from lb.control.record import BackendRecord, Member, Setup
from lb.domain.backend import AppProtocol, BackendKind, BackendState
from lb.domain.outcome import Outcome
from lb.health.port import Finding
from lb.kserve.operations import grpc_operation
from lb.probes.probe import ProbeResult
from lb.settings.passive import ModelTableSettings
from tests.fakes.backends import make_spec
from tests.fakes.tritons import SEQUENCES, FakeTriton, FakeTritons
from tests.wire.waiting import eventually, soon

HTTP = AppProtocol.HTTP
FAR_S = 3600.0
LOAD = grpc_operation(b"/inference.GRPCInferenceService/RepositoryModelLoad")
REGISTER = grpc_operation(b"/inference.GRPCInferenceService/CudaSharedMemoryRegister")


class Bench:
    """A directory, the Tritons in it, and who watches them."""

    def __init__(self, refresh_s: float, tritons: dict[str, FakeTriton], kind: BackendKind) -> None:
        self.tritons = tritons
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.now = 100.0
        self.directory.replace([Member(make_spec(name, kind=kind)) for name in tritons], 100.0)
        self.watch = ModelWatch(
            self.directory,
            Questions(FakeTritons(**tritons)),
            Random(1),
            ModelTableSettings(refresh=refresh_s),
            clock=self.clock,
        )
        self.joined: list[str] = []
        self.watch.joined = lambda record: self.joined.append(record.backend.name)

    def clock(self) -> float:
        """Runs on by a bit with every look at it, so that nothing happens at once."""
        self.now += 0.001
        return self.now

    def record(self, name: str) -> BackendRecord:
        return self.directory.find(name)

    def find(self, name: str, finding: Finding) -> None:
        """Let the probes of both ports find the same, as often as it takes."""
        for port in self.record(name).ports:
            for _ in range(3):
                self.directory.probe_sent(port, self.clock())
                self.directory.probed(port, ProbeResult(finding, finding.value), self.clock())

    def where(self, model: str) -> list[str]:
        snapshot = self.directory.ref.current
        route = snapshot.routes.get(model.encode())
        placements = (route.placements if route else None) or snapshot.placements
        return [backend.name for backend in placements[HTTP].eligible]

    async def first_round(self) -> None:
        self.watch.start()
        for name in self.tritons:
            self.find(name, Finding.READY)
        await soon(self.watch.first_round(30.0))


@asynccontextmanager
async def watching(
    refresh_s: float = FAR_S, kind: BackendKind = BackendKind.TRITON, **tritons: FakeTriton
) -> AsyncIterator[Bench]:
    bench = Bench(refresh_s, tritons, kind)
    try:
        await bench.first_round()
        yield bench
    finally:
        await bench.watch.aclose()


def ready(*models: str) -> FakeTriton:
    return FakeTriton(models=dict.fromkeys(models, "READY"))


async def test_the_first_round_knows_models_and_their_configurations() -> None:
    stateful = ready("s", "m")
    stateful.configs["s"] = SEQUENCES
    async with watching(a=stateful, b=ready("m")) as bench:
        routes = bench.directory.ref.current.routes
        assert bench.where("s") == ["a"]
        assert routes[b"s"].facts.is_stateful
        assert routes[b"s"].facts.idle_s == 5.0
        assert routes[b"m"].is_plain
        assert bench.joined == []


async def test_of_many_backends_that_leave_a_few_are_forgotten_in_an_iteration() -> None:
    tritons = {f"b{number}": ready("m") for number in range(100)}
    async with watching(**tritons) as bench:
        left: list[str] = []
        bench.watch.left = lambda record: left.append(record.backend.name)
        bench.directory.replace([], bench.clock())
        seen = 0
        while seen < len(tritons):
            assert len(left) - seen <= ENDED_AT_ONCE
            seen = len(left)
            await asyncio.sleep(0)
        assert sorted(left) == sorted(tritons)


async def test_each_configuration_is_read_once() -> None:
    async with watching(a=ready("m"), b=ready("n")) as bench:
        for name in "ab":
            bench.watch.refresh(bench.record(name))
        await soon(bench.watch.settled(tuple(bench.directory.ref.current.backends)))
        for triton in bench.tritons.values():
            assert sum("/config" in path for path in triton.asked) == 1


async def test_models_are_asked_for_again_and_again() -> None:
    async with watching(refresh_s=0.01, a=ready("m"), b=ready("m")) as bench:
        bench.tritons["a"].models["m"] = "UNAVAILABLE"
        await eventually(lambda: bench.where("m") == ["b"])
        bench.tritons["a"].models["m"] = "READY"
        await eventually(lambda: bench.where("m") == ["a", "b"])


async def test_a_list_that_says_the_same_publishes_nothing() -> None:
    async with watching(a=ready("m")) as bench:
        generation = bench.directory.ref.current.generation
        await soon(bench.watch.refreshed([bench.record("a")]))
        assert bench.directory.ref.current.generation == generation


async def test_calls_that_change_servers_are_known_before_the_next_request() -> None:
    async with watching(a=ready("m"), b=ready("m")) as bench:
        backends = bench.directory.ref.current.backends
        for triton in bench.tritons.values():
            triton.models["n"] = "READY"
            triton.configs["n"] = SEQUENCES
        bench.watch.control_done(LOAD, b"n", backends)
        await soon(bench.watch.settled(backends))
        route = bench.directory.ref.current.routes[b"n"]
        assert route.is_ready
        assert route.facts.is_stateful


async def test_a_load_reads_the_configuration_again() -> None:
    async with watching(a=ready("m")) as bench:
        bench.tritons["a"].configs["m"] = SEQUENCES
        backends = bench.directory.ref.current.backends
        bench.watch.control_done(LOAD, b"m", backends)
        await soon(bench.watch.settled(backends))
        assert bench.directory.ref.current.routes[b"m"].facts.is_stateful


async def test_regions_that_one_backend_accepted_are_used_there() -> None:
    async with watching(a=ready("m"), b=ready("m")) as bench:
        backends = bench.directory.ref.current.backends
        assert bench.directory.ref.current.regions == {}
        bench.tritons["b"].cuda.append("gpu_region")
        bench.watch.control_done(REGISTER, b"", backends)
        await soon(bench.watch.settled(backends))
        (owner,) = bench.directory.ref.current.regions[b"gpu_region"][HTTP].eligible
        assert owner.name == "b"


async def test_an_answer_that_contradicts_the_list_is_looked_into_at_once() -> None:
    async with watching(a=ready("m"), b=ready("m")) as bench:
        bench.tritons["a"].models["m"] = "UNAVAILABLE"
        bench.directory.misplaced(bench.record("a").backend, b"m", b"", bench.clock())
        await eventually(lambda: bench.where("m") == ["b"])


async def test_a_model_that_nobody_is_known_to_have_is_looked_for_everywhere() -> None:
    async with watching(a=ready("m"), b=ready("m")) as bench:
        bench.tritons["b"].models["n"] = "READY"
        bench.directory.misplaced(bench.record("a").backend, b"n", b"", bench.clock())
        await eventually(lambda: bench.where("n") == ["b"])


async def test_a_server_that_loads_is_partial_and_asked_soon_again() -> None:
    async with watching(a=ready("m", "n"), b=ready("m", "n")) as bench:
        bench.tritons["a"].models["n"] = "LOADING"
        bench.find("a", Finding.MODELS_NOT_READY)
        await eventually(lambda: bench.where("n") == ["b"])
        assert bench.record("a").state is BackendState.PARTIAL
        assert bench.where("m") == ["a", "b"]
        bench.tritons["a"].models["n"] = "READY"
        await eventually(lambda: bench.where("n") == ["a", "b"])


async def test_who_comes_back_has_joined_once_its_models_are_known() -> None:
    async with watching(a=ready("m"), b=ready("m")) as bench:
        bench.find("a", Finding.REFUSED)
        assert bench.where("m") == ["b"]
        bench.tritons["a"].models.clear()
        bench.find("a", Finding.READY)
        await eventually(lambda: bench.joined == ["a"])
        assert bench.where("m") == ["b"]


async def test_who_freezes_while_it_is_asked_has_joined_when_it_goes_on() -> None:
    async with watching(a=ready("m"), b=ready("m")) as bench:
        triton = bench.tritons["a"]
        triton.frozen = asyncio.Event()
        asked = len(triton.asked)
        bench.watch.refresh(bench.record("a"))
        await eventually(lambda: len(triton.asked) > asked)
        bench.find("a", Finding.TIMEOUT)
        assert not bench.record("a").answers
        bench.find("a", Finding.READY)
        triton.frozen.set()
        await eventually(lambda: bench.joined == ["a"])


async def test_who_lists_its_models_late_has_joined_then() -> None:
    async with watching(a=ready("m"), b=ready("m")) as bench:
        bench.find("a", Finding.REFUSED)
        bench.tritons["a"].lists = 403
        bench.find("a", Finding.READY)
        await eventually(lambda: bench.record("a").models.lists is False)
        assert bench.joined == []
        bench.tritons["a"].lists = 200
        bench.watch.refresh(bench.record("a"))
        await eventually(lambda: bench.joined == ["a"])


async def test_who_is_added_later_joins() -> None:
    async with watching(a=ready("m"), b=ready("m")) as bench:
        bench.directory.replace([Member(make_spec("b"))], bench.clock())
        bench.directory.replace([Member(make_spec("b")), Member(make_spec("a"))], bench.clock())
        bench.find("a", Finding.READY)
        await eventually(lambda: bench.joined == ["a"])


@pytest.mark.parametrize("status", [400, 403, 404, 405, 501])
async def test_a_server_that_does_not_list_its_models_may_have_any(status: int) -> None:
    async with watching(a=ready("m"), b=FakeTriton(lists=status)) as bench:
        assert bench.where("m") == ["a", "b"]
        assert bench.directory.ref.current.is_served(b"x", b"", HTTP) is None


async def test_a_list_counts_for_a_while_when_there_is_no_answer() -> None:
    async with watching(a=ready("m"), b=ready("n")) as bench:
        bench.tritons["a"].is_silent = True
        await soon(bench.watch.refreshed([bench.record("a")]))
        assert bench.record("a").models.lists is True
        bench.now += 4 * FAR_S
        await soon(bench.watch.refreshed([bench.record("a")]))
        assert bench.record("a").models.lists is False


async def test_a_list_that_was_asked_for_before_a_port_refused_connections_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with watching(a=ready("m"), b=ready("n")) as bench:
        record = bench.record("a")
        ask = bench.watch._questions.index

        async def ask_and_lose(record: BackendRecord) -> Reply:
            monkeypatch.undo()
            index = await ask(record)
            bench.directory.report(record.backend, AppProtocol.GRPC, Outcome.CONNECT_REFUSED, 200.0)
            bench.tritons["a"].models = {"o": "READY"}
            return index

        monkeypatch.setattr(bench.watch._questions, "index", ask_and_lose)
        await soon(bench.watch.listed(record))
        assert record.models.ready == {(b"o", b"1")}


async def test_who_has_listed_its_models_has_time_to_list_them_again() -> None:
    async with watching(a=ready("m"), b=ready("n")) as bench:
        record = bench.record("a")
        bench.tritons["a"].is_silent = True
        bench.directory.report(record.backend, AppProtocol.GRPC, Outcome.CONNECT_REFUSED, 200.0)
        await soon(bench.watch.listed(record))
        assert record.models.lists is None
        bench.now += 4 * FAR_S
        await soon(bench.watch.listed(record))
        assert record.models.lists is False


async def test_a_silent_server_does_not_hold_up_the_start() -> None:
    bench = Bench(FAR_S, {"a": ready("m"), "b": FakeTriton(is_silent=True)}, BackendKind.TRITON)
    try:
        await bench.first_round()
        assert bench.record("b").models.lists is False
        assert bench.where("m") == ["a", "b"]
    finally:
        await bench.watch.aclose()


async def test_other_servers_are_not_asked() -> None:
    async with watching(kind=BackendKind.GENERIC, a=ready("m")) as bench:
        assert bench.tritons["a"].asked == []


async def test_other_servers_of_the_protocol_are_asked_for_models_only() -> None:
    async with watching(kind=BackendKind.KSERVE, a=ready("m")) as bench:
        assert bench.directory.ref.current.routes[b"m"].is_ready
        assert not [path for path in bench.tritons["a"].asked if "sharedmemory" in path]


async def test_waiting_ends_when_a_backend_leaves() -> None:
    async with watching(a=ready("m"), b=ready("m")) as bench:
        waiting = asyncio.ensure_future(bench.watch.refreshed([bench.record("a")]))
        await asyncio.sleep(0)
        bench.directory.replace([Member(make_spec("b"))], bench.clock())
        await soon(waiting)


async def test_nothing_is_kept_of_models_of_a_server_that_does_not_list_them() -> None:
    async with watching(a=FakeTriton(lists=403)) as bench:
        record = bench.record("a")
        for at in range(100):
            bench.watch.control_done(LOAD, b"m%d" % at, (record.backend,))
        assert not bench.watch._watched[record].changed_models


async def test_what_a_server_had_that_has_gone_meanwhile_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with watching(a=ready("m")) as bench:
        record = bench.record("a")
        bench.tritons["a"].cuda = ["r"]
        ask = bench.watch._setup

        async def ask_and_lose(record: BackendRecord) -> Setup:
            setup = await ask(record)
            bench.find("a", Finding.REFUSED)
            return setup

        monkeypatch.setattr(bench.watch, "_setup", ask_and_lose)
        await soon(bench.watch.refreshed([record]))
        assert not record.answers
        assert not record.regions
