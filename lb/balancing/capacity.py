"""How many requests of a model may be in flight at one backend: a small rule for each way to know.

A rule says how many executions run at once (`instances`) and how many requests may be in flight
(`limit`). `ModelBackend` asks again whenever its learnt cost changes.
"""

from __future__ import annotations

from typing import Final

from lb.balancing.adaptive import AdaptiveLimit
from lb.domain.schedule import Capacity

NO_LIMIT: Final = 1 << 30
"""The limit where there is none."""


class CapacityRule:
    """The limit of a model backend, where somebody gave a number or none."""

    __slots__ = ("configured_instances", "instances", "number")

    def __init__(self, capacity: Capacity) -> None:
        self.number = capacity.concurrency or NO_LIMIT
        """The configured number of requests in flight."""
        self.configured_instances = max(1, capacity.instances)
        """Executions that run at once, as the configuration says."""
        if self.is_exact:
            self.configured_instances = min(self.configured_instances, self.number)
        self.instances = self.configured_instances
        """Executions that run at once, as far as is known."""

    @property
    def is_exact(self) -> bool:
        """Whether an operator gave the number. Then nothing else closes the model backend."""
        return self.number != NO_LIMIT

    @property
    def follows_cost(self) -> bool:
        """Whether the limit depends on what is learnt."""
        return False

    def limit(self, ahead: int) -> int:
        """Requests that may be in flight.

        Args:
            ahead: requests beyond those that execute which keep the instances busy while an answer
                and the next request travel.
        """
        return self.number

    def batch_limit(self, max_batch: int) -> int:
        """Requests that may be in flight where a dynamic batcher joins them.

        Args:
            max_batch: rows of one execution.
        """
        return self.number

    def ended(self, now: float, in_flight: int) -> bool:
        """Note the end of a request.

        Args:
            now: the time.
            in_flight: requests in flight, with the one that ends.

        Returns:
            The limit has changed.
        """
        return False


class AutomaticCapacity(CapacityRule):
    """The limit follows from the model's configuration and from what executions take."""

    __slots__ = ()

    @property
    def is_exact(self) -> bool:
        """No operator gave a number."""
        return False

    @property
    def follows_cost(self) -> bool:
        """The shorter executions are, the more requests have to be ahead."""
        return True

    def limit(self, ahead: int) -> int:
        """One request per instance, and those that are ahead."""
        return self.instances + ahead

    def batch_limit(self, max_batch: int) -> int:
        """One batch that executes and one that fills, per instance."""
        return 2 * self.instances * max_batch


class AdaptiveCapacity(AutomaticCapacity):
    """The limit is found by measuring throughput; see `lb.balancing.adaptive`."""

    __slots__ = ("_adaptive",)

    def __init__(self, capacity: Capacity) -> None:
        super().__init__(capacity)
        self._adaptive = AdaptiveLimit(capacity.concurrency or max(1, capacity.instances))
        self.instances = self._adaptive.limit

    def batch_limit(self, max_batch: int) -> int:
        """What was found: it contains how many requests fill a batch."""
        return self.instances

    def ended(self, now: float, in_flight: int) -> bool:
        """Note the end of a request; see `CapacityRule.ended`."""
        adaptive = self._adaptive
        if not adaptive.ended(now, is_full=in_flight >= adaptive.limit):
            return False
        self.instances = adaptive.limit
        return True


def capacity_rule(
    capacity: Capacity, before: CapacityRule | None, configured_before: Capacity
) -> CapacityRule:
    """The rule that a capacity asks for.

    Args:
        capacity: what is configured.
        before: the rule so far. It is kept where what it has measured still holds.
        configured_before: what was configured so far.
    """
    if capacity.is_adaptive:
        if (
            isinstance(before, AdaptiveCapacity)
            and capacity.concurrency == configured_before.concurrency
        ):
            return before
        return AdaptiveCapacity(capacity)
    return AutomaticCapacity(capacity) if capacity.is_auto else CapacityRule(capacity)
