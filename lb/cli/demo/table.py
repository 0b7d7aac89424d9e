"""What the demo shows, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lb.admin.models import Backend
from lb.cli.demo.balancer import Listeners
from lb.cli.demo.load import MODEL, RequestTally, quantile_ms
from lb.cli.demo.tritons import MODEL_MS, SimulatedTritons
from lb.domain.durations import short_duration

_TITLES = ("backend", "state", "in flight", "served", "p50", "p99")
_UP_AND_CLEAR = "\x1b[{}F\x1b[J"  # cursor to the start of that many lines up, clear from there


def addresses(listen: Listeners) -> list[str]:
    """Return where the load balancer is, and one command to try."""
    return [
        f"  open     http://{listen.admin}/",
        "",
        f"  HTTP     http://{listen.http}",
        f"  gRPC     {listen.grpc}",
        f"  metrics  http://{listen.metrics}/metrics",
        f"  admin    http://{listen.admin}/api/v1/backends",
        "",
        f"  try      curl http://{listen.http}/v2/models/{MODEL}",
    ]


def table(
    backends: Sequence[Backend],
    tallies: Sequence[RequestTally],
    fates: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the backends as the load balancer sees them, and what the demo itself measured.

    Args:
        backends: one row each.
        tallies: one line each.
        fates: what became of Tritons that do not run, by name.
    """
    rows = [_TITLES, *map(_cells, backends)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_TITLES))]
    lines = [f"  {_aligned(row, widths)}" for row in rows]
    for backend, at in zip(backends, range(1, len(lines)), strict=True):
        fate = (fates or {}).get(backend.name, "")
        if note := "; ".join(filter(None, (fate, backend.why))):
            lines[at] += f"  {note}"
    return [*lines, "", *map(_total, tallies)]


def comparison(ours: Sequence[RequestTally], others: Sequence[RequestTally]) -> str:
    """Say the 99th percentile of the same arrivals, here and with round robin."""
    (p99, failed), (other_p99, other_failed) = map(_p99_and_failed, (ours, others))
    return (
        f"  p99 of the same arrivals: triton-lb {_milliseconds(p99)} ({failed} failed), "
        f"round robin {_milliseconds(other_p99)} ({other_failed} failed)"
    )


def _p99_and_failed(tallies: Sequence[RequestTally]) -> tuple[float | None, int]:
    recent = [took for tally in tallies for took in tally.recent_s]
    return quantile_ms(recent, 0.99), sum(tally.failed for tally in tallies)


def speeds(tritons: SimulatedTritons) -> list[str]:
    """Say how fast each Triton is, and what follows."""
    each = ", ".join(
        f"{name} {short_duration(MODEL_MS / tritons.speed(name) / 1000)}"
        for name in tritons.names[:6]
    )
    return [
        f"  One request takes {each}.",
        "  triton-lb learns that, and sends more where it is faster. Round robin does not.",
    ]


def redraw(lines: Sequence[str], drawn: int, width: int) -> str:
    """Return what replaces the last `drawn` lines of a terminal by `lines`, cut to its width."""
    start = _UP_AND_CLEAR.format(drawn) if drawn else ""
    return start + "".join(f"{line[:width]}\n" for line in lines)


def _cells(backend: Backend) -> tuple[str, ...]:
    return (
        backend.name,
        backend.state,
        str(backend.in_flight),
        str(backend.served),
        _milliseconds(backend.latency.p50_ms),
        _milliseconds(backend.latency.p99_ms),
    )


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row: the two texts to the left, the numbers to the right."""
    padded = [
        cell.ljust(width) if column < 2 else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "   ".join(padded).rstrip()


def _total(tally: RequestTally) -> str:
    line = (
        f"  {tally.protocol}   {tally.right} right, {tally.wrong} wrong, {tally.failed} failed"
        f"   p50 {_milliseconds(tally.quantile_ms(0.5))}"
        f"   p99 {_milliseconds(tally.quantile_ms(0.99))}"
    )
    return f"{line}   last: {tally.problem}" if tally.problem else line


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else short_duration(value / 1000)
