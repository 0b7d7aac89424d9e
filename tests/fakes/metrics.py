"""A collector over counters that a test holds, and what it says as a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lb.domain.backend import Backend
from lb.domain.pool import Placement, PoolSnapshot
from lb.telemetry.collector import (
    BuildInfo,
    LoadBalancerCollector,
    ModelTableStatus,
    OutlierStatus,
    PortStatus,
    Sources,
    SourceStatus,
)
from lb.telemetry.counts import LoopLag, OwnCalls, Reloads, RerunCounts, ScalingStatus
from lb.telemetry.meter import Meter
from tests.fakes.relay import named_policy

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """The key of one series."""
    return name, frozenset(labels.items())


def make_snapshot(backends: Sequence[Backend]) -> PoolSnapshot:
    """A snapshot in which every backend is eligible for both protocols."""
    placement = Placement(tuple(backends), None, named_policy("round_robin"))
    return PoolSnapshot(1, tuple(backends), (placement, placement))


@dataclass
class Counters:
    """Everything that the collector reads."""

    backends: Sequence[Backend] = ()
    meter: Meter = field(default_factory=Meter)
    loop_lag: LoopLag = field(default_factory=LoopLag)
    statuses: Sequence[PortStatus] = ()
    dropped_access_lines: int = 0
    expiries: Sequence[tuple[str, int]] = ()
    own_calls: OwnCalls = field(default_factory=OwnCalls)

    def collector(self) -> LoadBalancerCollector:
        """A collector over these counters."""
        return LoadBalancerCollector(
            Sources(
                meter=self.meter,
                snapshot=lambda: make_snapshot(self.backends),
                statuses=lambda: self.statuses,
                loop_lag=self.loop_lag,
                build=BuildInfo("0.1.0", "3.11.7", ""),
                started_at=1_700_000_000.5,
                open_requests=lambda: 3,
                tasks=lambda: 17,
                held_bytes=lambda: 4096,
                dropped_lines=lambda: {"access": self.dropped_access_lines},
                expiries=lambda: self.expiries,
                reload_failures=lambda: 2,
                token_requests=lambda: {"team-a": 3, "team-b": 0},
                token_failures=lambda: 1,
                file_stalls=lambda: ({"/mnt/tokens": 3}, 1),
                model_tables=lambda: [
                    ModelTableStatus(
                        backend="b0", ready=3, age_s=1.5, missing=1, differing=2, reconfigured=3
                    )
                ],
                ready_backends=lambda: [("simple", 2)],
                restored={("model", "restored"): 4},
                open_sequences=lambda: [("a", "m", 3)],
                sequence_counts=lambda: {"started": 9, "lost": 2, "expired": 1, "dropped": 0},
                own_calls=self.own_calls,
                reruns=lambda: RerunCounts(
                    count=6, refused={"budget": 2}, blocked_models=1, unkept_bodies=3
                ),
                discovery=lambda: [
                    SourceStatus(
                        name="dns:a", backends=2, updates=5, failures=3, age_s=1.5, error="gone"
                    ),
                    SourceStatus(
                        name="file:/b", backends=0, updates=0, failures=1, age_s=None, error="bad"
                    ),
                ],
                outliers=lambda: [
                    OutlierStatus(
                        backend="b0", is_ejected=True, models=1, share=0.5, ejections={"device": 2}
                    )
                ],
                reloads=Reloads("0123abcd", 1_700_000_000.5),
                scaling=lambda: ScalingStatus(desired=5, demand=120.5, rate=30.25),
            )
        )

    def samples(self) -> Samples:
        """What a scrape reads now, by name and labels. No series appears twice."""
        read: Samples = {}
        for family in self.collector().collect():
            for sample in family.samples:
                series = key(sample.name, **sample.labels)
                assert series not in read
                read[series] = sample.value
        return read
