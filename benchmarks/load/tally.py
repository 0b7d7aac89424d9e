"""What our own load generators print: one JSON object with the counts and latencies of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Value below which `share` of the ordered samples lie; 0 without samples."""
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))]) if ordered else 0.0


def tally(latencies_us: Iterable[float], seconds: float, errors: int) -> dict[str, float]:
    """Counts, duration, and the latencies in microseconds of what was answered."""
    ordered = sorted(latencies_us)
    return {
        "requests": float(len(ordered)),
        "seconds": seconds,
        "errors": float(errors),
        "p50_us": percentile(ordered, 0.5),
        "p99_us": percentile(ordered, 0.99),
        "p999_us": percentile(ordered, 0.999),
    }
