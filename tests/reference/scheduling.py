"""Plain versions of what a lane does when a ticket begins and ends, and of how costs are learnt."""

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
from lb.balancing.lanes import (
    _ENDS,
    _NEWS_S,
    _PART,
    _QUICK_S,
    _SCATTER,
    _SKIPPED,
    _USUAL_EVERY,
    _WELL_KNOWN,
    Lane,
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


def begin(lane: Lane, ticket: Ticket, now: float) -> None:
    """`Lane.begin`; `look` was asked about the ticket."""
    ticket.began_at = now
    ticket.work_s = lane.predict(ticket.rows, ticket.size)
    ticket.expected_s = lane.begins_at - now + ticket.work_s
    ticket.after = lane._ends + max(0, lane.in_flight - lane.instances + 1)
    if lane.instances > 1:
        insort(lane._ends_expected, now + ticket.expected_s)
    lane.in_flight += 1
    lane.unanswered.tickets[ticket] = None
    if lane.in_flight <= lane.instances:
        lane.anchor = now
    lane.work_s += ticket.work_s


def end(lane: Lane, ticket: Ticket, now: float, ending: Ending) -> None:
    """`Lane.end`."""
    lane._ends += 1
    lane._ends_at[lane._ends % _ENDS] = now
    lane.adapt(now)
    lane.in_flight -= 1
    del lane.unanswered.tickets[ticket]
    lane.work_s = lane.work_s - ticket.work_s if lane.in_flight else 0.0
    lane.anchor = now
    expected = lane._ends_expected
    if expected:
        due = ticket.began_at + ticket.expected_s
        del expected[bisect_left(expected, due, 0, len(expected) - 1)]
    if ending is Ending.FAILED:
        lane.site.failed(now)
    if ending is not Ending.GOOD:
        if lane.is_doubted(now):
            lane.gave_up(lane.executed_s(ticket, now), ticket.work_s, now)
        return
    if lane.site.penalty != 1.0:
        lane.site.went_well(now)
    is_quick = lane.cost.mean_s < _QUICK_S * lane.instances
    is_news = not lane._ends * _SCATTER & _SKIPPED or now - lane.cost.at >= _NEWS_S
    if lane.cost.count > _WELL_KNOWN and is_quick and not is_news:
        return
    lane.missed(ticket, now)
    if ticket.expected_s == ticket.work_s:
        part = max(_PART, 1.0 / (1 + lane.cost.count))
        lane.alone_s += part * (now - ticket.began_at - lane.alone_s)
    took_s = lane.executed_s(ticket, now)
    lane.learn(took_s, ticket.rows, ticket.size, now)
    usual = lane.tally.usual
    if usual.count < lane.cost.count <= _WELL_KNOWN or not lane._ends & _USUAL_EVERY:
        usual.learn(took_s, ticket.rows, ticket.size, now)
