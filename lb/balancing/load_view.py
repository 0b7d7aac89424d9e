"""The load of a model backend, as all decisions read it."""

from __future__ import annotations

from lb.balancing.cost import Cost


class LoadView:
    """What is in flight at a model backend, how much work that is, and what work costs there.

    Every decision reads load here and nowhere else. `ModelBackend` is the only writer today. Counts
    of other processes can be added to these fields without a change to any decision.
    """

    __slots__ = ("busy_since", "cost", "expected_ends", "in_flight", "work_s")

    def __init__(self, cost: Cost) -> None:
        self.in_flight = 0
        """Requests in flight: those that execute, and those queued at the backend."""
        self.work_s = 0.0
        """Seconds of execution that the requests in flight were expected to need when they began.
        """
        self.busy_since = 0.0
        """When the instances began with what they execute, as far as is known."""
        self.expected_ends: list[float] = []
        """When each request in flight is expected to end, sorted. Kept where several instances
        execute at once."""
        self.cost = cost
        """The learnt cost of an execution."""

    def free_at(self, instances: int) -> float:
        """When an instance becomes free for one more request, if all goes as expected.

        At least as many requests must be in flight as there are instances. The result may be in the
        past: then the requests in flight are overdue.

        Args:
            instances: executions that run at once.
        """
        count = self.in_flight
        if instances > 1 and len(self.expected_ends) == count:
            return self.expected_ends[count - instances]
        return self.busy_since + self.work_s * (count - instances + 1) / (count * instances)
