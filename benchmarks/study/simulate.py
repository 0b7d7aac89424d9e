"""A simulation of backends that execute requests, and of whoever places requests on them.

Time is simulated: hours take seconds, and nothing but the arrivals and the policies is random. The
policies are those of the product (`lb.balancing`). A backend runs requests in the order in which
they arrive, on as many instances as it has, one by one or in batches of all that waits (a dynamic
batcher without delay). Models on one backend have instances of their own, which slow each other
down. Each way between the balancer and a backend takes half of the turnaround.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Protocol

from lb.domain.backend import Address, Backend, BackendSpec

TURNAROUND_S = 0.0008
"""From the end of an execution to the arrival of the next request, with an event loop between."""
_MANY = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """How a backend executes a model: base_s, row_s per row and byte_s per byte, with a jitter of
    some part of that."""

    base_s: float
    row_s: float = 0.0
    byte_s: float = 0.0
    instances: int = 1
    max_batch: int = 0
    """Rows in one execution; 0: requests are run one by one."""
    jitter: float = 0.02
    slow: tuple[tuple[float, float, float], ...] = ()
    """From when to when it takes how many times as long."""
    stalls: tuple[tuple[float, float], ...] = ()
    """When nothing ends, and for how long."""
    first_s: float = 0.0
    """How much longer the first execution of each instance takes."""
    contention: float = 0.0
    """What part of its time an execution takes longer for each other one that runs on the device
    when it begins."""
    failures: tuple[tuple[float, float, float], ...] = ()
    """From when to when which part of the requests fails."""
    failure_s: float = 0.001
    """How long it takes to fail."""

    def rate(self, rows: int = 1) -> float:
        """Requests of so many rows per second that it does at most."""
        batch = max(1, self.max_batch // rows) if self.max_batch else 1
        return self.instances * batch / (self.base_s + self.row_s * rows * batch)


class Request:
    """One request of the load."""

    __slots__ = (
        "at",
        "backend",
        "client",
        "deadline",
        "ended_at",
        "has_failed",
        "is_never_answered",
        "is_refused",
        "kind",
        "model",
        "priority",
        "refused_at",
        "rows",
        "size",
        "state",
        "tenant",
        "work",
    )  # fmt: skip

    def __init__(self, at: float, rows: int = 1, kind: str = "") -> None:
        self.at = at
        self.rows = rows
        self.size = 0
        """Bytes."""
        self.model = ""
        self.work = 1.0
        """How many times as long as its rows and bytes say it executes: nobody can see that."""
        self.kind = kind
        """Name for the tables."""
        self.deadline = float("inf")
        self.priority = 0
        self.tenant = ""
        self.client = -1
        """Number of the client that sends its next one when it is answered, in a closed loop."""
        self.backend = -1
        self.ended_at = -1.0
        """When the client had its answer; negative where it had none."""
        self.is_refused = False
        self.refused_at = -1.0
        """When it was answered with an error; negative where it was not."""
        self.is_never_answered = False
        """Every backend loses it at once."""
        self.has_failed = False
        """Its last execution failed."""
        self.state: object = None
        """What the policy notes about it."""

    @property
    def latency_s(self) -> float:
        """How long the client waited."""
        return self.ended_at - self.at

    @property
    def is_good(self) -> bool:
        """Whether it was answered in time."""
        return 0 <= self.ended_at <= self.deadline


class Balancer(Protocol):
    """Whoever places requests."""

    def arrived(self, request: Request, now: float) -> None:
        """A request came: `World.send` it now or later, or `World.refuse` it."""
        ...

    def ended(self, request: Request, now: float) -> None:
        """Its answer passed through."""
        ...

    def failed(self, request: Request, now: float) -> None:
        """Its attempt ended with an error: `World.send` it again, or `World.refuse` it."""
        ...

    def wake_at(self) -> float:
        """When to be called though nothing happened."""
        ...

    def woken(self, now: float) -> None:
        """It is that time."""
        ...


class Device:
    """What the models of one backend share."""

    def __init__(self, number: int) -> None:
        self.backend = Backend(BackendSpec(name=f"gpu{number}", http=Address("127.0.0.1", 8000)))
        self.running = 0
        """Executions, of all models."""


class Server:
    """One model at one simulated backend."""

    def __init__(self, gpu: Gpu, number: int, rng: Random, device: Device | None = None) -> None:
        self.gpu = gpu
        self.number = number
        self.device = device or Device(number)
        self.backend = self.device.backend
        self.queue: deque[Request] = deque()
        self.running = 0
        self.executions = 0
        self.executed = 0
        """Requests that were executed."""
        self.busy_s = 0.0
        self._rng = rng

    def take(self) -> list[Request]:
        """What an instance that is free executes now."""
        batch = [self.queue.popleft()]
        rows = batch[0].rows
        while self.queue and rows + self.queue[0].rows <= self.gpu.max_batch:
            rows += self.queue[0].rows
            batch.append(self.queue.popleft())
        return batch

    def begin(self, batch: list[Request], now: float) -> float:
        """Count an execution that begins now; how long it takes."""
        took = self._execution_s(batch, now)
        self.running += 1
        self.device.running += 1
        self.executions += 1
        self.executed += len(batch)
        self.busy_s += took
        return took

    def end(self) -> None:
        """An execution is over."""
        self.running -= 1
        self.device.running -= 1

    def _execution_s(self, batch: list[Request], now: float) -> float:
        gpu = self.gpu
        for begin, end, part in gpu.failures:
            if begin <= now < end and self._rng.random() < part:
                for request in batch:
                    request.has_failed = True
                return gpu.failure_s
        rows = size = 0
        work = 0.0
        for request in batch:
            rows += request.rows
            size += request.size
            work += request.work
        took = (gpu.base_s + gpu.row_s * rows + gpu.byte_s * size) * work / len(batch)
        if gpu.jitter:
            took *= 1.0 + gpu.jitter * (2.0 * self._rng.random() - 1.0)
        if gpu.contention:
            took *= 1.0 + gpu.contention * self.device.running
        if self.executions < gpu.instances:
            took += gpu.first_s
        for begin, end, factor in gpu.slow:
            if begin <= now < end:
                took *= factor
        for begin, pause in gpu.stalls:
            if now < begin + pause and begin < now + took:
                took += begin + pause - max(now, begin)
        return took


class World:
    """The simulated time, and everything in it."""

    def __init__(
        self,
        gpus: Sequence[Gpu | Mapping[str, Gpu]],
        seed: int = 1,
        turnaround_s: float = TURNAROUND_S,
        late_s: float = 0.0,
    ) -> None:
        """Begin at 0 seconds.

        Args:
            gpus: what the backends are; by model where they have several.
            seed: of everything that is random here.
            turnaround_s: both ways between balancer and backend together.
            late_s: what each way takes longer on average, exponentially distributed.
        """
        self.now = 0.0
        rng = Random(seed)
        self._late = rng.expovariate if late_s else None
        self._per_late_s = 1.0 / late_s if late_s else 0.0
        self.servers: list[Server] = []
        """The models of the backends, one backend after the other."""
        self._by_model: list[dict[str, Server]] = []
        """By the number of the backend."""
        for number, models in enumerate(gpus):
            device = Device(number)
            here = {"": models} if isinstance(models, Gpu) else models
            found = {model: Server(gpu, number, rng, device) for model, gpu in here.items()}
            self.servers += found.values()
            self._by_model.append(found)
        self.done: list[Request] = []
        """Requests that were answered or refused."""
        self.again: Callable[[Request, float], Request | None] | None = None
        """Gives the next request of a client in a closed loop."""
        self._way_s = turnaround_s / 2
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._woken_at = float("inf")

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The backends as policies know them."""
        return tuple(server.backend for server in self.serving(""))

    def serving(self, model: str) -> list[Server]:
        """A model at each backend that has it."""
        return [found[model] for found in self._by_model if model in found]

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something happen."""
        self._count += 1
        heappush(self._events, (when, self._count, what))

    def send(self, request: Request, number: int) -> None:
        """A request goes to a backend."""
        request.backend = number
        server = self._by_model[number][request.model]
        server.backend.in_flight += 1
        self.at(self.now + self._one_way_s(), lambda: self._reached(server, request))

    def refuse(self, request: Request) -> None:
        """A request is answered with an error."""
        request.is_refused = True
        request.refused_at = self.now
        self._finish(request)

    def run(self, load: Iterable[Request], balancer: Balancer, until: float = float("inf")) -> None:
        """Play a load until all of it is done, or until some time."""
        self._balancer = balancer
        arrivals = iter(load)
        following = next(arrivals, None)
        while following is not None or self._events:
            if following is not None and (not self._events or following.at <= self._events[0][0]):
                self.now = following.at
                if self.now >= until:
                    return
                request = following
                following = next(arrivals, None)
                balancer.arrived(request, self.now)
            else:
                self.now, _, what = heappop(self._events)
                if self.now >= until:
                    return
                what()
            self._sleep()

    def _one_way_s(self) -> float:
        late_s = self._late(self._per_late_s) if self._late is not None else 0.0
        return self._way_s + late_s

    def _sleep(self) -> None:
        wake_at = self._balancer.wake_at()
        if wake_at < self._woken_at:
            self._woken_at = wake_at
            # An event loop's timers are late by up to a millisecond.
            self.at(max(wake_at, self.now) + 0.0005, lambda: self._wake(wake_at))

    def _wake(self, armed_for: float) -> None:
        if armed_for == self._woken_at:
            self._woken_at = float("inf")
            self._balancer.woken(self.now)

    def _reached(self, server: Server, request: Request) -> None:
        if request.is_never_answered:
            return
        server.queue.append(request)
        if server.running < server.gpu.instances:
            self._execute(server)

    def _execute(self, server: Server) -> None:
        batch = server.take()
        took = server.begin(batch, self.now)
        self.at(self.now + took, lambda: self._executed(server, batch))

    def _executed(self, server: Server, batch: list[Request]) -> None:
        server.end()
        if server.queue:
            self._execute(server)
        self.at(self.now + self._one_way_s(), lambda: self._answered(server, batch))

    def _answered(self, server: Server, batch: list[Request]) -> None:
        for request in batch:
            server.backend.in_flight -= 1
            if request.has_failed:
                request.has_failed = False
                self._balancer.failed(request, self.now)
                continue
            request.ended_at = self.now
            self._balancer.ended(request, self.now)
            self._finish(request)

    def _finish(self, request: Request) -> None:
        self.done.append(request)
        if self.again is not None and request.client >= 0:
            following = self.again(request, self.now)
            if following is not None:
                self.at(following.at, lambda: self._balancer.arrived(following, self.now))


def bound(
    arrivals: Sequence[tuple[float, Sequence[float]]], instances: Sequence[int]
) -> list[float]:
    """Latencies of a perfect dispatcher, in the order of arrival.

    It knows every execution time, and sends each request, in the order in which they come, where it
    ends first.

    Args:
        arrivals: when each came in seconds, in order of time, and its seconds on each backend.
        instances: of each backend.
    """
    free = [[0.0] * count for count in instances]
    found = []
    for at, takes in arrivals:
        ends = [max(at, heap[0]) + took for heap, took in zip(free, takes, strict=True)]
        end = min(ends)
        heap = free[ends.index(end)]
        heappop(heap)
        heappush(heap, end)
        found.append(end - at)
    return found


def quantile(values: Iterable[float], part: float) -> float:
    """The value below which that part of all values is; nan where there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def poisson(
    rate: float, seconds: float, seed: int, make: Callable[[float, Random], Request] | None = None
) -> list[Request]:
    """Requests as independent clients send them."""
    rng = Random(seed)
    found = []
    at = rng.expovariate(rate)
    while at < seconds:
        found.append(Request(at) if make is None else make(at, rng))
        at += rng.expovariate(rate)
    return found


def _bound_of(load: Sequence[Request], gpus: Sequence[Gpu], turnaround_s: float) -> list[float]:
    takes = [(each.at, [gpu.base_s + gpu.row_s * each.rows for gpu in gpus]) for each in load]
    return [took + turnaround_s for took in bound(takes, [gpu.instances for gpu in gpus])]


def bound_of(
    load: Sequence[Request], gpus: Sequence[Gpu], turnaround_s: float = TURNAROUND_S
) -> list[float]:
    """The latencies of a perfect dispatcher that has a load, in order of arrival."""
    return _bound_of(load, gpus, turnaround_s)
