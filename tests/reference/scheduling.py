"""Plain versions of what a model backend does when a ticket begins and ends, and of how costs are
learnt."""

from __future__ import annotations

from bisect import bisect_left, insort

from lb.balancing.cost import (
    _CLIP_DEVIATIONS,
    _CLIP_S,
    _CLIP_SHARE,
    _FIRST,
    _FLOOR_S,
    _STALE_COUNT,
    _STALE_S,
    _UNSURE,
    WINDOW,
    Cost,
)
from lb.balancing.estimate import Estimate
from lb.balancing.model_backend import (
    _AS_EXPECTED,
    _CONFIDENT_SAMPLES,
    _ENDS,
    _NEWS_S,
    _QUICK_S,
    _REQUEST_WEIGHT,
    _SCATTER,
    _SETTLED,
    _SKIPPED,
    _USUAL_EVERY,
    ModelBackend,
)
from lb.domain.schedule import Ending, Ticket


def learn(cost: Cost, took_s: float, rows: float, size: float, now: float) -> None:
    """`Cost.learn`."""
    took_s = max(took_s, _FLOOR_S)
    cost.count += 1
    place = cost.count % WINDOW
    cost._recent[place], cost._recent_rows[place] = took_s, rows
    cost._recent_sizes[place] = size
    cost._least_ratio = 0.0
    if cost.count <= _FIRST and not cost.assumed:
        cost._begin(took_s, rows, size, now)
        return
    if cost.count <= _FIRST and cost.count == cost.assumed + 1:
        cost._byte_mean = size
    if now - cost.at > _STALE_S:
        cost._weight = min(cost._weight, _STALE_COUNT)
    cost.at = now
    expected = cost.predict(rows, size)
    off = took_s - expected
    usual = _CLIP_DEVIATIONS * cost.deviation_s + _CLIP_SHARE * expected + _CLIP_S
    if abs(off) <= usual:
        cost._surprises = 0
    else:
        cost._surprises += 1
        if cost._surprises < cost.surprises:
            off = min(max(off, -usual), usual)
        else:
            cost._surprises = 0
            cost._weight = 1
    cost._weight = min(cost._weight + 1, WINDOW)
    part = 1.0 / cost._weight
    cost.deviation_s += part * (abs(off) - cost.deviation_s)
    cost.unsure_s = cost.deviation_s * _UNSURE[cost._weight]
    cost._regress(expected + off, rows, size, part)


def begin(model_backend: ModelBackend, ticket: Ticket, estimate: Estimate, now: float) -> None:
    """`ModelBackend.begin`."""
    load = model_backend.load
    ticket.began_at = now
    ticket.work_s = model_backend.predict(ticket.rows, ticket.size)
    ticket.expected_s = estimate.begins_at - now + ticket.work_s
    ticket.after = model_backend._ends + max(0, load.in_flight - model_backend.instances + 1)
    if load.in_flight >= max(model_backend.limit, model_backend.instances):
        ticket.after = -ticket.after
    if model_backend.instances > 1:
        insort(load.expected_ends, now + ticket.expected_s)
    load.in_flight += 1
    model_backend.unanswered.tickets[ticket] = None
    if load.in_flight <= model_backend.instances:
        load.busy_since = now
    load.work_s += ticket.work_s
    ticket.model_backend = model_backend


def end(model_backend: ModelBackend, ticket: Ticket, now: float, ending: Ending) -> None:
    """`ModelBackend.end`."""
    load = model_backend.load
    model_backend._ends += 1
    model_backend._ends_at[model_backend._ends % _ENDS] = now
    model_backend.adapt(now)
    load.in_flight -= 1
    del model_backend.unanswered.tickets[ticket]
    load.work_s = load.work_s - ticket.work_s if load.in_flight else 0.0
    load.busy_since = now
    expected = load.expected_ends
    if expected:
        due = ticket.began_at + ticket.expected_s
        del expected[bisect_left(expected, due, 0, len(expected) - 1)]
    if ending is Ending.FAILED:
        model_backend.penalty.on_failure(now)
    if ending is not Ending.GOOD:
        took_s = model_backend.executed_s(ticket, now)
        if model_backend.is_doubted(now) and took_s >= 0.0:
            model_backend.gave_up(took_s, ticket.work_s, now)
        return
    if model_backend.penalty.factor != 1.0:
        model_backend.penalty.on_success(now)
    is_quick = model_backend.cost.mean_s < _QUICK_S * model_backend.instances
    is_news = (
        not model_backend._ends * _SCATTER & _SKIPPED or now - model_backend.cost.at >= _NEWS_S
    )
    mean_s = model_backend.cost.mean_s
    is_settled = (
        model_backend.cost.deviation_s < _SETTLED * mean_s
        and abs(now - ticket.began_at - ticket.expected_s) < _AS_EXPECTED * mean_s
    )
    is_known = model_backend.cost.count > _CONFIDENT_SAMPLES
    if is_known and (is_quick or is_settled) and not is_news:
        return
    model_backend.missed(ticket, now)
    if ticket.expected_s == ticket.work_s:
        part = max(_REQUEST_WEIGHT, 1.0 / (1 + model_backend.cost.count))
        model_backend.alone_s += part * (now - ticket.began_at - model_backend.alone_s)
    took_s = model_backend.executed_s(ticket, now)
    if took_s < 0.0:
        return
    model_backend.learn(took_s, ticket.rows, ticket.size, now)
    usual = model_backend.stats.usual
    if (
        usual.count < model_backend.cost.count <= _CONFIDENT_SAMPLES
        or not model_backend._ends & _USUAL_EVERY
    ):
        usual.learn(took_s, ticket.rows, ticket.size, now)
