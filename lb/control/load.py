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
from lb.domain.load import LoadReport
from lb.health.devices import DeviceBook
from lb.kserve.load import LoadPage
from lb.net.ask.asker import Asker
from lb.net.tasks import TaskOwner

_log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 0.5
_PER_SECOND: Final = 25
"""Backends that are asked: each costs 0.3 ms of CPU, and 1 ms more for every hundred models."""
_OK: Final = 200
_PIECE_BYTES: Final = 1 << 16
"""About half a millisecond of reading; the page of a Triton with a thousand models has 2 MB."""


class LoadReader:
    """Reads the metrics of all backends that show them, again and again."""

    def __init__(
        self,
        asker: Asker,
        records: Callable[[], Iterable[BackendRecord]],
        under_way: Callable[[Backend], Mapping[bytes, int]],
        told: Callable[[Backend, LoadReport], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """
        Args:
            asker: makes the calls.
            records: whom to ask; those without a metrics port are passed over.
            under_way: requests that we have at a backend, by model.
            told: gets what a backend says; it is also kept in its record.
            clock: monotonic seconds.
        """
        self._asker = asker
        self._records = records
        self._under_way = under_way
        self._told = told
        self._clock = clock
        self._interval_s = 0.0
        self._changed = asyncio.Event()
        self._devices = DeviceBook()
        self._asking: set[BackendRecord] = set()
        self._failing: set[BackendRecord] = set()
        self._loop = TaskOwner()
        self._asks = TaskOwner()

    @property
    def interval_s(self) -> float:
        """How often each is asked, if they are not too many; 0: not at all."""
        return self._interval_s

    def use(self, interval_s: float) -> None:
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
        self._devices.follow([record.backend for record in records], self._clock())
        return [record for record in records if _is_asked(record)]

    async def ask(self, record: BackendRecord) -> None:
        """Ask one of them."""
        spec = _metrics_of(record.member.spec)
        if spec is None:
            return
        backend = record.backend
        self._asking.add(record)
        under_way = self._under_way(backend)
        try:
            answer = await self._asker.http(spec, b"GET", b"/metrics", timeout_s=_TIMEOUT_S)
            if answer.status != _OK:
                raise ValueError(f"status {answer.status}")
        except (UpstreamError, ValueError) as error:
            if record not in self._failing:
                self._failing.add(record)
                fields = {"backend": backend.name, "why": str(error)}
                _log.info("backend does not say how much it has to do", extra=fields)
            return
        finally:
            self._asking.discard(record)
        self._failing.discard(record)
        page = await _read(answer.body)
        now = self._clock()
        devices = page.devices
        record.load = LoadReport(
            at=now,
            models=page.models,
            devices=devices,
            others=self._devices.others(backend, devices, now),
            under_way=under_way,
        )
        self._told(backend, record.load)


async def _read(body: bytes) -> LoadPage:
    """Read a page, with turns of the loop between pieces."""
    page = LoadPage()
    begin = 0
    while len(body) - begin > _PIECE_BYTES:
        end = body.find(b"\n", begin + _PIECE_BYTES) + 1
        if not end:
            break
        page.add(body[begin:end])
        begin = end
        await asyncio.sleep(0)
    page.add(body[begin:])
    return page


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
