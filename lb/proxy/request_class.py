"""What holds for all requests of one version of a scheduled model, as long as the pool stays as it
is."""

from __future__ import annotations

from lb.balancing.trial import TrialPicker
from lb.domain.backend import Histogram
from lb.domain.pool import Placement, PoolSnapshot
from lb.domain.schedule import QueuePlan, RequestClass


class QueueRequestClass(RequestClass):
    """How such requests are scheduled, and what the queue has to know of all of them."""

    __slots__ = ("is_urgency_named", "placement", "priority", "snapshot", "trial", "waits")

    def __init__(
        self,
        model: bytes,
        version: bytes,
        plan: QueuePlan,
        snapshot: PoolSnapshot,
        placement: Placement,
        waits: Histogram,
    ) -> None:
        super().__init__(model, version, plan, placement.eligible)
        self.snapshot = snapshot
        """The pool that they hold for."""
        self.placement = placement
        picker = placement.picker
        self.trial = picker if isinstance(picker, TrialPicker) else None
        """Has a request for a backend that gets no others."""
        self.waits = waits
        """How long requests of the model waited."""
        self.priority = 0
        """The priority of a ticket of which nothing is said. It belongs to the queue, and so does
        the next one."""
        self.is_urgency_named = True
        """There may be a header, or a token, that says how urgent a request is, or whose."""
