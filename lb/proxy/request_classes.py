"""What holds for all requests of one version of a scheduled model, as long as the pool stays as it
is: looked up once, and then found by one look into a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lb.domain.backend import Histogram
from lb.domain.pool import Placement, PoolRef, PoolSnapshot
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.request_class import QueueRequestClass

_MOST: Final = 1024
"""Versions of models that are remembered; they come from clients."""


class RequestClasses:
    """The request classes that were asked for. To be used from one event loop."""

    __slots__ = ("_complete", "_known", "_noted", "_placement", "_pool", "_snapshot", "waits")

    def __init__(
        self,
        pool: PoolRef,
        placement: Callable[[Exchange], Placement],
        complete: Callable[[QueueRequestClass], None],
    ) -> None:
        """
        Args:
            pool: the published pool.
            placement: where an exchange may go.
            complete: adds to a new request class what the queue knows.
        """
        self._pool = pool
        self._placement = placement
        self._complete = complete
        self._snapshot: PoolSnapshot | None = None
        """The pool that the known request classes hold for."""
        self._known: tuple[dict[tuple[bytes, bytes], QueueRequestClass], ...] = ({}, {})
        """By protocol, model and version."""
        self._noted: list[RoutingHints] = []
        """Shared hints that know their request class."""
        self.waits: dict[bytes, Histogram] = {}
        """How long scheduled requests that began had waited, by model."""

    def find(self, exchange: Exchange, hints: RoutingHints) -> QueueRequestClass | None:
        """The request class of an exchange; None where its model is not scheduled, or has no
        backend."""
        # HOT PATH (benchmarks/bench_schedule.py). `_make` is the reference.
        if self._snapshot is self._pool.current and not hints.regions:
            request_class = self._known[exchange.protocol].get((exchange.model, hints.version))
            if request_class is not None:
                if hints.is_shared and not (
                    request_class.trial or hints.request_class is request_class
                ):
                    self._note(hints, request_class)
                return request_class
        return self._look(exchange, hints)

    def _note(self, hints: RoutingHints, request_class: QueueRequestClass) -> None:
        """Have shared hints know their request class."""
        if len(self._noted) >= _MOST:
            self.forget()
        hints.request_class = request_class
        self._noted.append(hints)

    def forget(self) -> None:
        """Make each request class anew when it is looked for next. Only requests hold the old
        ones."""
        for hints in self._noted:
            hints.request_class = None
        self._noted.clear()
        for known in self._known:
            known.clear()

    def _look(self, exchange: Exchange, hints: RoutingHints) -> QueueRequestClass | None:
        snapshot = self._pool.current
        if self._snapshot is not snapshot:
            self._snapshot = snapshot
            self.forget()
        request_class = self._make(snapshot, exchange, hints.version)
        if request_class is not None and not hints.regions:
            if len(self._known[exchange.protocol]) >= _MOST:
                self.forget()
            self._known[exchange.protocol][exchange.model, hints.version] = request_class
        return request_class

    def _make(
        self, snapshot: PoolSnapshot, exchange: Exchange, asked: bytes
    ) -> QueueRequestClass | None:
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
        request_class = QueueRequestClass(
            exchange.model, version, route.plan, snapshot, placement, waits
        )
        self._complete(request_class)
        return request_class
