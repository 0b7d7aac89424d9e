"""What the control role asks of a relay, and what it does by other settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any

import pytest

from lb.control.role import ControlRole
from lb.domain.backend import Backend
from lb.domain.load import LoadReport, LoadSample, Measured
from lb.net.file_thread import FileThread
from lb.net.iteration import IterationBudget
from lb.net.process_parts import ProcessParts
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.net.tls.client import ClientTlsBook
from lb.settings.model import Settings


class FakeRelay:
    """Remembers what it was asked for. Implements `RelaySide`."""

    def __init__(self) -> None:
        self.cuts: list[str] = []
        self.measured: list[str] = []

    def cut(self, backend: Backend) -> None:
        self.cuts.append(backend.name)

    def renew(self, backend: Backend) -> None:
        raise AssertionError("no name leads elsewhere")

    def in_flight_by_model(self, backend: Backend) -> Mapping[bytes, int]:
        return {}

    def on_load_report(self, backend: Backend, report: LoadReport) -> None:
        raise AssertionError("nobody is asked")

    def on_measured(
        self, backend: Backend, measured: Mapping[tuple[bytes, bytes], Measured]
    ) -> None:
        self.measured.append(backend.name)

    def load_sample(self) -> LoadSample:
        return LoadSample(answered=0, seconds=0.0, refused=0, open=0, weight=1.0, backends=1)


def settings(**more: Any) -> Settings:
    usual = {"listen": {"http": "127.0.0.1:0"}, "backends": [{"name": "a", "http": "127.0.0.1:1"}]}
    return Settings.model_validate(usual | more)


@pytest.fixture
async def role() -> AsyncIterator[ControlRole]:
    loop = asyncio.get_running_loop()
    parts = ProcessParts(
        loop=loop,
        timers=TimerWheel(loop),
        tasks=TaskOwner(),
        iteration=IterationBudget(loop),
        files=FileThread(),
        tls=ClientTlsBook(),
        rng=Random(1),
        identity=b"",
    )
    made = ControlRole(parts)
    yield made
    await made.aclose()
    await parts.files.aclose()
    parts.timers.close()


async def test_connections_to_a_backend_that_leaves_are_cut(role: ControlRole) -> None:
    relay = FakeRelay()
    role.attach(relay)
    role.configure(settings())
    role.configure(settings(backends=[{"name": "b", "http": "127.0.0.1:2"}]))
    assert relay.cuts == ["a"]
    assert [reach.backend.name for reach in role.side().roster()] == ["b"]


async def test_ejection_and_slow_start_follow_the_settings(role: ControlRole) -> None:
    role.configure(settings())
    (record,) = role.directory.records
    role.directory.check(102.0)
    assert record.backend.reports_due
    role.configure(settings(outlier_detection={"enabled": False}, slow_start={"window": "3s"}))
    record.backend.reports_due = 0
    role.directory.check(102.1)
    assert not record.backend.reports_due
    assert role.directory.ramps.rules.window_s == 3.0


async def test_the_same_settings_publish_nothing(role: ControlRole) -> None:
    role.configure(settings(balancing={"policy": "round_robin"}))
    before, policy = role.side().pool.current, role.directory.policy
    role.configure(settings(balancing={"policy": "round_robin"}))
    assert role.side().pool.current is before
    assert role.directory.policy is policy
