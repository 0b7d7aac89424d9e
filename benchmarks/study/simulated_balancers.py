"""Who places requests in the simulation: the scheduler, and any policy that places at once."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.study.simulate import Gpu, Request, World
from lb.balancing.scheduler import Scheduler
from lb.domain.pool import Policy
from lb.domain.schedule import (
    NO_DEADLINE,
    Capacity,
    Ending,
    Plan,
    QueueRules,
    ScheduleRefused,
    Ticket,
)

_MODEL = b"gpu"


def auto_plan(world: World, rules: QueueRules | None = None) -> Plan:
    """What the model configurations of the backends say."""
    return Plan(
        limits={server.backend: auto_limit(server.gpu) for server in world.servers},
        rules=rules or QueueRules(max_waiting=100_000),
    )


def auto_limit(gpu: Gpu) -> Capacity:
    """The limit of a backend that runs as a GPU does."""
    return Capacity(
        gpu.instances * max(1, gpu.max_batch),
        is_auto=True,
        instances=gpu.instances,
        max_batch=gpu.max_batch,
    )


class Scheduled:
    """The scheduler places."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.scheduler = Scheduler()
        self._world = world
        self._plan = plan
        self._backends = world.backends
        self._numbers = {backend: number for number, backend in enumerate(world.backends)}
        self._requests: dict[Ticket, Request] = {}

    def arrived(self, request: Request, now: float) -> None:
        """Offer it."""
        ticket = Ticket(_MODEL, b"", self._plan, self._backends, now)
        ticket.rows = request.rows
        ticket.deadline = request.deadline
        ticket.priority = request.priority
        ticket.tenant = request.tenant
        request.state = ticket
        try:
            backend = self.scheduler.offer(ticket, now)
        except ScheduleRefused:
            self._world.refuse(request)
            return
        self._requests[ticket] = request
        if backend is not None:
            self._world.send(request, self._numbers[backend])
        self.woken(now)

    def ended(self, request: Request, now: float) -> None:
        """Its lane is free."""
        ticket = request.state
        assert isinstance(ticket, Ticket)
        self.scheduler.complete(ticket, now, Ending.GOOD)
        del self._requests[ticket]
        self.woken(now)

    def wake_at(self) -> float:
        """As the scheduler says."""
        return self.scheduler.wake_at

    def woken(self, now: float) -> None:
        """Begin what is due, refuse what is late."""
        while (ticket := self.scheduler.next_due(now)) is not None:
            assert ticket.backend is not None
            self._world.send(self._requests[ticket], self._numbers[ticket.backend])
        while (ticket := self.scheduler.next_refused(now)) is not None:
            self._world.refuse(self._requests.pop(ticket))


class AtOnce:
    """A policy that places each request when it comes."""

    def __init__(self, world: World, policy: Policy) -> None:
        self._world = world
        self._picker = policy.build(world.backends)
        self._numbers = {backend: number for number, backend in enumerate(world.backends)}
        self.learn: Callable[[Request, float], None] | None = None
        """Told of each answer."""

    def arrived(self, request: Request, now: float) -> None:
        """Send it."""
        backend = self._picker.pick()
        assert backend is not None
        self._world.send(request, self._numbers[backend])

    def ended(self, request: Request, now: float) -> None:
        """Have the policy learn from it."""
        if self.learn is not None:
            self.learn(request, now)

    def wake_at(self) -> float:
        """Never."""
        return NO_DEADLINE

    def woken(self, now: float) -> None:
        """There is nothing to do."""
