"""Inferences that are looked into for shared memory, which their client may not use.

Parts go on as they come: a request is refused before the part that completes the name of a region
reaches the backend, which then never has the whole of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lb.domain.outcome import Outcome, Reason
from lb.kserve.regions import REFUSED, HttpRegionWatch
from lb.proxy.failure import http_status
from lb.proxy.http1.answers import error
from lb.proxy.http1.exchange import Http1Exchange
from lb.wire.http1.body import Payload

if TYPE_CHECKING:
    from lb.proxy.http1.server import ServerConnection


class WatchedExchange(Http1Exchange):
    """An inference where `access.strict_shared_memory` is on."""

    __slots__ = ("_watch",)

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """Relay a request whose head is complete, with what there is of its body."""
        plan = self.plan
        gate = self.relay.dispatcher.gate
        server = self.server
        self._watch: HttpRegionWatch | None = None
        if server is not None and not gate.may_use_memory(plan.claim, server.client):
            self._watch = HttpRegionWatch(plan.json_size, is_compressed=plan.is_compressed)
        if self._is_refused(pieces):
            refusal = error(http_status(Reason.CONTROL_REFUSED), Reason.CONTROL_REFUSED, REFUSED)
            self.answer_only(refusal, ended=ended)
        else:
            super().start(head, pieces, ended=ended)

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """Relay a further part of the body."""
        if self._is_refused(pieces):
            self.cut(Outcome.CANCELLED, Reason.CONTROL_REFUSED, REFUSED)
        else:
            super().add(pieces, ended=ended)

    def passes(self, server: ServerConnection) -> asyncio.Transport | None:
        """Nothing, where it has to be looked at."""
        return super().passes(server) if self._watch is None else None

    def _is_refused(self, pieces: list[Payload]) -> bool:
        watch = self._watch
        return watch is not None and any(map(watch.refuses, pieces))
