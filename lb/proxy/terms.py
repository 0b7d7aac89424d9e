"""What holds for all requests of one version of a scheduled model, as long as the pool stays as it
is: looked up once, and then found by one look into a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lb.balancing.trial import TrialPicker
from lb.domain.backend import Histogram
from lb.domain.pool import Placement, PoolRef, PoolSnapshot
from lb.domain.schedule import Plan, Terms
from lb.proxy.exchange import Exchange, Particulars

_MOST: Final = 1024
"""Versions of models that are remembered; they come from clients."""


class QueueTerms(Terms):
    """How such requests are scheduled, and what the queue has to know of all of them."""

    __slots__ = ("is_urgency_named", "options", "placement", "priority", "trial", "waits")

    def __init__(
        self, model: bytes, version: bytes, plan: Plan, placement: Placement, waits: Histogram
    ) -> None:
        super().__init__(model, version, plan, placement.eligible)
        self.placement = placement
        picker = placement.picker
        self.trial = picker if isinstance(picker, TrialPicker) else None
        """Has a request for a backend that gets no others."""
        self.waits = waits
        """How long requests of the model waited."""
        self.options: object = None
        """Those of the queue, which are the source of the next two; both are its to write."""
        self.priority = 0
        """That of a ticket of which nothing is said."""
        self.is_urgency_named = True
        """There may be a header, or a token, that says how urgent a request is, or whose."""


class TermsBook:
    """Those that were asked for. To be used from one event loop."""

    __slots__ = ("_known", "_placement", "_pool", "_snapshot", "waits")

    def __init__(self, pool: PoolRef, placement: Callable[[Exchange], Placement]) -> None:
        """
        Args:
            pool: the published pool.
            placement: where an exchange may go.
        """
        self._pool = pool
        self._placement = placement
        self._snapshot: PoolSnapshot | None = None
        """For which those hold that are known."""
        self._known: tuple[dict[tuple[bytes, bytes], QueueTerms], ...] = ({}, {})
        """By protocol, model and version."""
        self.waits: dict[bytes, Histogram] = {}
        """How long scheduled requests that began had waited, by model."""

    def find(self, exchange: Exchange, particulars: Particulars) -> QueueTerms | None:
        """The terms of an exchange; None where its model is not scheduled, or has no backend."""
        # HOT PATH (benchmarks/bench_schedule.py). `_make` is the reference.
        if self._snapshot is self._pool.current and not particulars.regions:
            terms = self._known[exchange.protocol].get((exchange.model, particulars.version))
            if terms is not None:
                return terms
        return self._look(exchange, particulars)

    def _look(self, exchange: Exchange, particulars: Particulars) -> QueueTerms | None:
        snapshot = self._pool.current
        if self._snapshot is not snapshot:
            self._snapshot = snapshot
            self._known = ({}, {})
        terms = self._make(snapshot, exchange, particulars.version)
        if terms is not None and not particulars.regions:
            known = self._known[exchange.protocol]
            if len(known) >= _MOST:
                known.clear()
            known[exchange.model, particulars.version] = terms
        return terms

    def _make(self, snapshot: PoolSnapshot, exchange: Exchange, asked: bytes) -> QueueTerms | None:
        route = snapshot.routes.get(exchange.model)
        if route is None or route.plan is None:
            return None
        ready = route.ready_versions
        if asked and ready and asked not in ready and b"" not in ready:
            return None  # nobody has it, and clients may name any
        # Versions that nobody is known to have share one line, since clients may name any.
        version = asked if asked in ready else min(ready) if len(ready) == 1 else b""
        placement = self._placement(exchange)
        if placement.picker is None:
            return None
        waits = self.waits.get(exchange.model)
        if waits is None:
            waits = self.waits[exchange.model] = Histogram()
        return QueueTerms(exchange.model, version, route.plan, placement, waits)
