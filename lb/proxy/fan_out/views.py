"""Views of all backends: each one's answer is read, and all are made one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome, Reason
from lb.kserve.merge.form import Disagreement, Merge, require_moderate
from lb.kserve.merge.index import GrpcIndex, HttpIndex
from lb.kserve.merge.memory import StatisticsMemory
from lb.kserve.merge.metadata import GrpcMetadata, HttpMetadata
from lb.kserve.merge.regions import GrpcCudaRegions, GrpcSystemRegions, HttpRegions
from lb.kserve.merge.settings import GrpcLogSettings, GrpcTraceSettings, HttpSettings
from lb.kserve.merge.statistics import GrpcStatistics, HttpStatistics, StatisticsAnswer
from lb.proxy.fan_out import replies
from lb.proxy.fan_out.question import Question, Reply
from lb.proxy.fan_out.result import Result, unanswered

_log = logging.getLogger(__name__)

_LARGE: Final = 64 * 1024
"""Bytes of answers that are merged in a thread: the statistics of a thousand models take a tenth
of a second, which must not hold up all traffic."""


class Views:
    """Makes one answer of many."""

    def __init__(self) -> None:
        self.memory = StatisticsMemory()
        self._lock = asyncio.Lock()
        """Of the memory, which large views use in a thread."""
        regions, settings = HttpRegions(), HttpSettings()
        http: dict[str, Merge[Any]] = {
            "ServerMetadata": HttpMetadata(),
            "RepositoryIndex": HttpIndex(),
            "ModelStatistics": HttpStatistics(self.memory),
            "SystemSharedMemoryStatus": regions,
            "CudaSharedMemoryStatus": regions,
            "TraceSetting": settings,
            "LogSettings": settings,
        }
        grpc: dict[str, Merge[Any]] = {
            "ServerMetadata": GrpcMetadata(),
            "RepositoryIndex": GrpcIndex(),
            "ModelStatistics": GrpcStatistics(self.memory),
            "SystemSharedMemoryStatus": GrpcSystemRegions(),
            "CudaSharedMemoryStatus": GrpcCudaRegions(),
            "TraceSetting": GrpcTraceSettings(),
            "LogSettings": GrpcLogSettings(),
        }
        self._merges: tuple[Mapping[str, Merge[Any]], Mapping[str, Merge[Any]]] = (http, grpc)

    async def combine(self, question: Question, results: Sequence[Result]) -> Reply:
        """The answer to a question that at least one backend was asked."""
        merge = self._merges[question.protocol].get(question.operation.name)
        if merge is None:
            raise LookupError(f"there is no view of {question.operation.name}")
        size = sum(len(result.body) for result in results)
        async with self._lock:
            if size > _LARGE:
                return await asyncio.to_thread(self._combine_and_trim, merge, question, results)
            return self._combine_and_trim(merge, question, results)

    def _combine_and_trim(
        self, merge: Merge[Any], question: Question, results: Sequence[Result]
    ) -> Reply:
        try:
            return self._combine(merge, question, results)
        finally:
            self.memory.trim()

    def _combine(self, merge: Merge[Any], question: Question, results: Sequence[Result]) -> Reply:
        good: list[tuple[str, Any]] = []
        bad: list[Result] = []
        for result in results:
            if not result.is_ok:
                bad.append(result)
                continue
            try:
                require_moderate(result.body)
                answer = merge.read(result.body)
            except ValueError as error:
                bad.append(_unreadable(result, error))
                continue
            if isinstance(answer, StatisticsAnswer):
                self._remember(result, answer)
            good.append((result.backend.name, answer))
        _log_missing(question, bad, is_answered=bool(good))
        if not good:
            return replies.failure(question, _telling(bad))
        try:
            return replies.merged(question, merge.combine(good), results)
        except Disagreement as error:
            return replies.refusal(question, Reason.BACKENDS_DIFFER, str(error))
        except (RecursionError, ValueError, OverflowError):
            _log.warning("answers cannot be merged", exc_info=True)
            detail = "the answers of the backends cannot be put together"
            return replies.refusal(question, Reason.UPSTREAM_PROTOCOL, detail)

    def _remember(self, result: Result, answer: StatisticsAnswer[Any]) -> None:
        for key, counters in answer.counters:
            self.memory.take(
                result.backend.name, key, counters, result.asked_at, result.answered_at
            )


def _unreadable(result: Result, error: ValueError) -> Result:
    return unanswered(
        result.backend, result.protocol, UpstreamError(Outcome.PROTOCOL_ERROR, str(error))
    )


def _telling(bad: Sequence[Result]) -> Sequence[Result]:
    """The failures that say most: answers, where there are any."""
    return [result for result in bad if result.reason is None] or bad


def _log_missing(question: Question, bad: Sequence[Result], *, is_answered: bool) -> None:
    """Say who is not in a view, unless it is down or does not have the model."""
    for result in bad:
        if is_answered and not (result.is_unreached or result.lacks_model):
            fields = {"operation": question.operation.name, "backend": result.backend.name}
            _log.warning("backend is missing in a view", extra={**fields, "why": result.detail})
