from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from random import Random

import pytest

from lb.balancing.policies import make_policy
from lb.control import restore
from lb.control.directory import BackendDirectory
from lb.control.drift import DriftComparison
from lb.control.models import ModelWatch
from lb.control.questions import Questions
from lb.control.record import BackendRecord, Member, Setup
from lb.control.restore import Missing, Restorer, missing
from lb.domain.backend import AdminState
from lb.domain.errors import UpstreamError
from lb.domain.model import ModelEntry, ModelState
from lb.domain.outcome import Outcome
from lb.domain.pool import PoolSnapshot
from lb.health.models import ModelList, Version
from lb.health.port import Finding
from lb.kserve.configuration import Configuration
from lb.kserve.messages import REPOSITORY_MODEL_UNLOAD
from lb.kserve.operations import grpc_operation
from lb.kserve.repository import Region
from lb.settings.passive import ModelTableSettings
from tests.fakes.backends import make_spec
from tests.fakes.tritons import FakeTriton, FakeTritons
from tests.unit.control.test_directory import found
from tests.wire.waiting import eventually, soon

READY, LOADING, UNAVAILABLE = ModelState.READY, ModelState.LOADING, ModelState.UNAVAILABLE
FAR = ModelTableSettings(refresh=3600.0)
"""Nothing is asked on the schedule."""
UNLOAD = grpc_operation(REPOSITORY_MODEL_UNLOAD.path.encode())
R, OTHER = Region("r", "/r", 0, 64), Region("other", "/o", 0, 64)


# What is missing


def record(name: str, setup: Setup | None = None, **models: ModelState) -> BackendRecord:
    made = BackendRecord(Member(make_spec(name)), 100.0)
    made.models.listed(
        ModelList([ModelEntry(m.encode(), b"1", state) for m, state in models.items()]), 100.0
    )
    made.learn(setup or Setup())
    return made


def compare(joined: BackendRecord, *others: BackendRecord) -> Missing:
    return missing(joined, others, frozenset(each.backend for each in (joined, *others)))


def test_models_that_all_others_have_ready_are_missing() -> None:
    joined = record("j", m=UNAVAILABLE, n=UNAVAILABLE, o=READY, p=LOADING)
    everything = {"m": READY, "n": READY, "o": READY, "p": READY}
    some = {**everything, "n": UNAVAILABLE}
    assert compare(joined, record("a", None, **everything), record("b", None, **some)).models == (
        b"m",
    )


def test_models_that_are_not_in_its_repository_are_not_loaded() -> None:
    assert compare(record("j"), record("a", m=READY)).models == ()


def test_regions_that_all_others_share_are_missing() -> None:
    joined = record("j", Setup(regions=(OTHER,)))
    a, b = record("a", Setup(regions=(R, OTHER))), record("b", Setup(regions=(R,)))
    assert compare(joined, a, b).regions == (R,)
    far = record("far", Setup())
    sharing = frozenset(each.backend for each in (joined, a, b))
    assert missing(joined, [a, b, far], sharing).regions == (R,)
    assert missing(far, [a, b], sharing).regions == ()


def test_settings_that_the_others_agree_on_are_missing() -> None:
    joined = record("j", Setup(trace={"trace_rate": "1000"}, log={"log_info": True}))
    a = record("a", Setup(trace={"trace_rate": "5"}, log={"log_info": False}))
    b = record("b", Setup(trace={"trace_rate": "6"}, log={"log_info": False}))
    lacking = compare(joined, a, b)
    assert lacking.trace == {}
    assert lacking.log == {"log_info": False}


def test_without_others_nothing_is_missing() -> None:
    assert compare(record("j", m=UNAVAILABLE)) == Missing()


# Restoring it


class Bench:
    """Tritons before a restorer; all but the named ones are there from the start."""

    def __init__(self, tritons: dict[str, FakeTriton]) -> None:
        self.tritons = tritons
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.directory.replace([Member(make_spec(name)) for name in tritons], 100.0)
        questions = Questions(FakeTritons(**tritons))
        self.watch = ModelWatch(
            self.directory, questions, Random(1), ModelTableSettings(refresh=3600.0)
        )
        self.restorer = Restorer(self.directory, self.watch, questions)
        self.watch.joined = self.restorer.joined
        self.watch.left = self.restorer.left

    def find(self, name: str, finding: Finding) -> None:
        for port in self.directory.find(name).ports:
            for _ in range(3):
                found(self.directory, port, finding, 100.0)

    async def restart(self, name: str, triton: FakeTriton) -> None:
        """Another process takes its place."""
        self.find(name, Finding.REFUSED)
        self.tritons[name].__dict__.update(triton.__dict__)
        self.find(name, Finding.READY)

    def restored(self) -> dict[tuple[str, str], int]:
        return self.restorer.counts


@asynccontextmanager
async def restoring(**tritons: FakeTriton) -> AsyncIterator[Bench]:
    bench = Bench(tritons)
    try:
        bench.watch.start()
        for name in tritons:
            bench.find(name, Finding.READY)
        await soon(bench.watch.first_round(30.0))
        yield bench
    finally:
        await bench.restorer.aclose()
        await bench.watch.aclose()


def full() -> FakeTriton:
    return FakeTriton(
        models={"m": "READY", "n": "READY"},
        regions={"r": {"key": "/r", "offset": 0, "byte_size": 64}},
        trace={"trace_level": ["TIMESTAMPS"], "trace_rate": "1"},
        log={"log_verbose_level": 2},
    )


def empty() -> FakeTriton:
    return FakeTriton(
        models={"m": "UNAVAILABLE", "n": "UNAVAILABLE"},
        trace={"trace_level": ["OFF"], "trace_rate": "1"},
    )


async def test_a_triton_that_restarts_empty_is_given_everything() -> None:
    async with restoring(a=full(), b=full(), c=full()) as bench:
        await bench.restart("c", empty())
        await eventually(lambda: bench.tritons["c"].models == bench.tritons["a"].models)
        c = bench.tritons["c"]
        assert c.regions == bench.tritons["a"].regions
        assert c.trace == bench.tritons["a"].trace
        assert c.log == bench.tritons["a"].log
        await eventually(lambda: bench.directory.ref.current.routes[b"n"].placements is None)
        kinds = {("trace", "restored"): 1, ("log", "restored"): 1, ("region", "restored"): 1}
        assert bench.restored() == {**kinds, ("model", "restored"): 2}


async def test_models_that_are_loaded_on_demand_are_not_restored() -> None:
    async with restoring(a=full(), b=full(), c=full()) as bench:
        bench.restorer.restores_models = False
        await bench.restart("c", empty())
        await eventually(lambda: bench.tritons["c"].log == bench.tritons["a"].log)
        await eventually(lambda: not bench.restorer._joining)
        assert set(bench.tritons["c"].models.values()) == {"UNAVAILABLE"}
        assert ("model", "restored") not in bench.restored()


async def test_nobody_is_restored_at_our_own_start() -> None:
    async with restoring(a=full(), b=empty()) as bench:
        assert bench.restored() == {}
        assert bench.tritons["b"].models["m"] == "UNAVAILABLE"


async def test_two_that_restart_at_once_are_not_compared_with_each_other() -> None:
    async with restoring(a=full(), b=full(), c=full()) as bench:
        await bench.restart("b", empty())
        await bench.restart("c", empty())
        b, c = bench.tritons["b"], bench.tritons["c"]
        await eventually(lambda: b.models == c.models == full().models)


async def test_a_triton_that_loads_by_itself_is_asked_once() -> None:
    async with restoring(a=full(), b=full()) as bench:
        polling = empty()
        polling.is_explicit = False
        await bench.restart("b", polling)
        await eventually(lambda: any("ModelLoad" in path for path in bench.tritons["b"].asked))
        await eventually(lambda: ("log", "restored") in bench.restored())
        await soon(bench.watch.refreshed([bench.directory.find("b")]))
        assert sum("ModelLoad" in path for path in bench.tritons["b"].asked) == 1
        assert not [kind for kind, _ in bench.restored() if kind == "model"]


async def test_what_cannot_be_loaded_does_not_keep_the_rest_away() -> None:
    async with restoring(a=full(), b=full()) as bench:
        broken = empty()
        broken.unloadable = frozenset({"m"})
        await bench.restart("b", broken)
        await eventually(lambda: bench.tritons["b"].models["n"] == "READY")
        await eventually(lambda: bench.restored().get(("model", "failed")) == 1)


def odd() -> FakeTriton:
    """A Triton with what no message can hold."""
    triton = full()
    triton.regions["odd"] = {"key": "/\ud800", "offset": 0, "byte_size": 64}
    triton.log["log_verbose_level"] = -1
    return triton


async def test_what_no_message_can_hold_keeps_nothing_else_away_and_is_not_tried_again() -> None:
    async with restoring(a=odd(), b=odd()) as bench:
        await bench.restart("b", empty())
        b = bench.tritons["b"]
        await eventually(lambda: ("trace", "restored") in bench.restored())
        await eventually(lambda: not bench.restorer._joining)
        assert b.models == full().models
        assert b.regions == full().regions
        assert bench.restored() == {
            ("trace", "restored"): 1,
            ("log", "failed"): 1,
            ("region", "failed"): 1,
            ("region", "restored"): 1,
            ("model", "restored"): 2,
        }


async def test_a_call_without_an_answer_keeps_nothing_else_away_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restore, "_PAUSES_S", (0.0, 0.05))
    async with restoring(a=full(), b=full()) as bench:
        slow = empty()
        slow.deaf = {"/v2/trace/setting", "/v2/systemsharedmemory/region/r/register"}
        slow.dropped = {"m"}
        await bench.restart("b", slow)
        a, b = bench.tritons["a"], bench.tritons["b"]
        await eventually(lambda: b.models == a.models)
        await eventually(lambda: (b.trace, b.regions) == (a.trace, a.regions))
        await eventually(lambda: not bench.restorer._joining)
        for kind in ("trace", "region", "model"):
            assert bench.restored()[kind, "failed"] == 1


async def test_one_that_dies_while_it_is_restored_is_restored_when_it_comes_back() -> None:
    async with restoring(a=full(), b=full()) as bench:
        stuck = empty()
        stuck.slow = {"m": asyncio.Event()}
        await bench.restart("b", stuck)
        await eventually(lambda: any("ModelLoad" in path for path in bench.tritons["b"].asked))
        await bench.restart("b", empty())
        await eventually(lambda: bench.tritons["b"].models == full().models)
        await eventually(lambda: not bench.restorer._joining)


async def test_one_that_is_removed_while_it_is_restored_is_left_alone() -> None:
    async with restoring(a=full(), b=full()) as bench:
        stuck = empty()
        stuck.slow = {"m": asyncio.Event()}
        await bench.restart("b", stuck)
        await eventually(lambda: any("ModelLoad" in path for path in bench.tritons["b"].asked))
        bench.directory.replace([Member(make_spec("a"))], 200.0)
        await eventually(lambda: not bench.restorer._joining)
        assert bench.tritons["b"].models["n"] == "UNAVAILABLE"


async def test_nobody_is_restored_where_that_is_off() -> None:
    async with restoring(a=full(), b=full()) as bench:
        bench.restorer.configure(ModelTableSettings(restore=False))
        await bench.restart("b", empty())
        await soon(bench.watch.refreshed([bench.directory.find("b")]))
        assert bench.restorer._joining == {}
        assert bench.restored() == {}


class _Told(dict[str, str]):
    """Models of a Triton; when one is loaded, `then` is called."""

    then: Callable[[], None]

    def __setitem__(self, name: str, state: str) -> None:
        super().__setitem__(name, state)
        self.then()


async def test_what_is_unloaded_everywhere_meanwhile_is_not_loaded_any_more() -> None:
    async with restoring(a=full(), b=full(), c=full()) as bench:

        def unload_n() -> None:
            for name in "ab":
                bench.tritons[name].models["n"] = "UNAVAILABLE"
            bench.watch.control_done(UNLOAD, b"n", bench.directory.ref.current.backends)

        again = empty()
        again.models = models = _Told(again.models)
        models.then = unload_n
        await bench.restart("c", again)
        await eventually(lambda: bench.tritons["c"].models["m"] == "READY")
        await eventually(lambda: not bench.restorer._joining)
        assert bench.tritons["c"].models["n"] == "UNAVAILABLE"


@pytest.mark.parametrize("other_is", ["draining", "down"])
async def test_without_others_nothing_is_done(other_is: str) -> None:
    async with restoring(a=full(), b=full()) as bench:
        if other_is == "draining":
            bench.directory.set_admin("a", AdminState.DRAINING, 100.0)
        else:
            bench.find("a", Finding.REFUSED)
        await bench.restart("b", empty())
        await eventually(lambda: bool(bench.directory.find("b").models.lists))
        await soon(bench.watch.refreshed([bench.directory.find("b")]))
        assert bench.tritons["b"].models == empty().models


# Running it as the others do


def configured(size: int, triton: FakeTriton | None = None, **options: object) -> FakeTriton:
    """With a batch size for `m`."""
    triton = triton or full()
    triton.configs["m"] = {"max_batch_size": size}
    triton.__dict__.update(options)
    return triton


def loads(triton: FakeTriton) -> int:
    return sum("ModelLoad" in path for path in triton.asked)


async def rejoined(bench: Bench, name: str, triton: FakeTriton) -> None:
    """A Triton takes the place of another, and is given what it lacks."""
    await bench.restart(name, triton)
    await eventually(lambda: ("model", "restored") in bench.restored())
    await eventually(lambda: not bench.restorer._joining)


async def test_a_restored_model_is_configured_as_on_the_others() -> None:
    async with restoring(a=configured(8), b=configured(8), c=configured(8)) as bench:
        await rejoined(bench, "c", configured(0, empty()))
        assert bench.tritons["c"].configs["m"]["max_batch_size"] == 8
        assert bench.restored()["configuration", "restored"] == 1
        assert loads(bench.tritons["c"]) == 3
        await eventually(lambda: bench.directory.ref.current.routes[b"m"].placements is None)
        assert not bench.directory.configurations.differing


async def test_a_restored_model_that_is_alike_is_loaded_once() -> None:
    async with restoring(a=configured(8), b=configured(8)) as bench:
        await rejoined(bench, "b", configured(8, empty()))
        assert loads(bench.tritons["b"]) == 2
        assert ("configuration", "restored") not in bench.restored()


async def test_a_restored_model_gets_no_requests_until_it_is_alike() -> None:
    async with restoring(a=configured(8), b=configured(8)) as bench:
        seen: set[int] = set()

        def look(snapshot: PoolSnapshot) -> None:
            route, b = snapshot.routes.get(b"m"), bench.tritons["b"]
            placements = (route and route.placements) or snapshot.placements
            if any(backend.name == "b" for backend in placements[0].eligible):
                seen.add(b.configs["m"]["max_batch_size"])

        bench.find("b", Finding.REFUSED)
        bench.directory.ref.subscribe(look)
        await rejoined(bench, "b", configured(0, empty()))
        await eventually(lambda: bool(seen))
        assert bench.directory.find("b").models.ready == bench.directory.find("a").models.ready
        assert seen == {8}


async def test_what_the_others_do_not_agree_on_is_not_loaded_again() -> None:
    async with restoring(a=configured(8), b=configured(4), c=configured(8)) as bench:
        await rejoined(bench, "c", configured(0, empty()))
        assert bench.tritons["c"].configs["m"]["max_batch_size"] == 0
        assert bench.restored()["configuration", "failed"] == 1
        assert loads(bench.tritons["c"]) == 2


async def test_a_configuration_that_is_refused_is_drift(caplog: pytest.LogCaptureFixture) -> None:
    async with restoring(a=configured(8), b=configured(8), c=configured(8)) as bench:
        stubborn = configured(0, empty(), unconfigurable=frozenset({"m"}))
        await rejoined(bench, "c", stubborn)
        assert bench.restored()["configuration", "failed"] == 1
        assert bench.tritons["c"].models["m"] == "READY"
        c = bench.directory.find("c")
        await eventually(lambda: DriftComparison(bench.directory).drift(c).configurations == ("m",))
        a = bench.directory.find("a")
        assert DriftComparison(bench.directory).drift(a).configurations == ()
        said = [line for line in caplog.messages if "configure a model alike" in line]
        assert len(said) == 1


async def test_steps_that_an_ensemble_brings_are_configured_as_on_the_others() -> None:
    async with restoring(a=configured(8), b=configured(8)) as bench:
        again = configured(0, empty())
        again.models = models = _Told(again.models)
        again.configs["a_ensemble"] = {}
        for triton in bench.tritons.values():
            triton.models["a_ensemble"] = "READY"
        dict.__setitem__(models, "a_ensemble", "UNAVAILABLE")
        models.then = lambda: dict.__setitem__(models, "m", "READY")
        await bench.watch.refreshed(bench.directory.records)
        await rejoined(bench, "b", again)
        assert bench.tritons["b"].configs["m"]["max_batch_size"] == 8


async def test_another_way_of_loading_is_noticed_on_all_at_once() -> None:
    async with restoring(a=configured(8), b=configured(8)) as bench:
        book = bench.directory.configurations
        version = (b"m", b"1")
        a, b = (bench.directory.find(name).backend for name in "ab")
        await eventually(lambda: None not in (book.digest(a, version), book.digest(b, version)))
        before = book.digest(a, version)
        for triton in bench.tritons.values():
            configured(4, triton)
        bench.watch.control_done(UNLOAD, b"m", (a, b))
        await eventually(lambda: None not in (book.digest(a, version), book.digest(b, version)))
        assert book.digest(a, version) == book.digest(b, version) != before


async def test_what_could_not_be_compared_is_withheld_until_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restore, "_PAUSES_S", (0.0, 0.05))
    async with restoring(a=configured(8), b=configured(8)) as bench:
        asked = Questions.configuration
        failures = [UpstreamError(Outcome.DEADLINE, "no answer")]
        ready_meanwhile: list[bool] = []

        async def configuration(
            self: Questions, record: BackendRecord, version: Version
        ) -> Configuration:
            if record.backend.name == "b" and version[0] == b"m":
                ready_meanwhile.append(version in record.models.ready)
                if failures:
                    raise failures.pop()
            return await asked(self, record, version)

        monkeypatch.setattr(Questions, "configuration", configuration)
        await rejoined(bench, "b", configured(0, empty()))
        assert bench.tritons["b"].configs["m"]["max_batch_size"] == 8
        assert ready_meanwhile[:3] == [False] * 3
        assert bench.restored()["configuration", "failed"] == 1
        assert bench.restored()["configuration", "restored"] == 1


async def test_many_that_come_back_at_once_share_rounds_and_go_on_one_by_one() -> None:
    count = 40
    async with restoring(**{f"t{number}": full() for number in range(count)}) as bench:
        loop = asyncio.get_running_loop()
        rounds: list[int] = []
        compared: list[int] = []
        iteration = 0
        refreshed, others = bench.watch.refreshed, bench.restorer._others

        def count_iteration() -> None:
            nonlocal iteration
            iteration += 1
            loop.call_soon(count_iteration)

        async def count_round(records: Iterable[BackendRecord]) -> None:
            rounds.append(iteration)
            await refreshed(records)

        async def count_settings(_record: BackendRecord, _lacking: Missing) -> bool:
            compared.append(iteration)
            return True

        bench.watch.refreshed = count_round  # type: ignore[method-assign]
        bench.restorer._restore_settings = count_settings  # type: ignore[method-assign]
        assert len(others()) == count
        for number in range(1, count):
            bench.find(f"t{number}", Finding.REFUSED)
        for number in range(1, count):
            bench.find(f"t{number}", Finding.READY)
        count_iteration()
        await eventually(lambda: len(compared) == count - 1)
        assert len(rounds) <= 3, "each needs one that begins from when it joins"
        assert max(Counter(compared).values()) <= 2


async def test_a_round_that_is_cancelled_is_begun_again_for_those_that_wait_for_it() -> None:
    async with restoring(a=full(), x=full(), h=full(), w=full()) as bench:
        rounds: list[asyncio.Event] = []
        waiting = 0
        refreshed, all_refreshed = bench.watch.refreshed, bench.restorer._all_refreshed

        async def hold_round(records: Iterable[BackendRecord]) -> None:
            rounds.append(asyncio.Event())
            if len(rounds) <= 2:
                await rounds[-1].wait()
            await refreshed(records)

        async def count_waiting() -> None:
            nonlocal waiting
            waiting += 1
            await all_refreshed()

        bench.watch.refreshed = hold_round  # type: ignore[method-assign]
        bench.restorer._all_refreshed = count_waiting  # type: ignore[method-assign]
        for count, name in enumerate("xhw", 1):
            await bench.restart(name, full())
            await eventually(lambda count=count: waiting == count)
        rounds[0].set()
        await eventually(lambda: len(rounds) == 2)  # the one of h, for w as well
        for name in "ax":  # through another balancer
            bench.tritons[name].log["log_verbose_level"] = 7
        bench.directory.replace([Member(make_spec(name)) for name in "axw"], 200.0)
        await eventually(lambda: not bench.restorer._joining)
        assert bench.tritons["w"].log["log_verbose_level"] == 7
        assert len(rounds) == 3
