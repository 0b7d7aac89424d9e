"""Has models that become ready compute something made up, before the requests of clients go there.

Meanwhile they count as loading on that backend, as long as another one has them ready: a slow
answer is better than none. One backend warms up its models one after the other; what fails is
tried again after all others.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import chain, repeat
from time import monotonic
from typing import Final

from lb.control.directory import BackendDirectory
from lb.control.questions import NotOffered, Questions, Reply
from lb.control.record import BackendRecord
from lb.domain.backend import AdminState, AppProtocol, BackendKind
from lb.domain.errors import UpstreamError
from lb.domain.fault import Fault
from lb.domain.names import readable
from lb.domain.outcome import Outcome
from lb.domain.pool import PoolSnapshot
from lb.health.models import Version
from lb.kserve.faults import fault_of_answer
from lb.kserve.warm_up import warm_up_request
from lb.net.tasks import TaskOwner
from lb.settings.passive import WarmUpSettings

_log = logging.getLogger(__name__)

_PAUSES_S: Final = (1.0, 5.0, 30.0)
"""Before it is tried again, where the server seems to be at fault; the last one for ever."""


class WarmUp:
    """Warms up what becomes ready."""

    def __init__(
        self,
        directory: BackendDirectory,
        questions: Questions,
        options: WarmUpSettings | None = None,
    ) -> None:
        self.options = options or WarmUpSettings()
        """The options in force."""
        self._directory = directory
        self._questions = questions
        self._tasks = TaskOwner()
        self._queues: dict[BackendRecord, list[Version]] = {}
        """What is left to be warmed up where a task does that."""
        directory.ref.subscribe(self._on_snapshot)

    def configure(self, options: WarmUpSettings) -> None:
        """Go by other options from now on."""
        self.options = options
        if not options.enabled:
            for record, queue in self._queues.items():
                queue.clear()
                self._let_go(record, record.models.cold)

    async def aclose(self) -> None:
        """Leave what is under way."""
        await self._tasks.aclose()

    def on_ready(self, record: BackendRecord, versions: frozenset[Version]) -> None:
        """Some versions have become ready; see `ModelWatch.on_ready`."""
        is_wanted = self.options.enabled and versions
        if not is_wanted or record.member.spec.kind is not BackendKind.TRITON:
            return
        cold = versions - self._only_here(record, versions)
        record.models.keep_cold(record.models.cold | cold)
        if record in self._queues:
            self._queues[record] += sorted(versions)
            return
        self._queues[record] = sorted(versions)
        self._tasks.spawn(self._warm_up(record), name=f"warm up {record.backend.name}")

    def _on_snapshot(self, _snapshot: PoolSnapshot) -> None:
        """Let go of what no other backend can serve any more."""
        for record in tuple(self._queues):
            self._let_go(record, self._only_here(record, record.models.cold))

    def _only_here(self, record: BackendRecord, versions: frozenset[Version]) -> frozenset[Version]:
        """Select the versions that no other backend can serve meanwhile."""
        for other in self._directory.records:
            if not versions:
                break
            if other is not record and other.admin is AdminState.ENABLED and other.answers:
                versions -= other.models.ready
        return versions

    async def _warm_up(self, record: BackendRecord) -> None:
        """Try each version once, and again while it fails and is not needed."""
        queue = self._queues[record]
        failed: list[Version] = []
        pauses = chain(_PAUSES_S, repeat(_PAUSES_S[-1]))
        try:
            while queue and self._is_there(record):
                if self._is_opening(record):
                    await asyncio.sleep(_PAUSES_S[0])
                    continue
                version = queue.pop(0)
                if await self._try_warm_up(record, version):
                    self._let_go(record, frozenset({version}))
                elif version in record.models.cold:
                    failed.append(version)
                if failed and not queue:
                    await asyncio.sleep(next(pauses))
                    queue += (each for each in failed if each in record.models.cold)
                    failed.clear()
        finally:
            del self._queues[record]
            self._let_go(record, record.models.cold)

    def _is_there(self, record: BackendRecord) -> bool:
        return record.answers and record in self._directory.records

    @staticmethod
    def _is_opening(record: BackendRecord) -> bool:
        """Whether its gRPC port has opened first."""
        has_http = record.backend.ports[AppProtocol.HTTP] is not None
        return has_http and not record.is_open(AppProtocol.HTTP)

    def _let_go(self, record: BackendRecord, versions: frozenset[Version]) -> None:
        if versions and record.models.keep_cold(record.models.cold - versions):
            self._directory.models_changed(record, monotonic())

    async def _try_warm_up(self, record: BackendRecord, version: Version) -> bool:
        """Try once. False where trying again may help."""
        fields = {"backend": record.backend.name, "model": readable(version[0])}
        try:
            configuration = await self._questions.configuration(record, version)
            request = warm_up_request(configuration.text)
            if request is None:
                _log.debug("model cannot be warmed up", extra=fields)
                return True
            began = monotonic()
            reply = await self._questions.infer(record, version, request, self.options.timeout)
        except (NotOffered, ValueError) as error:
            _log.info("model not warmed up", extra={**fields, "why": str(error)})
            return True
        except UpstreamError as error:
            if error.outcome is Outcome.PROTOCOL_ERROR:
                return True  # such as an answer that is too long for us: it computed something
            _log.warning("model does not warm up", extra={**fields, "why": error.detail})
            return False
        if reply.is_ok:
            took = {"seconds": round(monotonic() - began, 3)}
            _log.info("model warmed up", extra={**fields, **took})
            return True
        return self._judge(reply, fields)

    @staticmethod
    def _judge(reply: Reply, fields: dict[str, str]) -> bool:
        """Whether an error is the fault of what was made up, and not of the server."""
        why = {**fields, "why": reply.detail or f"status {reply.status}"}
        if fault_of_answer(AppProtocol.HTTP, reply.status, reply.detail) is Fault.DEVICE:
            _log.warning("model does not warm up", extra=why)
            return False
        _log.info("model not warmed up", extra=why)
        return True
