"""Carries out loads and unloads of models on a backend, as `lb.placing.planner` decides.

A model is evicted like one that an operator drains: it gets no new requests, then what runs ends,
then it is unloaded. Its room counts as taken until the Triton's list says that it is gone
(docs/decisions/0064-placement-of-models.md).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from lb.control.directory import BackendDirectory
from lb.control.models import ModelWatch
from lb.control.questions import NotOffered, Questions
from lb.control.record import BackendRecord
from lb.domain.backend import Backend
from lb.domain.errors import UpstreamError
from lb.domain.model import ModelState
from lb.domain.names import readable
from lb.domain.outcome import UNREACHED, Outcome
from lb.placing.planner import Failure, FailureKind, ModelPlanner, Step
from lb.telemetry.counts import LOAD_BOUNDS_S, PlacementCounts

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.05
"""How often it is looked whether a model that is evicted has become idle, or has been unloaded."""
_IDLE_S: Final = 5.0
"""How long an eviction waits for requests that began just before it."""
_UNLOAD_S: Final = 60.0
"""How long an unload may take to show in the list of a Triton."""
LOAD_S: Final = 600.0
"""How long a load may take."""
SETTLE_S: Final = 2.5
"""Until the metrics of a Triton show the memory that a change took: Triton reads its GPUs every two
seconds (`--metrics-interval-ms`)."""
TAKES_ROOM: Final = (ModelState.READY, ModelState.LOADING, ModelState.UNLOADING)
_NOTABLE: Final = 0.5
"""Part of a model's memory that did not come back from which on it is logged."""

MemoryOf = Callable[[BackendRecord], Awaitable[int | None]]
"""Asks a backend for the bytes of its GPUs that are in use; None: it does not say."""


async def no_memory(_record: BackendRecord) -> int | None:
    """Stand for asking where memory does not matter."""
    return None


def _no_streams(_backend: Backend, _model: bytes) -> None:
    """Stand for a relay without streams."""


def _always() -> bool:
    return True


class NotUnloadedError(Exception):
    """A model cannot be unloaded; the message says why."""

    def __init__(self, why: str, kind: FailureKind = FailureKind.REFUSED) -> None:
        super().__init__(why)
        self.kind = kind


class ModelLoader:
    """Loads and unloads models, and counts that."""

    def __init__(
        self,
        directory: BackendDirectory,
        watch: ModelWatch,
        questions: Questions,
        planner: ModelPlanner,
        *,
        clock: Callable[[], float] = monotonic,
        settle_s: float = SETTLE_S,
    ) -> None:
        """
        Args:
            directory: knows what runs on backends.
            watch: knows their models.
            questions: tells backends what to do.
            planner: hears how loads went.
            clock: monotonic seconds.
            settle_s: until the metrics of a Triton show the memory that a change took.
        """
        self._directory = directory
        self._watch = watch
        self._questions = questions
        self._planner = planner
        self._clock = clock
        self._settle_s = settle_s
        self.memory_of: MemoryOf = no_memory
        """Asked before and after changes."""
        self.leave_streams: Callable[[Backend, bytes], None] = _no_streams
        """Ends streams at a backend that is to unload a model."""
        self._loading: dict[BackendRecord, tuple[bytes, float]] = {}
        """By backend: the model that it loads, and since when. Its name may pass to a successor
        meanwhile."""
        self._overdue: set[BackendRecord] = set()
        """Backends whose load takes too long to wait for."""
        self._loads: Counter[str] = Counter()
        self._load_counts = [0] * (len(LOAD_BOUNDS_S) + 1)
        self._load_s = 0.0
        self._evictions: Counter[str] = Counter()

    def counts(self) -> PlacementCounts:
        """What was done since the start."""
        return PlacementCounts(
            loads=dict(self._loads),
            load_counts=tuple(self._load_counts),
            load_s=self._load_s,
            evictions=dict(self._evictions),
        )

    def check_overdue(self, record: BackendRecord) -> bool:
        """Note if a backend takes too long to load a model; see `ModelPlanner.overdue_s`. The load
        goes on, and counts when it succeeds after all. Returns whether it takes too long."""
        loading = self._loading.get(record)
        if loading is None or record in self._overdue:
            return loading is not None
        model, since = loading
        took_s = self._clock() - since
        if took_s < self._planner.overdue_s(model):
            return False
        self._overdue.add(record)
        self._loads["overdue"] += 1
        name = record.backend.name
        fields = {"backend": name, "model": readable(model), "seconds": round(took_s, 3)}
        _log.warning("model load is overdue: other backends may load the model", extra=fields)
        return True

    async def carry_out(
        self, record: BackendRecord, step: Step, is_needed: Callable[[], bool]
    ) -> None:
        """Make room and load. What fails is remembered by the planner, and tried again as that
        says.

        Args:
            record: the backend.
            step: what is to be done there.
            is_needed: asked before each load and unload; if not, the rest of the step is left out.
        """
        why = "idle" if step.model is None else "room"
        try:
            for model in step.evict:
                if not await self.evict(record, model, why, is_needed):
                    return  # planned anew at the next look
        except NotUnloadedError as error:
            name = record.backend.name  # that of the step may be a successor's by now
            _log.warning(
                "model not evicted",
                extra={"backend": name, "model": readable(model), "why": str(error)},
            )
            # An idle model that cannot be unloaded is not asked for again and again, either.
            failed = step.model or model
            told = f"no room could be made: {error}"
            self._planner.failed(failed, name, told, self._clock(), error.kind)
            return
        finally:
            self._directory.evict(record, frozenset())
        if step.model is None:
            return
        for model in (*step.before, step.model):
            if not is_needed():
                fields = {"backend": record.backend.name, "model": readable(step.model)}
                _log.info("model is not loaded: all clients have left", extra=fields)
                return
            if failure := await self._load(record, model):
                if model != step.model:
                    told = f"{readable(model)}, which it calls, was not loaded: {failure.error}"
                    self._planner.failed(
                        step.model, record.backend.name, told, self._clock(), failure.kind
                    )
                return

    async def evict(
        self, record: BackendRecord, model: bytes, why: str, is_needed: Callable[[], bool] = _always
    ) -> bool:
        """Unload a model. Returns whether it is gone; it is not if it is in use, or if that is not
        needed any more. Until `BackendDirectory.evict` says otherwise, it gets no requests there.

        Args:
            record: the backend.
            model: its name.
            why: for the metrics.
            is_needed: asked until the unload begins.

        Raises:
            NotUnloadedError: it cannot be unloaded.
        """
        fields = {"backend": record.backend.name, "model": readable(model)}
        self._directory.evict(record, frozenset({model}))
        began = self._clock()
        give_up_at = began + _IDLE_S
        while is_needed() and any(self._directory.model_use(record.backend, model)):
            # Triton keeps a model as long as a stream is open that has asked for it.
            self.leave_streams(record.backend, model)
            if self._clock() >= give_up_at:
                _log.info("model is not evicted: it is in use", extra=fields)
                self._planner.stayed_in_use(model, record.backend.name, self._clock())
                return False
            await asyncio.sleep(_POLL_S)
        before = await self.memory_of(record)
        if not is_needed():
            _log.info("model is not evicted: all clients have left", extra=fields)
            return False
        try:
            reply = await self._questions.unload(record, model)
        except UpstreamError as error:
            if error.outcome is Outcome.LOST or error.outcome in UNREACHED:
                raise NotUnloadedError(error.detail, FailureKind.ABSENT) from error
            raise NotUnloadedError(error.detail) from error
        if not reply.is_ok:
            raise NotUnloadedError(reply.detail or f"status {reply.status}")
        unload_began = self._clock()
        give_up_at = unload_began + _UNLOAD_S
        while self._has(record, model):
            if self._clock() >= give_up_at:
                raise NotUnloadedError(f"{readable(model)} stays loaded")
            await asyncio.sleep(_POLL_S)
            await self._watch.listed(record)
        self._planner.unload_s[model] = self._clock() - unload_began
        self._evictions[why] += 1
        took_s = round(self._clock() - began, 3)
        _log.info("model evicted", extra={**fields, "why": why, "seconds": took_s})
        if before is not None:
            await self._note_shrunk(record, model, before)
        return True

    @staticmethod
    def _has(record: BackendRecord, model: bytes) -> bool:
        return any(
            each.name == model and each.state in TAKES_ROOM for each in record.models.entries
        )

    async def _load(self, record: BackendRecord, model: bytes) -> Failure | None:
        """Load a model. Returns how it failed; None: it did not.

        A model that was never loaded gets requests once its configuration has been read. It says
        how they are queued, and whether it is known when a stream has all of its answers.
        """
        before = await self.memory_of(record)
        is_new = not self._watch.is_configured(model)
        if is_new:
            self._directory.evict(record, frozenset({model}))
        try:
            failure = await self._ask_to_load(record, model)
            if failure is None:
                await self._watch.listed(record)
                await self._watch.configured(model)
        finally:
            if is_new:
                self._directory.evict(record, frozenset())
        if failure is None and before is not None:
            await self._note_grown(record, model, before)
        return failure

    async def _ask_to_load(self, record: BackendRecord, model: bytes) -> Failure | None:
        """Have a backend load a model. Returns how that failed; None: it did not."""
        fields = {"backend": record.backend.name, "model": readable(model)}
        began = self._clock()
        why, kind = "", FailureKind.REFUSED
        self._loading[record] = model, began
        try:
            reply = await self._questions.load(record, model, LOAD_S)
            if not reply.is_ok:
                why = reply.detail or f"status {reply.status}"
        except UpstreamError as error:
            why = error.detail or "the connection was lost"
            if error.outcome in UNREACHED:
                kind = FailureKind.ABSENT
            elif error.outcome is Outcome.LOST and not await self._lives(record):
                kind = FailureKind.DIED
        finally:
            self._loading.pop(record, None)
            self._overdue.discard(record)
        now = self._clock()
        took_s = now - began
        if why:
            self._loads["failed"] += 1
            failure = self._planner.failed(model, record.backend.name, why, now, kind, took_s)
            _log.warning("model not loaded", extra={**fields, "why": why})
            return failure
        self._loads["loaded"] += 1
        self._load_counts[bisect_left(LOAD_BOUNDS_S, took_s)] += 1
        self._load_s += took_s
        self._planner.loaded(model, record.backend.name, took_s)
        _log.info("model loaded", extra={**fields, "seconds": round(took_s, 3)})
        return None

    async def _lives(self, record: BackendRecord) -> bool:
        """Whether a backend answers: a connection may also be lost by something on the way."""
        try:
            await self._questions.index(record)
        except UpstreamError:
            return False
        except NotOffered:
            pass  # that is an answer
        return True

    # Memory

    async def _note_grown(self, record: BackendRecord, model: bytes, before: int) -> None:
        """Learn the size of a model that was loaded. The backend changes nothing meanwhile."""
        if (after := await self._settled_memory(record)) is not None:
            self._planner.sizes.loaded(model, record.backend.name, after - before)
        told = await self._questions.memory_usage(record, model)
        if told:
            self._planner.sizes.told[model] = told

    async def _note_shrunk(self, record: BackendRecord, model: bytes, before: int) -> None:
        """Notice memory that does not come back."""
        after = await self._settled_memory(record)
        sizes = self._planner.sizes
        size = sizes.of(model)
        if after is None or not size:
            return
        missing = sizes.unloaded(model, record.backend.name, before - after)
        if missing > _NOTABLE * size:
            fields = {"backend": record.backend.name, "model": readable(model), "bytes": missing}
            _log.warning("memory of an unloaded model did not come back", extra=fields)

    async def _settled_memory(self, record: BackendRecord) -> int | None:
        await asyncio.sleep(self._settle_s)
        return await self.memory_of(record)
