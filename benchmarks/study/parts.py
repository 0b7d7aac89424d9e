"""The study as data: which Tritons, which load, who takes part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.load.proxies import TRITON_LB
from benchmarks.study.contestants import (
    ADAPTIVE,
    DIRECT,
    ENVOY_LEAST,
    ENVOY_ROUND,
    ENVOY_WEIGHTED,
    HAPROXY_LEAST,
    HAPROXY_LIMITS,
    HAPROXY_TUNED,
    NGINX_LEAST,
    ONE_BACKEND,
    PRIORITIES,
    PRIORITY_FIELD,
    TENANT_FIELD,
    TENANTS,
    UNQUEUED,
)
from benchmarks.study.generator import GRPC, HTTP
from benchmarks.study.gpus import Gpu, Models, one
from benchmarks.study.trace import Kind


@dataclass(frozen=True)
class Slowness:
    """A Triton that takes `factor` times as long from a moment of the load to another (0 to 1)."""

    triton: int
    factor: float
    begins: float
    ends: float


@dataclass(frozen=True)
class Step:
    """One load: `rate` a second, or `share` of the measured capacity, or `clients` at once."""

    name: str
    title: str
    rate: float = 0.0
    share: float = 0.0
    clients: int = 0
    kinds: tuple[Kind, ...] = (Kind(),)
    slowness: Slowness | None = None
    seconds: float = 5.0


@dataclass(frozen=True)
class Part:
    """Some Tritons, and what is played before them."""

    name: str
    title: str
    fleet: tuple[Models, ...]
    steps: tuple[Step, ...]
    contestants: tuple[str, ...]
    protocol: str = HTTP
    budget_ms: float = 200.0
    is_core: bool = False


OURS = (TRITON_LB, ADAPTIVE, UNQUEUED)

UNEQUAL = tuple(one(Gpu(each)) for each in (5.0, 10.0, 40.0))
EQUAL = (one(Gpu(20.0)),) * 4
SEVEN = (one(Gpu(20.0)),) * 7
VERY_UNEQUAL = tuple(one(Gpu(each)) for each in (2.0, 5.0, 10.0, 40.0))
SLICES = tuple(one(Gpu(70.0 / slices)) for slices in (1, 2, 3, 7))
ROWS = (one(Gpu(4.0, row_ms=1.0, max_batch=64)),) * 4
BATCHING = (one(Gpu(40.0, row_ms=2.5, max_batch=8, batches=True)),) * 3
INSTANCES = tuple(one(Gpu(40.0, instances=each)) for each in (1, 2, 4))
IN_ENSEMBLES = tuple(one(Gpu(each, in_ensemble=True)) for each in (5.0, 10.0, 40.0))
TWO_MODELS: tuple[Models, ...] = ({"cheap": Gpu(5.0), "dear": Gpu(40.0)},) * 3

BATCHES = (
    Kind("1 row", 0.80, rows=1),
    Kind("8 rows", 0.15, rows=8),
    Kind("64 rows", 0.05, rows=64),
)
DEADLINE = (Kind(deadline_ms=200.0),)
HIGH = Kind("high", 0.1, fields=((PRIORITY_FIELD, "1"),))
LOW = Kind("low", 2.0, fields=((PRIORITY_FIELD, "3"),), deadline_ms=1000.0)
TEAMS = tuple(
    Kind(name, share, fields=((TENANT_FIELD, name),), deadline_ms=1000.0)
    for name, share in (("greedy", 1.5), ("second", 0.4), ("third", 0.4))
)
MODELS = (Kind("cheap", 0.8, model="cheap"), Kind("dear", 0.2, model="dear"))


def rates(*some: float, seconds: float = 5.0) -> tuple[Step, ...]:
    """Poisson loads of so many requests a second."""
    return tuple(Step(f"{each:g}/s", f"{each:g}/s", rate=each, seconds=seconds) for each in some)


def shares(*some: float, kinds: tuple[Kind, ...] = (Kind(),), **others: float) -> tuple[Step, ...]:
    """Poisson loads, as parts of the measured capacity."""
    return tuple(
        Step(f"{each:.0%}", f"{each:.0%} of capacity", share=each, kinds=kinds, **others)  # type: ignore[arg-type]
        for each in some
    )


def clients(*some: int) -> tuple[Step, ...]:
    """Closed loops."""
    return tuple(Step(f"{each} clients", f"{each} at once", clients=each) for each in some)


CORE = (
    Part(
        "unequal",
        "Unequal Tritons: 5, 10 and 40 ms",
        UNEQUAL,
        rates(150.0, 240.0, 280.0, seconds=4.5),
        (
            *(TRITON_LB, ENVOY_LEAST, ENVOY_WEIGHTED),
            *(HAPROXY_LEAST, HAPROXY_LIMITS, HAPROXY_TUNED),
        ),
        is_core=True,
    ),
    Part(
        "equal",
        "Equal Tritons: four of 20 ms",
        EQUAL,
        shares(0.5, 0.8, 0.95, seconds=4.0),
        (TRITON_LB, ENVOY_LEAST, HAPROXY_LIMITS),
        is_core=True,
    ),
    Part(
        "rows",
        "Batches of 1, 8 and 64 rows before four Tritons (4 ms, and 1 ms a row)",
        ROWS,
        shares(0.5, 0.75, kinds=BATCHES),
        (TRITON_LB, ENVOY_LEAST),
        is_core=True,
    ),
    Part(
        "overload",
        "Twice what four Tritons of 20 ms carry, with a deadline of 200 ms",
        EQUAL,
        shares(2.0, kinds=DEADLINE),
        (TRITON_LB, ENVOY_LEAST),
        protocol=GRPC,
        is_core=True,
    ),
    Part(
        "batching",
        "Dynamic batching: three Tritons, up to 8 rows in 40 ms and 2.5 ms a row",
        BATCHING,
        shares(0.7),
        (DIRECT, TRITON_LB, ENVOY_LEAST),
        is_core=True,
    ),
    Part(
        "seven",
        "Seven Tritons of 20 ms against one",
        SEVEN,
        clients(100),
        (TRITON_LB, ONE_BACKEND),
        is_core=True,
    ),
)

REST = (
    Part(
        "unequal-loads",
        "Unequal Tritons from 30 to 150 % of capacity",
        UNEQUAL,
        shares(0.3, 0.6, 0.95, 1.1, 1.5),
        (TRITON_LB, ENVOY_ROUND, ENVOY_LEAST, ENVOY_WEIGHTED, HAPROXY_TUNED, NGINX_LEAST),
    ),
    Part(
        "unequal-closed",
        "Unequal Tritons, closed loop",
        UNEQUAL,
        clients(1, 4, 16, 100),
        (TRITON_LB, ENVOY_LEAST, HAPROXY_LEAST, HAPROXY_TUNED),
    ),
    Part(
        "unequal-grpc",
        "Unequal Tritons, gRPC",
        UNEQUAL,
        rates(150.0, 240.0, 280.0),
        (TRITON_LB, ENVOY_LEAST, ENVOY_WEIGHTED, HAPROXY_TUNED),
        protocol=GRPC,
    ),
    Part(
        "policies",
        "Unequal Tritons, the policies of triton-lb",
        UNEQUAL,
        rates(150.0, 240.0, 280.0),
        (
            *OURS,
            *(f"{TRITON_LB}:{each}" for each in ("least_latency", "least_requests", "round_robin")),
        ),
    ),
    Part(
        "very-unequal",
        "Very unequal Tritons: 2, 5, 10 and 40 ms",
        VERY_UNEQUAL,
        shares(0.3, 0.6, 0.85),
        (TRITON_LB, ENVOY_LEAST, ENVOY_WEIGHTED, HAPROXY_TUNED),
    ),
    Part(
        "slices",
        "Slices of a GPU: 1g, 2g, 3g and 7g (70 ms by slices)",
        SLICES,
        shares(0.5, 0.8),
        (TRITON_LB, ENVOY_LEAST, ENVOY_WEIGHTED, HAPROXY_TUNED),
    ),
    Part(
        "slowdown",
        "One of four Tritons of 20 ms takes five times as long for a while",
        EQUAL,
        (
            Step(
                "60%",
                "60 % of capacity",
                share=0.6,
                seconds=9.0,
                slowness=Slowness(0, 5.0, 0.25, 0.6),
            ),
        ),
        (TRITON_LB, ENVOY_LEAST, HAPROXY_LEAST, HAPROXY_LIMITS),
    ),
    Part(
        "models",
        "Two models, 5 and 40 ms, on each of three Tritons",
        TWO_MODELS,
        shares(0.5, 0.8, kinds=MODELS),
        (TRITON_LB, ENVOY_LEAST, HAPROXY_LEAST),
    ),
    Part(
        "rows-loads",
        "Batches of 1, 8 and 64 rows at other loads",
        ROWS,
        shares(0.3, 0.6, 0.9, kinds=BATCHES),
        (TRITON_LB, ENVOY_LEAST, HAPROXY_LIMITS),
    ),
    Part(
        "instances",
        "One, two and four instances of 40 ms",
        INSTANCES,
        shares(0.5, 0.8),
        (TRITON_LB, ENVOY_LEAST, HAPROXY_LIMITS, HAPROXY_TUNED),
    ),
    Part(
        "ensembles",
        "An ensemble on unequal Tritons: 5, 10 and 40 ms",
        IN_ENSEMBLES,
        rates(150.0, 240.0),
        (TRITON_LB, UNQUEUED, ENVOY_LEAST, HAPROXY_LEAST, HAPROXY_TUNED),
    ),
    Part(
        "batching-loads",
        "Dynamic batching at other loads",
        BATCHING,
        shares(0.4, 0.9),
        (DIRECT, TRITON_LB, ENVOY_LEAST, HAPROXY_LIMITS),
    ),
    Part(
        "overload-10",
        "Ten times what four Tritons of 20 ms carry, with a deadline of 200 ms",
        EQUAL,
        shares(10.0, kinds=DEADLINE, seconds=3.0),
        (TRITON_LB, ENVOY_LEAST),
        protocol=GRPC,
    ),
    Part(
        "priorities",
        "High priority with a quarter reserved, alone and beside twice the capacity of low",
        EQUAL,
        (
            *shares(0.1, kinds=(HIGH,)),
            *shares(2.1, kinds=(HIGH, LOW)),
        ),
        (PRIORITIES,),
        protocol=GRPC,
        budget_ms=1000.0,
    ),
    Part(
        "tenants",
        "Three tenants, one of whom asks for more than all Tritons carry",
        EQUAL,
        shares(2.3, kinds=TEAMS),
        (TENANTS,),
        protocol=GRPC,
        budget_ms=1000.0,
    ),
)

SMOKE = Part(
    "smoke",
    "Two Tritons, 2 and 6 ms",
    (one(Gpu(2.0)), one(Gpu(6.0))),
    (
        Step("100/s", "100/s", rate=100.0, seconds=0.7),
        Step("4 clients", "4 at once", clients=4, seconds=0.4),
    ),
    (TRITON_LB,),
)
"""A few seconds: shows that the study works."""


def parts() -> tuple[Part, ...]:
    """All, the core first."""
    return (*CORE, *REST)


def chosen(names: Sequence[str], *, everything: bool) -> list[Part]:
    """Parts by name; without names the core, or everything.

    Raises:
        ValueError: no part is called so.
    """
    by_name = {each.name: each for each in (*parts(), SMOKE)}
    if unknown := set(names) - set(by_name):
        raise ValueError(f"no part is called {', '.join(sorted(unknown))}; see --list")
    if names:
        return [by_name[name] for name in names]
    return list(parts() if everything else CORE)


def limited_to(part: Part, contestants: Sequence[str]) -> Part:
    """The part with these only; without any, all of its own."""
    return replace(part, contestants=tuple(contestants)) if contestants else part


def duration_s(part: Part, runs: int) -> float:
    """About how long it takes: the load, and what starting and settling cost."""
    once = sum(step.seconds + _AROUND_S for step in part.steps)
    return _START_S + len(part.contestants) * (_EACH_S + runs * once)


_AROUND_S, _START_S, _EACH_S = 1.0, 8.0, 2.5
"""Around each measurement, at the start of a part, and at that of a contestant."""
