"""Loads models for the requests that need them, and unloads others to make room.

What is to be done says `lb.placing.planner`; this carries it out on Tritons that load
models on request, one change at a time on each. A model is evicted like one that an operator
drains: it gets no new requests, then what runs ends, then it is unloaded. Its room counts as taken
until the Triton's list says that it is gone (docs/decisions/0064-placement-of-models.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from lb.control.directory import BackendDirectory
from lb.control.models import ModelWatch
from lb.control.questions import Questions, Reply
from lb.control.record import BackendRecord, text
from lb.domain.backend import AdminState, Backend, BackendKind
from lb.domain.errors import UpstreamError
from lb.domain.model import ModelState
from lb.domain.operation import Operation, OperationKind
from lb.domain.pool import OnDemand
from lb.net.tasks import TaskOwner
from lb.placing.planner import Failure, Host, ModelPlanner, PlannerRules, Step
from lb.settings.model import Settings
from lb.settings.placement import PlacementMode, PlacementSettings
from lb.telemetry.counts import PlacementCounts
from lb.telemetry.record import RequestRecord

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""How often it is looked whether something is to be done, beside what requests ask for."""
_POLL_S: Final = 0.05
"""How often it is looked whether a model that is evicted has become idle, or has been unloaded."""
_IDLE_S: Final = 5.0
"""How long an eviction waits for requests that began just before it."""
_UNLOAD_S: Final = 60.0
"""How long an unload may take to show in the list of a Triton."""
LOAD_S: Final = 600.0
"""How long a load may take."""
_NO_MODEL: Final = b"triton-lb:no-such-model"
"""Unloading it changes nothing; a Triton agrees if it loads models on request."""
_NOT_EXPLICIT: Final = "explicit model load / unload is not allowed"
_TAKES_ROOM: Final = (ModelState.READY, ModelState.LOADING, ModelState.UNLOADING)
_USES: Final = frozenset({OperationKind.INFERENCE, OperationKind.STREAM})
_LOAD: Final = "RepositoryModelLoad"
_UNLOAD: Final = "RepositoryModelUnload"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModel:
    """A model that takes room on a backend."""

    model: bytes
    backend: str
    state: str
    """`ready`, `loading` or `unloading`."""
    age_s: float | None
    """Seconds since it was loaded; None where it was there before we looked."""
    value: float
    """Uses, recent ones more than old ones, times the seconds that loading takes."""
    kept: str
    """Why it is not evicted, unless it is in use or young; empty: it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementStatus:
    """What placement knows and does, for people."""

    mode: str = PlacementMode.OFF.value
    max_models: int = 0
    managed: tuple[str, ...] = ()
    """Backends that load models on request."""
    left_alone: tuple[str, ...] = ()
    """Tritons that do not."""
    models: tuple[PlacedModel, ...] = ()
    wanted: tuple[tuple[bytes, float], ...] = ()
    """Models that requests wait for, and for how many seconds."""
    steps: tuple[Step, ...] = ()
    """What is under way, or would be done now in the mode `observe`."""
    failures: tuple[tuple[bytes, str, Failure], ...] = ()
    """Model, backend, and the last load."""


class _NotUnloadedError(Exception):
    """A model cannot be unloaded; the message says why."""


class ModelPlacement:
    """Keeps the models of a pool where they are needed."""

    def __init__(
        self,
        directory: BackendDirectory,
        watch: ModelWatch,
        questions: Questions,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.options = PlacementSettings()
        """The options in force."""
        self.planner = ModelPlanner(PlannerRules(max_models=1))
        self._directory = directory
        self._watch = watch
        self._questions = questions
        self._clock = clock
        self._tasks = TaskOwner()
        self._loop: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._explicit: dict[BackendRecord, tuple[int, bool]] = {}
        """Which backends load models on request, and how often each had died when it said so."""
        self._asking: set[BackendRecord] = set()
        self._all_asked = asyncio.Event()
        """Set while no backend is being asked whether it loads models."""
        self._all_asked.set()
        self._wanted: dict[bytes, tuple[float, float]] = {}
        """Models that requests wait for: since when, and when one last began to."""
        self._used: set[bytes] = set()
        """Models that were used since the last look."""
        self._under_way: dict[BackendRecord, Step] = {}
        self._observed: tuple[Step, ...] = ()
        self._loads: Counter[str] = Counter()
        self._load_s = 0.0
        self._evictions = 0

    def configure(self, settings: Settings) -> None:
        """Go by other settings from now on."""
        options = self.options = settings.placement
        pinned = frozenset(name.encode() for name, own in settings.models.items() if own.pin)
        self.planner.rules = PlannerRules(
            max_models=options.max_models or 1, min_age_s=options.min_age, pinned=pinned
        )
        if options.mode is not PlacementMode.ON_DEMAND:
            self._directory.load_on_demand({})
        self._observed = ()
        self._woken.set()

    @property
    def is_on(self) -> bool:
        """Whether it looks at the pool at all."""
        return self.options.mode is not PlacementMode.OFF

    @property
    def is_active(self) -> bool:
        """Whether it loads and unloads models."""
        return self.options.mode is PlacementMode.ON_DEMAND

    def start(self) -> None:
        """Begin to look at the pool."""
        self._loop = self._tasks.spawn(self._run(), name="placement of models")

    async def first_round(self, timeout_s: float) -> None:
        """Return when each Triton has said whether it loads models on request, or that time has
        passed."""
        if not self.is_on:
            return
        self._look()
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_asked.wait()
        except TimeoutError:
            _log.warning("not every backend has said whether it loads models on request")
        self._look()

    async def aclose(self) -> None:
        """Leave what is under way."""
        await self._tasks.aclose()

    # News

    def wanted(self, model: bytes) -> None:
        """A request waits for a model that is loaded nowhere."""
        now = self._clock()
        since, _ = self._wanted.get(model, (now, now))
        if model not in self._wanted:
            self._woken.set()
        self._wanted[model] = since, now

    def missed(self, model: bytes) -> None:
        """A backend did not have a model ready that a request was for."""
        is_listed = model in self._directory.ref.current.routes
        if self.options.mode is PlacementMode.OBSERVE and is_listed:
            self.wanted(model)

    def finished(self, record: RequestRecord) -> None:
        """A request ended: its model was used. See `RequestSink`."""
        if record.backend is not None and record.operation.kind in _USES:
            self._used.add(record.model)

    def control_done(self, operation: Operation, model: bytes) -> None:
        """A client's call to load or unload a model came to an end: what clients load stays, and
        what they unload is not loaded for requests."""
        if not self.is_on:
            return
        if operation.name == _LOAD:
            self.planner.kept.add(model)
            self.planner.withdrawn.discard(model)
            self.planner.forget_failures(model)
        elif operation.name == _UNLOAD:
            self.planner.kept.discard(model)
            self.planner.withdrawn.add(model)
        self._woken.set()

    # The loop

    async def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception:  # top frame: without its loop requests would wait in vain
                _log.exception("placement of models failed")
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_S if self.is_on else None):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _look(self) -> None:
        """Begin what is to be done now."""
        if not self.is_on:
            return
        now = self._clock()
        planner = self.planner
        planner.used(self._used, now)
        self._used = set()
        self._ask_newcomers()
        records = {record.backend.name: record for record in self._managed()}
        hosts = [self._host(record) for record in records.values()]
        planner.follow(hosts, now)
        self._forget_wanted(hosts, now)
        if self.is_active:
            self._tell_routes(hosts, now)
        since = {model: since for model, (since, _) in self._wanted.items()}
        steps = planner.plan(since, hosts, self._is_used, now)
        if not self.is_active:
            self._observe(steps)
            return
        for step in steps:
            record = records[step.backend]
            self._under_way[record] = step
            self._tasks.spawn(self._carry_out(record, step), name=f"load on {step.backend}")

    def _managed(self) -> list[BackendRecord]:
        """Backends that load models on request and may get requests."""
        return [
            record
            for record in self._directory.records
            if self._explicit.get(record) == (record.backend.deaths, True)
            and record.admin is AdminState.ENABLED
            and record.answers
            and record.models.lists is True
        ]

    def _host(self, record: BackendRecord) -> Host:
        entries = record.models.entries
        taken = frozenset(each.name for each in entries if each.state in _TAKES_ROOM)
        step = self._under_way.get(record)
        out = record.drained_models | record.evicted
        ready = frozenset(each.name for each in entries if each.state is ModelState.READY) - out
        return Host(
            name=record.backend.name,
            catalogue=record.models.names - record.drained_models,
            taken=taken if step is None else taken | {step.model},
            ready=ready,
            needed=self._watch.steps_of(ready),
            is_busy=step is not None,
            in_flight=record.backend.in_flight,
        )

    def _is_used(self, backend: str, model: bytes) -> bool:
        return any(self._directory.model_use(self._directory.find(backend).backend, model))

    def _forget_wanted(self, hosts: list[Host], now: float) -> None:
        """Nobody waits any more for what is ready, is refused, or was asked for too long ago."""
        routes = self._directory.ref.current.routes
        ready: set[bytes] = set().union(*(host.ready for host in hosts))
        if self.is_active:
            # A Triton that has closed one of its ports may still list the model.
            ready = {
                each
                for each in self._wanted
                if (route := routes.get(each)) is None or route.on_demand is None
            }
        self._wanted = {
            model: (since, last)
            for model, (since, last) in self._wanted.items()
            if model not in ready
            and now < last + self.options.wait
            and not self.planner.refusal(model, hosts, now)
        }

    def _tell_routes(self, hosts: list[Host], now: float) -> None:
        """Say which models requests may wait for, and which are refused."""
        known = set().union(*(host.catalogue for host in hosts)) - self.planner.withdrawn
        waiting = OnDemand(self.options.wait)
        failed = {model for model, _ in self.planner.failures}
        self._directory.load_on_demand(
            {
                model: OnDemand(self.options.wait, self.planner.refusal(model, hosts, now))
                if model in failed
                else waiting
                for model in known
            }
        )

    def _observe(self, steps: list[Step]) -> None:
        for step in set(steps).difference(self._observed):
            fields = {"backend": step.backend, "model": text(step.model)}
            evicted = ", ".join(map(text, step.evict))
            _log.info("model would be loaded", extra={**fields, "evict": evicted})
        self._observed = tuple(steps)

    # Which backends load models on request

    def _ask_newcomers(self) -> None:
        records = set(self._directory.records)
        self._explicit = {
            record: known
            for record, known in self._explicit.items()
            if record in records and known[0] == record.backend.deaths
        }
        for record in records - self._explicit.keys() - self._asking:
            if (
                record.member.spec.kind is BackendKind.TRITON
                and record.answers
                and record.models.lists is True
            ):
                self._asking.add(record)
                self._all_asked.clear()
                name = f"ask {record.backend.name} whether it loads models"
                self._tasks.spawn(self._ask(record), name=name)

    async def _ask(self, record: BackendRecord) -> None:
        deaths = record.backend.deaths
        try:
            reply = await self._questions.unload(record, _NO_MODEL)
            is_explicit = not reply.detail.startswith(_NOT_EXPLICIT)
        except UpstreamError as error:
            fields = {"backend": record.backend.name, "why": error.detail}
            _log.debug("backend does not say whether it loads models", extra=fields)
        else:
            self._explicit[record] = deaths, is_explicit
            if not is_explicit:
                _log.warning(
                    "backend does not load models on request: its models are left alone",
                    extra={"backend": record.backend.name, "why": reply.detail},
                )
            self._woken.set()
        finally:
            self._asking.discard(record)
            if not self._asking:
                self._all_asked.set()

    # One step

    async def _carry_out(self, record: BackendRecord, step: Step) -> None:
        try:
            for model in step.evict:
                if not await self._is_evicted(record, model):
                    return  # planned anew at the next look
            await self._load(record, step.model)
            self._woken.set()
        except _NotUnloadedError as error:
            why = f"no room could be made: {error}"
            _log.warning(
                "model not evicted",
                extra={"backend": step.backend, "model": text(step.model), "why": str(error)},
            )
            self.planner.failed(step.model, step.backend, why, self._clock())
        finally:
            self._under_way.pop(record, None)
            self._directory.evict(record, frozenset())

    async def _is_evicted(self, record: BackendRecord, model: bytes) -> bool:
        """Unload a model. Returns whether it is gone; it is not if it is in use.

        Raises:
            _NotUnloadedError: it cannot be unloaded.
        """
        fields = {"backend": record.backend.name, "model": text(model)}
        self._directory.evict(record, frozenset({model}))
        give_up_at = self._clock() + _IDLE_S
        while any(self._directory.model_use(record.backend, model)):
            if self._clock() >= give_up_at:
                _log.info("model is not evicted: it is in use", extra=fields)
                return False
            await asyncio.sleep(_POLL_S)
        try:
            reply = await self._questions.unload(record, model)
        except UpstreamError as error:
            raise _NotUnloadedError(error.detail) from error
        if not reply.is_ok:
            raise _NotUnloadedError(reply.detail or f"status {reply.status}")
        give_up_at = self._clock() + _UNLOAD_S
        while self._has(record, model):
            if self._clock() >= give_up_at:
                raise _NotUnloadedError(f"{text(model)} stays loaded")
            await asyncio.sleep(_POLL_S)
            await self._watch.refreshed([record])
        self._evictions += 1
        _log.info("model evicted", extra=fields)
        return True

    @staticmethod
    def _has(record: BackendRecord, model: bytes) -> bool:
        return any(
            each.name == model and each.state in _TAKES_ROOM for each in record.models.entries
        )

    async def _load(self, record: BackendRecord, model: bytes) -> None:
        fields = {"backend": record.backend.name, "model": text(model)}
        began = self._clock()
        why = ""
        try:
            reply: Reply | None = await self._questions.load(record, model, LOAD_S)
        except UpstreamError as error:
            reply, why = None, error.detail
        if reply is not None and not reply.is_ok:
            why = reply.detail or f"status {reply.status}"
        now = self._clock()
        if why:
            self._loads["failed"] += 1
            self.planner.failed(model, record.backend.name, why, now)
            _log.warning("model not loaded", extra={**fields, "why": why})
            return
        took_s = now - began
        self._loads["loaded"] += 1
        self._load_s += took_s
        self.planner.loaded(model, record.backend.name, took_s)
        _log.info("model loaded", extra={**fields, "seconds": round(took_s, 3)})
        await self._watch.refreshed([record])

    # What people are shown

    def counts(self) -> PlacementCounts:
        """What was done since the start."""
        return PlacementCounts(
            loads=dict(self._loads), load_s=self._load_s, evictions=self._evictions
        )

    def status(self) -> PlacementStatus:
        """What is known and done now."""
        now = self._clock()
        managed = self._managed() if self.is_on else []
        hosts = [self._host(record) for record in managed]
        alone = [record.backend for record, (_, is_it) in self._explicit.items() if not is_it]
        return PlacementStatus(
            mode=self.options.mode.value,
            max_models=self.options.max_models or 0,
            managed=tuple(host.name for host in hosts),
            left_alone=_names(alone),
            models=tuple(
                each
                for record, host in zip(managed, hosts, strict=True)
                for each in self._placed(record, host, hosts, now)
            ),
            wanted=tuple((model, now - since) for model, (since, _) in self._wanted.items()),
            steps=tuple(self._under_way.values()) if self.is_active else self._observed,
            failures=tuple(
                (model, backend, failure)
                for (model, backend), failure in self.planner.failures.items()
            ),
        )

    def _placed(
        self, record: BackendRecord, host: Host, hosts: list[Host], now: float
    ) -> Iterable[PlacedModel]:
        planner = self.planner
        states = {
            each.name: each.state.value
            for each in record.models.entries
            if each.state in _TAKES_ROOM
        }
        for model in sorted(host.taken):
            loaded_at = planner.loaded_at.get((model, host.name))
            kept = ""
            if model in planner.rules.pinned:
                kept = "pinned"
            elif model in planner.kept:
                kept = "loaded by a client"
            elif model in host.needed:
                kept = "step of an ensemble"
            is_aged = loaded_at is not None and loaded_at > float("-inf")
            state = states.get(model, "loading")
            yield PlacedModel(
                model=model,
                backend=host.name,
                state="unloading" if model in record.evicted else state,
                age_s=now - loaded_at if loaded_at is not None and is_aged else None,
                value=planner.value(model, hosts, now),
                kept=kept,
            )


def _names(backends: Iterable[Backend]) -> tuple[str, ...]:
    return tuple(backend.name for backend in backends)
