"""What the settings mean for when and where requests begin."""

from __future__ import annotations

from math import inf

from lb.control.plans import LimitBy, LineRule, PlanRules
from lb.domain.schedule import Order, QueueRules
from lb.proxy.queue import Queue, QueueOptions
from lb.settings.model import Settings
from lb.settings.scheduling import (
    Concurrency,
    PolicyName,
    PriorityOrder,
    SchedulingSettings,
    TenantBy,
)
from lb.telemetry.queue import QueueStatus


def plan_rules(settings: Settings) -> PlanRules:
    """Which models are scheduled, and how."""
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
    )
    if isinstance(concurrency, int):
        return LineRule(by=LimitBy.NUMBER, concurrency=concurrency, queue=rules)
    return LineRule(by=LimitBy(concurrency), queue=rules)


def queue_options(settings: Settings) -> QueueOptions:
    """What requests that wait go by."""
    scheduling = settings.scheduling
    by_header = scheduling.tenants is TenantBy.HEADER
    return QueueOptions(
        wait_for_backend_s=scheduling.wait_for_backend,
        overload_status=scheduling.overload_status.value,
        priority_header=header(scheduling.priority_header),
        priority=scheduling.priority,
        priorities={
            name.encode(): own.priority
            for name, own in settings.models.items()
            if own.priority is not None
        },
        by_token=scheduling.tenants is TenantBy.TOKEN,
        tenant_header=header(scheduling.tenant_header) if by_header else b"",
    )


def queue_status(queue: Queue, now: float) -> QueueStatus:
    """What is shown of requests that wait."""
    return QueueStatus(
        model_queues=tuple(queue.scheduler.model_queues(now)),
        model_backends=tuple(queue.scheduler.model_backends()),
        waits=queue.waits,
        positions=queue.positions,
        wait_reasons=queue.wait_reasons,
        unplaced=queue.unplaced,
    )


def header(name: str | None) -> bytes:
    """The name of a header as it is compared; empty for none."""
    return (name or "").lower().encode()
