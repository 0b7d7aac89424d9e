"""Snapshots of the pool as messages from the control process to the workers, and back.

A message is plain JSON: docs/decisions/0069-workers.md shows one. `PoolWriter` gives each backend a
number; a set of backends, a plan and a route that many models share are written once. `PoolReader`
keeps the `Backend` of a number, and everything that has not changed, since the relay compares plans
and placements by identity.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from random import Random
from typing import Any, Final

from lb.balancing.policies import make_policy
from lb.balancing.trial import TrialPicker
from lb.domain.backend import (
    Address,
    AppProtocol,
    Backend,
    BackendKind,
    BackendPort,
    BackendSpec,
    BackendTls,
    parse_address,
)
from lb.domain.control import Reach
from lb.domain.model import ModelFacts
from lb.domain.names import to_bytes, to_text
from lb.domain.pool import ModelRoute, Placement, Placements, PoolSnapshot
from lb.domain.schedule import Capacity, Order, QueuePlan, QueueRules
from lb.domain.trial import Trial

VERSION: Final = 1
"""Of the messages between the processes of a service. All of them run the same program, so another
version is refused instead of being understood."""


class PoolWriter:
    """The control process's side."""

    def __init__(self, epoch: str) -> None:
        """
        Args:
            epoch: tells numbers of this process from those of another control process.
        """
        self._epoch = epoch
        self._numbers: dict[Backend, int] = {}
        self._next = 0
        self._specs: dict[Backend, BackendSpec] = {}
        """As they were last told."""
        self._trials: dict[Trial, int] = {}
        self._next_trial = 0

    def number(self, backend: Backend) -> int:
        """The number of a backend; it is never given to another one."""
        found = self._numbers.get(backend)
        if found is None:
            found = self._numbers[backend] = self._next
            self._next += 1
        return found

    def backends(self) -> dict[int, Backend]:
        """All backends that have a number."""
        return {number: backend for backend, number in self._numbers.items()}

    def trials(self) -> dict[int, Trial]:
        """All trials of the last message."""
        return {number: trial for trial, number in self._trials.items()}

    def write(
        self, snapshot: PoolSnapshot, roster: Sequence[Reach], *, is_whole: bool
    ) -> dict[str, Any]:
        """Make a message.

        Args:
            snapshot: as it was published.
            roster: whom calls to all backends reach.
            is_whole: tell everything that is known of backends; otherwise what has changed since
                the last message that was not whole.
        """
        self._forget({*snapshot.backends, *(reach.backend for reach in roster)})
        body = _Body(self)
        routes = dict[str, int]()
        rows = list[dict[str, Any]]()
        known: dict[int, int] = {}
        for name, route in snapshot.routes.items():
            index = known.get(id(route))
            if index is None:
                index = known[id(route)] = len(rows)
                rows.append(body.route(route))
            routes[to_text(name)] = index
        message = {
            "version": VERSION,
            "epoch": self._epoch,
            "generation": snapshot.generation,
            "backends": [self._backend(each, is_whole=is_whole) for each in snapshot.backends],
            "placements": body.placements(snapshot.placements),
            "routes": routes,
            "route_rows": rows,
            "regions": {
                to_text(name): body.placements(each) for name, each in snapshot.regions.items()
            },
            "partial": [body.set_of(each) for each in snapshot.partial],
            "knows_all": snapshot.knows_all,
            "only_unready": list(snapshot.only_unready),
            "parting": sorted(map(self.number, snapshot.parting)),
            "roster": [[self.number(each.backend), *each.open] for each in roster],
        }
        self._trials = body.trials
        trials = [[n, self.number(trial.backend)] for trial, n in body.trials.items()]
        return message | {"lists": body.lists, "plans": body.plans, "trials": trials}

    def trial(self, trial: Trial) -> int:
        """The number of a trial."""
        found = self._trials.get(trial)
        if found is None:
            found = self._trials[trial] = self._next_trial
            self._next_trial += 1
        return found

    def _backend(self, backend: Backend, *, is_whole: bool) -> list[Any]:
        """The number, and the specification where that is news."""
        number = self.number(backend)
        if is_whole:
            return [number, _spec_row(backend.spec)]
        if self._specs.get(backend) == backend.spec:
            return [number, None]
        self._specs[backend] = backend.spec
        return [number, _spec_row(backend.spec)]

    def _forget(self, present: set[Backend]) -> None:
        self._numbers = {each: n for each, n in self._numbers.items() if each in present}
        self._specs = {each: spec for each, spec in self._specs.items() if each in present}


class _Body:
    """What one message shares between its parts."""

    def __init__(self, writer: PoolWriter) -> None:
        self._writer = writer
        self.lists: list[list[int]] = []
        self._list_of: dict[tuple[Backend, ...], int] = {}
        self.plans: list[Any] = []
        self._plan_of: dict[int, int] = {}
        self.trials: dict[Trial, int] = {}

    def set_of(self, backends: tuple[Backend, ...]) -> int:
        index = self._list_of.get(backends)
        if index is None:
            index = self._list_of[backends] = len(self.lists)
            self.lists.append([self._writer.number(each) for each in backends])
        return index

    def placements(self, placements: Placements) -> list[list[int]]:
        """By protocol: a list of backends, and the number of a trial that comes first, or -1."""
        return [self._placement(each) for each in placements]

    def _placement(self, placement: Placement) -> list[int]:
        trial, picker = -1, placement.picker
        if isinstance(picker, TrialPicker):
            trial = self.trials[picker.trial] = self._writer.trial(picker.trial)
        return [self.set_of(placement.eligible), trial]

    def route(self, route: ModelRoute) -> dict[str, Any]:
        return {
            "facts": asdict(route.facts),
            "placements": None if route.placements is None else self.placements(route.placements),
            "versions": {to_text(v): self.placements(p) for v, p in route.versions.items()},
            "ready": sorted(map(to_text, route.ready_versions)),
            "is_uniform": route.is_uniform,
            "is_plain": route.is_plain,
            "plan": None if route.plan is None else self._plan(route.plan),
        }

    def _plan(self, plan: QueuePlan) -> int:
        index = self._plan_of.get(id(plan))
        if index is None:
            index = self._plan_of[id(plan)] = len(self.plans)
            rules = asdict(plan.rules)
            self.plans.append({
                "limits": [
                    [self._writer.number(each), asdict(limit)]
                    for each, limit in plan.limits.items()
                ],
                "default": asdict(plan.default),
                "rules": rules
                | {"order": plan.rules.order.value, "weights": [*plan.rules.weights.items()]},
            })  # fmt: skip
        return index


class PoolReader:
    """A worker's side."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._policy_name = ""
        self._policy = make_policy("least_loaded", rng)
        self._epoch = ""
        self.backends: dict[int, Backend] = {}
        """By number."""
        self._numbers: dict[Backend, int] = {}
        self._placed: dict[tuple[int, ...], Placement] = {}
        """By protocol and numbers."""
        self._former: dict[tuple[int, ...], Placement] = {}
        """Those of the message before."""
        self._plans: dict[str, QueuePlan] = {}
        """By how they are written."""
        self._routes: dict[str, ModelRoute] = {}
        """Likewise."""
        self.trials: dict[int, Trial] = {}

    def empty(self) -> PoolSnapshot:
        """The pool before the first message."""
        nobody = Placement((), None, self._policy)
        return PoolSnapshot(0, (), (nobody, nobody))

    def use_policy(self, name: str) -> None:
        """Choose backends by that policy from the next message on."""
        if name != self._policy_name:
            self._policy_name, self._policy = name, make_policy(name, self._rng)
            self._begin_anew()

    def number(self, backend: Backend) -> int | None:
        """The number of a backend; None when the control process has forgotten it."""
        return self._numbers.get(backend)

    def read(self, message: Mapping[str, Any]) -> tuple[PoolSnapshot, tuple[Reach, ...]]:
        """Take over a message.

        Returns:
            The snapshot, and whom calls to all backends reach.

        Raises:
            ValueError: it is of another version.
        """
        if message["version"] != VERSION:
            raise ValueError(f"version {message['version']} of the messages, not {VERSION}")
        backends = self._take_backends(message)
        lists = [tuple(each) for each in message["lists"]]
        before = self.trials
        self.trials = trials = {
            number: before.get(number) or Trial(self.backends[backend])
            for number, backend in message["trials"]
        }

        def placement(protocol: AppProtocol, row: Sequence[int]) -> Placement:
            numbers = lists[row[0]]
            found = self._placement(protocol, numbers)
            if row[1] < 0:
                return found
            picker = TrialPicker(trials[row[1]], found.picker)
            return Placement(found.eligible, picker, found.policy)

        def placements(rows: Sequence[Sequence[int]]) -> Placements:
            return (placement(AppProtocol.HTTP, rows[0]), placement(AppProtocol.GRPC, rows[1]))

        self._former, self._placed = self._placed, {}
        plans = self._read_plans(message["plans"])
        kept: dict[str, ModelRoute] = {}
        routes = []
        for row in message["route_rows"]:
            # Numbers of lists and plans are of one message, so the key has what they stand for.
            key = json.dumps([row, _resolved(row, lists), id(_plan_of(row, plans))])
            route = self._routes.get(key)
            if route is None:
                route = _route(row, placements, _plan_of(row, plans))
            kept[key] = route
            routes.append(route)
        self._routes = kept
        http, grpc = message["partial"]
        snapshot = PoolSnapshot(
            message["generation"],
            backends,
            placements(message["placements"]),
            routes={to_bytes(name): routes[index] for name, index in message["routes"].items()},
            regions={to_bytes(name): placements(rows) for name, rows in message["regions"].items()},
            partial=(self._list(lists[http]), self._list(lists[grpc])),
            knows_all=message["knows_all"],
            only_unready=(message["only_unready"][0], message["only_unready"][1]),
            parting=frozenset(self._list(message["parting"])),
        )
        roster = tuple(
            Reach(self.backends[number], (http, grpc)) for number, http, grpc in message["roster"]
        )
        return snapshot, roster

    def _list(self, numbers: Iterable[int]) -> tuple[Backend, ...]:
        return tuple([self.backends[number] for number in numbers])

    def _begin_anew(self) -> None:
        self._placed, self._former, self._plans, self._routes = {}, {}, {}, {}

    def _take_backends(self, message: Mapping[str, Any]) -> tuple[Backend, ...]:
        """The backends of the message: those that are known live on."""
        before = self.backends
        if message["epoch"] != self._epoch:
            self._epoch = message["epoch"]
            free = {(each.spec.name, each.spec.server): each for each in before.values()}
            before, self.trials = {}, {}
            self._begin_anew()
        else:
            free = {}
        found: dict[int, Backend] = {}
        for number, row in message["backends"]:
            backend = before.get(number)
            if row is not None:
                spec = _spec(row)
                if backend is None:
                    backend = free.pop((spec.name, spec.server), None)
                if backend is None:
                    backend = Backend(spec)
                elif backend.spec != spec:
                    backend.apply(spec)
                    backend.set_share(backend.share)
                    self._begin_anew()
            if backend is None:
                raise ValueError(f"nothing is known of backend {number}")
            found[number] = backend
        self.backends = found
        self._numbers = {backend: number for number, backend in found.items()}
        return tuple(found.values())

    def _placement(self, protocol: AppProtocol, numbers: tuple[int, ...]) -> Placement:
        key = (protocol, *numbers)
        placement = self._placed.get(key) or self._former.get(key)
        if placement is None:
            backends = self._list(numbers)
            picker = self._policy.build(backends) if backends else None
            placement = Placement(backends, picker, self._policy)
        self._placed[key] = placement
        return placement

    def _read_plans(self, rows: Iterable[Mapping[str, Any]]) -> list[QueuePlan]:
        before, self._plans = self._plans, {}
        found = []
        for row in rows:
            key = json.dumps(row)
            plan = self._plans[key] = before.get(key) or self._make_plan(row)
            found.append(plan)
        return found

    def _make_plan(self, row: Mapping[str, Any]) -> QueuePlan:
        rules = row["rules"]
        return QueuePlan(
            limits={
                self.backends[number]: Capacity(**limit)
                for number, limit in row["limits"]
                if number in self.backends
            },
            default=Capacity(**row["default"]),
            rules=QueueRules(
                **{**rules, "order": Order(rules["order"]), "weights": dict(rules["weights"])}
            ),
        )


def _plan_of(row: Mapping[str, Any], plans: Sequence[QueuePlan]) -> QueuePlan | None:
    return None if row["plan"] is None else plans[row["plan"]]


def _resolved(row: Mapping[str, Any], lists: Sequence[tuple[int, ...]]) -> list[Any]:
    """The backends that the placements of a route stand for."""
    every = [*(row["placements"] or ()), *(each for p in row["versions"].values() for each in p)]
    return [lists[index] for index, _ in every]


def _route(row: Mapping[str, Any], placements: Any, plan: QueuePlan | None) -> ModelRoute:
    own, facts = row["placements"], row["facts"]
    return ModelRoute(
        facts=ModelFacts(**{**facts, "preferred": tuple(facts["preferred"])}),
        placements=None if own is None else placements(own),
        versions={to_bytes(name): placements(rows) for name, rows in row["versions"].items()},
        ready_versions=frozenset(map(to_bytes, row["ready"])),
        is_uniform=row["is_uniform"],
        plan=plan,
        is_plain=row["is_plain"],
    )


def _spec_row(spec: BackendSpec) -> dict[str, Any]:
    tls = spec.tls
    return {
        "name": spec.name,
        "http": _address_text(spec.http),
        "grpc": _address_text(spec.grpc),
        "metrics": _address_text(spec.metrics),
        "kind": spec.kind.value,
        "weight": spec.weight,
        "max_in_flight": spec.max_in_flight,
        "concurrency": spec.concurrency,
        "headers": [list(each) for each in spec.headers],
        "tls": None if tls is None else asdict(tls) | {"ports": [p.value for p in tls.ports]},
        "shared_memory": spec.shared_memory,
    }


def _spec(row: Mapping[str, Any]) -> BackendSpec:
    tls = row["tls"]
    return BackendSpec(
        **{
            **row,
            "http": _address(row["http"]),
            "grpc": _address(row["grpc"]),
            "metrics": _address(row["metrics"]),
            "kind": BackendKind(row["kind"]),
            "headers": tuple((name, value) for name, value in row["headers"]),
            "tls": None
            if tls is None
            else BackendTls(**{**tls, "ports": frozenset(map(BackendPort, tls["ports"]))}),
        }
    )


def _address_text(address: Address | None) -> str | None:
    return None if address is None else str(address)


def _address(text: str | None) -> Address | None:
    return None if text is None else parse_address(text)
