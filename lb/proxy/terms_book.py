"""What holds for all requests of one version of a scheduled model, as long as the pool stays as it
is: looked up once, and then found by one look into a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lb.domain.backend import Histogram
from lb.domain.pool import Placement, PoolRef, PoolSnapshot
from lb.proxy.exchange import Exchange, Particulars
from lb.proxy.terms import QueueTerms

_MOST: Final = 1024
"""Versions of models that are remembered; they come from clients."""


class TermsBook:
    """Those that were asked for. To be used from one event loop."""

    __slots__ = ("_complete", "_known", "_noted", "_placement", "_pool", "_snapshot", "waits")

    def __init__(
        self,
        pool: PoolRef,
        placement: Callable[[Exchange], Placement],
        complete: Callable[[QueueTerms], None],
    ) -> None:
        """
        Args:
            pool: the published pool.
            placement: where an exchange may go.
            complete: adds to new terms what the queue knows.
        """
        self._pool = pool
        self._placement = placement
        self._complete = complete
        self._snapshot: PoolSnapshot | None = None
        """For which those hold that are known."""
        self._known: tuple[dict[tuple[bytes, bytes], QueueTerms], ...] = ({}, {})
        """By protocol, model and version."""
        self._noted: list[Particulars] = []
        """Those that know their terms."""
        self.waits: dict[bytes, Histogram] = {}
        """How long scheduled requests that began had waited, by model."""

    def find(self, exchange: Exchange, particulars: Particulars) -> QueueTerms | None:
        """The terms of an exchange; None where its model is not scheduled, or has no backend."""
        # HOT PATH (benchmarks/bench_schedule.py). `_make` is the reference.
        if self._snapshot is self._pool.current and not particulars.regions:
            terms = self._known[exchange.protocol].get((exchange.model, particulars.version))
            if terms is not None:
                if particulars.is_shared and not (terms.trial or particulars.terms is terms):
                    self._note(particulars, terms)
                return terms
        return self._look(exchange, particulars)

    def _note(self, particulars: Particulars, terms: QueueTerms) -> None:
        """Have shared particulars know their terms."""
        if len(self._noted) >= _MOST:
            self.forget()
        particulars.terms = terms
        self._noted.append(particulars)

    def forget(self) -> None:
        """Make all terms anew when they are looked for next. Nothing holds the old ones but
        requests."""
        for particulars in self._noted:
            particulars.terms = None
        self._noted.clear()
        for known in self._known:
            known.clear()

    def _look(self, exchange: Exchange, particulars: Particulars) -> QueueTerms | None:
        snapshot = self._pool.current
        if self._snapshot is not snapshot:
            self._snapshot = snapshot
            self.forget()
        terms = self._make(snapshot, exchange, particulars.version)
        if terms is not None and not particulars.regions:
            if len(self._known[exchange.protocol]) >= _MOST:
                self.forget()
            self._known[exchange.protocol][exchange.model, particulars.version] = terms
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
        terms = QueueTerms(exchange.model, version, route.plan, snapshot, placement, waits)
        self._complete(terms)
        return terms
