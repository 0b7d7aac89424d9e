"""Loads, evictions, kills and drains by chance on real Tritons, and two models that do not fit.

`make placement` plays 500 actions, and swaps two models for minutes.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from lb.placing.planner import MAX_LOST
from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.explicit import RefusedError, ask
from tests.triton.placed import (
    DEADLY_MODEL,
    MODEL,
    WAIT_S,
    client_of,
    index,
    name_of,
    names_in,
    shown,
    write_models,
)
from tests.triton.records import Records
from tests.triton.server import RealTriton

IS_LONG = float(os.environ.get("PLACEMENT_SECONDS", "0")) > 0
ACTIONS = 500 if IS_LONG else 25
COUNT, TRITONS, ROOM = 8, 3, 2
DEADLY = "deadly"
SOON_S = 60.0
_DIED = "connection closed without an answer"
"""What is said of a load that ended its Triton."""
MIN_AGE_S = 3.0
"""Of the two models that do not fit."""


@pytest.fixture(scope="module")
def tritons(
    tmp_path_factory: pytest.TempPathFactory, records: Records
) -> Iterator[tuple[RealTriton, ...]]:
    repository = tmp_path_factory.mktemp("repository")
    models = [(name_of(number), MODEL) for number in range(COUNT)]
    write_models(repository, [*models, (DEADLY, DEADLY_MODEL)])
    workspace = tmp_path_factory.mktemp("chaotic")
    started: list[RealTriton] = []
    try:
        for number in range(TRITONS):
            name = f"chaotic-{number}"
            options = ("--model-control-mode=explicit", "--strict-readiness=false")
            started.append(
                RealTriton(name, workspace, records.directory, *options, models=repository)
            )
        for triton in started:
            triton.wait_ready()
        yield tuple(started)
    finally:
        for triton in started:
            triton.close()


@pytest.fixture(scope="module")
def balancer(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...]
) -> Iterator[RunningBalancer]:
    placement = {
        "mode": "on_demand", "max_models": ROOM, "wait": f"{WAIT_S:g}s", "min_age": "200ms",
    }  # fmt: skip
    workspace = tmp_path_factory.mktemp("chaos")
    yield from RunningBalancer.run(workspace, tritons, placement=placement)


def counted(balancer: RunningBalancer, name: str) -> dict[frozenset[tuple[str, str]], float]:
    """The samples of a metric, by their labels."""
    families = text_string_to_metric_families(balancer.metrics_text())
    return {
        frozenset(sample.labels.items()): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


class Chaos:
    """What happens by chance. At most one Triton is dead, and one model drained on one of them, so
    that each model can be loaded somewhere."""

    def __init__(self, balancer: RunningBalancer, tritons: tuple[RealTriton, ...]) -> None:
        self._balancer = balancer
        self._tritons = tritons
        self._restarting: asyncio.Future[None] | None = None
        self._drained: str | None = None
        self.done: Counter[str] = Counter()
        self.errors: list[str] = []
        self.most_models = 0

    async def _operate(self, path: str) -> None:
        try:
            await asyncio.to_thread(ask, self._balancer.admin, "POST", f"/api/v1/{path}")
        except RefusedError as refused:
            # Evictions of what is in use or not there are refused.
            assert refused.status in (404, 409), refused  # noqa: PT017

    async def request(self, infer: Any, model: str) -> None:
        self.done["request"] += 1
        try:
            await infer(model)
        except InferenceServerException as error:
            # By chance two Tritons may die while they load the same model, which then looks deadly.
            failures = (await asyncio.to_thread(shown, self._balancer))["failures"]
            lost = sum(each["model"] == model and _DIED in each["error"] for each in failures)
            if lost >= MAX_LOST and _DIED in str(error):
                self.done["refused as deadly"] += 1
            else:
                self.errors.append(f"{model}: {error}")

    async def evict(self, model: str) -> None:
        self.done["evict"] += 1
        await self._operate(f"placement/models/{model}/evict")

    async def drain(self, model: str, triton: RealTriton) -> None:
        self.done["drain"] += 1
        if self._drained is not None:
            await self._operate(f"{self._drained}/enable")
        self._drained = f"backends/{quote(triton.name)}/models/{model}"
        await self._operate(f"{self._drained}/drain")

    async def kill(self, triton: RealTriton) -> None:
        if self._restarting is not None and not self._restarting.done():
            return
        self.done["kill"] += 1
        triton.kill9()
        triton.restart()  # in this thread: a child ends with the thread that has started it
        self._restarting = asyncio.ensure_future(asyncio.to_thread(self._wait_until_back, triton))

    def _wait_until_back(self, triton: RealTriton) -> None:
        triton.wait_ready()
        backends = self._balancer.backends
        wait_until(lambda: backends()[triton.name].is_in, timeout_s=SOON_S, what="it is back")

    async def count(self) -> None:
        """See how many models there are. One that is dead cannot say it."""
        for triton in self._tritons:
            try:
                lines = await asyncio.to_thread(index, triton)
            except OSError:
                continue
            self.most_models = max(self.most_models, len(names_in(lines)))

    async def end(self) -> None:
        if self._restarting is not None:
            await self._restarting
        if self._drained is not None:
            await self._operate(f"{self._drained}/enable")


async def test_nothing_is_lost_among_loads_evictions_kills_and_drains(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    rng = Random(5)
    chaos = Chaos(balancer, tritons)
    running: set[asyncio.Future[None]] = set()
    async with client_of(balancer) as infer:
        for number in range(ACTIONS):
            model, triton = name_of(rng.randrange(COUNT)), rng.choice(tritons)
            kind = rng.choices(["request", "evict", "drain", "kill"], [80, 10, 7, 3])[0]
            if number == ACTIONS // 2:
                kind = "kill"
            if kind == "request":
                running.add(asyncio.ensure_future(chaos.request(infer, model)))
            elif kind == "evict":
                running.add(asyncio.ensure_future(chaos.evict(model)))
            elif kind == "drain":
                await chaos.drain(model, triton)
            else:
                await chaos.kill(triton)
            await chaos.count()
            while len(running) >= 6:
                _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if running:
            await asyncio.wait(running)
        await chaos.end()
    print(dict(chaos.done), shown(balancer)["failures"])  # noqa: T201
    assert chaos.errors == []
    assert chaos.done["kill"] >= 1
    assert chaos.most_models <= ROOM
    # A Triton answers with an error where a model is not loaded, or about to be unloaded.
    answers = counted(balancer, "triton_lb_backend_responses_total")
    assert {dict(labels)["code"] for labels in answers} == {"OK"}


async def test_a_load_that_ends_its_triton_ends_two_and_no_more(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    async with client_of(balancer) as infer:
        with pytest.raises(InferenceServerException) as failed:
            await infer(DEADLY)
        assert failed.value.status() == "StatusCode.UNAVAILABLE"
        with pytest.raises(InferenceServerException):
            await infer(DEADLY)
        await infer(name_of(0))
    assert sum(triton.is_running for triton in tritons) == TRITONS - 2
    for triton in tritons:
        if not triton.is_running:
            triton.kill9()  # on purpose
            triton.restart()
            await asyncio.to_thread(triton.wait_ready)


@pytest.fixture
def cramped(tmp_path: Path, tritons: tuple[RealTriton, ...]) -> Iterator[RunningBalancer]:
    """A balancer with room for one model."""
    placement = {
        "mode": "on_demand", "max_models": 1, "wait": f"{WAIT_S:g}s", "min_age": f"{MIN_AGE_S:g}s",
    }  # fmt: skip
    yield from RunningBalancer.run(tmp_path, tritons[:1], placement=placement)


async def test_two_models_that_do_not_fit_take_turns(cramped: RunningBalancer) -> None:
    """At most one swap in `min_age`, and both make progress."""
    turns = 20 if IS_LONG else 2
    took_s: list[float] = []

    async def ask_again(infer: Any, model: str) -> None:
        """Ask one after the other, until it was loaded for us that often."""
        loads = 0
        while loads < turns:
            began = perf_counter()
            await infer(model)
            took_s.append(perf_counter() - began)
            loads += took_s[-1] > MIN_AGE_S / 2

    began = perf_counter()
    async with client_of(cramped) as infer:
        await asyncio.gather(*(ask_again(infer, name_of(number)) for number in (1, 2)))
    swaps = sum(counted(cramped, "triton_lb_model_evictions_total").values())
    assert swaps <= (perf_counter() - began) / MIN_AGE_S + 1 + ROOM
    cold = sorted(each for each in took_s if each > MIN_AGE_S / 2)
    print(  # noqa: T201
        f"{swaps:g} swaps in {perf_counter() - began:.1f} s with min_age {MIN_AGE_S:g} s, "
        f"{len(took_s)} answers; {len(cold)} cold ones p50 {cold[len(cold) // 2]:.2f} s, "
        f"p99 {cold[-1]:.2f} s"
    )
