"""Which idle model backend a request goes to, from a ranking that holds until something is learnt.

Nearly always a request finds model backends idle, and all that distinguishes these is learnt and
changes rarely. A ranking keeps what follows from it: the idle model backends that are as good as
the fastest one. To pick among them needs counts alone. `pick` gives the same answer as
`lb.balancing.selection.select` in normal mode, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lb.balancing.cost import MIN_SAMPLES
from lb.balancing.model_backend import LATENESSES, ModelBackend
from lb.balancing.model_stats import IDLE_TIE_TOLERANCE, TAIL, ModelStats
from lb.balancing.selection import NETWORK_S, TIE_TOLERANCE
from lb.domain.schedule import NO_DEADLINE, Ticket

_FAR_EXECUTIONS: Final = 4.0
"""A deadline that is more executions away is met for sure; nearer ones are left to `select`."""
_EXACT: Final = 1e-9
"""Comparisons that rounding could decide otherwise are left to `select`."""


class IdleRanking:
    """The fastest model backends of an eligible set, as far as that is known for sure."""

    __slots__ = (
        "_fastest_s", "_instances", "_is_uniform", "_late_s", "_rows", "_slowest_s", "_stats",
        "_until", "alike", "version",
    )  # fmt: skip

    def __init__(
        self, model_backends: Sequence[ModelBackend], stats: ModelStats, rows: int, now: float
    ) -> None:
        """
        Args:
            model_backends: those that are compared.
            stats: what is known of the model.
            rows: batch dimension of the requests that are compared.
            now: the time.
        """
        self.version = stats.version
        """`ModelStats.version` when it was made: it holds as long as that stays."""
        self.alike: tuple[ModelBackend, ...] = ()
        """The fastest model backends, which take turns while they are idle. None if it says
        nothing."""
        self._stats = stats
        self._until = now
        """When an estimate begins to be doubted. From then on it says nothing."""
        self._late_s = NO_DEADLINE
        """A request whose deadline is later by more than so many seconds is surely in time."""
        self._rows = 0
        """The rows that it holds for; 0 for any."""
        self._fastest_s = self._slowest_s = 0.0
        self._instances = instances = model_backends[0].instances
        self._is_uniform = False
        # Only where nothing but rows and requests in flight changes the estimates.
        fastest_s = NO_DEADLINE
        for model_backend in model_backends:
            cost = model_backend.load.cost
            if (
                type(model_backend) is not ModelBackend
                or cost.count < MIN_SAMPLES
                or cost.byte_s
                or model_backend.backend.max_in_flight
                or model_backend.external_load is not None
                or model_backend.instances != instances
                or (cost.mean_s > stats.best_s and now - cost.at > model_backend.explore_s)
            ):
                return
            took_s = cost.base_s + cost.row_s * rows
            fastest_s = min(fastest_s, took_s)
            if cost.row_s:
                self._rows = rows
        self._rank(model_backends, rows, fastest_s)

    def _rank(self, model_backends: Sequence[ModelBackend], rows: int, fastest_s: float) -> None:
        """Find those that are as good as the fastest one."""
        # HOT PATH (benchmarks/bench_schedule.py). After each execution that is learnt from: `min`
        # and `max` are written out.
        stats = self._stats
        limit_s = fastest_s / (1.0 - IDLE_TIE_TOLERANCE) * (1.0 - _EXACT)
        alike: list[ModelBackend] = []
        slowest_s = fastest_s
        until = NO_DEADLINE
        late_s = 0.0
        for model_backend in model_backends:
            cost = model_backend.load.cost
            took_s = cost.base_s + cost.row_s * rows
            if took_s <= fastest_s:
                alike.insert(0, model_backend)
            elif took_s <= limit_s:
                alike.append(model_backend)
                slowest_s = max(slowest_s, took_s)
            if cost.mean_s > stats.best_s and cost.at + model_backend.explore_s < until:
                until = cost.at + model_backend.explore_s
            late_s = max(late_s, model_backend.lateness_s)
        self.alike = tuple(alike)
        self._fastest_s, self._slowest_s = fastest_s, slowest_s
        self._is_uniform = slowest_s * (1.0 - TIE_TOLERANCE) <= fastest_s * (1.0 - _EXACT)
        self._until = until - _EXACT
        self._late_s = _FAR_EXECUTIONS * slowest_s + LATENESSES * late_s + NETWORK_S

    def pick(self, ticket: Ticket, now: float) -> ModelBackend | None:
        """Find the idle model backend where a request begins now.

        Args:
            ticket: the request.
            now: the time.

        Returns:
            None: `select` has to decide.
        """
        # HOT PATH (benchmarks/bench_schedule.py). `select` is the reference.
        if now >= self._until or ticket.deadline < now + self._late_s:
            return None
        chosen: ModelBackend | None = None
        instances = least = self._instances
        is_any_busy = False
        for model_backend in self.alike:
            count = model_backend.load.in_flight
            if count < least:
                chosen, least = model_backend, count
            elif count >= instances:
                is_any_busy = True
            elif (
                count == least and chosen is not None and model_backend.last_pick < chosen.last_pick
            ):
                chosen = model_backend
        if (
            chosen is None
            or chosen.penalty.factor != 1.0
            or chosen.backend.share != 1.0
            or (self._rows and ticket.rows != self._rows)
        ):
            return None
        if is_any_busy:
            # A busy one that is soon free may be better, unless they are as good and compared by
            # the same part of their executions.
            in_time_s = TAIL * self._stats.tail_s
            if (
                least
                or not self._is_uniform
                or not (self._slowest_s < in_time_s or self._fastest_s > in_time_s)
            ):
                return None
        return chosen
