"""Who places requests in the simulation: the scheduler, and any policy that places at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.study.simulate import Gpu, Request, World
from lb.balancing.scheduler import Scheduler
from lb.domain.pool import Policy
from lb.domain.schedule import (
    NO_DEADLINE,
    Capacity,
    Ending,
    QueuePlan,
    QueueRules,
    RequestClass,
    ScheduleRefused,
    Ticket,
)

_MODEL = "gpu"
"""Name of the model where there is only one."""
_ATTEMPTS = 3
"""The limit for a request whose attempts fail."""


def auto_plan(world: World, rules: QueueRules | None = None, model: str = "") -> QueuePlan:
    """What the configurations of a model say at the backends that have it."""
    return QueuePlan(
        limits={server.backend: auto_limit(server.gpu) for server in world.serving(model)},
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

    def __init__(self, world: World, plan: QueuePlan | Mapping[str, QueuePlan]) -> None:
        """Schedule one model, or several of which each has a plan."""
        self.scheduler = Scheduler()
        self.world = world
        plans = {"": plan} if isinstance(plan, QueuePlan) else plan
        self.placements = {
            model: (each, tuple(server.backend for server in world.serving(model)))
            for model, each in plans.items()
        }
        """Plan and eligible backends of each model."""
        self._request_class: dict[str, RequestClass] = {}
        self.numbers = {server.backend: server.number for server in world.servers}
        self._requests: dict[Ticket, Request] = {}

    def ticket(self, request: Request, now: float) -> Ticket:
        """A ticket for a request that has just come."""
        plan, backends = self.placements[request.model]
        request_class = self._request_class.get(request.model)
        if (
            request_class is None
            or request_class.plan is not plan
            or request_class.eligible is not backends
        ):
            name = (request.model or _MODEL).encode()
            request_class = self._request_class[request.model] = RequestClass(
                name, b"", plan, backends
            )
        ticket = Ticket(request_class, now)
        ticket.rows = request.rows
        ticket.size = request.size
        ticket.deadline = request.deadline
        ticket.priority = request.priority
        ticket.tenant = request.tenant
        request.state = ticket
        return ticket

    def arrived(self, request: Request, now: float) -> None:
        """Offer it."""
        self._offer(self.ticket(request, now), request, now)

    def _offer(self, ticket: Ticket, request: Request, now: float) -> None:
        try:
            backend = self.scheduler.offer(ticket, now)
        except ScheduleRefused:
            self.world.refuse(request)
            return
        self._requests[ticket] = request
        if backend is not None:
            self.world.send(request, self.numbers[backend])
        self.woken(now)

    def ended(self, request: Request, now: float) -> None:
        """Its model backend is free."""
        self._complete(request, now, Ending.GOOD)
        self.woken(now)

    def failed(self, request: Request, now: float) -> None:
        """Offer it again, for backends that it has not failed at."""
        ticket = request.state
        assert isinstance(ticket, Ticket)
        assert ticket.backend is not None
        ticket.tried += (ticket.backend,)
        self._complete(request, now, Ending.FAILED)
        if len(ticket.tried) < _ATTEMPTS:
            self._offer(ticket, request, now)
            return
        self.world.refuse(request)
        self.woken(now)

    def leave(self, request: Request, now: float) -> None:
        """The client of a request under way wants no answer any more."""
        ticket = request.state
        if not isinstance(ticket, Ticket) or ticket not in self._requests:
            return
        if ticket.is_waiting:
            self.scheduler.drop(ticket)
            del self._requests[ticket]
        else:
            assert ticket.backend is not None
            ticket.backend.in_flight -= 1
            self._complete(request, now, Ending.NEITHER)
        self.woken(now)

    def _complete(self, request: Request, now: float, ending: Ending) -> None:
        ticket = request.state
        assert isinstance(ticket, Ticket)
        self.scheduler.complete(ticket, now, ending)
        del self._requests[ticket]

    def wake_at(self) -> float:
        """As the scheduler says."""
        return self.scheduler.wake_at

    def woken(self, now: float) -> None:
        """Begin what is due, refuse what is late."""
        while (ticket := self.scheduler.next_due(now)) is not None:
            assert ticket.backend is not None
            self.world.send(self._requests[ticket], self.numbers[ticket.backend])
        while (ticket := self.scheduler.next_refused(now)) is not None:
            self.world.refuse(self._requests.pop(ticket))


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

    def failed(self, request: Request, now: float) -> None:
        """Refuse it."""
        self._world.refuse(request)

    def wake_at(self) -> float:
        """Never."""
        return NO_DEADLINE

    def woken(self, now: float) -> None:
        """There is nothing to do."""
