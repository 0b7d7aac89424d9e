from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from lb.balancing.policies import make_policy
from lb.control import warm_up
from lb.control.directory import BackendDirectory
from lb.control.models import ModelWatch
from lb.control.questions import Questions
from lb.control.record import Member
from lb.control.warm_up import WarmUp
from lb.domain.backend import AppProtocol
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome
from lb.health.port import Finding
from lb.settings.passive import ModelTableSettings, WarmUpSettings
from tests.fakes.backends import make_spec
from tests.fakes.tritons import FakeTriton, FakeTritons
from tests.unit.control.test_directory import found
from tests.wire.waiting import eventually, soon

FAR = ModelTableSettings(refresh=3600.0)
"""Nothing is asked on the schedule."""
INPUT = {"max_batch_size": 8, "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1, 4]}]}
BROKEN = {"error": "CUDA error: an illegal memory access was encountered"}


def triton(models: str = "m", **more: Any) -> FakeTriton:
    configs: dict[str, Any] = dict.fromkeys(models, INPUT)
    return FakeTriton(models=dict.fromkeys(models, "READY"), configs=configs, **more)


class Bench:
    """Tritons whose models are warmed up."""

    def __init__(self, tritons: dict[str, FakeTriton], *, is_on: bool) -> None:
        self.tritons = tritons
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.directory.replace([Member(make_spec(name)) for name in tritons], 100.0)
        questions = Questions(FakeTritons(**tritons))
        self.watch = ModelWatch(
            self.directory, questions, Random(1), ModelTableSettings(refresh=3600.0)
        )
        self.warm_up = WarmUp(self.directory, questions, WarmUpSettings(enabled=is_on))
        self.watch.on_ready = self.warm_up.on_ready

    def find(self, name: str, finding: Finding) -> None:
        for port in self.directory.find(name).ports:
            for _ in range(3):
                found(self.directory, port, finding, 100.0)

    def serving(self, model: str = "m") -> list[str]:
        """The backends that requests for a model go to, since they are known to have it ready."""
        route = self.directory.ref.current.routes[model.encode()]
        if not route.is_ready:
            return []
        placements = route.placements or self.directory.ref.current.placements
        return [backend.name for backend in placements[AppProtocol.HTTP].eligible]

    async def start(self, name: str) -> None:
        """A Triton opens its ports and lists its models."""
        self.find(name, Finding.READY)
        await soon(self.watch.refreshed([self.directory.find(name)]))


@asynccontextmanager
async def warming(*, is_on: bool = True, **tritons: FakeTriton) -> AsyncIterator[Bench]:
    bench = Bench(tritons, is_on=is_on)
    try:
        bench.watch.start()
        yield bench
    finally:
        await bench.warm_up.aclose()
        await bench.watch.aclose()


async def test_a_model_computes_once_before_its_backend_gets_requests() -> None:
    async with warming(a=triton(), b=triton()) as bench:
        await bench.start("a")
        assert bench.serving() == ["a"]  # nobody else has it
        await bench.start("b")
        await eventually(lambda: bench.serving() == ["a", "b"])
        for name in "ab":
            [(model, size)] = bench.tritons[name].inferred
            assert model == "m"
            assert size > 16


async def test_a_triton_whose_grpc_port_opens_first_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "_PAUSES_S", (0.01,))
    async with warming(a=triton("mn")) as bench:
        record = bench.directory.find("a")
        http, grpc = record.ports
        found(bench.directory, grpc, Finding.READY, 100.0)
        await soon(bench.watch.refreshed([record]))
        assert bench.tritons["a"].inferred == []
        found(bench.directory, http, Finding.READY, 100.0)
        await eventually(lambda: len(bench.tritons["a"].inferred) == 2)


async def test_it_counts_as_loading_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_PAUSES_S", (0.01,))
    async with warming(a=triton(), b=triton(infers=(500, BROKEN))) as bench:
        await bench.start("a")
        await bench.start("b")
        await eventually(lambda: len(bench.tritons["b"].inferred) > 3)
        assert bench.serving() == ["a"]
        bench.tritons["b"].infers = (200, {})
        await eventually(lambda: bench.serving() == ["a", "b"])


async def test_who_is_needed_serves_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_PAUSES_S", (0.01,))
    async with warming(a=triton(), b=triton(infers=(500, BROKEN))) as bench:
        await bench.start("a")
        await bench.start("b")
        bench.find("a", Finding.REFUSED)
        await eventually(lambda: bench.serving() == ["b"])


async def test_a_model_that_does_not_warm_up_holds_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "_PAUSES_S", (3600.0,))
    deaf = triton("mn", deaf={"/v2/models/m/versions/1/infer"})
    async with warming(a=triton("mn"), b=deaf) as bench:
        await bench.start("a")
        await bench.start("b")
        await eventually(lambda: bench.serving("n") == ["a", "b"])
        assert bench.serving("m") == ["a"]
        bench.find("a", Finding.REFUSED)
        assert bench.serving("m") == ["b"], "it is needed before it is tried again"


async def test_what_waits_behind_a_model_that_computes_for_long_serves_when_it_is_needed() -> None:
    async with warming(a=triton("mn"), b=triton("mn", cold={"m": asyncio.Event()})) as bench:
        await bench.start("a")
        await bench.start("b")
        await eventually(lambda: bench.tritons["b"].inferred)
        assert bench.serving("n") == ["a"]
        bench.find("a", Finding.REFUSED)
        assert bench.serving("m") == bench.serving("n") == ["b"]


async def test_nothing_is_kept_back_once_warming_up_is_switched_off() -> None:
    async with warming(a=triton("mn"), b=triton("mn", cold={"m": asyncio.Event()})) as bench:
        await bench.start("a")
        await bench.start("b")
        await eventually(lambda: bench.tritons["b"].inferred)
        bench.warm_up.configure(WarmUpSettings(enabled=False))
        assert bench.serving("m") == bench.serving("n") == ["a", "b"]
        bench.tritons["b"].cold["m"].set()
        await bench.start("b")
        assert len(bench.tritons["b"].inferred) == 1


async def test_a_model_that_was_unloaded_is_not_kept_back() -> None:
    async with warming(a=triton("mn"), b=triton("mn", cold={"m": asyncio.Event()})) as bench:
        await bench.start("a")
        await bench.start("b")
        bench.tritons["b"].models["m"] = "UNAVAILABLE"
        await soon(bench.watch.refreshed([bench.directory.find("b")]))
        assert bench.directory.find("b").models.cold == {(b"n", b"1")}


async def test_what_does_not_like_zeros_serves_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusing = triton(infers=(400, {"error": "the image is empty"}))
    async with warming(a=triton(), b=refusing) as bench:
        await bench.start("a")
        with caplog.at_level(logging.INFO, "lb.control.warm_up"):
            await bench.start("b")
            await eventually(lambda: bench.serving() == ["a", "b"])
        assert len(bench.tritons["b"].inferred) == 1
        assert ("model not warmed up", "the image is empty") in [
            (each.message, each.__dict__.get("why")) for each in caplog.records
        ]


async def test_a_lost_connection_warms_nothing_up_and_an_answer_that_is_too_long_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_up, "_PAUSES_S", (0.01,))
    lost = UpstreamError(Outcome.LOST, "connection lost")
    async with warming(a=triton(), b=triton(infers=lost)) as bench:
        await bench.start("a")
        await bench.start("b")
        await eventually(lambda: len(bench.tritons["b"].inferred) > 1)
        assert bench.serving() == ["a"]
        bench.tritons["b"].infers = UpstreamError(Outcome.PROTOCOL_ERROR, "answer is too long")
        await eventually(lambda: bench.serving() == ["a", "b"])


async def test_models_of_sequences_are_left_alone() -> None:
    one, two = triton(), triton()
    for each in (one, two):
        each.configs = {"m": {**INPUT, "sequence_batching": {}}}
    async with warming(a=one, b=two) as bench:
        await bench.start("a")
        await bench.start("b")
        await eventually(lambda: bench.serving() == ["a", "b"])
        assert one.inferred == two.inferred == []


async def test_nothing_is_computed_unless_it_is_wanted() -> None:
    async with warming(is_on=False, a=triton(), b=triton()) as bench:
        await bench.start("a")
        await bench.start("b")
        assert bench.serving() == ["a", "b"]
        assert bench.tritons["a"].inferred == []
