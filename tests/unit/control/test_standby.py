"""Standby backends that operators order about, that fail while they are activated, or are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from lb.balancing.policies import make_policy
from lb.control import standby
from lb.control.directory import BackendDirectory, StillRemovingError
from lb.control.models import ModelWatch
from lb.control.questions import Questions
from lb.control.record import AdminState, BackendRecord, Member
from lb.control.scaling import ScalingSignal
from lb.control.standby import NotStandbyError, StandbyControl
from lb.control.warm_up import WarmUp
from lb.domain.backend import AppProtocol
from lb.domain.load import LoadSample
from lb.domain.standby import StandbyPhase, StandbyRule
from lb.health.port import Finding
from lb.settings.passive import ModelTableSettings, WarmUpSettings
from tests.fakes.backends import make_spec
from tests.fakes.tritons import FakeTriton, FakeTritons
from tests.unit.control.test_directory import found
from tests.wire.waiting import eventually, soon

INPUT = {"input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}]}
RULE = StandbyRule(rank=1, load=(b"m",), start_limit_s=30.0, stop_limit_s=1.0)


def idle() -> LoadSample:
    return LoadSample(**{**dict.fromkeys(LoadSample._fields, 0), "weight": 1.0, "backends": 1})


class Bench:
    """`always` serves, and `spare` once it has loaded model m, and warmed up what both have."""

    def __init__(self, spare: FakeTriton, rule: StandbyRule) -> None:
        self.always = FakeTriton()
        self.spare = spare
        self.ahead_s = 0.0
        """Seconds that the clock is ahead."""
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.directory.replace(
            [Member(make_spec("always")), Member(make_spec("spare"), standby=rule)], 100.0
        )
        questions = Questions(FakeTritons(always=self.always, spare=spare))
        self.watch = ModelWatch(
            self.directory, questions, Random(1), ModelTableSettings(refresh=3600.0)
        )
        self.warm_up = WarmUp(self.directory, questions, WarmUpSettings(enabled=True))
        self.watch.on_ready = self.warm_up.on_ready
        self.standby = StandbyControl(
            self.directory, self.watch, questions, ScalingSignal(idle), clock=self.clock
        )

    def clock(self) -> float:
        return monotonic() + self.ahead_s

    @property
    def record(self) -> BackendRecord:
        return self.directory.find("spare")

    @property
    def phase(self) -> StandbyPhase | None:
        status = self.record.standby
        return None if status is None else status.phase

    @property
    def error(self) -> str:
        return "" if self.record.standby is None else self.record.standby.error

    def probes(self, finding: Finding = Finding.READY) -> None:
        """What probes find at `spare`, often enough to be believed."""
        for port in self.record.ports:
            for _ in range(3):
                found(self.directory, port, finding, self.clock())

    def order(self, *, is_active: bool) -> None:
        self.standby.order(self.record, is_active=is_active)

    async def becomes(self, phase: StandbyPhase) -> None:
        await eventually(lambda: self.phase is phase)

    async def activate(self) -> None:
        self.order(is_active=True)
        await self.becomes(StandbyPhase.ACTIVE)

    @property
    def results(self) -> dict[str, int]:
        """How activations ended."""
        return {result: count for (*_, result), count in self.standby.counts().activations.items()}


@asynccontextmanager
async def serving(rule: StandbyRule = RULE, **triton: object) -> AsyncIterator[Bench]:
    models = {model.decode(): "UNAVAILABLE" for model in rule.load}
    bench = Bench(FakeTriton(models=models, **triton), rule)  # type: ignore[arg-type]
    bench.watch.start()
    for port in bench.directory.ports():
        for _ in range(3):
            found(bench.directory, port, Finding.READY, bench.clock())
    await soon(bench.watch.refreshed(bench.directory.records))
    bench.standby.start()
    try:
        yield bench
    finally:
        await bench.standby.aclose()
        await bench.warm_up.aclose()
        await bench.watch.aclose()


async def test_an_operator_activates_and_releases_it() -> None:
    async with serving() as bench:
        assert bench.phase is StandbyPhase.STANDBY
        await bench.activate()
        assert bench.spare.models["m"] == "READY"
        assert bench.record.admin is AdminState.ENABLED
        bench.order(is_active=False)
        await bench.becomes(StandbyPhase.STANDBY)
        assert bench.spare.models["m"] == "UNAVAILABLE"
        assert bench.record.admin is AdminState.STANDBY
        bench.order(is_active=False)  # it is released already
        assert bench.phase is StandbyPhase.STANDBY
        assert bench.results == {"ok": 1}


async def test_one_that_still_has_requests_serves_again_at_once() -> None:
    async with serving() as bench:
        await bench.activate()
        port = bench.record.backend.port(AppProtocol.HTTP)
        bench.record.backend.in_flight = port.in_flight = 1
        bench.order(is_active=False)
        assert bench.phase is StandbyPhase.RELEASING
        bench.order(is_active=True)
        assert bench.phase is StandbyPhase.ACTIVE
        assert bench.record.admin is AdminState.ENABLED
        assert bench.spare.models["m"] == "READY"


async def test_what_is_no_standby_backend_or_taken_out_is_not_activated() -> None:
    async with serving() as bench:
        with pytest.raises(NotStandbyError, match="no standby backend"):
            bench.standby.order(bench.directory.find("always"), is_active=True)
        bench.directory.set_admin("spare", AdminState.DISABLED, bench.clock())
        with pytest.raises(NotStandbyError, match="enable it first"):
            bench.order(is_active=True)


async def test_what_an_operator_has_taken_out_is_let_in_by_nobody_else() -> None:
    async with serving() as bench:
        bench.directory.set_admin("spare", AdminState.DISABLED, bench.clock())
        bench.directory.set_standby(bench.record, is_active=True, why="load", now=bench.clock())
        assert bench.record.admin is AdminState.DISABLED
        bench.record.backend.in_flight = 1
        bench.directory.replace([Member(make_spec("always"))], bench.clock())
        with pytest.raises(StillRemovingError):
            bench.directory.drain_model("spare", b"m", is_drained=True, now=bench.clock())


async def test_a_model_that_cannot_be_loaded_ends_the_activation_and_says_why() -> None:
    async with serving(unloadable=frozenset({"m"})) as bench:
        bench.order(is_active=True)
        await eventually(lambda: bench.error)
        assert "m cannot be loaded" in bench.error
        assert bench.phase is StandbyPhase.STANDBY
        assert bench.results == {"failed": 1}


async def test_a_server_that_goes_away_while_it_is_activated_is_not_waited_for() -> None:
    async with serving() as bench:
        bench.probes(Finding.REFUSED)
        bench.order(is_active=True)
        assert bench.phase is StandbyPhase.ACTIVATING

        def dies() -> str:
            bench.record.backend.died()
            return bench.error

        await eventually(dies)
        assert "went away again" in bench.error


async def test_one_that_is_removed_while_it_is_activated_is_left_alone() -> None:
    async with serving() as bench:
        bench.probes(Finding.REFUSED)
        bench.order(is_active=True)
        record = bench.record
        bench.directory.replace([Member(make_spec("always"))], bench.clock())
        with pytest.raises(NotStandbyError):
            bench.standby.order(record, is_active=True)
        assert record.standby is None
        assert bench.standby.counts().phases == {}


async def test_one_that_was_taken_out_and_put_back_is_released() -> None:
    async with serving() as bench:
        await bench.activate()
        bench.directory.set_admin("spare", AdminState.DISABLED, bench.clock())
        bench.directory.set_admin("spare", AdminState.ENABLED, bench.clock())
        await bench.becomes(StandbyPhase.STANDBY)
        assert bench.spare.models["m"] == "UNAVAILABLE"


async def test_one_that_has_lost_its_models_for_long_is_released_and_counted() -> None:
    async with serving() as bench:
        await bench.activate()
        bench.spare.models["m"] = "UNAVAILABLE"
        await soon(bench.watch.refreshed([bench.record]))

        def is_lost() -> bool:
            bench.ahead_s += 0.01  # ten times as fast: later it would not be needed any more
            return bench.results == {"ok": 1, "lost": 1}

        await eventually(is_lost)


async def test_one_that_warms_up_a_model_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_LOOK_S", 0.001)
    warm = asyncio.Event()
    async with serving(configs={"m": INPUT}, cold={"m": warm}) as bench:
        bench.always.models["m"] = "READY"
        await soon(bench.watch.refreshed(bench.directory.records))
        bench.order(is_active=True)
        await eventually(lambda: bench.spare.inferred)
        assert bench.phase is StandbyPhase.ACTIVATING
        warm.set()
        await bench.becomes(StandbyPhase.ACTIVE)
        warm.clear()
        bench.spare.models["m"] = "UNAVAILABLE"
        await soon(bench.watch.refreshed([bench.record]))
        bench.spare.models["m"] = "READY"  # a new version of its files
        await soon(bench.watch.refreshed([bench.record]))
        await eventually(lambda: len(bench.spare.inferred) == 2)

        def is_later() -> bool:
            bench.ahead_s += 0.1  # a hundred looks for each time that it might be lost
            return bench.ahead_s > 30.0

        await eventually(is_later)
        assert bench.phase is StandbyPhase.ACTIVE
        assert bench.results == {"ok": 1}


async def test_one_whose_models_cannot_be_unloaded_is_released_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as bench:
        await bench.activate()
        bench.spare.is_explicit = False
        bench.order(is_active=False)
        await bench.becomes(StandbyPhase.STANDBY)
        assert "standby backend not unloaded" in caplog.messages


def also_stopped(marker: Path) -> StandbyRule:
    """Two models are unloaded, and the command that stops the server leaves a file."""
    command = ("touch", str(marker))
    return replace(RULE, load=(b"m", b"n"), stop=command, stop_limit_s=30.0)


async def test_an_unload_without_an_answer_keeps_nothing_else_from_being_released(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(also_stopped(tmp_path / "stopped")) as bench:
        await bench.activate()
        bench.spare.deaf = {"/v2/repository/models/m/unload"}
        bench.order(is_active=False)
        await bench.becomes(StandbyPhase.STANDBY)
        assert bench.spare.models == {"m": "READY", "n": "UNAVAILABLE"}
        assert (tmp_path / "stopped").exists()
        assert caplog.messages.count("standby backend not unloaded") == 1
        assert bench.record.why == "not needed now: m not unloaded: no answer"
        await bench.activate()
        assert bench.error == ""


async def test_a_failed_activation_unloads_and_stops_all_that_it_can(tmp_path: Path) -> None:
    rule = also_stopped(tmp_path / "stopped")
    async with serving(rule, unloadable=frozenset({"n"})) as bench:
        bench.spare.deaf = {"/v2/repository/models/m/unload"}
        bench.order(is_active=True)
        await eventually(lambda: bench.error)
        assert (tmp_path / "stopped").exists()
        assert bench.record.why.startswith("activation failed: n cannot be loaded")
        assert bench.record.why.endswith("; m not unloaded: no answer")


async def test_what_a_release_leaves_running_is_shown() -> None:
    rule = replace(RULE, stop=("/nowhere/stop",))
    async with serving(rule) as bench:
        await bench.activate()
        bench.order(is_active=False)
        await bench.becomes(StandbyPhase.STANDBY)
        assert bench.spare.models["m"] == "UNAVAILABLE"
        assert bench.record.why.startswith("not needed now: not stopped: /nowhere/stop")
