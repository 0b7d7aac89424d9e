"""Says in a word how the pool does, and in a sentence why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lb.admin.live_document import LiveWorker, Verdict
from lb.control.record import BackendRecord
from lb.domain.backend import BackendState
from lb.domain.durations import short_duration
from lb.domain.outcome import NO_ALARM

_SLOW_QUEUE_S: Final = 1.0
"""Requests that wait longer than this in the queue are worth a word."""
_BAD_SHARE: Final = 0.05
"""Part of the requests that fail, from which the state is bad."""
HARMLESS: Final = frozenset(each.value for each in NO_ALARM)
"""Errors that are shown, but no reason for alarm."""
_INTENDED: Final = frozenset({
    BackendState.DRAINING, BackendState.DISABLED, BackendState.STANDBY, BackendState.REMOVING,
})  # fmt: skip
"""States that an operator or the configuration wanted."""
_FINE: Final = _INTENDED | {BackendState.UP}


def judge(
    records: Sequence[BackendRecord],
    *,
    is_usable: bool,
    errors: Mapping[str, float],
    requests: float | None,
    oldest_s: float,
    workers: Sequence[LiveWorker],
    now: float,
) -> tuple[Verdict, str]:
    """Say in a word how the pool does, and in a sentence why.

    Args:
        records: all backends, those with the worst state first.
        is_usable: whether a ready backend may get requests.
        errors: failures per second by reason.
        requests: completed inferences per second.
        oldest_s: age of the oldest queued request.
        workers: all of them; empty where one process serves.
        now: monotonic seconds.
    """
    if not records:
        return "bad", "There are no backends."
    ill = [
        each
        for each in records
        if each.state not in _FINE or (each.outlier_reason and each.state is BackendState.UP)
    ]
    alarming = {reason: rate for reason, rate in errors.items() if reason not in HARMLESS}
    all_errors = sum(alarming.values())
    fail = ""
    if alarming:
        failing = max(alarming, key=lambda reason: alarming[reason])
        fail = f"{_number(all_errors)} requests per second fail, most with {failing}."
    if not is_usable:
        return "bad", _join("No backend can take requests.", _about(ill, now) if ill else "")
    if alarming and all_errors >= _BAD_SHARE * max(requests or 0.0, all_errors):
        return "bad", _join(fail, _about(ill, now) if ill else "")
    lost = _about_workers([each for each in workers if each["state"] != "serving"])
    if ill:
        return "degraded", _join(_join(_about(ill, now), lost), fail)
    if lost:
        return "degraded", _join(lost, fail)
    if alarming:
        return "degraded", fail
    if oldest_s > _SLOW_QUEUE_S:
        return "degraded", f"The oldest queued request has waited for {short_duration(oldest_s)}."
    away = [each for each in records if each.state in _INTENDED]
    up = len(records) - len(away)
    if not away:
        return "good", "The only backend is up." if up == 1 else f"All {up} backends are up."
    names = ", ".join(f"{each.backend.name} is {each.state.value}" for each in away[:3])
    more = f", and {len(away) - 3} others are not in use" if len(away) > 3 else ""
    return "good", f"{up} backend{' is' if up == 1 else 's are'} up; {names}{more}."


def _about(ill: Sequence[BackendRecord], now: float) -> str:
    """A sentence about the worst backend, and how many others there are."""
    worst = ill[0]
    why = worst.why
    if worst.state is BackendState.UP:
        sentence = f"{worst.backend.name} is up, but not for every model"
    else:
        lasts = short_duration(now - worst.since)
        sentence = f"{worst.backend.name} has been {worst.state.value} for {lasts}"
    sentence += f": {why}." if why else "."
    others = len(ill) - 1
    if others:
        sentence += f" {'1 other backend is' if others == 1 else f'{others} others are'} ill too."
    return sentence


def _about_workers(lost: Sequence[LiveWorker]) -> str:
    """A sentence for each worker that does not serve; empty where all do."""
    return " ".join(
        f"Worker {each['index']} has been {each['state']} for {short_duration(each['since_s'])}."
        for each in lost
    )


def _join(first: str, second: str) -> str:
    return f"{first} {second}" if second else first


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"
