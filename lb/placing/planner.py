"""Decides which model is loaded on which backend, and what makes room for it.

All that it knows of backends comes as `Host`s, as they are at the time of a decision. It remembers
how often models are used, what loading them takes, since when they are loaded, and which loads
failed. Times are monotonic seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from lb.domain.model import ModelUse
from lb.placing.copies import CopyDemand, Model
from lb.placing.popularity import Popularity
from lb.placing.sizes import ModelSizes

RETRY_AFTER_S: Final = 15.0
"""Pause before a load that failed is tried again on the same backend; doubles with each failure."""
MAX_RETRY_AFTER_S: Final = 900.0
MAX_PLACES: Final = 3
"""Backends on which a model may have failed to load at the same time; no others are tried, since a
load can also end a Triton."""
MAX_LOST: Final = 2
"""Backends that loads of a model may end with no good one in between: as with requests, two deaths
are no chance."""
OVERDUE_LOADS: Final = 4.0
"""A load that takes this many times what loading the model took before is overdue: requests for the
model wait for another backend from then on."""
MIN_OVERDUE_S: Final = 30.0
"""No load is overdue before, and one of a model that was never loaded is then: half of the time
that requests wait by default, so that those which began the load live to see another one."""
OVERDUE_UNLOADS: Final = 4.0
"""An unload that takes this many times what the last unload of the model took is overdue: requests
for this model, and for the one that is to take its place, wait for another backend from then on."""
MIN_OVERDUE_UNLOAD_S: Final = 5.0
"""No unload is overdue before, and one of a model that was never unloaded is then. Triton unloads
an idle model in a second or two, and keeps one for as long as a stream of somebody else uses it."""
IN_USE_S: Final = 1.0
"""How long requests wait for a model before others make room for it whose requests never pause.
Their own requests end first, and further ones wait for the next load. A model that nobody has used
for as long after its load is old enough to be evicted."""
STAYS_S: Final = 30.0
"""How long a model is left in peace whose requests did not end when it was to be evicted."""
GONE_PAUSE_S: Final = 1.0
"""Pause before a backend that was not there is tried again. Health checks notice meanwhile that it
has died."""
_USUAL_LOAD_S: Final = 1.0
"""What loading is taken to cost while no load has been measured."""

Used = Callable[[str, Model], ModelUse]
"""What of a model runs on a backend, which is called by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRules:
    """What is configured for one model."""

    is_pinned: bool = False
    """It is loaded without being asked for, and one copy stays."""
    min_copies: int = 0
    """Copies that are loaded without being asked for, and stay."""
    max_copies: int | None = None
    """Copies that its load may have; None: as many as there are backends."""
    idle_unload_s: float | None = None
    """It is unloaded after that time without a request; None: only to make room."""
    calls: frozenset[Model] = frozenset()
    """Models that it calls on its own backend."""


_USUAL: Final = ModelRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRules:
    """What is configured."""

    max_models: int | None = None
    """Models that are loaded on one backend at a time; None: not bounded."""
    memory: int | None = None
    """Bytes that the models of one backend may take; None: not bounded."""
    min_age_s: float = 0.0
    """No model is evicted that was loaded less than this long ago."""
    models: Mapping[Model, ModelRules] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A backend that loads models on request, as it is now."""

    name: str
    catalogue: Collection[Model]
    """What may be loaded there: what its repository has, but for what an operator has drained."""
    taken: frozenset[Model] = frozenset()
    """Models that take room: those that are ready, being loaded or being unloaded."""
    ready: frozenset[Model] = frozenset()
    overdue: frozenset[Model] = frozenset()
    """Models whose load there takes too long to wait for; see `ModelPlanner.overdue_s`."""
    leaving: frozenset[Model] = frozenset()
    """Models that take room, and whose unload takes too long to wait for. They may be loaded again
    meanwhile."""
    memory_used: int | None = None
    """Bytes of its GPUs that are in use by anybody; None: not known."""
    is_busy: bool = False
    """A model is being loaded or unloaded there."""
    in_flight: int = 0
    """Attempts under way on it."""


class Step(NamedTuple):
    """A load, after what makes room for it; or an unload alone."""

    model: Model | None
    """None: nothing is loaded."""
    backend: str
    evict: tuple[Model, ...]
    """Models that are unloaded there before, in this order."""
    before: tuple[Model, ...] = ()
    """Models that it calls there, which are loaded before it."""


class FailureKind(Enum):
    """Why a model was not loaded."""

    REFUSED = "refused"
    """The backend did not load it, or did not make room for it."""
    DIED = "died"
    """The connection was lost while the backend loaded the model, and it did not answer after that:
    it seems to have died."""
    ABSENT = "absent"
    """The backend was not there to load the model, or was lost while it made room. That says
    nothing of the model: requests go on waiting for it."""


class Failure(NamedTuple):
    """The last load of a model on a backend, which failed."""

    error: str
    at: float
    times: int
    """Failures in a row, without those of a backend that was not there."""
    kind: FailureKind = FailureKind.REFUSED
    took_s: float = 0.0
    """How long it took to fail. The next one is begun no sooner than after as long again."""
    is_cleared: bool = False
    """The backend has died, but the model was loaded well elsewhere since. So the model is not
    suspected of that any more."""

    @property
    def is_lost(self) -> bool:
        """Whether the load seems to have ended the backend."""
        return self.kind is FailureKind.DIED and not self.is_cleared

    @property
    def until(self) -> float:
        """When the load may be tried again."""
        if self.is_lost:
            return self.at + MAX_RETRY_AFTER_S
        if self.kind is FailureKind.ABSENT:
            return self.at + GONE_PAUSE_S
        pause_s = max(RETRY_AFTER_S * 2.0 ** (self.times - 1), self.took_s)
        return self.at + min(pause_s, MAX_RETRY_AFTER_S)


@dataclass(slots=True)
class ModelPlanner:
    """Plans the models of one pool."""

    rules: PlannerRules
    sizes: ModelSizes = field(default_factory=ModelSizes)
    demand: CopyDemand = field(default_factory=CopyDemand)
    steps: Mapping[Model, frozenset[Model]] = field(default_factory=dict)
    """The models that each ensemble runs, as far as it is known."""
    pins: dict[Model, bool] = field(default_factory=dict)
    """Models that an operator has pinned or unpinned, whatever is configured."""
    kept: set[Model] = field(default_factory=set)
    """Models that clients have loaded by calls of their own: never evicted."""
    withdrawn: set[Model] = field(default_factory=set)
    """Models that clients have unloaded by calls of their own: not loaded for requests."""
    failures: dict[tuple[Model, str], Failure] = field(default_factory=dict)
    """By model and backend."""
    load_s: dict[Model, float] = field(default_factory=dict)
    """How long the last load of a model took."""
    unload_s: dict[Model, float] = field(default_factory=dict)
    """How long the last unload of a model took."""
    loaded_at: dict[tuple[Model, str], float] = field(default_factory=dict)
    """Since when a model is ready on a backend; -inf if it was when we first looked."""
    stays_until: dict[tuple[Model, str], float] = field(default_factory=dict)
    """Models whose requests did not end when they were to be evicted, by backend."""
    _popularity: Popularity = field(default_factory=Popularity)
    _used_at: dict[Model, float] = field(default_factory=dict)
    """When each model was used last."""
    _known: dict[str, float] = field(default_factory=dict)
    """Backends that were looked at before, and since when."""

    # What happens

    def used(self, models: Iterable[Model], now: float) -> None:
        """Count a use of each model. Told once a second at most: the requests of a second would
        wait for the same load."""
        used = sorted(models)
        self._popularity.used(used, len(self.loaded_at), self._load_s)
        self._used_at.update(dict.fromkeys(used, now))

    def loaded(self, model: Model, backend: str, took_s: float) -> None:
        """A load succeeded."""
        self.load_s[model] = took_s
        self.failures.pop((model, backend), None)
        for key, failure in self.failures.items():
            if key[0] == model and failure.kind is FailureKind.DIED:
                self.failures[key] = failure._replace(is_cleared=True)

    def overdue_s(self, model: Model) -> float:
        """After how long a load of a model is waited for no more, if another backend may load it
        too."""
        return max(MIN_OVERDUE_S, OVERDUE_LOADS * self.load_s.get(model, 0.0))

    def overdue_unload_s(self, model: Model) -> float:
        """After how long an unload of a model is waited for no more."""
        usual_s = OVERDUE_UNLOADS * self.unload_s.get(model, 0.0)
        return max(MIN_OVERDUE_UNLOAD_S, min(usual_s, MIN_OVERDUE_S))

    def failed(
        self,
        model: Model,
        backend: str,
        error: str,
        now: float,
        kind: FailureKind = FailureKind.REFUSED,
        took_s: float = 0.0,
    ) -> Failure:
        """A load failed; see `Failure`."""
        before = self.failures.get((model, backend))
        times = before.times if before is not None else 0
        if kind is not FailureKind.ABSENT:
            times += 1
        failure = Failure(error, now, times, kind, took_s)
        self.failures[model, backend] = failure
        return failure

    def stayed_in_use(self, model: Model, backend: str, now: float) -> None:
        """Requests for a model did not end when it was to be evicted."""
        self.stays_until[model, backend] = now + STAYS_S

    def forget_failures(self, model: Model) -> None:
        """Its files may have changed."""
        self.failures = {key: each for key, each in self.failures.items() if key[0] != model}

    def follow(self, hosts: Sequence[Host], now: float) -> None:
        """Take note of which models are ready where, and forget what is in no repository."""
        ready = {(model, host.name): host.name for host in hosts for model in host.ready}
        self.loaded_at = {
            key: self.loaded_at.get(key, now if name in self._known else -math.inf)
            for key, name in ready.items()
        }
        self._known = {host.name: self._known.get(host.name, now) for host in hosts}
        known = set().union(*(host.catalogue for host in hosts))
        names = set(self._known)
        self.failures = {
            key: each
            for key, each in self.failures.items()
            # A backend that a load has ended comes back.
            if (key[0] in known and key[1] in names)
            or (each.kind is FailureKind.DIED and now < each.until)
        }
        for memory in (self.load_s, self.unload_s, self._used_at):
            for model in [each for each in memory if each not in known]:
                del memory[model]
        self._popularity.retain(known)
        self.sizes.forget(known, names)
        self.stays_until = {key: until for key, until in self.stays_until.items() if now < until}
        self.kept &= known
        self.withdrawn &= known

    # What is to be done

    def refusal(self, model: Model, hosts: Collection[Host], now: float) -> str:
        """Why a model is not going to be loaded for a while, in the words of a backend; empty where
        it may be."""
        failed = [
            failure
            for host in hosts
            if model in host.catalogue
            and (failure := self.failures.get((model, host.name))) is not None
            and failure.kind is not FailureKind.ABSENT
            and not failure.is_cleared
            and now < failure.until
        ]
        lost = [
            failure
            for (name, _), failure in self.failures.items()
            if name == model and failure.is_lost and now < failure.until
        ]
        if len(lost) >= MAX_LOST:
            return max(lost, key=lambda each: each.at).error
        places = sum(model in host.catalogue for host in hosts)
        if not failed or len(failed) < min(places, MAX_PLACES):
            return ""
        return max(failed, key=lambda each: each.at).error

    def plan(
        self, wanted: Mapping[Model, float], hosts: Sequence[Host], used: Used, now: float
    ) -> list[Step]:
        """Say what is to be done now: one step for a backend at most, none for a busy one.

        Args:
            wanted: models that requests wait for, and since when.
            hosts: all backends that load models on request.
            used: asked of models that may be evicted.
            now: the time.
        """
        return _Plan(self, wanted, hosts, used, now).steps()

    def due_at(self, wanted: Mapping[Model, float], now: float) -> float:
        """Say when the passing of time alone may change what `plan` decides for models that
        requests wait for. That models have been idle for long enough is not foreseen."""
        if not wanted:
            return math.inf
        times = [
            *(self.aged_at(*key) for key in self.loaded_at),
            *(since + IN_USE_S for since in wanted.values()),
            *self.stays_until.values(),
            *(failure.until for failure in self.failures.values()),
        ]
        return min((at for at in times if at > now), default=math.inf)

    def is_pinned(self, model: Model) -> bool:
        """Whether a model is loaded without being asked for, and never evicted."""
        return self.pins.get(model, self._rules_of(model).is_pinned)

    def copies_kept(self, model: Model) -> int:
        """Copies that are loaded without being asked for, and stay."""
        return max(self._rules_of(model).min_copies, int(self.is_pinned(model)))

    def group(self, model: Model) -> frozenset[Model]:
        """Models that must be on the same backend for a model to work: its own steps, the models
        that it calls, and theirs."""
        found: set[Model] = set()
        new = {model}
        while new:
            found |= new
            new = {each for one in new for each in self._next_to(one)} - found
        return frozenset(found - {model})

    def needed(self, models: Iterable[Model]) -> frozenset[Model]:
        """Those that others among some models need."""
        return frozenset[Model]().union(*(self._next_to(model) for model in models))

    def _next_to(self, model: Model) -> frozenset[Model]:
        steps = self.steps.get(model, frozenset())
        rules = self.rules.models.get(model)
        return steps if rules is None else steps | rules.calls

    def _rules_of(self, model: Model) -> ModelRules:
        return self.rules.models.get(model, _USUAL)

    def max_copies(self, model: Model, backends: int) -> int:
        """Copies that a model may have, of so many backends."""
        most = self._rules_of(model).max_copies
        return backends if most is None else min(most, backends)

    def value(self, model: Model, copies: int, now: float) -> float:
        """What one of the loaded copies is worth: how much the model is used, times what loading
        it again takes, shared by the copies. Nothing if there are more than its load needs."""
        if copies > 1 and self.demand.is_surplus(model, now):
            return 0.0
        return self._popularity.of(model) * self._load_s(model) / max(1, copies)

    def _load_s(self, model: Model) -> float:
        """How many seconds loading a model takes, as far as it is known."""
        if model in self.load_s:
            return self.load_s[model]
        return sum(self.load_s.values()) / len(self.load_s) if self.load_s else _USUAL_LOAD_S

    def aged_at(self, model: Model, backend: str, ready_at: float = math.inf) -> float:
        """Say when a model has been loaded for long enough to be evicted. Clients that leave while
        their model is loaded do not keep it there.

        Args:
            model: that takes room on the backend.
            backend: its name.
            ready_at: when it will be ready, if it is not yet.
        """
        loaded_at = self.loaded_at.get((model, backend))
        min_age_s = self.rules.min_age_s
        if loaded_at is None:
            return ready_at + min_age_s
        is_used = self._used_at.get(model, -math.inf) >= loaded_at
        return loaded_at + (min_age_s if is_used else min(min_age_s, IN_USE_S))

    def idle_s(self, model: Model, now: float) -> float:
        """How long ago a model was used last; 0 where that is less than `IN_USE_S`, since uses are
        told about once a second."""
        idle_s = now - self._used_at.get(model, -math.inf)
        return idle_s if idle_s >= IN_USE_S else 0.0

    def is_idle(self, model: Model, backend: str, now: float) -> bool:
        """Whether a model is to be unloaded since nobody has used it for as long as configured."""
        idle_s = self._rules_of(model).idle_unload_s
        if idle_s is None:
            return False
        since = max(
            self._known.get(backend, now),
            self.loaded_at.get((model, backend), now),
            self._used_at.get(model, -math.inf),
        )
        return now >= since + idle_s


class _Plan:
    """One decision about all backends. What it has decided counts for what it decides next."""

    def __init__(
        self,
        planner: ModelPlanner,
        wanted: Mapping[Model, float],
        hosts: Sequence[Host],
        used: Used,
        now: float,
    ) -> None:
        """See `ModelPlanner.plan`."""
        self._planner = planner
        self._wanted = wanted
        self._hosts = {host.name: host for host in hosts}
        self._used = used
        self._now = now
        self._free = {host.name: host for host in hosts if not host.is_busy}
        self._copies = Counter(model for host in hosts for model in host.ready)
        """Copies that are ready, and stay so."""
        self._steps: list[Step] = []
        self._since: float | None = None
        """Since when requests wait for the model that room is made for; None: none do."""

    def steps(self) -> list[Step]:
        """Decide: first what requests wait for, then what is to be there, then what the load needs,
        then what is to go."""
        planner = self._planner
        taken: Counter[Model] = Counter()
        overdue: Counter[Model] = Counter()
        for host in self._hosts.values():
            late = host.overdue | host.leaving
            taken.update(host.taken.intersection(host.catalogue) - late)
            overdue.update(late)
        for model in sorted(self._wanted, key=lambda each: self._wanted[each]):
            if not taken[model] and overdue[model] < MAX_PLACES:
                self._since = self._wanted[model]
                self._load(model, math.inf)
        self._since = None
        for model in sorted({*planner.pins, *planner.rules.models}):
            if taken[model] < planner.copies_kept(model) and not self._is_changing(model, taken):
                self._load(model, math.inf)
        for model in planner.demand.lacking(self._copies):
            may_grow = 0 < taken[model] < planner.max_copies(model, len(self._hosts))
            if may_grow and not self._is_changing(model, taken):
                copies = self._copies[model] + 1
                self._load(model, planner.value(model, copies, self._now))
        for host in list(self._free.values()):
            self._unload_idle(host)
        return self._steps

    def _is_changing(self, model: Model, taken: Mapping[Model, int]) -> bool:
        """Whether a copy is being loaded or unloaded, or was just decided about."""
        return taken[model] != self._copies[model] or any(
            each.model == model for each in self._steps
        )

    def _load(self, model: Model, worth: float) -> None:
        """Decide where to load a model: where there is room, or else where the least is lost, and
        less than the copy is worth."""
        planner, now = self._planner, self._now
        if model in planner.withdrawn or planner.refusal(model, self._hosts.values(), now):
            return
        group = planner.group(model)
        best: tuple[bool, float, int, int, Step] | None = None
        for host in self._free.values():
            if not self._may_get(host, model, group):
                continue
            missing = group - (host.taken - host.leaving)
            victims = self._victims(host, {model, *missing})
            if victims is None:
                continue
            loss = sum(self._value(each) for each in victims)
            if victims and loss >= worth:
                continue
            step = Step(model, host.name, victims, self._in_order(missing))
            candidate = (bool(victims), loss, host.in_flight, len(host.taken), step)
            if best is None or candidate[:4] < best[:4]:
                best = candidate
        if best is not None and not self._is_better_later(best[4], group, best[1]):
            self._decide(best[4])

    def _may_get(self, host: Host, model: Model, group: frozenset[Model]) -> bool:
        """Whether a backend can load a model with those that it needs."""
        failure = self._planner.failures.get((model, host.name))
        return (
            model not in host.taken - host.leaving
            and {model, *group}.issubset(host.catalogue)
            and (failure is None or self._now >= failure.until)
        )

    def _is_better_later(self, step: Step, group: frozenset[Model], loss: float) -> bool:
        """Whether a step for requests is to wait, since models that are worth less than those which
        it evicts are only too young, in use, or being loaded.

        If the evicted models are used again before, they replace others in their turn, and so on
        until none is left that is old enough. Then requests for models that are used much would
        have to wait, instead of those that wait now. These wait for no longer than `min_age`.
        """
        planner, now = self._planner, self._now
        waits_s = max(planner.rules.min_age_s, IN_USE_S)
        if step.model is None or self._since is None or now >= self._since + waits_s:
            return False
        if not step.evict:
            return False
        count = sum(
            self._may_go(model, host, host.ready)
            for host in self._free.values()
            for model in host.ready
        )
        idle_s = min(
            0.0 if self._used(step.backend, each).in_flight else planner.idle_s(each, now)
            for each in step.evict
        )
        for host in self._hosts.values():
            if not self._may_get(host, step.model, group):
                continue
            new = {step.model, *group.difference(host.taken - host.leaving)}
            others = self._victims(host, new, is_later=True)
            if others is None or sum(map(self._value, others)) >= loss:
                continue
            at = now + IN_USE_S if host.is_busy else now
            if any(self._used(host.name, each).in_flight for each in others):
                at = max(at, self._since + IN_USE_S)
            at = max([at, *(planner.aged_at(each, host.name, at) for each in others)])
            if now + idle_s * count < at:
                return True
        return False

    def _in_order(self, models: frozenset[Model]) -> tuple[Model, ...]:
        """Models with those that they call before them. A circle has no order: any will do."""
        groups = {model: self._planner.group(model) & models for model in models}
        return tuple(sorted(models, key=lambda each: (len(groups[each]), each)))

    def _decide(self, step: Step) -> None:
        self._steps.append(step)
        self._copies.subtract(step.evict)
        host = self._free.pop(step.backend)
        new = step.before if step.model is None else (*step.before, step.model)
        self._hosts[step.backend] = replace(
            host,
            taken=host.taken.difference(step.evict).union(new),
            ready=host.ready.difference(step.evict),
            is_busy=True,
        )

    def _unload_idle(self, host: Host) -> None:
        """Unload what nobody has used for as long as is configured."""
        for model in sorted(host.ready):
            failure = self._planner.failures.get((model, host.name))
            has_failed = failure is not None and self._now < failure.until
            is_due = self._planner.is_idle(model, host.name, self._now)
            if is_due and not has_failed and self._may_go(model, host, host.ready):
                self._decide(Step(None, host.name, (model,)))
                return

    def _victims(
        self, host: Host, new: Collection[Model], *, is_later: bool = False
    ) -> tuple[Model, ...] | None:
        """The models of a backend that are worth least and make room for others; None where those
        that may be evicted do not suffice.

        Args:
            host: the backend.
            new: the others.
            is_later: choose also among those that may be evicted later.
        """
        chosen: list[Model] = []
        may_be_evicted = self._may_go_later if is_later else self._may_go
        while not self._fits(host, new, chosen):
            models = host.taken - host.overdue - host.leaving if is_later else host.ready
            left = models.difference(chosen, new)
            staying = {*left, *new}
            may_go = [each for each in left if may_be_evicted(each, host, staying)]
            if not may_go:
                return None
            chosen.append(min(may_go, key=lambda each: (self._value(each), each)))
        # A small model that was chosen first need not go where a large one had to, too.
        for each in sorted(chosen, key=lambda one: (-self._value(one), one)):
            others = [one for one in chosen if one != each]
            is_calling = not self._planner.group(each).isdisjoint(others)
            if not is_calling and self._fits(host, new, others):
                chosen = others
        return tuple(chosen)

    def _fits(self, host: Host, new: Collection[Model], gone: Collection[Model]) -> bool:
        """Whether models fit on a backend when others are gone."""
        rules, sizes = self._planner.rules, self._planner.sizes
        if rules.max_models is not None:
            count = len(host.taken.union(new).difference(gone))
            if count > rules.max_models:
                return False
        if rules.memory is None:
            return True
        size = sum(map(sizes.of, host.taken))
        if host.memory_used is not None:
            size = max(size, host.memory_used - sizes.unreturned.get(host.name, 0))
        size += sum(map(sizes.of, new)) - sum(map(sizes.of, gone))
        return size <= rules.memory

    def _may_go(self, model: Model, host: Host, ready: Collection[Model]) -> bool:
        """Whether a model may be evicted from a backend on which these are ready."""
        planner = self._planner
        if not (
            model not in self._wanted
            and model not in planner.kept
            and self._copies[model] > planner.copies_kept(model)
            and self._now >= planner.aged_at(model, host.name)
            and model not in planner.needed(ready)
        ):
            return False
        use = self._used(host.name, model)
        if use.open_sequences:
            return False
        is_urgent = self._since is not None and self._now >= self._since + IN_USE_S
        may_wait = is_urgent and (model, host.name) not in planner.stays_until
        return not use.in_flight or may_wait

    def _may_go_later(self, model: Model, host: Host, taken: Collection[Model]) -> bool:
        """Whether nothing but requests and its age keep a model that takes room on a backend."""
        planner = self._planner
        copies = self._copies[model] + int(model not in host.ready)
        return (
            model not in planner.kept
            and copies > planner.copies_kept(model)
            and model not in planner.needed(taken)
            and not self._used(host.name, model).open_sequences
            and (model, host.name) not in planner.stays_until
        )

    def _value(self, model: Model) -> float:
        return self._planner.value(model, self._copies[model], self._now)
