"""What one upstream stream of inferences is at work on: requests that have exactly one answer each.

Their answers come in the order of the requests, so which one an answer belongs to is known without
a look at it. A request of a scheduled model is under way at its backend like any other that has a
ticket; the latency of a step of a sequence is learnt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from lb.balancing.step_latency import StepLatency
from lb.domain.backend import Backend
from lb.domain.schedule import Ending, Ticket
from lb.kserve.gate import ERROR_TAG
from lb.proxy.exchange import Attempt
from lb.proxy.http2.shared import Http2Shared
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.http2.flow import Payload

MAX_UNANSWERED: Final = 2**16
"""Counted requests of one stream without an answer; beyond that its client does not read."""

_CLOSED_AT_ONCE: Final = 100
"""Requests without an answer that are given up at a time."""
_CLOSE_COST: Final = 10
"""Units of `IterationBudget` for each of these."""

_GOOD: Final = Ending.GOOD


class StepInFlight(NamedTuple):
    """A step of a sequence that was sent."""

    latency: StepLatency
    began_at: float
    on_error: Callable[[float], None] | None = None
    """To be called with the time if its answer is an error. Errors on a stream have no code."""


Work = Ticket | StepInFlight
"""What a request is to whoever keeps accounts of it; most are nothing."""


class InFlightMessages:
    """Requests without answers. To be closed when the attempt is over, however it ends."""

    __slots__ = ("_cutter", "_is_error", "_relay", "_requests", "_scheduler", "_spare", "told")

    def __init__(self, relay: Http2Shared, before: int = 0, told: int = 0) -> None:
        """
        Args:
            relay: of the process.
            before: requests without answers that came before the first one to be told of.
            told: answers that have come before.
        """
        self._relay = relay
        self._scheduler = relay.dispatcher.queue.scheduler
        self.told = told
        """Answers of the stream until the last one that it was told of by `answered`."""
        self._spare: Ticket | None = None
        """The ticket of a request that is over, for the next one."""
        self._cutter = MessageCutter()
        """At the first byte to be told of by `arrived`."""
        self._is_error = False
        """The answer that is coming is an error."""
        self._requests: deque[Work | None] = deque([None] * before)

    def __len__(self) -> int:
        return len(self._requests)

    def begin(self, work: Work | None, backend: Backend, now: float) -> None:
        """A request goes to the backend, the last one so far."""
        if isinstance(work, Ticket):
            self._scheduler.start(work, backend, now)
        self._requests.append(work)

    def begin_alike(self, pattern: Ticket | None, backend: Backend | None, now: float) -> None:
        """A request goes to the backend, the last one so far, that is like another one.

        Args:
            pattern: a ticket like that of the request, if that has one.
            backend: where it goes; there is one.
            now: the time.
        """
        # HOT PATH (benchmarks/bench_stream_relay.py). `begin` with a new ticket is the reference.
        if pattern is None or backend is None:
            self._requests.append(None)
            return
        # Most streams need no more than the ticket of a request that is over.
        ticket = self._spare
        if ticket is None or ticket.request_class is not pattern.request_class:
            ticket = Ticket(pattern.request_class, now, pattern.rows, pattern.size)
        else:
            self._spare = None
            ticket.arrived_at = now
            ticket.rows = pattern.rows
            ticket.size = pattern.size
        self._scheduler.start(ticket, backend, now)
        self._requests.append(ticket)

    def answered_well(self, now: float) -> None:
        """The next answer came, and is no error."""
        # HOT PATH (benchmarks/bench_stream_relay.py). `answered` is the reference.
        self.told += 1
        if not self._requests:
            return
        work = self._requests.popleft()
        if isinstance(work, Ticket):
            self._scheduler.complete(work, now, _GOOD)
            self._spare = work
        elif work is not None:
            work.latency.ended(work.began_at, now)

    def answered(self, count: int, now: float, *, is_good: bool) -> None:
        """The next so many answers came."""
        self.told += count
        requests = self._requests
        for _ in range(min(count, len(requests))):
            work = requests.popleft()
            if work is None:
                continue
            if isinstance(work, Ticket):
                self._scheduler.complete(work, now, _GOOD if is_good else Ending.NEITHER)
            elif is_good:
                work.latency.ended(work.began_at, now)
            elif work.on_error is not None and count == 1:  # else the others may be good
                work.on_error(now)

    def arrived(self, payload: Payload, now: float) -> None:
        """Some bytes of answers came, where these are not counted otherwise."""
        cutter = self._cutter
        at, size = 0, len(payload)
        while at < size:
            if cutter.is_between:
                tag_at = at + PREFIX_SIZE
                self._is_error = tag_at < size and payload[tag_at] == ERROR_TAG
            at = cutter.advance(payload, at)
            if cutter.is_between:
                self.answered(1, now, is_good=not self._is_error)

    def follow(self, cutter: MessageCutter) -> None:
        """From now on answers are told of by `arrived`, the first byte as the cutter says."""
        self._cutter = cutter

    def close(self, now: float) -> None:
        """Nothing more is to come. Of very many requests most are given up in later iterations of
        the event loop."""
        requests, self._requests = self._requests, deque()
        self._give_up(requests, now)

    def _give_up(self, requests: deque[Work | None], now: float) -> None:
        count = min(len(requests), _CLOSED_AT_ONCE)
        for _ in range(count):
            work = requests.popleft()
            if isinstance(work, Ticket):
                self._scheduler.complete(work, now, Ending.NEITHER)
        if requests:
            self._relay.iteration.spend(count * _CLOSE_COST)
            self._relay.iteration.later(partial(self._give_up_more, requests))

    def _give_up_more(self, requests: deque[Work | None]) -> None:
        self._give_up(requests, self._relay.clock())


def in_flight_messages_of(attempt: Attempt | None) -> InFlightMessages | None:
    """The requests without an answer of an attempt, where accounts are kept of them: as long as
    answers can be told apart by their number."""
    found = attempt.in_flight_messages if attempt is not None else None
    return found if isinstance(found, InFlightMessages) else None


def keep_no_accounts(attempt: Attempt | None, now: float) -> None:
    """Answers of an attempt can be told apart no more, or there will be none."""
    in_flight_messages = in_flight_messages_of(attempt)
    if in_flight_messages is not None and attempt is not None:
        in_flight_messages.close(now)
        attempt.in_flight_messages = None
