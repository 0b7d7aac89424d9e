"""Cost of scheduling a request, by number of backends and of requests that wait.

    python -m benchmarks.bench_schedule

Prints microseconds of CPU per request: its ticket, `offer`, `complete`, and one call each of
`next_due` and `next_refused`; about 1 us of it is the simulation's own. The best of several rounds.
What a scheduled request costs beside a plain one, the relays included:

    python -m benchmarks.micro "scheduled" "HTTP/1.1 request" "gRPC call"
"""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from time import thread_time

from lb.domain.backend import Address, Backend, BackendSpec
from lb.domain.schedule import Capacity, Ending, QueuePlan, QueueRules, RequestClass, Ticket
from lb.wire.grpc.message import frame_message
from tests.fakes.relay import new_scheduler

CASES = ((3, 0), (3, 10_000), (8, 0), (24, 0), (200, 0), (200, 10_000))
"""Backends, and requests that wait."""
PLAN = QueuePlan(
    limits={},
    default=Capacity(1, is_auto=True),
    rules=QueueRules(max_waiting=1_000_000),
)
WIDE_PLAN = QueuePlan(limits={}, default=Capacity(16, instances=16))
JSON_BODY = (
    b'{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"INT32","data":[%b]}]}'
    % b",".join(b"%d" % (number % 100) for number in range(20))
).ljust(130)
"""Of a small inference over HTTP."""
_START, _REST = (
    b"\x0a\x06simple",
    b"\x2a\x13\x0a\x06INPUT0\x12\x05INT32\x1a\x02\x01\x10"
    b"\x2a\x13\x0a\x06INPUT1\x12\x05INT32\x1a\x02\x01\x10"
    b"\x32\x09\x0a\x07OUTPUT0\x3a\x40%b\x3a\x40%b" % (bytes(64), bytes(64)),
)
MESSAGE = frame_message(_START + _REST)
"""Of the same over gRPC."""


def numbered_message(number: int) -> bytes:
    """The same with an id that is of this message alone."""
    return frame_message(b"%b\x1a\x08%08d%b" % (_START, number, _REST))


ROUNDS = 5
REQUESTS = 3000
EXECUTION_S = 0.005
BUSY = 0.7
"""Part of the backends that execute something where nobody waits."""


class Desk:
    """A scheduler whose model backends have learnt, and what is under way."""

    def __init__(self, count: int) -> None:
        address = Address(host="127.0.0.1", port=1)
        self.backends = tuple(
            Backend(BackendSpec(name=f"b{at}", http=address)) for at in range(count)
        )
        self.request_class = RequestClass(b"resnet", b"", PLAN, self.backends)
        self.scheduler = new_scheduler()
        self.in_flight_by_model: list[tuple[float, int, Ticket]] = []
        """Heap of when each will end."""
        self.free_at = dict.fromkeys(self.backends, 0.0)
        """When each backend, which runs one after the other, is done with all that it has."""
        self.times = Random(1)
        self.now = 0.0
        for _ in range(10 * count):
            self.offer()
            self.end_next()

    def offer(self) -> None:
        """One request comes."""
        ticket = Ticket(self.request_class, self.now)
        backend = self.scheduler.offer(ticket, self.now)
        if backend is not None:
            self.begin(ticket, backend)

    def begin(self, ticket: Ticket, backend: Backend) -> None:
        """A backend gets one."""
        backend.in_flight += 1
        begins = max(self.now, self.free_at[backend])
        self.free_at[backend] = ends = begins + EXECUTION_S * self.times.uniform(0.95, 1.05)
        heappush(self.in_flight_by_model, (ends, ticket.number, ticket))

    def end_next(self) -> None:
        """The request ends that is the next to do so."""
        self.now, _, ticket = heappop(self.in_flight_by_model)
        backend = ticket.backend
        assert backend is not None
        backend.in_flight -= 1
        self.scheduler.complete(ticket, self.now, Ending.GOOD)

    def go_on(self, _: object = None) -> None:
        """One ends, one comes, and what is due begins."""
        self.end_next()
        self.offer()
        self.turn()

    def turn(self) -> None:
        """What is due begins."""
        while (ticket := self.scheduler.next_due(self.now)) is not None:
            assert ticket.backend is not None
            self.begin(ticket, ticket.backend)
        self.scheduler.next_refused(self.now)


def busy_desk(count: int, waiting: int) -> Desk:
    """One with so many model backends that are busy, or full where so many wait."""
    desk = Desk(count)
    while not waiting and len(desk.in_flight_by_model) < BUSY * count:
        desk.offer()
    for _ in range(waiting + 8 * count if waiting else 0):
        desk.offer()
        desk.turn()
    return desk


def microseconds(count: int, waiting: int) -> float:
    """CPU per request."""
    desk = busy_desk(count, waiting)
    best = float("inf")
    for _ in range(ROUNDS):
        began = thread_time()
        for _ in range(REQUESTS):
            desk.go_on()
        best = min(best, (thread_time() - began) / REQUESTS)
    return 1e6 * best


def main() -> None:
    """Print all cases."""
    print("backends  waiting  us per request")
    for count, waiting in CASES:
        print(f"{count:8}  {waiting:7}  {microseconds(count, waiting):14.1f}")


if __name__ == "__main__":
    main()
