from __future__ import annotations

import asyncio
from random import Random

from lb.runtime.load import make_load_readers

from lb.balancing.policies import make_policy
from lb.balancing.scheduler import Scheduler
from lb.control.directory import BackendDirectory
from lb.control.models import ModelWatch
from lb.control.questions import Questions
from lb.control.record import BackendRecord, Member
from lb.domain.schedule import Capacity, Plan, Terms, Ticket
from lb.health.models import Version
from lb.health.port import Finding
from tests.fakes.backends import make_spec
from tests.fakes.tritons import FakeTriton, FakeTritons
from tests.unit.control.test_directory import found
from tests.unit.control.test_priors import statistics


async def test_what_a_triton_that_comes_has_measured_reaches_the_scheduler_and_the_next() -> None:
    tritons = FakeTritons(a=FakeTriton(models={"m": "READY"}, statistics=statistics(40.0)))
    directory = BackendDirectory(make_policy("least_loaded", Random(1)))
    directory.replace([Member(make_spec("a"))], 100.0)
    (record,) = directory.records
    watch = ModelWatch(directory, Questions(tritons), Random(1), refresh_s=60.0)
    others: list[tuple[BackendRecord, frozenset[Version]]] = []
    watch.came = lambda *news: others.append(news)
    scheduler = Scheduler()
    readers = make_load_readers(directory, tritons, scheduler, watch, 0.0)
    try:
        watch.start()
        for port in record.ports:
            for _ in range(3):
                found(directory, port, Finding.READY, 100.0)
        async with asyncio.timeout(20):
            await watch.refreshed([record])
            await readers.priors.first_round(5.0)
    finally:
        await watch.aclose()
        await readers.aclose()
    plan = Plan(limits={}, default=Capacity(2))
    scheduler.offer(Ticket(Terms(b"m", b"", plan, (record.backend,)), 100.0), 100.0)
    (lane,) = scheduler.model_backends()
    assert abs(lane.expected_s - 0.04) < 1e-9
    assert others[0] == (record, frozenset({(b"m", b"1")}))
    assert readers.load.interval_s == 0.0
