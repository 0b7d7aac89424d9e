"""Who asks Tritons how much they have to do and how fast they are, for the scheduler to know."""

from __future__ import annotations

import time

from lb.control.directory import BackendDirectory
from lb.control.load import LoadReader
from lb.control.models import ModelWatch
from lb.control.priors import PriorReader
from lb.control.questions import Questions
from lb.control.record import BackendRecord
from lb.control.warm_up import WarmUp
from lb.domain.schedule import Scheduler
from lb.health.models import Version
from lb.net.ask.asker import Asker


def make_load_reader(
    directory: BackendDirectory, asker: Asker, scheduler: Scheduler, interval_s: float
) -> LoadReader:
    """Asks again and again. Needs a running loop."""
    reader = LoadReader(
        asker, lambda: directory.records, scheduler.under_way, scheduler.busy_elsewhere
    )
    reader.use(interval_s)
    return reader


def make_prior_reader(
    directory: BackendDirectory,
    asker: Asker,
    scheduler: Scheduler,
    watch: ModelWatch,
    warm_up: WarmUp,
) -> PriorReader:
    """Asks those that join."""
    reader = PriorReader(
        directory,
        Questions(asker),
        lambda backend, measured: scheduler.assume(backend, measured, time.monotonic()),
    )

    def came(record: BackendRecord, versions: frozenset[Version]) -> None:
        warm_up.came(record, versions)
        reader.came(record, versions)

    watch.came = came
    return reader
