"""Asks Tritons how much they have to do, since others may use them as well.

They are asked one after the other, evenly over the interval, so that hundreds of them are not all
asked at once; and only so many a second, however many they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Final

from lb.control.record import BackendRecord
from lb.domain.backend import AdminState, Backend, BackendKind, BackendPort, BackendSpec
from lb.domain.errors import UpstreamError
from lb.domain.load import LoadReport, ModelLoad
from lb.health.devices import DeviceBook
from lb.kserve.load import STEP_BYTES, LoadPage
from lb.net.ask.backend_client import BackendClient
from lb.net.tasks import TaskOwner
from lb.wire.memory_budget import MemoryBudget

_log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 0.5
_PER_SECOND: Final = 25
"""Backends that are asked: each costs 0.3 ms of CPU, and 1 ms more for every hundred models."""
_OK: Final = 200
_MAX_PAGES: Final = 32 * 2**20
"""Bytes of all pages that are read at the same time: 16 Tritons with a thousand models each."""
_MODELS_PER_STEP: Final = 500
"""About a millisecond."""
_MAX_REPORTS: Final = 32 * 2**20
"""Bytes of all reports that are kept: 60,000 models of all backends together."""


class _Share:
    """What one backend takes of a budget of memory. See `lb.wire.memory_budget.Holder`."""

    def __init__(self, memory_budget: MemoryBudget, record: BackendRecord) -> None:
        self.held = 0
        self.record = record
        self.is_over = False
        """It had to give way."""
        self._memory_budget = memory_budget

    def take(self, size: int) -> bool:
        """Account for more bytes. False when there is no room for them."""
        return not self.is_over and self._memory_budget.take(self, size)

    def evict(self) -> None:
        """Give way to others, since it is the largest."""
        self.is_over = True
        self.close()

    @property
    def charged_to(self) -> None:
        """See `lb.wire.memory_budget.Holder`: it is a backend's."""
        return None

    def close(self) -> None:
        """Let go of everything."""
        self._memory_budget.release(self, self.held)


class _Report(_Share):
    """A report that is kept."""

    def evict(self) -> None:
        """Forget the report."""
        super().evict()
        self.record.load = None


class LoadReader:
    """Reads the metrics of all backends that show them, again and again."""

    def __init__(
        self,
        backend_client: BackendClient,
        records: Callable[[], Iterable[BackendRecord]],
        in_flight: Callable[[Backend], Mapping[bytes, int]],
        on_report: Callable[[Backend, LoadReport], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """
        Args:
            backend_client: makes the calls.
            records: whom to ask; those without a metrics port are passed over.
            in_flight: requests that we have at a backend, by model.
            on_report: gets what a backend says; it is also kept in its record.
            clock: monotonic seconds.
        """
        self._backend_client = backend_client
        self._records = records
        self._in_flight = in_flight
        self._on_report = on_report
        self._clock = clock
        self._interval_s = 0.0
        self._changed = asyncio.Event()
        self._devices = DeviceBook()
        self._asking: set[BackendRecord] = set()
        self._failing: set[BackendRecord] = set()
        self._cut: set[BackendRecord] = set()
        self._reading = asyncio.Lock()
        """Held by the page that is read: one step of one page in a loop iteration."""
        self._pages = MemoryBudget(_MAX_PAGES)
        self._kept = MemoryBudget(_MAX_REPORTS)
        self._reports: dict[BackendRecord, _Report] = {}
        self._loop = TaskOwner()
        self._asks = TaskOwner()

    @property
    def interval_s(self) -> float:
        """How often each is asked, if they are not too many; 0: not at all."""
        return self._interval_s

    def configure(self, interval_s: float) -> None:
        """Ask so often from now on. The first time needs a running loop."""
        self._interval_s = interval_s
        self._changed.set()
        if interval_s and not len(self._loop):
            self._loop.spawn(self._run(), name="load: ask backends")
        if not interval_s:
            for record in self._records():
                record.load = None

    async def aclose(self) -> None:
        """Ask nobody any more."""
        await self._loop.aclose()
        await self._asks.aclose()

    async def _run(self) -> None:
        while self._interval_s:
            self._changed.clear()
            await self._round()

    async def _round(self) -> None:
        """Ask everybody once, in the course of the interval."""
        asked = self._asked()
        pause_s = max(self._interval_s / max(1, len(asked)), 1 / _PER_SECOND)
        for record in asked or (None,):
            if record is not None and record not in self._asking:
                self._asks.spawn(self.ask(record), name=f"load: {record.backend.name}")
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
            return

    def _asked(self) -> list[BackendRecord]:
        records = list(self._records())
        self._failing.intersection_update(records)
        self._cut.intersection_update(records)
        for gone in self._reports.keys() - set(records):
            self._reports.pop(gone).close()
        self._devices.follow([record.backend for record in records], self._clock())
        return [record for record in records if _is_asked(record)]

    async def ask(self, record: BackendRecord) -> None:
        """Ask one of them."""
        spec = _metrics_of(record.member.spec)
        if spec is None:
            return
        backend = record.backend
        self._asking.add(record)
        in_flight = self._in_flight(backend)
        share = _Share(self._pages, record)
        try:
            page, models = await self._fetch(spec, share)
            if not self._keep(record, page.size):
                raise ValueError("it has more models than there is memory for")
        except (UpstreamError, ValueError) as error:
            if record not in self._failing:
                self._failing.add(record)
                fields = {"backend": backend.name, "why": str(error)}
                _log.info("backend does not say how much it has to do", extra=fields)
            return
        finally:
            share.close()
            self._asking.discard(record)
        self._failing.discard(record)
        self._note_cut(record, page)
        now = self._clock()
        devices = page.devices
        record.load = LoadReport(
            at=now,
            models=models,
            devices=devices,
            others=self._devices.others(backend, devices, now),
            in_flight=in_flight,
        )
        self._on_report(backend, record.load)

    async def memory_of(self, record: BackendRecord) -> int | None:
        """Ask one backend for the bytes of its devices that are in use; None: it does not say.
        Nobody is told."""
        spec = _metrics_of(record.member.spec)
        if spec is None:
            return None
        share = _Share(self._pages, record)
        try:
            page, _ = await self._fetch(spec, share)
        except (UpstreamError, ValueError):
            return None
        finally:
            share.close()
        used = [each.memory_used for each in page.devices if each.memory_used is not None]
        return int(sum(used)) if used else None

    async def _fetch(
        self, spec: BackendSpec, share: _Share
    ) -> tuple[LoadPage, dict[bytes, ModelLoad]]:
        """Ask for a page, and read it.

        Raises:
            UpstreamError: there is no answer.
            ValueError: the answer is no page.
        """
        answer = await self._backend_client.http(
            spec, b"GET", b"/metrics", timeout_s=_TIMEOUT_S, keep=share.take
        )
        if answer.status != _OK:
            raise ValueError(f"status {answer.status}")
        return await self._read(answer.body)

    async def _read(self, body: bytes) -> tuple[LoadPage, dict[bytes, ModelLoad]]:
        """Read a page and the load of its models, one step in each loop iteration."""
        page = LoadPage()
        async with self._reading:
            for begin in range(0, len(body), STEP_BYTES):
                page.add(body[begin : begin + STEP_BYTES])
                await asyncio.sleep(0)
            page.finish()
            models: dict[bytes, ModelLoad] = {}
            for name, load in page.loads():
                models[name] = load
                if len(models) % _MODELS_PER_STEP == 0:
                    await asyncio.sleep(0)
        return page, models

    def _keep(self, record: BackendRecord, size: int) -> bool:
        """Account for a report instead of the last one of its backend."""
        last = self._reports.pop(record, None)
        if last is not None:
            last.close()
        report = self._reports[record] = _Report(self._kept, record)
        return report.take(size)

    def _note_cut(self, record: BackendRecord, page: LoadPage) -> None:
        if not page.is_cut:
            self._cut.discard(record)
        elif record not in self._cut:
            self._cut.add(record)
            fields = {"backend": record.backend.name}
            _log.warning("backend names too many models in its metrics, or too long", extra=fields)


def _is_asked(record: BackendRecord) -> bool:
    spec = record.member.spec
    is_used = record.admin is not AdminState.DISABLED and record.answers
    return is_used and spec.metrics is not None and spec.kind is BackendKind.TRITON


def _metrics_of(spec: BackendSpec) -> BackendSpec | None:
    """Its metrics port, as one to ask by HTTP."""
    if spec.metrics is None:
        return None
    tls = spec.tls_of(BackendPort.METRICS)
    if tls is not None:
        tls = replace(tls, ports=frozenset({BackendPort.HTTP}))
    return replace(spec, http=spec.metrics, tls=tls)
