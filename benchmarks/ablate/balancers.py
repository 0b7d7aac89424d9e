"""The scheduler in the simulation, where there is more than requests that are offered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from benchmarks.study.simulate import Request, World, poisson
from benchmarks.study.simulated_balancers import Scheduled, auto_plan
from lb.balancing.policies import make_policy
from lb.balancing.sequences import Affinity, Pin, SequenceTable
from lb.domain.backend import Backend
from lb.domain.load import LoadReport, Measured, ModelLoad
from lb.domain.pool import Placement
from lb.domain.schedule import Ending, Plan
from lb.domain.sequence import SequenceKey, SequenceStep
from tests.fakes.work import instructions

_IDLE_S: Final = 60.0
"""How long a model remembers a sequence."""


class Told(Scheduled):
    """Backends that others use, and which tell how much they have to do."""

    def occupy(self, number: int, load: list[Request], at_s: float) -> None:
        """Have others send a load to a backend from some time on."""
        for request in load:
            self.world.at(at_s + request.at, self._sending(request, number))

    def _sending(self, request: Request, number: int) -> Callable[[], None]:
        return lambda: self.world.send(request, number)

    def ask_every(self, interval_s: float, until_s: float) -> None:
        """Ask every backend for its load, one after the other."""
        count = len(self.world.servers)
        for turn in range(int(until_s / interval_s)):
            for number in range(count):
                self.world.at(interval_s * (turn + number / count), self._asking(number))

    def _asking(self, number: int) -> Callable[[], None]:
        return lambda: self.ask(number)

    def ask(self, number: int) -> None:
        """Read what a Triton's metrics say."""
        server = self.world.servers[number]
        load = ModelLoad(
            pending=float(len(server.queue)),
            requests=float(server.executed),
            executions=float(server.executions),
            execution_s=server.busy_s,
        )
        model, under_way = b"gpu", self.scheduler.in_flight_by_model(server.backend)
        report = LoadReport(at=self.world.now, models={model: load}, in_flight=under_way)
        self.scheduler.on_load_report(server.backend, report)

    def ended(self, request: Request, now: float) -> None:
        """Requests of others are none of its business."""
        if request.state is not None:
            super().ended(request, now)


def known_speeds(world: World, factor: float) -> Scheduled:
    """A balancer that begins before backends which say how long executions took, warm-up
    included."""
    balancer = Scheduled(world, auto_plan(world))
    for server in world.servers:
        measured = {(b"gpu", b"1"): Measured(base_s=factor * server.gpu.base_s)}
        balancer.scheduler.assume(server.backend, measured, 0.0)
    return balancer


class Grown(Scheduled):
    """The last backend joins late, and its share grows from a tenth to all of it."""

    def __init__(self, world: World, plan: Plan, at_s: float, ramp_s: float) -> None:
        super().__init__(world, plan)
        self._joins_at = at_s
        self._ramp_s = ramp_s
        plan, self._all = self.placements[""]
        self.placements[""] = (plan, self._all[:-1])
        world.at(at_s, self._join)

    def _join(self) -> None:
        plan, _ = self.placements[""]
        self.placements[""] = (plan, self._all)
        self._grow()
        self.scheduler.follow(lambda _: self.placements[""], self.world.now)
        self.woken(self.world.now)

    def _grow(self) -> None:
        part = (self.world.now - self._joins_at) / self._ramp_s
        self._all[-1].set_share(min(1.0, 0.1 + 0.9 * part))
        if part < 1.0:
            self.world.at(self.world.now + 0.1 * self._ramp_s, self._grow)


class Bypassed(Scheduled):
    """Requests of kind `other` are not scheduled, and go to the backend with the fewest in flight
    that has room; every backend has a limit for all."""

    def __init__(self, world: World, plan: Plan, max_in_flight: int) -> None:
        super().__init__(world, plan)
        for backend in world.backends:
            backend.max_in_flight = max_in_flight

    def arrived(self, request: Request, now: float) -> None:
        """Offer it, or have it pass."""
        if request.kind != "other":
            super().arrived(request, now)
            return
        backend = min(self.world.backends, key=_in_flight)
        if backend.has_room:
            self.world.send(request, self.numbers[backend])
        else:
            self.world.refuse(request)

    def ended(self, request: Request, now: float) -> None:
        """Requests that were not scheduled are none of its business."""
        if request.state is not None:
            super().ended(request, now)


def _in_flight(backend: Backend) -> int:
    return backend.in_flight


class Unqueued(Scheduled):
    """Requests that never wait."""

    def start(self, request: Request, backend: Backend, now: float) -> None:
        """Have one begin at a backend."""
        ticket = self.ticket(request, now)
        self.scheduler.start(ticket, backend, now)
        ticket.backend = backend
        self._requests[ticket] = request
        self.world.send(request, self.numbers[backend])


class Streamed(Unqueued):
    """Each client's requests come on a stream, which stays where it is while that is well."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        self.moved = 0
        """Requests that went elsewhere than the one before."""
        self._homes: dict[int, Backend] = {}

    def arrived(self, request: Request, now: float) -> None:
        """Begin it where it ends first."""
        home = self._homes.get(request.client)
        ticket = self.ticket(request, now)
        if home is not None and self.scheduler.stays(ticket, home, now):
            backend = home
        else:
            backend = self.scheduler.best(ticket, now, home) or self.world.backends[0]
        self.moved += home is not None and backend is not home
        self._homes[request.client] = backend
        self.start(request, backend, now)


class Sequenced(Scheduled):
    """Steps of sequences of one model are bound to their backends; another model is scheduled."""

    def __init__(self, world: World, plans: Mapping[str, Plan], model: str) -> None:
        super().__init__(world, plans)
        self._model = model
        self._table = SequenceTable(limit=100_000, affinity=Affinity.LEAST_WORK)
        policy = make_policy("least_loaded", Random(1))
        backends = tuple(server.backend for server in world.serving(model))
        self._placement = Placement(backends, policy.build(backends), policy)
        self._tell()

    def sequences(self, rate: float, seconds: float, seed: int) -> list[Request]:
        """Steps of sequences that begin at a rate: some step fast and some slowly."""
        rng = Random(seed)
        found = []
        for number, start in enumerate(poisson(rate, seconds, seed)):
            count = rng.choice((5, 20, 60))
            pause_s = rng.choice((0.02, 0.1, 0.5))
            at = start.at
            for step in range(count):
                request = Request(at, kind="step")
                request.model = self._model
                key = SequenceKey(self._model.encode(), number + 1)
                request.state = SequenceStep(key, step == 0, step == count - 1)
                found.append(request)
                at += pause_s * (0.5 + rng.random())
        return found

    def arrived(self, request: Request, now: float) -> None:
        """Offer it, or send it where its sequence is."""
        step = request.state
        if not isinstance(step, SequenceStep):
            super().arrived(request, now)
            return
        backend, pin = self._table.place(step, self._placement, _IDLE_S, now)
        if backend is None or pin is None:
            self.world.refuse(request)
            return
        request.state = (step, pin, pin.starts, now)
        self.world.send(request, self.numbers[backend])

    def ended(self, request: Request, now: float) -> None:
        """The sequence knows of it."""
        if not isinstance(request.state, tuple):
            super().ended(request, now)
            return
        step, pin, starts, began_at = request.state
        assert isinstance(pin, Pin)
        self._table.ended(step, pin, starts, now, began_at=began_at)

    def _tell(self) -> None:
        """Tell the scheduler once a second how much of the backends' time sequences take."""
        now = self.world.now
        totals = self._table.totals(now)
        for backend in self._placement.eligible:
            part = totals.get(backend, 0.0)
            if part or backend.spoken_for:
                backend.spoken_for = part
                self.scheduler.spoken_for(backend, part, now)
        if now < 60.0:
            self.world.at(now + 1.0, self._tell)


class Counting(Scheduled):
    """Counts the instructions of the interpreter that the scheduler takes."""

    instructions = 0
    begin_at = 0
    """From which request on they are counted."""
    _arrived = 0

    def arrived(self, request: Request, now: float) -> None:
        """Offer it."""
        self._arrived += 1
        self._count(lambda: super(Counting, self).arrived(request, now))

    def _complete(self, request: Request, now: float, ending: Ending) -> None:
        self._count(lambda: super(Counting, self)._complete(request, now, ending))

    def woken(self, now: float) -> None:
        """Begin what is due."""
        self._count(lambda: super(Counting, self).woken(now))

    _depth = 0

    def _count(self, function: Callable[[], None]) -> None:
        if self._arrived <= self.begin_at or self._depth:
            function()
            return
        self._depth = 1
        self.instructions += instructions(function)
        self._depth = 0
