"""Loading models for requests, and making room for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from time import monotonic
from typing import Any

import pytest

from lb.balancing.policies import make_policy
from lb.control.directory import BackendDirectory
from lb.control.drift import DriftComparison
from lb.control.model_placement import ModelPlacement, PlacementError
from lb.control.models import ModelWatch
from lb.control.questions import Questions
from lb.control.record import BackendRecord, Member
from lb.domain.backend import Address, AppProtocol, Backend
from lb.domain.model import ModelUse
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Outcome
from lb.domain.pool import ModelRoute, PoolSnapshot
from lb.domain.schedule import ModelBackendView
from lb.health.port import Finding
from lb.placing.copies import UP
from lb.placing.planner import (
    GONE_PAUSE_S,
    IN_USE_S,
    MIN_OVERDUE_S,
    MIN_OVERDUE_UNLOAD_S,
    Step,
)
from lb.settings.model import Settings
from lb.settings.passive import ModelTableSettings
from tests.fakes.backends import make_spec
from tests.fakes.records import PlainRecord
from tests.fakes.tritons import FakeTriton, FakeTritons
from tests.unit.control.test_directory import found
from tests.wire.waiting import eventually, soon

LOAD = Operation("RepositoryModelLoad", OperationKind.CONTROL)
UNLOAD = Operation("RepositoryModelUnload", OperationKind.CONTROL)


def triton(*ready: str, **more: Any) -> FakeTriton:
    models = dict.fromkeys("mnop", "UNAVAILABLE") | dict.fromkeys(ready, "READY")
    return FakeTriton(models=models, **more)


class Bench:
    """Tritons with room for one model each, before which requests wait."""

    def __init__(self, tritons: dict[str, FakeTriton], placement: dict[str, Any]) -> None:
        self.tritons = tritons
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.directory.replace([Member(make_spec(name)) for name in tritons], 100.0)
        self.directory.model_use = self._use_of
        self.busy: set[tuple[str, bytes]] = set()
        self.now = 0.0
        """Seconds that the clock of placement is ahead."""
        self.step = 0.0
        """Seconds by which it goes on whenever it is read."""
        self.sizes: dict[str, int] = {}
        """Memory that models take; empty: backends tell none."""
        self.unreturned = 0
        self._fakes = FakeTritons(**tritons)
        questions = Questions(self._fakes)
        self.watch = ModelWatch(
            self.directory, questions, Random(1), ModelTableSettings(refresh=3600.0)
        )
        self.placement = ModelPlacement(
            self.directory,
            self.watch,
            questions,
            clock=self._clock,
            settle_s=0.0,
        )
        self.awaited: dict[bytes, float] = {}
        """Models that requests were for, and when the first of these came that has not left."""
        self.placement.models_awaited = lambda: self.awaited
        self.configure(placement)

    def _clock(self) -> float:
        self.now += self.step
        return monotonic() + self.now

    def configure(self, placement: dict[str, Any], **models: Any) -> None:
        settings = {"mode": "on_demand", "max_models": 1, "min_age": "0s", **placement}
        self.placement.memory_of = self._memory_of
        self.placement.configure(
            Settings.model_validate(
                {
                    "listen": {"http": "127.0.0.1:1"},
                    "backends": [{"http": "127.0.0.1:2"}],
                    "placement": settings,
                    "models": models,
                }
            )
        )

    async def _memory_of(self, record: BackendRecord) -> int | None:
        """Bytes that are in use on a GPU: those of its models, and what has not come back."""
        triton = self.tritons[record.backend.name]
        taken = [model for model, state in triton.models.items() if state == "READY"]
        return sum(self.sizes[model] for model in taken) + self.unreturned if self.sizes else None

    def _use_of(self, backend: Backend, model: bytes) -> ModelUse:
        return ModelUse(int((backend.name, model) in self.busy), 0)

    async def start(self) -> None:
        self.watch.start()
        await self.come_up()
        self.placement.start()
        await soon(self.placement.first_round(30.0))

    async def come_up(self) -> None:
        """All Tritons answer probes, and say what they have."""
        for port in self.directory.ports():
            for _ in range(3):
                found(self.directory, port, Finding.READY, 100.0)
        await soon(self.watch.refreshed(self.directory.records))

    def move(self, name: str, successor: FakeTriton) -> None:
        """The name of a Triton passes to another one at another address, which does not answer
        yet."""
        self.tritons[name] = self._fakes.tritons[name] = successor
        address = Address(host="127.0.0.1", port=2)
        spec = make_spec(name, http=address, grpc=address)
        others = [each.member for each in self.directory.records if each.backend.name != name]
        self.directory.replace([Member(spec), *others], 100.0)

    def ready(self) -> dict[str, str]:
        return {
            name: "".join(model for model, state in each.models.items() if state == "READY")
            for name, each in self.tritons.items()
        }

    def route(self, model: str) -> ModelRoute:
        return self.directory.ref.current.routes[model.encode()]

    def serving(self, model: str) -> list[str]:
        placements = self.route(model).placements or self.directory.ref.current.placements
        return [backend.name for backend in placements[AppProtocol.HTTP].eligible]

    async def looked(self) -> None:
        """Placement has looked at the pool, and begun what is to be done."""
        await soon(self.placement.first_round(30.0))

    def ask(self, model: bytes) -> None:
        """A request comes that waits for a model."""
        self.awaited.setdefault(model, self._clock())
        self.placement.wanted(model)

    async def want(self, model: str) -> None:
        """A request comes, and waits until it can be placed."""
        self.ask(model.encode())
        await eventually(lambda: self.serving(model))


@asynccontextmanager
async def placing(
    placement: dict[str, Any] | None = None, **tritons: FakeTriton
) -> AsyncIterator[Bench]:
    bench = Bench(tritons, placement or {})
    try:
        await bench.start()
        yield bench
    finally:
        await bench.placement.aclose()
        await bench.watch.aclose()


async def test_requests_wait_for_what_is_loaded_nowhere() -> None:
    async with placing(a=triton("m"), b=triton()) as bench:
        waits = bench.route("n").on_demand
        assert waits is not None
        assert (waits.wait_s, waits.error) == (60.0, "")
        assert bench.serving("n") == []
        assert bench.route("m").on_demand is None
        assert bench.serving("m") == ["a"]


async def test_a_wanted_model_is_loaded_once_where_there_is_room() -> None:
    gate = asyncio.Event()
    async with placing(a=triton("m"), b=triton(slow={"n": gate})) as bench:
        for _ in range(200):
            bench.ask(b"n")
        await eventually(lambda: bench.placement.status().steps)
        bench.ask(b"n")
        assert [(each.model, each.state) for each in bench.placement.status().models] == [
            (b"m", "ready"), (b"n", "loading"),
        ]  # fmt: skip
        gate.set()
        await bench.want("n")
        assert bench.ready() == {"a": "m", "b": "n"}
        assert bench.placement.counts().loads == {"loaded": 1}
        assert bench.placement.counts().evictions == {}


async def test_what_all_clients_have_left_is_not_loaded() -> None:
    gate = asyncio.Event()
    async with placing(a=triton("m", slow={"n": gate})) as bench:
        bench.ask(b"n")
        await eventually(lambda: bench.placement.status().steps)
        bench.ask(b"o")
        del bench.awaited[b"o"]
        gate.set()
        await eventually(lambda: bench.serving("n") and not bench.placement.status().steps)
        await bench.looked()
        assert bench.placement.status().wanted == ()
        assert bench.placement.status().steps == ()
        assert bench.ready() == {"a": "n"}


async def test_a_model_in_use_stays_if_all_clients_leave_that_others_made_room_for() -> None:
    async with placing(a=triton("m")) as bench:
        bench.busy.add(("a", b"m"))
        bench.ask(b"n")
        bench.now += IN_USE_S
        await bench.looked()
        await eventually(lambda: bench.serving("m") == [])
        del bench.awaited[b"n"]
        await eventually(lambda: bench.serving("m") == ["a"])
        bench.busy.clear()
        await bench.looked()
        assert bench.placement.counts().evictions == {}
        assert bench.ready() == {"a": "m"}


async def test_what_all_clients_leave_while_room_is_made_is_not_loaded() -> None:
    async with placing(a=triton("m")) as bench:
        bench.tritons["a"].lingering.add("m")
        bench.ask(b"n")
        await eventually(lambda: bench.tritons["a"].models["m"] == "UNLOADING")
        del bench.awaited[b"n"]
        bench.ask(b"o")
        bench.tritons["a"].models["m"] = "UNAVAILABLE"
        await eventually(lambda: bench.serving("o"))
        assert bench.ready() == {"a": "o"}
        assert bench.placement.counts().loads == {"loaded": 1}


async def test_a_model_is_wanted_for_as_long_as_the_first_client_that_has_stayed_waits() -> None:
    async with placing({"wait": "1h"}, a=triton("m")) as bench:
        bench.busy.add(("a", b"m"))
        bench.ask(b"n")
        bench.now += 1000.0
        bench.awaited[b"n"] += 999.0  # the first client leaves, another one came a second ago
        await bench.looked()
        ((model, waited_s),) = bench.placement.status().wanted
        assert model == b"n"
        assert waited_s < 500.0


async def test_an_eviction_waits_for_what_runs_and_for_the_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with placing(a=triton("m")) as bench:
        (record,) = bench.directory.records
        asked: list[bool] = []

        def use_of(backend: Backend, model: bytes) -> ModelUse:
            # A request began just before the model was taken out of routing.
            is_out = model in record.evicted
            asked.append(is_out)
            return ModelUse(int(is_out and asked.count(True) < 3), 0)

        bench.directory.model_use = use_of
        bench.tritons["a"].lingering.add("m")
        bench.ask(b"n")
        await eventually(lambda: bench.tritons["a"].models["m"] == "UNLOADING")
        assert asked.count(True) == 3
        assert bench.serving("m") == []
        await eventually(lambda: any(e.state.value == "unloading" for e in record.models.entries))
        assert bench.tritons["a"].models["n"] == "UNAVAILABLE"
        bench.now += 3.0
        bench.tritons["a"].models["m"] = "UNAVAILABLE"
        await bench.want("n")
        assert record.evicted == frozenset()
        assert bench.placement.counts().evictions == {"room": 1}
    (told,) = [each.__dict__ for each in caplog.records if each.message == "model evicted"]
    assert (told["backend"], told["model"], told["why"]) == ("a", "m", "room")
    assert told["seconds"] >= 3.0


async def test_what_is_in_use_is_not_evicted() -> None:
    async with placing(a=triton("m")) as bench:
        bench.busy.add(("a", b"m"))
        bench.ask(b"n")
        await bench.looked()
        assert bench.placement.status().steps == ()
        assert bench.ready() == {"a": "m"}
        # After a second its requests are to end first; meanwhile there are no new ones.
        bench.now += 1.0
        await bench.looked()
        assert bench.placement.status().steps == (Step(b"n", "a", (b"m",)),)
        await eventually(lambda: bench.serving("m") == [])
        assert bench.ready() == {"a": "m"}
        bench.busy.clear()
        await bench.want("n")
        assert bench.ready() == {"a": "n"}


async def test_what_was_used_less_is_evicted() -> None:
    async with placing({"max_models": 2}, a=triton("m", "n")) as bench:
        infer = Operation("ModelInfer", OperationKind.INFERENCE)
        (record,) = bench.directory.records
        used = PlainRecord(operation=infer, model=b"m", backend=record.backend)
        bench.placement.finished(used)
        question = Operation("ModelMetadata", OperationKind.READ)
        bench.placement.finished(
            PlainRecord(operation=question, model=b"n", backend=record.backend)
        )
        await bench.want("o")
        assert bench.ready() == {"a": "mo"}


async def test_names_that_clients_make_up_do_not_make_the_use_of_models_fade() -> None:
    async with placing({"max_models": 2}, a=triton("m", "n")) as bench:
        infer = Operation("ModelInfer", OperationKind.INFERENCE)
        (record,) = bench.directory.records

        async def use(*models: bytes) -> None:
            for model in models:
                bench.placement.finished(
                    PlainRecord(operation=infer, model=model, backend=record.backend)
                )
            await bench.looked()

        for _ in range(5):
            await use(b"m")
        await use(*(b"made-up-%d" % number for number in range(1000)))
        await use(b"n")
        await bench.want("o")
        assert bench.ready() == {"a": "mo"}


async def test_failures_are_told_in_the_words_of_the_backend_and_others_are_tried() -> None:
    bad = frozenset({"n"})
    async with placing(a=triton(unloadable=bad), b=triton(unloadable=bad)) as bench:
        bench.ask(b"n")
        await eventually(lambda: (route := bench.route("n").on_demand) and route.error)
        route = bench.route("n").on_demand
        assert route is not None
        assert route.error == "failed to load 'n'"
        status = bench.placement.status()
        assert [(model, name, f.times) for model, name, f in status.failures] == [
            (b"n", "a", 1), (b"n", "b", 1),
        ]  # fmt: skip
        assert bench.placement.counts().loads == {"failed": 2}
        # Somebody has mended its files, and a client loads it.
        for each in bench.tritons.values():
            each.unloadable = frozenset()
        bench.placement.control_done(LOAD, b"n")
        await bench.want("n")


async def test_tritons_that_load_nothing_on_request_are_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with placing(a=triton("m", is_explicit=False)) as bench:
        assert bench.route("n").on_demand is None
        assert bench.placement.status().left_alone == ("a",)
        assert bench.placement.status().managed == ()
    told = [r for r in caplog.records if "does not load models on request" in r.message]
    assert len(told) == 1


async def test_clients_have_the_last_word() -> None:
    async with placing(a=triton("m")) as bench:
        bench.placement.control_done(LOAD, b"m")
        bench.ask(b"n")
        await bench.looked()
        assert bench.placement.status().steps == ()
        assert bench.ready() == {"a": "m"}
        (placed,) = bench.placement.status().models
        assert placed.kept == "loaded by a client"
        bench.placement.control_done(UNLOAD, b"m")
        bench.tritons["a"].models["m"] = "UNAVAILABLE"
        await soon(bench.watch.refreshed(bench.directory.records))
        await eventually(lambda: bench.route("m").on_demand is None)
        await bench.want("n")
        assert bench.ready() == {"a": "n"}


async def test_pinned_models_come_by_themselves() -> None:
    async with placing(a=triton()) as bench:
        bench.configure({}, p={"pin": True})
        await eventually(lambda: bench.ready() == {"a": "p"})


async def test_observe_tells_and_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with placing({"mode": "observe"}, a=triton("m")) as bench:
        assert bench.route("n").on_demand is None
        bench.placement.missed(b"n")
        await eventually(lambda: bench.placement.status().steps)
        (step,) = bench.placement.status().steps
        assert (step.model, step.backend, step.evict) == (b"n", "a", (b"m",))
        assert bench.ready() == {"a": "m"}
        assert bench.placement.counts().loads == {}
    told = [r.__dict__ for r in caplog.records if r.message == "model would be loaded"]
    assert [(each["backend"], each["model"], each["evict"]) for each in told] == [("a", "n", "m")]


async def test_observe_tells_what_would_be_unloaded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    observe = {"mode": "observe", "max_models": 2}
    async with placing(observe, a=triton("m", "n")) as bench:
        bench.configure(observe, m={"idle_unload": "1ms"})
        await eventually(lambda: "model would be unloaded" in caplog.messages)
        assert bench.ready() == {"a": "mn"}


async def test_models_that_differ_on_purpose_are_no_drift() -> None:
    async with placing(a=triton("m"), b=triton("n")) as bench:
        (a, _) = bench.directory.records
        assert DriftComparison(bench.directory).drift(a).models == ()
        bench.configure({"mode": "off"})
        assert DriftComparison(bench.directory).drift(a).models == ("n",)
        assert bench.route("o").on_demand is None


async def test_a_triton_that_restarts_is_asked_again() -> None:
    async with placing(a=triton("m")) as bench:
        (record,) = bench.directory.records
        for port in record.ports:
            found(bench.directory, port, Finding.REFUSED, 200.0)
        assert bench.placement.status().managed == ()
        bench.tritons["a"].is_explicit = False
        for port in record.ports:
            for _ in range(3):
                found(bench.directory, port, Finding.READY, 201.0)
        await eventually(lambda: bench.placement.status().left_alone == ("a",))


async def test_a_step_of_a_loaded_ensemble_stays() -> None:
    ensemble = {"ensemble_scheduling": {"step": [{"model_name": "n", "model_version": -1}]}}
    configs = {"m": {"platform": "ensemble", **ensemble}}
    async with placing({"max_models": 2}, a=triton("m", "n", configs=configs)) as bench:
        await eventually(lambda: bench.watch.ensembles() == {b"m": frozenset({b"n"})})
        kept = {each.model: each.kept for each in bench.placement.status().models}
        assert kept == {b"m": "", b"n": "needed by another model"}
        (record,) = bench.directory.records
        infer = Operation("ModelInfer", OperationKind.INFERENCE)
        bench.placement.finished(PlainRecord(operation=infer, model=b"m", backend=record.backend))
        await bench.want("o")
        assert bench.ready() == {"a": "no"}


async def test_an_unload_that_is_refused_is_not_asked_for_again_and_again() -> None:
    async with placing(a=triton("m")) as bench:
        bench.tritons["a"].is_explicit = False  # it has said before that it loads on request
        bench.ask(b"n")
        await eventually(lambda: bench.placement.status().failures)
        ((model, backend, failure),) = bench.placement.status().failures
        assert (model, backend) == (b"n", "a")
        assert failure.error.startswith("no room could be made: explicit model load / unload")
        assert bench.serving("m") == ["a"]


@pytest.mark.parametrize("loaded", ["m", ""])
async def test_requests_wait_for_a_triton_that_is_not_there(loaded: str) -> None:
    """Whether room is to be made first or not."""
    async with placing(a=triton(*loaded)) as bench:
        bench.tritons["a"].is_gone = True
        bench.ask(b"n")
        await eventually(lambda: bench.placement.status().failures)
        ((_, _, failure),) = bench.placement.status().failures
        assert failure.error.endswith("refused the connection")
        assert bench.route("n").on_demand == bench.route("o").on_demand
        bench.tritons["a"].is_gone = False
        bench.now += GONE_PAUSE_S
        await bench.want("n")


async def test_a_request_waits_until_it_is_known_that_the_only_holder_has_died() -> None:
    """Its gRPC port refuses connections, and its HTTP port was not probed since."""
    async with placing(a=triton("m"), b=triton()) as bench:
        (record, _) = bench.directory.records
        grpc, http = record.port(AppProtocol.GRPC), record.port(AppProtocol.HTTP)
        assert grpc is not None
        assert http is not None
        found(bench.directory, grpc, Finding.REFUSED, 200.0)
        assert bench.route("m").on_demand is not None
        bench.ask(b"m")
        await bench.looked()
        assert bench.placement.status().steps == ()
        assert bench.tritons["b"].models["m"] == "UNAVAILABLE"
        found(bench.directory, http, Finding.REFUSED, 201.0)
        await eventually(lambda: bench.tritons["b"].models["m"] == "READY")


async def test_the_models_of_a_triton_whose_process_may_be_another_are_not_relied_upon() -> None:
    """Its gRPC port refused connections, and it is back before its HTTP port was probed."""
    async with placing(a=triton("m"), b=triton("n")) as bench:
        (record, _) = bench.directory.records
        grpc = record.port(AppProtocol.GRPC)
        assert grpc is not None
        restarted = bench.tritons["a"]
        restarted.models["m"] = "UNAVAILABLE"
        restarted.frozen = asyncio.Event()
        bench.directory.report(record.backend, AppProtocol.GRPC, Outcome.CONNECT_REFUSED, 200.0)
        assert record.answers
        for _ in range(3):
            found(bench.directory, grpc, Finding.READY, 200.1)
        assert bench.serving("m") == []
        assert bench.route("m").on_demand is not None
        bench.ask(b"m")
        await bench.looked()
        assert bench.placement.status().steps == (), "it may still have it"
        restarted.frozen.set()
        await bench.want("m")
        assert bench.ready() == {"a": "m", "b": "n"}


async def test_requests_wait_for_the_only_triton_to_be_back() -> None:
    """It gets them once it has loaded their model, whichever of its ports is open first."""
    async with placing({"wait": "60s"}, a=triton("m")) as bench:
        (record,) = bench.directory.records
        for port in record.ports:
            found(bench.directory, port, Finding.REFUSED, 200.0)
        await bench.looked()
        assert (bench.serving("m"), bench.serving("n")) == ([], [])
        assert bench.route("m").on_demand is not None
        bench.ask(b"m")
        bench.tritons["a"].models["m"] = "UNAVAILABLE"
        for port in record.ports:
            for _ in range(3):
                found(bench.directory, port, Finding.READY, 201.0)
            assert bench.serving("m") == []
        await eventually(lambda: bench.serving("m") == ["a"])


async def test_a_triton_that_is_gone_for_long_is_not_waited_for() -> None:
    async with placing({"wait": "60s"}, a=triton("m")) as bench:
        (record,) = bench.directory.records
        for port in record.ports:
            found(bench.directory, port, Finding.REFUSED, 200.0)
        bench.now += 60.0
        await bench.looked()
        assert bench.serving("m") == []
        assert bench.route("m").on_demand is None
        assert bench.directory.ref.current.loadable == {}


async def test_a_triton_that_does_not_say_what_it_has_is_waited_for_a_second() -> None:
    async with placing({"max_models": 2}, a=triton("m"), b=triton("n")) as bench:
        (record, _) = bench.directory.records
        bench.tritons["a"].frozen = asyncio.Event()
        bench.directory.report(record.backend, AppProtocol.GRPC, Outcome.CONNECT_REFUSED, 200.0)
        bench.ask(b"m")
        await bench.looked()
        assert bench.placement.status().steps == ()
        bench.now += 1.0
        await bench.want("m")
        assert bench.ready()["b"] == "mn"


async def test_an_unload_that_never_ends_holds_no_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stream of somebody else keeps the model there."""
    async with placing(a=triton("m"), b=triton("o")) as bench:
        bench.tritons["a"].lingering.add("m")
        bench.busy.add(("b", b"o"))
        bench.ask(b"n")
        await eventually(lambda: bench.tritons["a"].models["m"] == "UNLOADING")
        (record, _) = bench.directory.records
        await eventually(lambda: record.models.is_changing)
        await bench.looked()
        bench.busy.clear()
        bench.now += MIN_OVERDUE_UNLOAD_S - 1.0
        await bench.looked()
        assert bench.serving("n") == []
        bench.now += 1.0
        await bench.want("n")
        assert bench.ready() == {"a": "", "b": "n"}
        del bench.awaited[b"n"]
        await bench.want("m")
        assert bench.serving("m") == ["b"]
        (told,) = [each for each in caplog.records if "unload is overdue" in each.message]
        assert (told.backend, told.model) == ("a", "m")  # type: ignore[attr-defined]
        kept = {(each.model, each.state): each.kept for each in bench.placement.status().models}
        assert kept == {(b"m", "unloading"): "", (b"n", "loading"): "", (b"m", "ready"): ""}


async def test_a_pinned_model_comes_and_stays_until_it_is_unpinned() -> None:
    async with placing(a=triton("m")) as bench:
        bench.placement.pin(b"n", is_pinned=True)
        await eventually(lambda: bench.serving("n"))
        (placed,) = bench.placement.status().models
        assert (placed.model, placed.kept) == (b"n", "pinned")
        with pytest.raises(PlacementError, match="it is pinned"):
            await bench.placement.evict(b"n")
        bench.placement.pin(b"n", is_pinned=False)
        await bench.want("m")
        assert bench.ready() == {"a": "m"}
        with pytest.raises(LookupError, match="no managed backend has a model 'x'"):
            bench.placement.pin(b"x", is_pinned=True)
        bench.configure({"mode": "off"})
        with pytest.raises(PlacementError, match=r"placement\.mode is off"):
            bench.placement.pin(b"n", is_pinned=True)


async def test_an_operator_evicts_whatever_is_not_in_use() -> None:
    async with placing({"min_age": "1h"}, a=triton("m"), b=triton("m", "n")) as bench:
        bench.placement.control_done(LOAD, b"m")
        await bench.placement.evict(b"m", "a")
        assert bench.ready() == {"a": "", "b": "mn"}
        await bench.placement.evict(b"m")
        assert bench.ready() == {"a": "", "b": "n"}
        assert bench.placement.counts().evictions == {"operator": 2}
        with pytest.raises(LookupError, match="model 'n' is not loaded on backend 'a'"):
            await bench.placement.evict(b"n", "a")
        with pytest.raises(LookupError, match="model 'm' is not loaded on any backend"):
            await bench.placement.evict(b"m")
        bench.tritons["b"].is_explicit = False
        with pytest.raises(PlacementError, match="b says: explicit model load"):
            await bench.placement.evict(b"n")
        assert bench.serving("n") == ["b"]
        bench.configure({"mode": "observe"})
        with pytest.raises(PlacementError, match="is not on_demand"):
            await bench.placement.evict(b"n")


async def test_an_operator_hears_that_a_model_stays_in_use() -> None:
    async with placing(a=triton("m")) as bench:
        bench.busy.add(("a", b"m"))
        bench.step = 6.0  # an eviction waits for five seconds
        with pytest.raises(PlacementError, match="requests or sequences use it on a"):
            await soon(bench.placement.evict(b"m"))
        assert bench.serving("m") == ["a"]
        assert bench.ready() == {"a": "m"}


async def test_an_operator_hears_that_a_model_stays_loaded() -> None:
    async with placing(a=triton("m")) as bench:
        bench.tritons["a"].lingering.add("m")
        bench.step = 61.0  # an unload may take a minute
        with pytest.raises(PlacementError, match="a says: m stays loaded"):
            await soon(bench.placement.evict(b"m"))
        assert bench.placement.counts().evictions == {}


async def test_an_operator_evicts_nothing_where_a_change_is_under_way() -> None:
    gate = asyncio.Event()
    async with placing({"max_models": 2}, a=triton("m", slow={"n": gate})) as bench:
        bench.ask(b"n")
        await eventually(lambda: bench.placement.status().steps)
        with pytest.raises(PlacementError, match="a is loading or unloading a model"):
            await bench.placement.evict(b"m")
        gate.set()
        await bench.want("n")


async def test_a_model_that_nobody_uses_is_unloaded() -> None:
    async with placing({"max_models": 2}, a=triton("m", "n")) as bench:
        bench.configure({"max_models": 2}, m={"idle_unload": "1ms"})
        await eventually(lambda: bench.placement.counts().evictions == {"idle": 1})
        assert bench.ready() == {"a": "n"}


async def test_models_that_a_model_calls_are_loaded_before_it() -> None:
    async with placing({"max_models": 3}, a=triton()) as bench:
        bench.configure({"max_models": 3}, m={"calls": ["n"]}, n={"calls": ["o"]})
        await bench.want("m")
        assert bench.ready() == {"a": "mno"}
        kept = {each.model: each.kept for each in bench.placement.status().models}
        assert kept == {b"m": "", b"n": "needed by another model", b"o": "needed by another model"}
        with pytest.raises(PlacementError, match="another model on a needs it"):
            await bench.placement.evict(b"n")


async def test_a_model_fails_with_what_it_calls() -> None:
    async with placing({"max_models": 3}, a=triton(unloadable=frozenset({"n"}))) as bench:
        bench.configure({"max_models": 3}, m={"calls": ["n"]})
        bench.ask(b"m")
        await eventually(lambda: (route := bench.route("m").on_demand) and route.error)
        route = bench.route("m").on_demand
        assert route is not None
        assert route.error == "n, which it calls, was not loaded: failed to load 'n'"


@pytest.mark.parametrize("is_evicted", [True, False])
async def test_what_fails_at_an_old_address_is_no_failure_at_a_new_one(is_evicted: bool) -> None:
    gate, loaded = asyncio.Event(), ("o",) if is_evicted else ()
    old = triton(*loaded, slow={"n": gate}, unloadable=frozenset({"n"}))
    async with placing(a=old) as bench:
        bench.configure({"max_models": 2}, m={"calls": ["n"]})
        if is_evicted:
            old.is_explicit, old.frozen = False, gate  # it has said before that it evicts
        bench.ask(b"m")
        call = "models/o/unload" if is_evicted else "RepositoryModelLoad"
        await eventually(lambda: old.asked[-1].endswith(call))
        bench.move("a", triton())
        await bench.come_up()
        await bench.want("m")
        gate.set()
        await eventually(lambda: not bench.placement.status().steps)
        assert [each for each in bench.placement.status().failures if each[1] == "a"] == []


async def test_a_busy_model_gets_another_copy() -> None:
    async with placing(a=triton("m"), b=triton()) as bench:
        (record, _) = bench.directory.records
        views = [
            ModelBackendView(
                model=b"m", version=b"1", backend=record.backend, in_flight=4, limit=4,
                expected_s=0.1, row_s=0.0, learnt=9,
            )
        ]  # fmt: skip
        bench.placement.model_backends = lambda models: views if b"m" in models else []
        bench.placement.finished(PlainRecord(model=b"m", backend=record.backend))
        for _ in range(30):
            bench.now += 1.0
            await bench.looked()
        assert bench.placement.status().steps == ()  # it may be a burst
        for _ in range(30):
            bench.now += 1.0
            await bench.looked()
        await eventually(lambda: bench.serving("m") == ["a", "b"])
        assert bench.ready() == {"a": "m", "b": "m"}
        loads = {each.load for each in bench.placement.status().models}
        assert max(loads) < UP


async def test_sizes_are_measured_and_memory_is_room() -> None:
    async with placing(a=triton()) as bench:
        bench.sizes = {"m": 4, "n": 6, "o": 3, "p": 2}
        memory = {"max_models": None, "memory": 10}
        bench.configure(memory, p={"size": 2})
        for model in "mn":
            await bench.want(model)
        assert bench.ready() == {"a": "mn"}
        await eventually(lambda: not bench.placement.status().steps)
        sizes = {
            each.model: (each.size, each.size_source) for each in bench.placement.status().models
        }
        assert sizes == {b"m": (4, "measured"), b"n": (6, "measured")}
        await bench.want("p")
        assert bench.ready() == {"a": "np"}


async def test_memory_that_does_not_come_back_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with placing(a=triton("m")) as bench:
        bench.sizes = {"m": 6, "n": 6}
        bench.configure({"max_models": None, "memory": 10}, m={"size": 6}, n={"size": 6})
        bench.tritons["a"].lingering.add("m")
        bench.ask(b"n")
        await eventually(lambda: bench.tritons["a"].models["m"] == "UNLOADING")
        bench.unreturned = 6
        bench.tritons["a"].models["m"] = "UNAVAILABLE"
        await eventually(lambda: bench.placement.status().unreturned == {"a": 6})
        told = [each for each in caplog.records if "did not come back" in each.message]
        assert [each.__dict__["bytes"] for each in told] == [6]
        # Triton takes it for the next model.
        bench.unreturned = 0
        await bench.want("n")
        await eventually(lambda: not bench.placement.status().steps)
        assert bench.placement.status().unreturned == {}


async def test_a_load_that_ends_its_triton_is_tried_on_two_and_no_more() -> None:
    deadly = frozenset({"n"})
    tritons = {name: triton(deadly=deadly) for name in "abc"}
    async with placing(**tritons) as bench:
        bench.ask(b"n")
        await eventually(lambda: (route := bench.route("n").on_demand) and route.error)
        assert bench.placement.counts().loads == {"failed": 2}
        # Two have died and come back, and a third one has it in its repository.
        for port in bench.directory.find("a").ports:
            found(bench.directory, port, Finding.REFUSED, 200.0)
        await bench.looked()
        bench.ask(b"n")
        await bench.looked()
        assert bench.placement.status().steps == ()
        asked = [path for each in bench.tritons.values() for path in each.asked]
        assert sum(path.endswith("RepositoryModelLoad") for path in asked) == 2


async def test_a_load_whose_connection_was_lost_is_made_elsewhere_while_tritons_live() -> None:
    async with placing(a=triton(dropped={"n"}), b=triton(dropped={"n"}), c=triton()) as bench:
        await bench.want("n")
        assert list(bench.ready().values()).count("n") == 1
        assert bench.placement.counts().loads == {"failed": 2, "loaded": 1}


async def test_a_triton_that_restarts_empty_gets_back_what_is_pinned() -> None:
    async with placing({"max_models": 2}, a=triton("m")) as bench:
        bench.configure({"max_models": 2}, n={"pin": True})
        await eventually(lambda: bench.ready() == {"a": "mn"})
        (record,) = bench.directory.records
        for port in record.ports:
            found(bench.directory, port, Finding.REFUSED, 200.0)
        bench.tritons["a"].models = dict.fromkeys("mnop", "UNAVAILABLE")
        for port in record.ports:
            for _ in range(3):
                found(bench.directory, port, Finding.READY, 201.0)
        await eventually(lambda: bench.ready() == {"a": "n"})
        await bench.want("m")
        assert bench.ready() == {"a": "mn"}


async def test_a_load_that_hangs_is_made_elsewhere_and_may_end_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hangs = asyncio.Event()
    async with placing(a=triton(slow={"n": hangs}), b=triton()) as bench:
        bench.ask(b"n")
        await eventually(lambda: any("Load" in path for path in bench.tritons["a"].asked))
        assert [step.backend for step in bench.placement.status().steps] == ["a"]
        bench.now += MIN_OVERDUE_S - 5.0
        await bench.looked()
        assert [step.backend for step in bench.placement.status().steps] == ["a"]
        bench.now += 6.0
        await bench.want("n")
        assert bench.serving("n") == ["b"]
        assert bench.placement.counts().loads == {"overdue": 1, "loaded": 1}
        (told,) = [each for each in caplog.records if "overdue" in each.getMessage()]
        assert (told.backend, told.model) == ("a", "n")  # type: ignore[attr-defined]
        hangs.set()
        await eventually(lambda: sorted(bench.serving("n")) == ["a", "b"])
        assert bench.placement.counts().loads == {"overdue": 1, "loaded": 2}


async def test_a_load_at_an_old_address_is_not_overdue_at_a_new_one() -> None:
    gate = asyncio.Event()
    async with placing(a=triton(slow={"n": gate})) as bench:
        bench.ask(b"n")
        await eventually(lambda: any("Load" in path for path in bench.tritons["a"].asked))
        bench.move("a", triton("m"))
        gate.set()
        await eventually(lambda: bench.placement.counts().loads == {"loaded": 1})
        bench.now += MIN_OVERDUE_S
        bench.busy.add(("a", b"m"))  # there is no load before it has made room
        await bench.come_up()
        await bench.looked()
        bench.ask(b"o")
        bench.now += IN_USE_S
        await eventually(lambda: bench.directory.find("a").evicted == {b"m"})
        await bench.looked()
        assert bench.placement.counts().loads == {"loaded": 1}


async def test_a_model_makes_room_as_soon_as_it_is_old_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lb.control.model_placement._LOOK_S", 3600.0)
    async with placing({"min_age": "1s", "wait": "1h"}, a=triton()) as bench:
        bench.step = 1.5  # it comes of age between a look and the next reading of the clock
        bench.ask(b"m")
        bench.ask(b"n")
        await eventually(lambda: bench.ready() == {"a": "n"})


async def test_what_streams_use_is_worth_more_than_what_nobody_uses() -> None:
    async with placing({"max_models": 2}, a=triton("m", "n")) as bench:
        used: list[bytes] = [b"m"]
        bench.placement.models_streamed = lambda: [used.pop()] if used else []
        await bench.looked()
        await bench.want("o")
        assert bench.ready() == {"a": "mo"}


async def test_a_model_gets_requests_once_its_configuration_was_read() -> None:
    """Whether the answers of its requests are counted depends on that."""
    async with placing(a=triton("m")) as bench:
        bench.tritons["a"].configs["n"] = {"model_transaction_policy": {"decoupled": False}}
        seen: list[bool | None] = []

        def on_snapshot(_snapshot: PoolSnapshot) -> None:
            if b"n" in bench.directory.ref.current.routes and bench.serving("n"):
                seen.append(bench.route("n").facts.is_decoupled)

        bench.directory.ref.subscribe(on_snapshot)
        await bench.want("n")
        assert set(seen) == {False}
