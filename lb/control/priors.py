"""Asks Tritons that join what executions took there, so that their speed need not be found out.

What they have measured contains their first, slow executions and batches of other sizes: it is what
the scheduler begins with, and a few measurements of our own outweigh it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from lb.control.directory import BackendDirectory
from lb.control.questions import NotOffered, Questions
from lb.control.record import BackendRecord
from lb.domain.backend import Backend, BackendKind
from lb.domain.errors import UpstreamError
from lb.domain.load import Measured
from lb.health.models import Version
from lb.net.tasks import TaskOwner
from lb.net.timeouts import fair_timeout

_log = logging.getLogger(__name__)


class PriorReader:
    """Asks each Triton once, and again after a restart."""

    def __init__(
        self,
        directory: BackendDirectory,
        questions: Questions,
        on_report: Callable[[Backend, Mapping[Version, Measured]], None],
    ) -> None:
        """
        Args:
            directory: of all backends.
            questions: to them.
            on_report: gets what a backend has measured, unless that is nothing.
        """
        self._directory = directory
        self._questions = questions
        self._on_report = on_report
        self._tasks = TaskOwner()
        self._asked: dict[BackendRecord, int] = {}
        """How often each had died when it was asked."""
        self._under_way = 0
        self.idle = asyncio.Event()
        """Nobody is being asked."""
        self.idle.set()

    async def aclose(self) -> None:
        """Ask nobody any more."""
        await self._tasks.aclose()

    async def first_round(self, timeout_s: float) -> None:
        """Return when those that were asked have answered, or that time has passed."""
        try:
            async with fair_timeout(asyncio.get_running_loop(), timeout_s):
                await self.idle.wait()
        except TimeoutError:
            _log.info("not every backend has said how long executions take")

    def on_ready(self, record: BackendRecord, versions: frozenset[Version]) -> None:
        """Some versions have become ready; see `ModelWatch.on_ready`. A model that a Triton has
        loaded since has measured nothing yet."""
        deaths = record.backend.deaths
        if not versions or record.member.spec.kind is not BackendKind.TRITON:
            return
        if self._asked.get(record) == deaths:
            return
        present = set(self._directory.records)
        self._asked = {each: count for each, count in self._asked.items() if each in present}
        self._asked[record] = deaths
        self._under_way += 1
        self.idle.clear()
        self._tasks.spawn(self._ask(record), name=f"statistics: {record.backend.name}")

    async def _ask(self, record: BackendRecord) -> None:
        fields = {"backend": record.backend.name}
        try:
            measured = await self._questions.statistics(record)
        except NotOffered as refused:
            _log.debug("no statistics", extra={**fields, "why": str(refused)})
        except ValueError as error:
            _log.info("statistics cannot be read", extra={**fields, "why": str(error)})
        except UpstreamError as error:
            _log.debug("no statistics", extra={**fields, "why": error.detail})
        else:
            if measured and record in self._directory.records:
                self._on_report(record.backend, measured)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.idle.set()
