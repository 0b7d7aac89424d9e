"""Views of all backends: each one's answer is read, and all are made one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome, Reason
from lb.kserve.merge.form import Disagreement, Merge, Unreadable
from lb.kserve.merge.index import GrpcIndex, HttpIndex
from lb.kserve.merge.memory import StatisticsMemory
from lb.kserve.merge.metadata import GrpcMetadata, HttpMetadata
from lb.kserve.merge.regions import GrpcCudaRegions, GrpcSystemRegions, HttpRegions
from lb.kserve.merge.settings import GrpcLogSettings, GrpcTraceSettings, HttpSettings
from lb.kserve.merge.statistics import GrpcStatistics, HttpStatistics, StatisticsAnswer
from lb.kserve.merge.steps import STEP_BYTES, Pace, Steps, finish
from lb.net.steps import between_others
from lb.proxy.fan_out import replies
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest
from lb.proxy.fan_out.result import Result, unanswered

_log = logging.getLogger(__name__)

_SMALL: Final = (2 * STEP_BYTES, STEP_BYTES // 4)
"""Bytes of answers that are merged at once, in about two milliseconds, of HTTP and of gRPC, which
says the same in a fifth of them. Views of more are merged in steps, one view at a time, since what
is read of one may take fifty megabytes."""


class Views:
    """Makes one answer of many."""

    def __init__(self) -> None:
        self.memory = StatisticsMemory()
        self._large = asyncio.Lock()
        """Held by the large view that is merged. Small ones do not need it."""
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

    async def combine(self, question: FanOutRequest, results: Sequence[Result]) -> FanOutReply:
        """The answer to a question that at least one backend was asked."""
        merge = self._merges[question.protocol].get(question.operation.name)
        if merge is None:
            raise LookupError(f"there is no view of {question.operation.name}")
        work = self._combine(merge, question, results)
        if sum(len(result.body) for result in results) <= _SMALL[question.protocol]:
            return finish(work)
        async with self._large:
            return await between_others(work)

    def _combine(
        self, merge: Merge[Any], question: FanOutRequest, results: Sequence[Result]
    ) -> Steps[FanOutReply]:
        good: list[tuple[Result, Any]] = []
        bad: list[Result] = []
        pace = Pace()  # many short answers take as long as a long one
        for result in results:
            if pace.count(len(result.body)):
                yield
            if not result.is_ok:
                bad.append(result)
                continue
            try:
                if len(result.body) > merge.max_bytes:
                    raise ValueError("the answer is too long to be merged")
                answer = yield from merge.read(result.body)
            except ValueError as error:
                bad.append(_unreadable(result, str(error)))
                continue
            if isinstance(answer, StatisticsAnswer):
                answer.asked_at, answer.answered_at = result.asked_at, result.answered_at
            good.append((result, answer))
        try:
            body = yield from _combined(merge, good, bad)
        except Disagreement as error:
            return replies.refusal(question, Reason.BACKENDS_DIFFER, str(error))
        except (RecursionError, ValueError, OverflowError):
            _log.warning("answers cannot be merged", exc_info=True)
            detail = "the answers of the backends cannot be put together"
            return replies.refusal(question, Reason.UPSTREAM_PROTOCOL, detail)
        _log_missing(question, bad, is_answered=bool(good))
        while good:
            good.pop()  # to free what was read of all of them at once takes 20 ms
            yield
        if body is None:
            return replies.failure(question, _telling(bad))
        return replies.merged(question, body, results)


def _combined(
    merge: Merge[Any], good: list[tuple[Result, Any]], bad: list[Result]
) -> Steps[bytes | None]:
    """One answer of those that are good; None where there are none. Those that cannot be merged
    with the others go from the good ones to the bad ones."""
    while good:
        try:
            answers = [(result.backend.name, answer) for result, answer in good]
            return (yield from merge.combine(answers))
        except Unreadable as error:
            result, _ = good.pop(error.at)
            bad.append(_unreadable(result, str(error)))
    return None


def _unreadable(result: Result, why: str) -> Result:
    error = UpstreamError(Outcome.PROTOCOL_ERROR, why)
    return unanswered(result.backend, result.protocol, error)


def _telling(bad: Sequence[Result]) -> Sequence[Result]:
    """The failures that say most: answers, where there are any."""
    return [result for result in bad if result.reason is None] or bad


def _log_missing(question: FanOutRequest, bad: Sequence[Result], *, is_answered: bool) -> None:
    """Say who is not in a view, unless it is down or does not have the model."""
    for result in bad:
        if is_answered and not (result.is_unreached or result.lacks_model):
            fields = {"operation": question.operation.name, "backend": result.backend.name}
            _log.warning("backend is missing in a view", extra={**fields, "why": result.detail})
