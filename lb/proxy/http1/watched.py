"""Inferences that are looked into for shared memory, which their client may not use.

Parts go on as they come: a request is refused before the part that completes the name of a region
reaches the backend, which then never has the whole of it. What takes long to inspect, as little
that inflates to much does, is held meanwhile, and inspected a step in each turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from lb.domain.outcome import Outcome, Reason
from lb.kserve.regions import HttpRegionWatch, Inspection
from lb.proxy.failure import http_status
from lb.proxy.http1.answers import error
from lb.proxy.http1.exchange import Http1Exchange
from lb.wire.http1.body import Payload

if TYPE_CHECKING:
    from lb.proxy.http1.heads import RequestPlan
    from lb.proxy.http1.relay import Http1Relay
    from lb.proxy.http1.server import ServerConnection


class WatchedExchange(Http1Exchange):
    """An inference where `access.strict_shared_memory` is on."""

    __slots__ = ("_held", "_held_end", "_held_size", "_inspection", "_uninspected", "_watch")

    def __init__(
        self, relay: Http1Relay, server: ServerConnection, plan: RequestPlan, now: float
    ) -> None:
        super().__init__(relay, server, plan, now)
        self._watch: HttpRegionWatch | None = None
        self._inspection: Inspection | None = None
        """Of payload that not all of was looked at."""
        self._uninspected: deque[Payload] = deque()
        """Payload that follows it."""
        self._held: list[Payload] = []
        """Payload that goes on once all of it is inspected."""
        self._held_end = False
        """It is the last."""
        self._held_size = 0
        """Bytes of it on the ledger."""

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """Relay a request whose head is complete, with what there is of its body."""
        plan = self.plan
        gate = self.relay.dispatcher.gate
        server = self.server
        if server is not None and not gate.may_use_memory(plan.claim, server.client):
            self._watch = HttpRegionWatch(plan.json_size, is_compressed=plan.is_compressed)
        refusal = self._begin_inspection(pieces)
        if refusal:
            answer = error(http_status(Reason.CONTROL_REFUSED), Reason.CONTROL_REFUSED, refusal)
            self.answer_only(answer, ended=ended)
        elif not self._has_more():
            super().start(head, pieces, ended=ended)
        else:
            super().start(head, [], ended=False)
            self._hold_body(pieces, ended=ended)
            self._inspect_later()

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """Relay a further part of the body."""
        if self._has_more():
            self._uninspected += pieces
            self._hold_body(pieces, ended=ended)
            return
        refusal = self._begin_inspection(pieces)
        if refusal:
            self.cut(Outcome.CANCELLED, Reason.CONTROL_REFUSED, refusal)
        elif not self._has_more():
            super().add(pieces, ended=ended)
        else:
            self._hold_body(pieces, ended=ended)
            self._inspect_later()

    @property
    def wants_body(self) -> bool:
        """Whether the client should send more now."""
        return self._inspection is None and super().wants_body

    def passes(self, server: ServerConnection) -> asyncio.Transport | None:
        """Nothing, where it has to be looked at."""
        return super().passes(server) if self._watch is None else None

    def end_upload(self) -> None:
        """See `Upload`."""
        self._inspection = None
        self._uninspected.clear()
        self._release_body()
        super().end_upload()

    def _has_more(self) -> bool:
        """Whether payload is held until all of it is inspected."""
        return self._inspection is not None

    def _begin_inspection(self, pieces: list[Payload]) -> str:
        """Take the first step with a part of the body. Returns why it must not go on."""
        if self._watch is None:
            return ""
        self._uninspected += pieces
        return self._inspect()

    def _inspect(self) -> str:
        """Take the next step. Returns why the body must not go on."""
        watch = self._watch
        while watch is not None:
            inspection = self._inspection
            self._inspection = None
            if inspection is None:
                if not self._uninspected:
                    break
                inspection = watch.inspect(self._uninspected.popleft())
            try:
                next(inspection)
            except StopIteration as done:
                if done.value:
                    return str(done.value)
            else:
                self._inspection = inspection
                break
        return ""

    def _inspect_later(self) -> None:
        if self._inspection is not None:  # else it is over
            self.relay.loop.call_soon(self._inspect_on)

    def _inspect_on(self) -> None:
        if not self._has_more():
            return
        refusal = self._inspect()
        if refusal:
            self.cut(Outcome.CANCELLED, Reason.CONTROL_REFUSED, refusal)
        elif self._has_more():
            self._inspect_later()
        else:
            pieces, ended = self._held, self._held_end
            self._release_body()
            super().add(pieces, ended=ended)
            if self.server is not None:
                self.server.update_reading()

    def _hold_body(self, pieces: list[Payload], *, ended: bool) -> None:
        """Keep payload that is not inspected yet."""
        server = self.server
        size = sum(map(len, pieces))
        if self._inspection is not None and server is not None and server.charge(size):
            self._held += pieces
            self._held_end = ended
            self._held_size += size

    def _release_body(self) -> None:
        size, self._held_size = self._held_size, 0
        self._held = []
        if size and self.server is not None:
            self.server.charge(-size)
