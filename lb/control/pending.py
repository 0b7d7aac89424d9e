"""Asks Tritons how many requests wait at them, since others may use them as well."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from lb.domain.backend import Backend, BackendPort, BackendSpec
from lb.domain.errors import UpstreamError
from lb.kserve.pending import pending_counts
from lb.net.ask.asker import Asker
from lb.net.tasks import TaskOwner

_log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 0.5
_AT_ONCE: Final = 16
_OK: Final = 200


class PendingReader:
    """Reads the metrics of all backends that show them, again and again."""

    def __init__(
        self,
        asker: Asker,
        backends: Callable[[], Iterable[Backend]],
        told: Callable[[Backend, bytes, float], None],
    ) -> None:
        """
        Args:
            asker: makes the calls.
            backends: whom to ask; those without a metrics port are passed over.
            told: gets what a backend has of a model.
        """
        self._asker = asker
        self._backends = backends
        self._told = told
        self._interval_s = 0.0
        self._changed = asyncio.Event()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._failing: set[Backend] = set()
        self._tasks = TaskOwner()

    @property
    def interval_s(self) -> float:
        """How often they are asked; 0: not at all."""
        return self._interval_s

    def use(self, interval_s: float) -> None:
        """Ask so often from now on. The first time needs a running loop."""
        self._interval_s = interval_s
        self._changed.set()
        if interval_s and not len(self._tasks):
            self._tasks.spawn(self._run(), name="pending: ask backends")

    async def aclose(self) -> None:
        """Ask nobody any more."""
        await self._tasks.aclose()

    async def _run(self) -> None:
        while self._interval_s:
            self._changed.clear()
            await self.look()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """Ask all of them once."""
        asked = [(each, spec) for each in self._backends() if (spec := _metrics_of(each.spec))]
        self._failing &= {backend for backend, _ in asked}
        async with asyncio.TaskGroup() as group:
            for backend, spec in asked:
                group.create_task(self._ask(backend, spec))

    async def _ask(self, backend: Backend, spec: BackendSpec) -> None:
        async with self._slots:
            try:
                answer = await self._asker.http(spec, b"GET", b"/metrics", timeout_s=_TIMEOUT_S)
                if answer.status != _OK:
                    raise ValueError(f"status {answer.status}")
            except (UpstreamError, ValueError) as error:
                if backend not in self._failing:
                    self._failing.add(backend)
                    fields = {"backend": backend.name, "why": str(error)}
                    _log.info("backend does not say how many requests wait there", extra=fields)
                return
        self._failing.discard(backend)
        for model, count in pending_counts(answer.body).items():
            self._told(backend, model, count)


def _metrics_of(spec: BackendSpec) -> BackendSpec | None:
    """Its metrics port, as one to ask by HTTP."""
    if spec.metrics is None:
        return None
    tls = spec.tls_of(BackendPort.METRICS)
    if tls is not None:
        tls = replace(tls, ports=frozenset({BackendPort.HTTP}))
    return replace(spec, http=spec.metrics, tls=tls)
