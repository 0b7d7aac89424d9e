"""Inferences that are looked into for shared memory, which their client may not use.

Parts go on as they come: a request is refused before the part that completes the name of a region
reaches the backend, which then never has the whole of it. What takes long to inspect, as little
that inflates to much does, is held meanwhile. It is inspected step by step, as the budget of each
iteration of the loop allows.
"""

from __future__ import annotations

from collections import deque

from lb.domain.outcome import Outcome, Reason
from lb.kserve.regions import HttpRegionWatch, Inspection
from lb.proxy.failure import http_status
from lb.proxy.http1.answers import error
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.inspection import ORDINARY, count_inspected
from lb.wire.http1.body import Payload


class RegionFilter:
    """Looks into an inference where `access.strict_shared_memory` is on, before it goes on."""

    __slots__ = (
        "_exchange", "_held", "_held_end", "_held_size", "_inspection", "_uninspected", "_watch",
        "collects",
    )  # fmt: skip

    def __init__(self, exchange: Http1Exchange, watch: HttpRegionWatch) -> None:
        self._exchange = exchange
        self._watch = watch
        self.collects = False
        self._inspection: Inspection | None = None
        """Inspects payload that is not inspected to its end."""
        self._uninspected: deque[Payload] = deque()
        """Payload that follows it."""
        self._held: list[Payload] = []
        """Payload that goes on once all of it is inspected."""
        self._held_end = False
        """It is the last."""
        self._held_size = 0
        """Bytes of it in the memory budget."""

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        exchange = self._exchange
        refusal = self._begin_inspection(pieces)
        if refusal:
            answer = error(http_status(Reason.CONTROL_REFUSED), Reason.CONTROL_REFUSED, refusal)
            exchange.answer_only(answer, ended=ended)
        elif self._has_seen_all():
            exchange.start(head, pieces, ended=ended)
        else:
            exchange.start(head, [], ended=False)
            self._hold_body(pieces, ended=ended)
            self._inspect_later()

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        if self.is_busy:
            self._uninspected += pieces
            self._hold_body(pieces, ended=ended)
            return
        refusal = self._begin_inspection(pieces)
        if refusal:
            self._exchange.cut(Outcome.CANCELLED, Reason.CONTROL_REFUSED, refusal)
        elif self._has_seen_all():
            self._exchange.add(pieces, ended=ended)
        else:
            self._hold_body(pieces, ended=ended)
            self._inspect_later()

    @property
    def is_busy(self) -> bool:
        """See `RequestHandler`."""
        return self._inspection is not None

    def prepare_placing(self) -> bool:
        """See `RequestHandler`."""
        return True

    def close(self) -> None:
        """See `RequestHandler`."""
        self._inspection = None
        self._uninspected.clear()
        self._release_body()

    def _has_seen_all(self) -> bool:
        return self._inspection is None

    def _begin_inspection(self, pieces: list[Payload]) -> str:
        """Take the first step with a part of the body, unless that has to wait for its turn.
        Returns why it must not go on."""
        self._uninspected += pieces
        size = sum(map(len, pieces))
        if self._watch.is_longer(size, ORDINARY) and not self._exchange.relay.iteration.has_turn:
            self._inspection = self._watch.inspect(self._uninspected.popleft())
            return ""
        return self._inspect()

    def _inspect(self) -> str:
        """Take the next step. Returns why the body must not go on."""
        before = self._watch.inspected
        refusal = self._take_step()
        count_inspected(self._exchange.relay.iteration, self._watch.inspected - before)
        return refusal

    def _take_step(self) -> str:
        inspection, self._inspection = self._inspection, None
        while inspection is not None or self._uninspected:
            if inspection is None:
                inspection = self._watch.inspect(self._uninspected.popleft())
            try:
                next(inspection)
            except StopIteration as done:
                if done.value:
                    return str(done.value)
                inspection = None
            else:
                self._inspection = inspection
                break
        return ""

    def _inspect_later(self) -> None:
        if self._inspection is not None:  # else it is over
            self._exchange.relay.iteration.later(self._inspect_on)

    def _inspect_on(self) -> None:
        if not self.is_busy:
            return
        exchange = self._exchange
        refusal = self._inspect()
        if refusal:
            exchange.cut(Outcome.CANCELLED, Reason.CONTROL_REFUSED, refusal)
        elif not self._has_seen_all():
            self._inspect_later()
        else:
            pieces, ended = self._held, self._held_end
            self._release_body()
            exchange.add(pieces, ended=ended)
            if exchange.server is not None:
                exchange.server.update_reading()

    def _hold_body(self, pieces: list[Payload], *, ended: bool) -> None:
        """Keep payload that is not inspected yet."""
        server = self._exchange.server
        size = sum(map(len, pieces))
        if self._inspection is not None and server is not None and server.charge(size):
            self._held += pieces
            self._held_end = ended
            self._held_size += size

    def _release_body(self) -> None:
        size, self._held_size = self._held_size, 0
        self._held = []
        server = self._exchange.server
        if size and server is not None:
            server.charge(-size)


def guard(exchange: Http1Exchange) -> None:
    """Have an inference looked into, if its client may not use shared memory."""
    plan, server = exchange.plan, exchange.server
    gate = exchange.relay.dispatcher.gate
    if server is not None and not gate.may_use_memory(plan.credentials, server.client):
        watch = HttpRegionWatch(plan.json_size, is_compressed=plan.is_compressed)
        exchange.handler = RegionFilter(exchange, watch)
