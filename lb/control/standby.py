"""Activates and releases standby backends, as `StandbyPlanner` decides.

A standby backend that does not serve has the administrative state `standby`: it is probed and
listed, and gets no requests. Its activation runs a command or loads models, waits until the backend
is ready and warmed up, and then enables it with a slow start. Its release is a drain, after which
its models are unloaded or its server is stopped.

Nothing runs while no backend stands by.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from lb.control.directory import BackendDirectory
from lb.control.models import ModelWatch
from lb.control.questions import Questions
from lb.control.record import BackendRecord
from lb.control.scaling import ScalingSignal
from lb.control.standby_plan import Load, StandbyBackend, StandbyPlanner, Wanted
from lb.domain.backend import WELL_STATES, AdminState, AppProtocol, Backend
from lb.domain.errors import LoadBalancerError, UpstreamError
from lb.domain.names import readable
from lb.domain.pool import OnDemand, PoolSnapshot
from lb.domain.standby import (
    ActivationCause,
    StandbyCounts,
    StandbyPhase,
    StandbyRule,
    StandbyStatus,
)
from lb.net.command import CommandError, run_command
from lb.net.tasks import TaskOwner
from lb.settings.standby import StandbySettings

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
"""How often decisions are made."""
_POLL_S: Final = 0.1
"""How often a backend that is activated is checked for being ready."""
_LOST_S: Final = 10.0
"""An active backend that has not been ready for so long is activated anew: its server is gone, or
has restarted without its models."""
_RETRY_S: Final = 10.0
"""Before a failed activation is tried again; twice as long after each further failure."""
_RETRY_MAX_S: Final = 600.0
_PATIENCE: Final = 3
"""Failures in a row of every backend that may be activated, after which requests do not wait."""
_OPERABLE: Final = (AdminState.ENABLED, AdminState.STANDBY)
"""Administrative states in which no operator wants a backend out."""


class NotStandbyError(LoadBalancerError):
    """The backend always serves, or an operator has taken it out of service."""


class _NotActivatedError(LoadBalancerError):
    """A backend does not become ready."""


class _Standby:
    """One standby backend. Its task, if any, activates or stops it."""

    __slots__ = (
        "cause", "cold_start_s", "error", "failures", "not_ready_since", "phase", "record",
        "retry_at", "since", "task",
    )  # fmt: skip

    def __init__(self, record: BackendRecord, phase: StandbyPhase, now: float) -> None:
        self.record = record
        self.phase = phase
        self.since = now
        self.cause = ""
        self.error = ""
        self.failures = 0
        self.retry_at = 0.0
        self.cold_start_s: float | None = None
        self.not_ready_since: float | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def rule(self) -> StandbyRule:
        """How it is activated."""
        return self.record.member.standby or StandbyRule(rank=0)

    @property
    def is_ready(self) -> bool:
        """Whether it could serve, as far as probes and its list of models say. What is warmed up is
        there."""
        record = self.record
        models = record.models
        if not all(port.health.state in WELL_STATES for port in record.ports):
            return False
        if models.lists is None:
            return False
        return models.lists is False or {name for name, _ in models.ready | models.cold}.issuperset(
            self.rule.load
        )

    def enter(self, phase: StandbyPhase, now: float) -> None:
        """Begin a phase."""
        if phase is not self.phase:
            self.phase, self.since = phase, now
        self.tell()

    def tell(self) -> None:
        """Show on the record what is so now."""
        self.record.standby = StandbyStatus(
            backend=self.record.backend.name,
            rank=self.rule.rank,
            phase=self.phase,
            since=self.since,
            cause=self.cause,
            error=self.error,
            failures=self.failures,
            retry_at=self.retry_at,
            cold_start_s=self.cold_start_s,
        )


class StandbyControl:
    """Knows all standby backends of a pool. To be used from its event loop."""

    def __init__(
        self,
        directory: BackendDirectory,
        watch: ModelWatch,
        questions: Questions,
        scaling: ScalingSignal,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.options = StandbySettings()
        """The options in force."""
        self.is_leaving = False
        """The process ends: another one may use what is active, so nothing is released."""
        self._directory = directory
        self._watch = watch
        self._questions = questions
        self._scaling = scaling
        self._clock = clock
        self._planner = StandbyPlanner()
        self._standbys: dict[BackendRecord, _Standby] = {}
        self._wanted: dict[Wanted, float] = {}
        """What requests wait for, and when one last asked for it."""
        self._activations: dict[tuple[str, str, str], int] = {}
        self._cold_start_s = 0.0
        self._held: tuple[object, OnDemand | None] = ((), None)
        """What requests wait for, and what that was made of."""
        self._tasks = TaskOwner()
        self._loop: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._unsubscribe: Callable[[], None] | None = None

    def configure(self, options: StandbySettings) -> None:
        """Go by other options from now on."""
        self.options = options
        self._planner.for_s, self._planner.cooldown_s = options.for_, options.cooldown
        self._woken.set()

    def start(self) -> None:
        """Begin to decide. What runs already was activated by a process before this one."""
        self._follow_members()
        for standby in self._standbys.values():
            rule = standby.rule
            if (rule.start or rule.load) and standby.is_ready:
                standby.cause = ActivationCause.FOUND.value
                self._enable(standby, self._clock())
        self._unsubscribe = self._directory.ref.subscribe(self._on_snapshot)
        self._on_snapshot(self._directory.ref.current)

    async def aclose(self) -> None:
        """Leave all backends as they are; a command that still runs is killed."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        await self._tasks.aclose()

    # News

    def wanted(self, model: bytes, protocol: AppProtocol) -> None:
        """A request for a model waits for a standby backend."""
        if (model, protocol) not in self._wanted:
            self._woken.set()
        self._wanted[model, protocol] = self._clock()

    def order(self, record: BackendRecord, *, is_active: bool) -> None:
        """Do what an operator says: activate a backend, or release it.

        Raises:
            NotStandbyError: it is no standby backend, or drained or disabled.
        """
        self._follow_members()
        standby = self._standbys.get(record)
        name = record.backend.name
        if standby is None:
            raise NotStandbyError(f"backend {name} is no standby backend")
        if record.admin not in _OPERABLE:
            raise NotStandbyError(f"backend {name} is {record.state.value}; enable it first")
        if is_active and self._may_activate(standby):
            self._activate(standby, ActivationCause.OPERATOR)
        elif not is_active and standby.phase is StandbyPhase.ACTIVE:
            self._release(standby, "operator")
        self._woken.set()

    def _on_snapshot(self, snapshot: PoolSnapshot) -> None:
        if self._loop is None and any(
            record.member.standby is not None for record in self._directory.records
        ):
            self._loop = self._tasks.spawn(self._run(), name="standby")
        elif self._wanted and snapshot.on_standby is not None:
            self._woken.set()

    # The loop

    async def _run(self) -> None:
        try:
            while self._follow_members():
                try:
                    self._look()
                except Exception:  # top frame: without its loop requests would wait in vain
                    _log.exception("standby failed")
                try:
                    async with asyncio.timeout(_LOOK_S):
                        await self._woken.wait()
                except TimeoutError:
                    pass
                self._woken.clear()
        finally:
            self._loop = None
            self._directory.hold_for_standby(None, {})

    def _follow_members(self) -> bool:
        """Know the standby backends of now. Returns whether there are any."""
        now = self._clock()
        there = {
            record: None
            for record in self._directory.records
            if record.member.standby is not None and record.admin is not AdminState.REMOVING
        }
        for record in tuple(self._standbys):
            if record not in there:
                task = self._standbys.pop(record).task
                if task is not None:
                    task.cancel()
                record.standby = None
        for record in there:
            if record not in self._standbys:
                is_active = record.admin is AdminState.ENABLED
                phase = StandbyPhase.ACTIVE if is_active else StandbyPhase.STANDBY
                standby = self._standbys[record] = _Standby(record, phase, now)
                standby.tell()
        return bool(there)

    def _look(self) -> None:
        now = self._clock()
        for standby in tuple(self._standbys.values()):
            self._look_at(standby, now)
        self._forget_wanted(now)
        scaling = self._scaling.predict(now)
        load = Load(scaling.latency, scaling.needed_weight, self._serving())
        plan = self._planner.plan(
            [_planned(each) for each in self._standbys.values() if self._is_operable(each)],
            load,
            self._wanted,
            self._may_serve,
            now,
        )
        by_name = {each.record.backend.name: each for each in self._standbys.values()}
        for name, cause in plan.activate:
            self._activate(by_name[name], cause)
        if plan.release and not self.is_leaving:
            self._release(by_name[plan.release], "not needed")
        self._hold(now)

    def _look_at(self, standby: _Standby, now: float) -> None:
        """Go on with what became of a backend."""
        record = standby.record
        if standby.phase is StandbyPhase.ACTIVE and self._is_operable(standby):
            if record.admin is AdminState.STANDBY:  # an operator had taken it out, and enabled it
                self._release(standby, "enabled")
            elif standby.is_ready or not (standby.rule.start or standby.rule.load):
                standby.not_ready_since = None
            elif standby.not_ready_since is None:
                standby.not_ready_since = now
            elif now - standby.not_ready_since >= _LOST_S or (self._wanted and not record.answers):
                self._count(standby, "lost")
                self._release(standby, "it is not ready any more")
        if (
            standby.phase is StandbyPhase.RELEASING
            and standby.task is None
            and (record.is_empty or not record.answers)
        ):
            name = f"stop {record.backend.name}"
            standby.task = self._tasks.spawn(self._stop_released(standby), name=name)

    def _is_operable(self, standby: _Standby) -> bool:
        return standby.record.admin in _OPERABLE

    def _serving(self) -> float:
        """Weight of the backends that get requests."""
        snapshot = self._directory.ref.current
        usable = {each for protocol in AppProtocol for each in snapshot.ready(protocol)}
        return sum(backend.spec.weight for backend in usable)

    def _may_serve(self, name: str, wanted: Wanted) -> bool:
        """Whether a backend, once it is active, may have a model over a protocol."""
        model, protocol = wanted
        record = self._directory.find(name)
        if record.port(protocol) is None:
            return False
        rule = record.member.standby
        if rule is not None and model in rule.load:
            return True
        if record.answers and record.models.lists is True:
            return any(model == ready for ready, _ in record.models.ready)
        return rule is None or not rule.load

    def _forget_wanted(self, now: float) -> None:
        """Nobody waits any more for what is served, or was asked for too long ago."""
        if not self._wanted:
            return
        snapshot = self._directory.ref.current
        for (model, protocol), asked_at in tuple(self._wanted.items()):
            route = snapshot.routes.get(model)
            placements = (route and route.placements) or snapshot.placements
            if now >= asked_at + self.options.hold or placements[protocol].eligible:
                del self._wanted[model, protocol]

    def _hold(self, now: float) -> None:
        """Say what requests may wait for that find no backend."""
        pending = [
            each
            for each in self._standbys.values()
            if self._is_operable(each)
            and (each.phase is not StandbyPhase.ACTIVE or each.rule.start or each.rule.load)
        ]
        made_of = (self.options.hold, [(e.record, e.failures, e.cold_start_s) for e in pending])
        if made_of != self._held[0]:
            self._held = made_of, self._on_standby(pending, now)
        found = self._held[1]
        models: dict[bytes, OnDemand] = {}
        if found is not None:
            for standby in pending:
                models |= dict.fromkeys(standby.rule.load, found)
                models |= dict.fromkeys((n for n, _ in standby.record.models.ready), found)
        self._directory.hold_for_standby(found, models)

    def _on_standby(self, pending: list[_Standby], now: float) -> OnDemand | None:
        if not pending:
            return None
        measured = [each.cold_start_s for each in pending if each.cold_start_s is not None]
        start_s = sum(measured) / len(measured) if measured else 0.0
        error = ""
        if all(each.failures >= _PATIENCE for each in pending):
            first = min(pending, key=lambda each: each.retry_at)
            start_s += max(0.0, first.retry_at - now)
            name = first.record.backend.name
            error = f"no backend is available: activation of {name} failed"
        return OnDemand(self.options.hold, error, is_standby=True, retry_after_s=start_s)

    # One backend

    def _may_activate(self, standby: _Standby) -> bool:
        if standby.phase is StandbyPhase.RELEASING:
            return standby.task is None
        return standby.phase is StandbyPhase.STANDBY

    def _activate(self, standby: _Standby, cause: ActivationCause) -> None:
        standby.cause = cause.value
        fields = {"backend": standby.record.backend.name, "why": cause.value}
        if standby.phase is StandbyPhase.RELEASING:
            self._enable(standby, self._clock())  # it runs
            return
        _log.info("standby backend is activated", extra=fields)
        standby.enter(StandbyPhase.ACTIVATING, self._clock())
        name = f"activate {standby.record.backend.name}"
        standby.task = self._tasks.spawn(self._bring_up(standby), name=name)

    def _enable(self, standby: _Standby, now: float) -> None:
        """Let a backend serve that is ready."""
        standby.error, standby.failures, standby.retry_at = "", 0, 0.0
        standby.not_ready_since = None
        standby.enter(StandbyPhase.ACTIVE, now)
        self._count(standby, "ok")
        self._directory.set_standby(
            standby.record, is_active=True, why=f"activated: {standby.cause}", now=now
        )

    def _release(self, standby: _Standby, why: str) -> None:
        """Have a backend finish what it has. It is stopped once it is empty."""
        now = self._clock()
        standby.enter(StandbyPhase.RELEASING, now)
        self._directory.set_standby(
            standby.record, is_active=False, why=f"released: {why}", now=now
        )

    async def _bring_up(self, standby: _Standby) -> None:
        rule, record = standby.rule, standby.record
        began = self._clock()
        fields = {"backend": record.backend.name, "why": standby.cause}
        try:
            if rule.start:
                await self._command(record.backend, rule.start, rule.start_limit_s)
            async with asyncio.timeout(rule.start_limit_s - (self._clock() - began)):
                await self._until(standby, lambda: record.answers)
                for model in rule.load:
                    await self._load(record, model, rule.start_limit_s)
                await self._until(standby, lambda: standby.is_ready and not record.models.cold)
                # Requests are scheduled by what it says of its models.
                await self._watch.settled((record.backend,))
        except (CommandError, _NotActivatedError, UpstreamError, TimeoutError) as error:
            why = str(error) or f"it was not ready after {rule.start_limit_s:g} s"
            _log.warning("standby backend not activated", extra={**fields, "error": why})
            problems = await self._stop(standby)
            standby.task = None
            self._fail(standby, "; ".join((why, *problems)), self._clock())
            standby.enter(StandbyPhase.STANDBY, self._clock())
        else:
            now = self._clock()
            standby.task = None
            standby.cold_start_s = now - began
            self._cold_start_s += now - began
            took = {"seconds": round(now - began, 3)}
            _log.info("standby backend activated", extra={**fields, **took})
            self._enable(standby, now)
        self._woken.set()

    def _fail(self, standby: _Standby, error: str, now: float) -> None:
        standby.failures += 1
        standby.error = error
        delay_s = min(_RETRY_S * 2 ** min(standby.failures - 1, 10), _RETRY_MAX_S)
        standby.retry_at = now + delay_s
        self._count(standby, "failed")

    def _count(self, standby: _Standby, result: str) -> None:
        key = (standby.record.backend.name, standby.cause, result)
        self._activations[key] = self._activations.get(key, 0) + 1

    @staticmethod
    async def _until(standby: _Standby, is_so: Callable[[], bool]) -> None:
        """Wait until a backend that is activated is in some state. It is probed often meanwhile:
        between probes at their interval, requests would wait in vain."""
        backend = standby.record.backend
        deaths = backend.deaths
        while not is_so():
            if backend.deaths != deaths:
                raise _NotActivatedError("its server went away again")
            for port in standby.record.ports:
                port.health.awaited()
                port.wake()
            await asyncio.sleep(_POLL_S)

    async def _load(self, record: BackendRecord, model: bytes, limit_s: float) -> None:
        reply = await self._questions.load(record, model, limit_s)
        if not reply.is_ok:
            why = reply.detail or f"status {reply.status}"
            raise _NotActivatedError(f"{readable(model)} cannot be loaded: {why}")
        await self._watch.refreshed([record])

    async def _stop_released(self, standby: _Standby) -> None:
        standby.error = "; ".join(await self._stop(standby))
        standby.task = None
        standby.enter(StandbyPhase.STANDBY, self._clock())
        fields = {"backend": standby.record.backend.name}
        _log.info("standby backend released", extra=fields)
        self._woken.set()

    async def _stop(self, standby: _Standby) -> list[str]:
        """Unload the models of a backend, and stop its server. What fails keeps nothing else from
        being done. Returns what is still loaded or runs, and why."""
        rule, record = standby.rule, standby.record
        problems: list[str] = []
        for model in rule.load if record.answers else ():
            why = await self._unload(record, model)
            if why:
                fields = {"backend": record.backend.name, "model": readable(model), "why": why}
                _log.warning("standby backend not unloaded", extra=fields)
                problems.append(f"{readable(model)} not unloaded: {why}")
        if rule.stop:
            try:
                await self._command(record.backend, rule.stop, rule.stop_limit_s)
            except CommandError as error:
                fields = {"backend": record.backend.name, "why": str(error)}
                _log.warning("standby backend not stopped", extra=fields)
                problems.append(f"not stopped: {error}")
        return problems

    async def _unload(self, record: BackendRecord, model: bytes) -> str:
        """Unload a model. Returns why it is not unloaded; empty when it is."""
        try:
            reply = await self._questions.unload(record, model)
        except UpstreamError as error:
            return str(error)
        return "" if reply.is_ok else reply.detail or f"status {reply.status}"

    @staticmethod
    async def _command(backend: Backend, command: tuple[str, ...], limit_s: float) -> None:
        await run_command(command, limit_s, {"TRITON_LB_BACKEND": backend.spec.name})

    # What people are shown

    def counts(self) -> StandbyCounts:
        """What was done since the start, and how many backends are in each phase."""
        phases: dict[str, int] = {}
        for standby in self._standbys.values():
            phases[standby.phase.value] = phases.get(standby.phase.value, 0) + 1
        return StandbyCounts(
            activations=dict(self._activations), cold_start_s=self._cold_start_s, phases=phases
        )


def _planned(standby: _Standby) -> StandbyBackend:
    backend = standby.record.backend
    return StandbyBackend(
        backend.name,
        standby.rule.rank,
        backend.spec.weight,
        standby.phase,
        standby.since,
        standby.retry_at,
        standby.cold_start_s or 0.0,
        is_stopping=standby.task is not None,
        has_sequences=bool(backend.open_sequences),
    )
