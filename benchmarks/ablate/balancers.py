"""The scheduler in the simulation, where there is more than requests that are offered."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.study.simulate import Request, World
from benchmarks.study.simulate_policies import Replicas
from benchmarks.study.simulated_balancers import Scheduled, auto_plan
from lb.domain.backend import AppProtocol, Backend
from lb.domain.load import Measured
from lb.domain.schedule import Ending, QueuePlan
from tests.fakes.work import instructions


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

    def __init__(self, world: World, plan: QueuePlan, at_s: float, ramp_s: float) -> None:
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

    def __init__(self, world: World, plan: QueuePlan, max_in_flight: int) -> None:
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


class Pausing(Scheduled):
    """The balancer stands still for a moment now and then, and sees and does nothing meanwhile."""

    def __init__(self, world: World, plan: QueuePlan, every_s: float, pause_s: float) -> None:
        super().__init__(world, plan)
        self._every_s = every_s
        self._pause_s = pause_s

    def _when_awake(self, call: Callable[[float], None]) -> None:
        since_s = self.world.now % self._every_s
        if since_s < self._pause_s:
            at = self.world.now + self._pause_s - since_s
            self.world.at(at, lambda: call(at))
        else:
            call(self.world.now)

    def arrived(self, request: Request, now: float) -> None:
        """Offer it once the balancer goes on."""
        arrived = super().arrived
        self._when_awake(lambda at: arrived(request, at))

    def ended(self, request: Request, now: float) -> None:
        """Pass its answer on once the balancer goes on."""
        ended = super().ended

        def end(at: float) -> None:
            request.ended_at = at
            ended(request, at)

        self._when_awake(end)

    def woken(self, now: float) -> None:
        """Begin what is due once the balancer goes on."""
        self._when_awake(super().woken)


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

    def __init__(self, world: World, plan: QueuePlan) -> None:
        super().__init__(world, plan)
        self.moved = 0
        """Requests that went elsewhere than the one before."""
        self._homes: dict[int, Backend] = {}
        self._requests_of: dict[int, int] = {}

    def arrived(self, request: Request, now: float) -> None:
        """Begin it where it ends first. Every thirtieth begins another stream."""
        count = self._requests_of[request.client] = self._requests_of.get(request.client, -1) + 1
        home = None if count % 30 == 0 else self._homes[request.client]
        ticket = self.ticket(request, now)
        if home is not None and self.scheduler.stays(ticket, home, now):
            backend = home
        else:
            backend = self.scheduler.best(ticket, now, home) or self.world.backends[0]
        self.moved += home is not None and backend is not home
        self._homes[request.client] = backend
        self.start(request, backend, now)


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


class StreamedCounting(Counting, Streamed):
    """Counts the instructions that the scheduler takes for messages of streams."""


class Placed(Replicas):
    """A policy places. Requests whose attempts fail are answered with an error."""

    def failed(self, request: Request, now: float) -> None:
        """Count an attempt that failed."""
        self.ended(request, now)
        backend = request.state
        assert isinstance(backend, Backend)
        failures = backend.port(AppProtocol.HTTP).failures
        failures["connection"] = failures.get("connection", 0) + 1
        self._world.refuse(request)
