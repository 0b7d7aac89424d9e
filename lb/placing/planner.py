"""Decides which model is loaded on which backend, and what makes room for it.

All that it knows of backends comes as `Host`s, as they are at the time of a decision. It remembers
how often models are used, what loading them takes, since when they are loaded, and which loads
failed. Times are monotonic seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

HALF_LIFE_S: Final = 300.0
"""Time after which a use of a model counts half. Use within minutes should decide what stays, and
one burst should be forgotten within an hour (docs/decisions/0064-placement-of-models.md)."""
RETRY_AFTER_S: Final = 15.0
"""Pause before a load that failed is tried again on the same backend; doubles with each failure."""
MAX_RETRY_AFTER_S: Final = 900.0
MAX_PLACES: Final = 3
"""Backends on which a model may have failed to load at the same time; no others are tried, since a
load can also end a Triton."""
_USUAL_LOAD_S: Final = 1.0
"""What loading is taken to cost while no load has been measured."""

Model = bytes
"""The name of a model as it stands on the wire."""
Used = Callable[[str, Model], bool]
"""Whether a model has requests or open sequences on a backend, which is called by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRules:
    """What is configured."""

    max_models: int
    """Models that are loaded on one backend at a time."""
    min_age_s: float = 0.0
    """No model is evicted that was loaded less than this long ago."""
    pinned: frozenset[Model] = frozenset()
    """Models that are loaded without being asked for, and never evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A backend that loads models on request, as it is now."""

    name: str
    catalogue: Collection[Model]
    """What may be loaded there: what its repository has, but for what an operator has drained."""
    taken: frozenset[Model] = frozenset()
    """Models that take room: those that are ready, being loaded or being unloaded."""
    ready: frozenset[Model] = frozenset()
    needed: frozenset[Model] = frozenset()
    """Models that others there need: steps of ensembles."""
    is_busy: bool = False
    """A model is being loaded or unloaded there."""
    in_flight: int = 0
    """Attempts under way on it."""


class Step(NamedTuple):
    """A load, after what makes room for it."""

    model: Model
    backend: str
    evict: tuple[Model, ...]
    """Models that are unloaded there before, in this order."""


@dataclass(slots=True)
class _Popularity:
    """How much a model is used: each use counts half after `HALF_LIFE_S`."""

    uses: float = 0.0
    at: float = 0.0

    def value(self, now: float) -> float:
        return self.uses * math.exp2((self.at - now) / HALF_LIFE_S)

    def add(self, now: float) -> None:
        self.uses, self.at = self.value(now) + 1.0, now


class Failure(NamedTuple):
    """The last load of a model on a backend, which failed."""

    error: str
    at: float
    times: int
    """Failures in a row."""

    @property
    def until(self) -> float:
        """When the load may be tried again."""
        return self.at + min(RETRY_AFTER_S * 2.0 ** (self.times - 1), MAX_RETRY_AFTER_S)


@dataclass(slots=True)
class ModelPlanner:
    """Plans the models of one pool."""

    rules: PlannerRules
    kept: set[Model] = field(default_factory=set)
    """Models that clients have loaded by calls of their own: never evicted."""
    withdrawn: set[Model] = field(default_factory=set)
    """Models that clients have unloaded by calls of their own: not loaded for requests."""
    failures: dict[tuple[Model, str], Failure] = field(default_factory=dict)
    """By model and backend."""
    load_s: dict[Model, float] = field(default_factory=dict)
    """How long the last load of a model took."""
    loaded_at: dict[tuple[Model, str], float] = field(default_factory=dict)
    """Since when a model is ready on a backend; -inf if it was when we first looked."""
    _popularity: dict[Model, _Popularity] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    """Backends that were looked at before."""

    # What happens

    def used(self, models: Iterable[Model], now: float) -> None:
        """Count a use of each model. Told once a second at most: the requests of a second would
        wait for the same load."""
        for model in models:
            self._popularity.setdefault(model, _Popularity()).add(now)

    def loaded(self, model: Model, backend: str, took_s: float) -> None:
        """A load succeeded."""
        self.load_s[model] = took_s
        self.failures.pop((model, backend), None)

    def failed(self, model: Model, backend: str, error: str, now: float) -> None:
        """A load failed."""
        before = self.failures.get((model, backend))
        times = before.times + 1 if before is not None else 1
        self.failures[model, backend] = Failure(error, now, times)

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
        names = {host.name for host in hosts}
        known = set().union(*(host.catalogue for host in hosts))
        self._known = names
        self.failures = {
            key: each for key, each in self.failures.items() if key[0] in known and key[1] in names
        }
        for memory in (self.load_s, self._popularity):
            for model in [each for each in memory if each not in known]:
                del memory[model]
        self.kept &= known
        self.withdrawn &= known

    # What is to be done

    def refusal(self, model: Model, hosts: Sequence[Host], now: float) -> str:
        """Why a model is not going to be loaded for a while, in the words of a backend; empty where
        it may be."""
        failed = [
            failure
            for host in hosts
            if model in host.catalogue
            and (failure := self.failures.get((model, host.name))) is not None
            and now < failure.until
        ]
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
        taken: set[Model] = set().union(
            *(host.taken.intersection(host.catalogue) for host in hosts)
        )
        models = sorted(wanted, key=lambda model: wanted[model])
        models += sorted(self.rules.pinned.difference(models))
        free = {host.name: host for host in hosts if not host.is_busy}
        steps = []
        for model in models:
            if model in taken or model in self.withdrawn or self.refusal(model, hosts, now):
                continue
            step = self._step(model, hosts, free, wanted, used, now)
            if step is not None:
                steps.append(step)
                del free[step.backend]
        return steps

    def _step(
        self,
        model: Model,
        hosts: Sequence[Host],
        free: Mapping[str, Host],
        wanted: Mapping[Model, float],
        used: Used,
        now: float,
    ) -> Step | None:
        """Where to load a model: where there is room, or else where the least is lost."""
        best: tuple[bool, float, int, int, Step] | None = None
        for host in free.values():
            failure = self.failures.get((model, host.name))
            if model not in host.catalogue or (failure is not None and now < failure.until):
                continue
            surplus = len(host.taken) + 1 - self.rules.max_models
            victims = self._victims(host, hosts, surplus, wanted, used, now)
            if victims is None:
                continue
            loss = sum(self.value(each, hosts, now) for each in victims)
            step = Step(model, host.name, victims)
            candidate = (bool(victims), loss, host.in_flight, len(host.taken), step)
            if best is None or candidate[:4] < best[:4]:
                best = candidate
        return best[4] if best is not None else None

    def _victims(
        self,
        host: Host,
        hosts: Sequence[Host],
        count: int,
        wanted: Mapping[Model, float],
        used: Used,
        now: float,
    ) -> tuple[Model, ...] | None:
        """The models of a backend that are worth least; None where too few may be evicted."""
        if count <= 0:
            return ()
        found: list[Model] = []
        for model in sorted(host.ready, key=lambda each: (self.value(each, hosts, now), each)):
            if len(found) == count:
                break
            may_go = (
                model not in wanted
                and self.may_evict(model, host, now)
                and not used(host.name, model)
            )
            if may_go:
                found.append(model)
        return tuple(found) if len(found) == count else None

    def may_evict(self, model: Model, host: Host, now: float) -> bool:
        """Whether a model may be evicted if it is not in use."""
        return (
            model not in self.rules.pinned
            and model not in self.kept
            and model not in host.needed
            and now >= self.loaded_at.get((model, host.name), now) + self.rules.min_age_s
        )

    def value(self, model: Model, hosts: Sequence[Host], now: float) -> float:
        """What a loaded copy is worth: how much the model is used, times what loading it again
        takes. Nothing if it is ready elsewhere, too."""
        if sum(model in host.ready for host in hosts) > 1:
            return 0.0
        popularity = self._popularity.get(model)
        uses = popularity.value(now) if popularity is not None else 0.0
        usual = sum(self.load_s.values()) / len(self.load_s) if self.load_s else _USUAL_LOAD_S
        return uses * self.load_s.get(model, usual)
