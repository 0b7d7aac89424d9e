"""Variants and shadows in the live document."""

from __future__ import annotations

from collections.abc import Iterable

from lb.admin.live_document import LiveVariant
from lb.admin.views import quantile
from lb.comparison.shares import interval
from lb.domain.names import readable
from lb.proxy.shadow import CopyFate, Kind, Shadow, Shadows
from lb.telemetry.variants import VariantStatus


def variant_rows(statuses: Iterable[VariantStatus]) -> list[LiveVariant]:
    """Describe the variants of all names."""
    return [_row(each) for each in statuses]


def _row(status: VariantStatus) -> LiveVariant:
    p99_s = quantile(status.durations.counts, 0.99)
    note = ""
    if status.rollbacks and status.why.startswith(f"{status.variant}:"):
        note = f"rolled back: {status.why}"
    elif not status.is_ready:
        note = "not ready, gets nothing"
    elif status.differs:
        note = f"{status.file_percent:.4g} % in the file, changed by {status.changed}"
    return LiveVariant(
        name=f"{status.name}/{status.variant}",
        model=f"{status.model}:{status.version}" if status.version else status.model,
        percent=round(status.percent, 3),
        file_percent=round(status.file_percent, 3),
        ready=status.is_ready,
        answers=status.answers,
        errors=status.errors,
        p99_ms=None if p99_s is None else round(p99_s * 1000, 3),
        note=note,
    )


def shadow_rows(shadows: Shadows) -> list[LiveVariant]:
    """Describe the shadows of all names."""
    return [_shadow_row(shadows, each) for each in shadows.sets.values()]


def _shadow_row(shadows: Shadows, shadow: Shadow) -> LiveVariant:
    rules = shadow.rules
    kind = Kind.SHADOW.value
    fates = {fate: shadow.fates.get((kind, fate.value), 0) for fate in CopyFate}
    errors = fates[CopyFate.ERROR] + fates[CopyFate.FAILED] + fates[CopyFate.TIMEOUT]
    p99_s = quantile(shadow.durations[kind].counts, 0.99)
    notes = shadows.notes(shadow)
    tally = shadow.tallies[kind]
    if tally.compared:
        low, high = interval(tally.same, tally.compared)
        share = tally.same / tally.compared
        notes.insert(0, f"{share:.2%} same ({low:.2%} to {high:.2%})")
    model = readable(rules.model)
    return LiveVariant(
        name=f"{shadow.name} (shadow)",
        model=f"{model}:{rules.version.decode()}" if rules.version else model,
        percent=round(100 * rules.share, 3),
        file_percent=round(100 * rules.share, 3),
        ready=not any(note.startswith("no backend") for note in notes),
        answers=fates[CopyFate.ANSWERED] + errors,
        errors=errors,
        p99_ms=None if p99_s is None else round(p99_s * 1000, 3),
        note="; ".join(notes),
    )
