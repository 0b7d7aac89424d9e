"""Which models are scheduled, and how many requests of each a backend may have at once.

A model is scheduled where its limit is known: from the settings, or from its configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final

from lb.domain.backend import Backend
from lb.domain.model import ModelFacts
from lb.domain.schedule import Capacity, Order, QueuePlan, QueueRules
from lb.settings.model import Settings
from lb.settings.scheduling import (
    Concurrency,
    PolicyName,
    PriorityOrder,
    SchedulingSettings,
    TenantBy,
)

_ADAPTIVE_START: Final = 8
"""Requests at once to begin with, where the model's configuration says nothing."""


class LimitBy(Enum):
    """What tells how many requests of a model a backend may have at once."""

    NOTHING = "off"
    """They are not scheduled."""
    CONFIGURATION = "auto"
    """The model's own: its instances, and how it batches."""
    MEASUREMENT = "adaptive"
    """What is found to be enough."""
    NUMBER = "number"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRule:
    """How requests of a model are scheduled."""

    by: LimitBy = LimitBy.NOTHING
    concurrency: int = 0
    """By NUMBER."""
    queue: QueueRules = field(default_factory=QueueRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """What is configured. The default schedules nothing."""

    usual: LineRule = LineRule()
    models: Mapping[bytes, LineRule] = field(default_factory=dict)
    """Of models that have rules of their own, by name."""


def plan_rules(settings: Settings) -> PlanRules:
    """Read from settings which models are scheduled, and how."""
    scheduling = settings.scheduling
    concurrency = scheduling.max_requests_per_backend
    if concurrency is None:
        # Who asks for round robin wants round robin.
        is_by_load = settings.balancing.policy is PolicyName.LEAST_LOADED
        concurrency = "auto" if is_by_load else "off"
    usual = _line_rule(scheduling, concurrency, scheduling.max_queue_size)
    models = {
        name.encode(): _line_rule(
            scheduling,
            concurrency if own.max_requests_per_backend is None else own.max_requests_per_backend,
            scheduling.max_queue_size if own.max_queue_size is None else own.max_queue_size,
        )
        for name, own in settings.models.items()
        if own.max_requests_per_backend is not None or own.max_queue_size is not None
    }
    return PlanRules(usual=usual, models=models)


def _line_rule(scheduling: SchedulingSettings, concurrency: Concurrency, queue: int) -> LineRule:
    rules = QueueRules(
        max_waiting=queue,
        max_wait_s=scheduling.max_wait or inf,
        order=Order.STRICT if scheduling.priorities is PriorityOrder.STRICT else Order.WEIGHTED,
        weights=dict(enumerate(scheduling.weights)),
        reserved=scheduling.reserved,
        tenant_weights=dict(scheduling.shares),
        has_tenants=scheduling.tenants is not TenantBy.NOTHING,
    )
    if isinstance(concurrency, int):
        return LineRule(by=LimitBy.NUMBER, concurrency=concurrency, queue=rules)
    return LineRule(by=LimitBy(concurrency), queue=rules)


class Planner:
    """Makes plans. Models of which the same holds share one, as long as it holds."""

    def __init__(self, rules: PlanRules | None = None) -> None:
        self.rules = rules or PlanRules()
        self._own: dict[Backend, int] = {}
        """Backends with a limit of their own."""
        self._plans: dict[tuple[bytes, int, int], QueuePlan] = {}
        """By the model with rules of its own or "", instances and rows of a batch."""

    def follow(self, backends: Iterable[Backend]) -> None:
        """Plan for these backends from now on."""
        own = {each: each.spec.concurrency for each in backends if each.spec.concurrency}
        if own != self._own:
            self._own = own
            self._plans = {}

    def plan(self, name: bytes, facts: ModelFacts) -> QueuePlan | None:
        """How requests of a model are scheduled; None where they are not."""
        rule = self.rules.models.get(name, self.rules.usual)
        if facts.is_stateful or not self._is_known(rule, facts):
            return None
        key = (name if name in self.rules.models else b"", facts.instances, facts.max_batch)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make(rule, facts)
        return plan

    def _is_known(self, rule: LineRule, facts: ModelFacts) -> bool:
        """Whether there is any limit to go by."""
        match rule.by:
            case LimitBy.NOTHING:
                return False
            case LimitBy.NUMBER:
                return True
            case LimitBy.CONFIGURATION:
                is_by_work = facts.is_mixed and not facts.is_decoupled
                return facts.instances > 0 or is_by_work or bool(self._own)
            case LimitBy.MEASUREMENT:
                return facts.is_decoupled is False

    def _make(self, rule: LineRule, facts: ModelFacts) -> QueuePlan:
        max_batch = facts.max_batch
        executing = facts.instances * max(max_batch, 1)

        def limit(concurrency: int, **more: bool) -> Capacity:
            # Where nothing is known of instances, as many run side by side as are let in.
            instances = facts.instances or max(concurrency, 1)
            return Capacity(concurrency, instances=instances, max_batch=max_batch, **more)

        match rule.by:
            case LimitBy.NUMBER:
                usual = limit(rule.concurrency)
            case LimitBy.MEASUREMENT:
                usual = limit(executing or _ADAPTIVE_START, is_adaptive=True)
            case _ if facts.instances:
                usual = limit(executing, is_auto=True)
            case _:
                usual = Capacity(is_shared=True)
        # Who says a number for a backend does so because it has other instances: the
        # configuration, which is another one's, does not tell of them.
        own = {
            backend: Capacity(
                concurrency,
                instances=max(1, concurrency // max(max_batch, 1)),
                max_batch=max_batch,
            )
            for backend, concurrency in self._own.items()
        }
        return QueuePlan(limits=own, default=usual, rules=rule.queue)
