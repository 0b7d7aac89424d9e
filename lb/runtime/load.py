"""Who asks Tritons how much they have to do and how fast they are, for the scheduler to know."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lb.balancing.scheduler import Scheduler
from lb.control.directory import BackendDirectory
from lb.control.load import LoadReader
from lb.control.models import ModelWatch
from lb.control.priors import PriorReader
from lb.control.questions import Questions
from lb.control.record import BackendRecord
from lb.health.models import Version
from lb.net.ask.asker import Asker


@dataclass(frozen=True, slots=True)
class LoadReaders:
    """Both of them."""

    load: LoadReader
    """Asks again and again what there is to do."""
    priors: PriorReader
    """Asks those that join what they have measured."""

    async def aclose(self) -> None:
        """Ask nobody any more."""
        await self.load.aclose()
        await self.priors.aclose()


def make_load_readers(
    directory: BackendDirectory,
    asker: Asker,
    scheduler: Scheduler,
    watch: ModelWatch,
    interval_s: float,
) -> LoadReaders:
    """Make them. Needs a running loop.

    Args:
        directory: of whom to ask.
        asker: makes the calls.
        scheduler: is told.
        watch: knows who joins.
        interval_s: how often each is asked what there is to do; 0: not at all.
    """
    load = LoadReader(
        asker, lambda: directory.records, scheduler.in_flight_by_model, scheduler.on_load_report
    )
    load.use(interval_s)
    priors = PriorReader(
        directory,
        Questions(asker),
        lambda backend, measured: scheduler.assume(backend, measured, time.monotonic()),
    )
    before = watch.came

    def came(record: BackendRecord, versions: frozenset[Version]) -> None:
        before(record, versions)
        priors.came(record, versions)

    watch.came = came
    return LoadReaders(load, priors)
