"""A pool of backends that load models on request, on a clock of its own, for the planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import ClassVar

from lb.domain.model import ModelUse
from lb.placing.planner import Host, ModelPlanner, PlannerRules, Step


@dataclass
class Store:
    """One backend: what takes room there, and what is under way."""

    name: str
    ready: dict[bytes, float] = field(default_factory=dict)
    """Models that are ready, and since when."""
    leaving: set[bytes] = field(default_factory=set)
    drained: set[bytes] = field(default_factory=set)
    """Models that an operator has drained there."""
    step: Step | None = None
    step_ends: float = inf
    """When the unload or the load that is under way ends."""

    @property
    def loaded(self) -> int:
        """Models that are there, even if only in part: the next one is loaded after others have
        gone."""
        is_loading = self.step is not None and self.step.model and not self.leaving
        return len(self.ready) + len(self.leaving) + int(bool(is_loading))

    @property
    def serving(self) -> frozenset[bytes]:
        """Models that get requests."""
        return frozenset(self.ready.keys() - self.drained)

    @property
    def taken(self) -> frozenset[bytes]:
        loading = {self.step.model} if self.step is not None and self.step.model else set()
        return frozenset(self.ready.keys() | self.leaving | loading)


class SimulatedStores:
    """Backends with room for some models each, and requests that wait for theirs.

    Requests take `request_s`; each asserts that its model is ready where it runs.
    """

    BEGIN: ClassVar = 1000.0
    """The time at first."""

    def __init__(
        self,
        *,
        count: int,
        models: Sequence[bytes],
        rules: PlannerRules,
        load_s: float = 0.0,
        unload_s: float = 0.0,
        request_s: float = 0.0,
        fails: Callable[[bytes, str], str] = lambda _model, _backend: "",
    ) -> None:
        self.planner = ModelPlanner(rules)
        self.stores = {f"b{number}": Store(f"b{number}") for number in range(count)}
        self.models = models
        self.now = self.BEGIN
        self.load_s, self.unload_s, self.request_s = load_s, unload_s, request_s
        self.fails = fails
        self.waiting: dict[bytes, list[float]] = {}
        self.used: set[bytes] = set()
        """Models that were used since the last decision."""
        self.running: list[tuple[float, str, bytes]] = []
        self.loads: list[tuple[float, bytes, str]] = []
        self.evictions: list[tuple[float, bytes, str, float]] = []
        """When, what, where, and how old it was."""
        self.hits = self.served = self.refused = self.lost = 0
        self.longest_wait_s = 0.0
        self.most_taken = 0
        self.planner.follow(self.hosts(), self.now)

    def hosts(self) -> list[Host]:
        return [
            Host(
                name=store.name,
                catalogue=frozenset(self.models) - store.drained,
                taken=store.taken,
                ready=store.serving,
                is_busy=store.step is not None,
                in_flight=sum(backend == store.name for _, backend, _ in self.running),
            )
            for store in self.stores.values()
        ]

    def use_of(self, backend: str, model: bytes) -> ModelUse:
        return ModelUse(sum(each[1:] == (backend, model) for each in self.running), 0)

    def kill(self, name: str) -> None:
        """A backend restarts empty: what ran there is lost, what was being loaded has failed."""
        store = self.stores[name]
        if store.step is not None and store.step.model and not store.leaving:
            self.planner.failed(store.step.model, name, "lost", self.now)
        left = [each for each in self.running if each[1] != name]
        self.lost += len(self.running) - len(left)
        self.running = left
        self.stores[name] = Store(name, drained=store.drained)
        self.settle()

    def drain(self, name: str, model: bytes) -> None:
        """Drain a model on a backend, or end that."""
        self.stores[name].drained ^= {model}
        self.settle()

    def ask(self, model: bytes) -> None:
        """One request arrives."""
        if self._run(model, self.now):
            self.hits += 1
            return
        self.waiting.setdefault(model, []).append(self.now)
        self.settle()

    def leave(self, model: bytes, since: float) -> None:
        """The client of a request that came at a time leaves, if it still waits."""
        waiting = self.waiting.get(model, [])
        if since in waiting:
            waiting.remove(since)
        if not waiting:
            self.waiting.pop(model, None)

    def _run(self, model: bytes, since: float) -> bool:
        homes = [store for store in self.stores.values() if model in store.serving]
        if not homes:
            return False
        home = min(homes, key=lambda store: sum(each[1] == store.name for each in self.running))
        self.running.append((self.now + self.request_s, home.name, model))
        self.served += 1
        self.used.add(model)
        self.longest_wait_s = max(self.longest_wait_s, self.now - since)
        return True

    def advance(self, to: float) -> None:
        """Let time pass, and whatever ends until then end in its order."""
        while True:
            events = [store.step_ends for store in self.stores.values()]
            events += [ends for ends, _, _ in self.running]
            # Somebody looks once a second whether models are old enough to be evicted.
            events.append(self.now + 1.0)
            at = min(events)
            if at > to:
                break
            self.now = max(at, self.now)
            self.settle()
        self.now = to
        self.settle()

    def settle(self) -> None:
        """End what is due, and begin what the planner says, until nothing more happens."""
        is_changing = True
        while is_changing:
            self.running = [each for each in self.running if each[0] > self.now]
            ended = [self._end(store) for store in self.stores.values()]
            is_changing = any(ended)
            for model in list(self.waiting):
                if any(model in store.serving for store in self.stores.values()):
                    for since in self.waiting.pop(model):
                        assert self._run(model, since)
                elif self.planner.refusal(model, self.hosts(), self.now):
                    self.refused += len(self.waiting.pop(model))
            self.planner.used(self.used, self.now)
            self.used.clear()
            hosts = self.hosts()
            self.planner.follow(hosts, self.now)
            wanted = {model: since[0] for model, since in self.waiting.items()}
            for step in self.planner.plan(wanted, hosts, self.use_of, self.now):
                self._begin(step)
                is_changing = True
            self.most_taken = max(store.loaded for store in self.stores.values())
            assert self.most_taken <= (self.planner.rules.max_models or inf)

    def _begin(self, step: Step) -> None:
        store = self.stores[step.backend]
        assert store.step is None
        store.step = step
        for model in step.evict:
            self.evictions.append((self.now, model, store.name, self.now - store.ready.pop(model)))
            store.leaving.add(model)
        # What runs ends first: evicted models get no new requests.
        ends = [
            at for at, *where in self.running for each in step.evict if where == [store.name, each]
        ]
        idle_at = max(ends, default=self.now)
        store.step_ends = idle_at + (self.unload_s if step.evict else self.load_s)

    def _end(self, store: Store) -> bool:
        if store.step is None or self.now < store.step_ends:
            return False
        if store.leaving:
            store.leaving.clear()
            store.step_ends = self.now + self.load_s
            return True
        step, store.step, store.step_ends = store.step, None, inf
        if step.model is None:
            return True
        error = self.fails(step.model, store.name)
        self.loads.append((self.now, step.model, store.name))
        if error:
            self.planner.failed(step.model, store.name, error, self.now)
        else:
            self.planner.loaded(step.model, store.name, self.load_s or 1.0)
            store.ready[step.model] = self.now
        return True


def zipf(count: int, exponent: float, length: int, rng: Random) -> list[int]:
    """Numbers from 0 on, where number k is drawn with weight 1 / (k + 1) ** exponent."""
    weights = [1 / (number + 1) ** exponent for number in range(count)]
    return rng.choices(range(count), weights, k=length)


def lru_hits(requests: Sequence[int], room: int) -> int:
    """Hits of one store that evicts what was least recently used."""
    kept: dict[int, None] = {}
    hits = 0
    for each in requests:
        hits += each in kept
        kept.pop(each, None)
        kept[each] = None
        if len(kept) > room:
            del kept[next(iter(kept))]
    return hits


def belady_hits(requests: Sequence[int], room: int) -> int:
    """Hits of one store that knows the future: it evicts what is needed last (Belady, 1966)."""
    upcoming: dict[int, list[int]] = {}
    for at in reversed(range(len(requests))):
        upcoming.setdefault(requests[at], []).append(at)
    kept: set[int] = set()
    hits = 0
    for each in requests:
        upcoming[each].pop()
        hits += each in kept
        kept.add(each)
        if len(kept) > room:
            kept.discard(max(kept, key=lambda one: upcoming[one][-1] if upcoming[one] else inf))
    return hits
