from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from lb.balancing.policies import make_policy
from lb.control.directory import BackendDirectory
from lb.control.priors import PriorReader
from lb.control.questions import Questions
from lb.control.record import Member
from lb.domain.backend import Backend, BackendKind
from lb.domain.load import Measured
from lb.health.models import Version
from lb.health.port import Finding
from tests.fakes.backends import make_spec
from tests.fakes.tritons import FakeTriton, FakeTritons
from tests.unit.control.test_directory import found
from tests.wire.waiting import eventually

READY = frozenset({(b"m", b"1")})


def statistics(took_ms: float, count: int = 100) -> dict[str, Any]:
    ns = {"count": count, "ns": int(took_ms * count * 1e6)}
    nothing = {"count": count, "ns": 0}
    row = {
        "batch_size": 1, "compute_input": nothing, "compute_infer": ns, "compute_output": nothing,
    }  # fmt: skip
    return {"model_stats": [{"name": "m", "version": "1", "batch_stats": [row]}]}


class Bench:
    def __init__(self, kind: BackendKind, **tritons: FakeTriton) -> None:
        self.tritons = tritons
        self.told: dict[str, float] = {}
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.directory.replace([Member(make_spec(name, kind=kind)) for name in tritons], 100.0)
        for record in self.directory.records:
            for port in record.ports:
                for _ in range(3):
                    found(self.directory, port, Finding.READY, 100.0)
        self.reader = PriorReader(self.directory, Questions(FakeTritons(**tritons)), self._take)

    def _take(self, backend: Backend, measured: Mapping[Version, Measured]) -> None:
        self.told[backend.name] = measured[b"m", b"1"].mean_s

    def came(self, name: str, versions: frozenset[Version] = READY) -> None:
        self.reader.on_ready(self.directory.find(name), versions)

    def asked(self, name: str) -> int:
        return self.tritons[name].asked.count("GET /v2/models/stats")


@asynccontextmanager
async def bench(
    kind: BackendKind = BackendKind.TRITON, **tritons: FakeTriton
) -> AsyncIterator[Bench]:
    made = Bench(kind, **tritons)
    try:
        yield made
    finally:
        await made.reader.aclose()


async def test_what_a_triton_has_measured_is_asked_once_when_it_comes() -> None:
    slow, fast = (FakeTriton(statistics=statistics(each)) for each in (40.0, 5.0))
    async with bench(a=slow, b=fast) as made:
        for name in ("a", "b", "a"):
            made.came(name)
        await made.reader.first_round(30.0)
        assert made.told == {"a": pytest.approx(0.04), "b": pytest.approx(0.005)}
        made.came("a")
        assert made.reader.idle.is_set()
        assert made.asked("a") == 1


async def test_a_triton_that_was_restarted_is_asked_again() -> None:
    async with bench(a=FakeTriton(statistics=statistics(40.0))) as made:
        made.came("a")
        await made.reader.first_round(30.0)
        made.directory.find("a").backend.died()
        made.came("a")
        await made.reader.first_round(30.0)
        assert made.asked("a") == 2


async def test_where_nothing_is_ready_or_that_is_no_triton_nobody_is_asked() -> None:
    async with bench(a=FakeTriton()) as made:
        made.came("a", frozenset())
        assert made.reader.idle.is_set()
    async with bench(BackendKind.KSERVE, a=FakeTriton()) as made:
        made.came("a")
        assert made.reader.idle.is_set()


@pytest.mark.parametrize(
    "triton",
    [
        FakeTriton(),
        FakeTriton(statistics=statistics(5.0, count=3)),
        FakeTriton(statistics={"model_stats": 3}),
        FakeTriton(is_silent=True),
    ],
    ids=["not offered", "too few", "no statistics", "silent"],
)
async def test_a_triton_that_tells_nothing_is_no_matter(triton: FakeTriton) -> None:
    async with bench(a=triton) as made:
        made.came("a")
        await eventually(made.reader.idle.is_set)
        assert made.told == {}
