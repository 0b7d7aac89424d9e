"""Loads models for the requests that need them, and unloads others to make room.

What is to be done says `lb.placing.planner`. `ModelLoader` does it on Tritons that load models on
request, one change at a time on each (docs/decisions/0064-placement-of-models.md).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from lb.control.directory import BackendDirectory
from lb.control.model_loader import (
    SETTLE_S,
    TAKES_ROOM,
    MemoryOf,
    ModelLoader,
    NotUnloadedError,
    no_memory,
)
from lb.control.models import ModelWatch
from lb.control.questions import Questions
from lb.control.record import BackendRecord
from lb.domain.backend import AdminState, Backend, BackendKind
from lb.domain.errors import UpstreamError
from lb.domain.model import ModelState, ModelUse
from lb.domain.names import readable
from lb.domain.operation import Operation, OperationKind
from lb.domain.pool import OnDemand, PoolSnapshot
from lb.domain.schedule import ModelBackendView
from lb.net.tasks import TaskOwner
from lb.net.timeouts import fair_timeout
from lb.placing.copies import Sample
from lb.placing.planner import Failure, Host, ModelPlanner, ModelRules, PlannerRules, Step
from lb.settings.choices import PlacementMode
from lb.settings.model import Settings
from lb.settings.placement import PlacementSettings
from lb.telemetry.counts import PlacementCounts
from lb.telemetry.record import RequestRecord

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""How often it is looked whether something is to be done, beside what requests ask for."""
_UNREAD_S: Final = 1.0
"""How long nothing is decided while it is being found out what a backend has, whose process may be
another one. Its models may still be there, and health checks notice meanwhile if it has died."""
_MEMORY_S: Final = 10.0
"""How often backends are asked for the memory that is in use while nothing changes there."""
_NO_MODEL: Final = b"triton-lb:no-such-model"
"""Unloading it changes nothing; a Triton agrees if it loads models on request."""
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
    load: float
    """What part of the time its copies are busy; beyond `UP` it gets another one."""
    size: int
    """Bytes that it takes; 0: memory is not bounded."""
    size_source: str
    kept: str
    """Why it is not evicted, unless it is in use or young; empty: it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementStatus:
    """What placement knows and does, for people."""

    mode: str = PlacementMode.OFF.value
    max_models: int = 0
    memory: int = 0
    """Bytes that the models of one backend may take; 0: not bounded."""
    unreturned: Mapping[str, int] = field(default_factory=dict)
    """By backend: memory of unloaded models that did not come back."""
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


class PlacementError(Exception):
    """What an operator asks for cannot be done; the message says why."""


def _no_views(_models: Collection[bytes]) -> Iterable[ModelBackendView]:
    """Stand for a relay that schedules nothing."""
    return ()


def _no_models() -> Mapping[bytes, float]:
    """Stand for a relay without requests."""
    return {}


def _no_streams() -> Collection[bytes]:
    """Stand for a relay without streams."""
    return ()


class ModelPlacement:
    """Keeps the models of a pool where they are needed."""

    def __init__(
        self,
        directory: BackendDirectory,
        watch: ModelWatch,
        questions: Questions,
        *,
        clock: Callable[[], float] = monotonic,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.options = PlacementSettings()
        """The options in force."""
        self.planner = ModelPlanner(PlannerRules())
        self.loader = ModelLoader(
            directory, watch, questions, self.planner, clock=clock, settle_s=settle_s
        )
        self.model_backends: Callable[[Collection[bytes]], Iterable[ModelBackendView]] = _no_views
        """Reads how busy the copies of these models are."""
        self.models_awaited: Callable[[], Mapping[bytes, float]] = _no_models
        """Reads which models requests wait for now, and when the first of these came."""
        self.models_streamed: Callable[[], Collection[bytes]] = _no_streams
        """Reads which models streams have used since the last look."""
        self.memory_of: MemoryOf = no_memory
        """Asks a backend for the bytes of its GPUs that are in use."""
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
        self._looked_at = -math.inf
        self._known: list[BackendRecord] = []
        """Backends that were managed at the last look."""
        self._unread: dict[BackendRecord, float] = {}
        """Managed backends whose models are not known at present, and since when."""
        self._unsubscribe: Callable[[], None] | None = None
        self._catalogues: dict[BackendRecord, tuple[float, frozenset[bytes]]] = {}
        """When each backend was managed last, and what it may load. One that is gone is expected
        back for as long as requests wait."""
        self._unloading: dict[tuple[BackendRecord, bytes], float] = {}
        """Models that are being unloaded, whoever asked for that, and since when."""
        self._leaving: set[tuple[BackendRecord, bytes]] = set()
        """Models among them whose unload is overdue."""
        self._memory: dict[BackendRecord, tuple[float, int | None]] = {}
        """Bytes of GPUs that are in use, and when that was asked."""
        self._asking_memory: set[BackendRecord] = set()
        """Backends that are asked for it. Nothing is loaded there while it is not known."""

    def configure(self, settings: Settings) -> None:
        """Go by other settings from now on."""
        options = self.options = settings.placement
        models = {name.encode(): own for name, own in settings.models.items()}
        self.planner.rules = PlannerRules(
            max_models=options.max_models,
            memory=options.memory,
            min_age_s=options.min_age,
            models={
                name: ModelRules(
                    is_pinned=own.pin,
                    min_copies=own.min_copies,
                    max_copies=own.max_copies,
                    idle_unload_s=own.idle_unload,
                    calls=frozenset(each.encode() for each in own.calls),
                )
                for name, own in models.items()
            },
        )
        self.planner.sizes.configured = {
            name: own.size for name, own in models.items() if own.size is not None
        }
        self.loader.memory_of = self.memory_of if options.memory is not None else no_memory
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
        self._unsubscribe = self._directory.ref.subscribe(self._on_snapshot)
        self._directory.on_models = self._on_models
        self._loop = self._tasks.spawn(self._run(), name="placement of models")

    async def first_round(self, timeout_s: float) -> None:
        """Return when each Triton has said whether it loads models on request, or that time has
        passed."""
        if not self.is_on:
            return
        self._look()
        try:
            async with fair_timeout(asyncio.get_running_loop(), timeout_s):
                await self._all_asked.wait()
        except TimeoutError:
            _log.warning("not every backend has said whether it loads models on request")
        self._look()

    async def aclose(self) -> None:
        """Leave what is under way."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self._tasks.aclose()

    # News

    def _on_snapshot(self, _snapshot: PoolSnapshot) -> None:
        """Look at backends that come into service before they answer that a model is not there."""
        if self.is_on and (
            self._managed() != self._known
            or set(self._find_unread()) != self._unread.keys()
            or self._find_newcomers()
        ):
            self._woken.set()

    def _on_models(self) -> None:
        """A backend may have room now for a model that requests wait for, or have lost it."""
        if self._wanted:
            self._woken.set()

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
        """Wait until something happens, or time has made a difference."""
        planner, looked_at = self.planner, self._looked_at
        overdue_at = [
            since + planner.overdue_unload_s(model) for (_, model), since in self._unloading.items()
        ]
        due_at = min(
            [planner.due_at(self._wanted_since(), looked_at)]
            + [at for at in overdue_at if at > looked_at]
        )
        due_s = max(0.0, due_at - self._clock())
        try:
            async with asyncio.timeout(min(_LOOK_S, due_s) if self.is_on else None):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    def _look(self) -> None:
        """Begin what is to be done now."""
        if not self.is_on:
            return
        now = self._looked_at = self._clock()
        planner = self.planner
        self._ask_newcomers()
        self._known = self._managed()
        self._unread = {record: self._unread.get(record, now) for record in self._find_unread()}
        if any(now < since + _UNREAD_S for since in self._unread.values()):
            return
        # Requests are told of when they end, and a stream may go on for days.
        self._used.update(self.models_streamed())
        # Clients make up names. They must neither cost time nor make the use of models fade.
        self._used &= frozenset[bytes]().union(*(each.models.names for each in self._known))
        planner.used(self._used, now)
        records = {record.backend.name: record for record in self._known}
        planner.steps = self._watch.ensembles()
        self._ask_memory(records.values(), now)
        self._follow_unloads(now)
        hosts = [self._host(record) for record in records.values()]
        planner.follow(hosts, now)
        self._sample(records, now)
        self._used = set()
        self._forget_wanted(hosts, now)
        if self.is_active:
            self._tell_routes(hosts, now)
        steps = planner.plan(self._wanted_since(), hosts, self._use_of, now)
        if not self.is_active:
            self._observe(steps)
            return
        for step in steps:
            record = records[step.backend]
            self._under_way[record] = step
            work = self._carry_out(record, step, is_for_requests=step.model in self._wanted)
            self._tasks.spawn(work, name=f"change {step.backend}")

    def _wanted_since(self) -> dict[bytes, float]:
        return {model: since for model, (since, _) in self._wanted.items()}

    def _sample(self, records: Mapping[str, BackendRecord], now: float) -> None:
        """Tell the planner how busy the copies of models are."""
        models = self._used | self.planner.demand.followed
        running: Counter[bytes] = Counter()
        limits: dict[bytes, list[int]] = {}
        for view in self.model_backends(models) if models else ():
            record = records.get(view.backend.name)
            if record is not None and view.limit and view.model in record.models.names:
                running[view.model] += view.in_flight
                limits.setdefault(view.model, []).append(view.limit)
        copies = Counter(
            model for record in records.values() for model in models & self._ready(record)
        )
        self.planner.demand.observe(
            {
                model: Sample(running[model], sum(each) / len(each), copies[model])
                for model, each in limits.items()
            },
            now,
        )

    def _ask_memory(self, records: Iterable[BackendRecord], now: float) -> None:
        """Ask backends for the memory that is in use, where that is bounded, and not too often."""
        if self.options.memory is None:
            self._memory.clear()
            return
        for record in records:
            at, known = self._memory.get(record, (-math.inf, None))
            if now - at >= _MEMORY_S and record not in self._under_way:
                if record not in self._memory:
                    self._asking_memory.add(record)
                self._memory[record] = now, known
                self._tasks.spawn(self._keep_memory(record), name=f"memory {record.backend.name}")

    async def _keep_memory(self, record: BackendRecord) -> None:
        try:
            self._memory[record] = self._clock(), await self.memory_of(record)
        finally:
            self._asking_memory.discard(record)
            self._woken.set()

    def _managed(self) -> list[BackendRecord]:
        """Backends that load models on request and may get requests."""
        return [record for record in self._loading_on_request() if record.models.lists is True]

    def _loading_on_request(self) -> Iterator[BackendRecord]:
        for record in self._directory.records:
            if (
                self._explicit.get(record) == (record.backend.deaths, True)
                and record.admin is AdminState.ENABLED
                and record.answers
            ):
                yield record

    def _follow_unloads(self, now: float) -> None:
        """Find out which unloads are overdue. Triton goes on with them."""
        unloading = {
            (record, model)
            for record in self._known
            for model in _names_in(record, ModelState.UNLOADING)
            - _names_in(record, ModelState.READY, ModelState.LOADING)
        }
        self._unloading = {key: self._unloading.get(key, now) for key in unloading}
        self._leaving &= unloading
        for (record, model), since in self._unloading.items():
            took_s = now - since
            is_overdue = took_s >= self.planner.overdue_unload_s(model)
            if is_overdue and (record, model) not in self._leaving:
                self._leaving.add((record, model))
                _log.warning(
                    "model unload is overdue: it is not waited for",
                    extra={
                        "backend": record.backend.name,
                        "model": readable(model),
                        "seconds": round(took_s, 3),
                    },
                )

    def _find_unread(self) -> list[BackendRecord]:
        """Backends that were managed, and have not listed their models since one of their ports
        began to refuse connections."""
        return [record for record in self._loading_on_request() if record.models.lists is None]

    def _host(self, record: BackendRecord) -> Host:
        taken = _names_in(record, *TAKES_ROOM)
        leaving = frozenset(model for each, model in self._leaving if each is record)
        step = self._under_way.get(record)
        overdue: frozenset[bytes] = frozenset()
        if step is not None and step.model is not None:
            new = {*step.before, step.model}
            taken |= new
            is_late = not leaving.isdisjoint(step.evict)
            if self.loader.check_overdue(record) or is_late:
                overdue = frozenset(new) - self._ready(record)
        return Host(
            name=record.backend.name,
            catalogue=record.models.names - record.drained_models,
            taken=taken,
            ready=self._ready(record),
            overdue=overdue,
            leaving=leaving,
            memory_used=self._memory.get(record, (0.0, None))[1],
            is_busy=step is not None or record in self._asking_memory,
            in_flight=record.backend.in_flight,
        )

    @staticmethod
    def _ready(record: BackendRecord) -> frozenset[bytes]:
        """Models that get requests on a backend."""
        ready = _names_in(record, ModelState.READY)
        return ready - record.drained_models - record.evicted

    def _use_of(self, backend: str, model: bytes) -> ModelUse:
        return self._directory.model_use(self._directory.find(backend).backend, model)

    def _forget_wanted(self, hosts: list[Host], now: float) -> None:
        """Nobody waits any more for what is ready, is refused, or was asked for too long ago, nor
        for what all clients have left that asked for it. Who has left counts no more: a model is
        wanted since the first of the requests came that still wait for it."""
        routes = self._directory.ref.current.routes
        over: set[bytes] = set().union(*(host.ready for host in hosts))
        awaited: Mapping[bytes, float] = {}
        if self.is_active:
            # A Triton that has closed one of its ports may still list the model.
            over = {
                each
                for each in self._wanted
                if (route := routes.get(each)) is None or route.on_demand is None
            }
            awaited = self.models_awaited()
            over.update(each for each in self._wanted if each not in awaited)
        self._wanted = {
            model: (awaited.get(model, since), last)
            for model, (since, last) in self._wanted.items()
            if model not in over
            and now < last + self.options.wait
            and not self.planner.refusal(model, hosts, now)
        }

    def _tell_routes(self, hosts: list[Host], now: float) -> None:
        """Say which models requests may wait for, and which are refused."""
        self._follow_catalogues(now)
        known = set().union(*(names for _, names in self._catalogues.values()))
        known -= self.planner.withdrawn
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

    def _follow_catalogues(self, now: float) -> None:
        """Note what managed backends may load, and forget those that are not expected back."""
        for record in self._known:
            self._catalogues[record] = now, record.models.names - record.drained_models
        here = set(self._directory.records)
        self._catalogues = {
            record: (at, names)
            for record, (at, names) in self._catalogues.items()
            if record in here
            and record.admin is AdminState.ENABLED
            and now < at + self.options.wait
            and self._explicit.get(record) != (record.backend.deaths, False)
        }

    def _observe(self, steps: list[Step]) -> None:
        for step in set(steps).difference(self._observed):
            evicted = ", ".join(map(readable, step.evict))
            fields = {"backend": step.backend, "evict": evicted}
            if step.model is None:
                _log.info("model would be unloaded", extra=fields)
            else:
                _log.info("model would be loaded", extra={**fields, "model": readable(step.model)})
        self._observed = tuple(steps)

    # Which backends load models on request

    def _ask_newcomers(self) -> None:
        records = set(self._directory.records)
        for record, (deaths, _) in self._explicit.items():
            if record in records and deaths != record.backend.deaths:
                self.planner.sizes.restarted(record.backend.name)
        self._explicit = {
            record: known
            for record, known in self._explicit.items()
            if record in records and known[0] == record.backend.deaths
        }
        for record in self._find_newcomers():
            self._asking.add(record)
            self._all_asked.clear()
            name = f"ask {record.backend.name} whether it loads models"
            self._tasks.spawn(self._ask(record), name=name)

    def _find_newcomers(self) -> list[BackendRecord]:
        """Tritons that have come or come back, and have not been asked since."""
        return [
            record
            for record in self._directory.records
            if record.member.spec.kind is BackendKind.TRITON
            and record not in self._asking
            and self._explicit.get(record, (None, False))[0] != record.backend.deaths
            and record.answers
            and record.models.lists is True
        ]

    async def _ask(self, record: BackendRecord) -> None:
        deaths = record.backend.deaths
        try:
            reply = await self._questions.unload(record, _NO_MODEL)
            is_explicit = not reply.refuses_control
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

    async def _carry_out(self, record: BackendRecord, step: Step, *, is_for_requests: bool) -> None:
        """Carry a step out. It ends early if it was for requests, and their clients have left."""
        try:
            await self.loader.carry_out(
                record,
                step,
                lambda: not is_for_requests or step.model in self.models_awaited(),
            )
        finally:
            self._under_way.pop(record, None)
            self._memory.pop(record, None)
            self._woken.set()

    # What operators ask for

    def pin(self, model: bytes, *, is_pinned: bool) -> None:
        """Keep a model loaded, or do so no more, until the process ends. A pin outranks clients who
        unloaded it.

        Raises:
            LookupError: no managed backend has it in its repository.
            PlacementError: placement is off.
        """
        self._check(model)
        self.planner.pins[model] = is_pinned
        if is_pinned:
            self.planner.withdrawn.discard(model)
        _log.info(
            "model pinned" if is_pinned else "model unpinned", extra={"model": readable(model)}
        )
        self._woken.set()

    async def evict(self, model: bytes, backend: str = "") -> None:
        """Unload a model, whatever its age, and whoever loaded it.

        Args:
            model: its name.
            backend: where; empty: everywhere.

        Raises:
            LookupError: it is not loaded there.
            PlacementError: it is pinned, needed or in use, or cannot be unloaded.
        """
        self._check(model)
        if not self.is_active:
            raise PlacementError("placement.mode is not on_demand")
        records = [
            record
            for record in self._managed()
            if backend in ("", record.backend.name) and model in self._ready(record)
        ]
        copies = sum(model in self._ready(record) for record in self._managed())
        if records and copies - len(records) < self.planner.copies_kept(model):
            raise PlacementError("it is pinned, or has min_copies")
        if not records:
            where = f"on backend {backend!r}" if backend else "on any backend"
            raise LookupError(f"model {readable(model)!r} is not loaded {where}")
        for record in records:
            await self._evict_now(record, model)

    async def _evict_now(self, record: BackendRecord, model: bytes) -> None:
        name = record.backend.name
        if model in self.planner.needed(self._ready(record)):
            raise PlacementError(f"another model on {name} needs it")
        if record in self._under_way:
            raise PlacementError(f"{name} is loading or unloading a model; try again")
        self._under_way[record] = Step(None, name, (model,))
        try:
            if not await self.loader.evict(record, model, "operator"):
                raise PlacementError(f"requests or sequences use it on {name}")
        except NotUnloadedError as error:
            raise PlacementError(f"{name} says: {error}") from error
        finally:
            self._directory.evict(record, frozenset())
            self._under_way.pop(record, None)
            self._woken.set()
        self.planner.kept.discard(model)

    def _check(self, model: bytes) -> None:
        if not self.is_on:
            raise PlacementError("placement.mode is off")
        if not any(model in record.models.names for record in self._managed()):
            raise LookupError(f"no managed backend has a model {readable(model)!r}")

    # What people are shown

    def counts(self) -> PlacementCounts:
        """What was done since the start, and is so now."""
        return self.loader.counts()

    def status(self) -> PlacementStatus:
        """What is known and done now."""
        now = self._clock()
        managed = self._managed() if self.is_on else []
        hosts = [self._host(record) for record in managed]
        copies = Counter(model for host in hosts for model in host.ready)
        alone = [record.backend for record, (_, is_it) in self._explicit.items() if not is_it]
        return PlacementStatus(
            mode=self.options.mode.value,
            max_models=self.options.max_models or 0,
            memory=self.options.memory or 0,
            unreturned=dict(self.planner.sizes.unreturned),
            managed=tuple(host.name for host in hosts),
            left_alone=_names(alone),
            models=tuple(
                each
                for record, host in zip(managed, hosts, strict=True)
                for each in self._placed(record, host, copies, now)
            ),
            wanted=tuple((model, now - since) for model, (since, _) in self._wanted.items()),
            steps=tuple(self._under_way.values()) if self.is_active else self._observed,
            failures=tuple(
                (model, backend, failure)
                for (model, backend), failure in self.planner.failures.items()
            ),
        )

    def _placed(
        self, record: BackendRecord, host: Host, copies: Mapping[bytes, int], now: float
    ) -> Iterable[PlacedModel]:
        planner = self.planner
        needed = planner.needed(host.ready)
        step = self._under_way.get(record)
        leaving = record.evicted if step is None else record.evicted.intersection(step.evict)
        states = {
            each.name: each.state.value
            for each in record.models.entries
            if each.state in TAKES_ROOM
        }
        for model in sorted(host.taken):
            loaded_at = planner.loaded_at.get((model, host.name))
            kept = ""
            if planner.is_pinned(model):
                kept = "pinned"
            elif 0 < copies[model] <= planner.copies_kept(model):
                kept = "min_copies"
            elif model in planner.kept:
                kept = "loaded by a client"
            elif model in needed:
                kept = "needed by another model"
            is_aged = loaded_at is not None and loaded_at > float("-inf")
            state = states.get(model, "loading")
            yield PlacedModel(
                model=model,
                backend=host.name,
                state="unloading" if model in leaving else state,
                age_s=now - loaded_at if loaded_at is not None and is_aged else None,
                value=planner.value(model, copies[model], now),
                load=planner.demand.load(model, copies[model]),
                size=planner.sizes.of(model) if planner.rules.memory is not None else 0,
                size_source=planner.sizes.source(model),
                kept=kept,
            )


def _names_in(record: BackendRecord, *states: ModelState) -> frozenset[bytes]:
    """Models of which the newest list of a backend has a version in one of these states."""
    return frozenset(each.name for each in record.models.entries if each.state in states)


def _names(backends: Iterable[Backend]) -> tuple[str, ...]:
    return tuple(backend.name for backend in backends)
