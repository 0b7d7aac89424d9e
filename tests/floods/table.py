"""The table of `make floods`."""

from __future__ import annotations

from tests.floods.good import Sample
from tests.floods.judge import Verdict, quantile

_COLUMNS = (
    "flood", "connections", "cut", "accepted", "after s", "code", "RSS MiB", "CPU", "upstream",
    "peak", "cancelled ms", "quiet p50/p99 ms", "beside p50/p99 ms", "loop late p99/max ms",
    "good n", "errors", "log app/access", "broken",
)  # fmt: skip
HEADER = ("| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS))


def _times(samples: list[Sample]) -> str:
    return f"{1000 * quantile(samples, 0.5):.1f} / {1000 * quantile(samples, 0.99):.1f}"


def row(verdict: Verdict) -> str:
    """One flood."""
    played = verdict.played
    lives = played.lives_s
    span = f"{min(lives):.2f} to {max(lives):.2f}" if lives else ""
    codes = ", ".join(
        code if len(played.codes) == 1 else f"{code} {count}"
        for code, count in sorted(played.codes.items())
    )
    counted = verdict.flood.most > 0
    cells = (
        verdict.name,
        str(played.lines) + (f" (+{played.refused} refused)" if played.refused else ""),
        str(played.cut),
        "" if not counted else "all" if played.accepted < 0 else str(played.accepted),
        span,
        codes,
        f"{verdict.rss_growth / 2**20:.1f}",
        f"{100 * verdict.cpu_share:.0f} %",
        str(verdict.started_upstream),
        str(verdict.peak_upstream),
        f"{1000 * verdict.late_s:.0f}" if played.cuts else "",
        _times(verdict.quiet),
        _times(verdict.beside),
        " / ".join(f"{1000 * bound:.0f}" for bound in verdict.lag_s),
        str(len(verdict.beside)),
        str(len(verdict.errors)),
        f"{verdict.log_lines[0]} / {verdict.log_lines[1]}",
        "; ".join(verdict.faults()),
    )
    return "| " + " | ".join(cells) + " |"
