"""What was seen of a flood, and which bounds it broke."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.floods.catalogue import ADVERTISED_STREAMS, LATE_S, Flood
from tests.floods.good import Sample
from tests.floods.observation import Handled
from tests.floods.play import Played

SLOWER = 3.0
FLOOR_S = 0.005
"""A quiet p99 below this is taken as this: the machine has two cores for five processes."""
CANCEL_S = 0.1
LINES_PER_CONNECTION = 5
LINES_ANYWAY = 20


def quantile(samples: list[Sample], share: float) -> float:
    """Of the times that good answers took; 0 without any."""
    times = sorted(sample.took_s for sample in samples if not sample.error)
    return times[min(len(times) - 1, int(len(times) * share))] if times else 0.0


def cancelled_late_s(played: Played, handled: tuple[Handled, ...]) -> float:
    """The longest time by which a request outlived the connection that it came on.

    Only for connections one after the other: what began before a cut belongs to it.
    """
    latest = 0.0
    before = 0.0
    for cut in played.cuts:
        for request in handled:
            if before <= request.started < cut and request.how != "answered":
                latest = max(latest, (request.ended or float("inf")) - cut)
        before = cut
    return latest


Lag = list[tuple[float, int]]
"""Upper bounds in seconds, and how many ticks of the event loop were no later."""


def lag_within(before: Lag, after: Lag, share: float) -> float:
    """The upper bound of how late such a share of ticks was between two looks."""
    grown = [(bound, late - was) for (bound, late), (_, was) in zip(after, before, strict=True)]
    return next(bound for bound, count in grown if count >= share * grown[-1][1])


@dataclass
class Verdict:
    """A row of the table."""

    name: str
    flood: Flood
    played: Played
    timeout_s: float
    quiet: list[Sample] = field(default_factory=list)
    beside: list[Sample] = field(default_factory=list)
    rss_growth: int = 0
    cpu_share: float = 0.0
    started_upstream: int = 0
    peak_upstream: int = 0
    late_s: float = 0.0
    left: dict[str, float] = field(default_factory=dict)
    log_lines: tuple[int, int] = (0, 0)
    """Of the application log and of the access log."""
    tracebacks: int = 0
    lag_s: tuple[float, float] = (0.0, 0.0)
    """How late the event loop was at most: 99 % of its ticks, and all of them."""
    finished_requests: int = 0
    """By the balancer's own count, the good client's included."""
    state_changes: float = 0.0

    @property
    def errors(self) -> list[str]:
        """Of the good client, quiet time included."""
        return [sample.error for sample in (*self.quiet, *self.beside) if sample.error]

    def attacker_faults(self, late_s: float = LATE_S) -> list[str]:
        """Whether the attacker was cut as it should be."""
        flood, played, faults = self.flood, self.played, []
        if flood.is_cut and played.cut < played.lines:
            faults.append(f"{played.lines - played.cut} of {played.lines} never cut")
        most = flood.most + int(flood.refill_per_s * played.counted_s)
        if flood.is_cut and flood.most and not 0 <= played.accepted <= most:
            accepted = played.accepted if played.accepted >= 0 else "all"
            faults.append(f"{accepted} accepted, at most {most} allowed")
        wrong = set(played.codes) - flood.codes
        if flood.is_cut and flood.codes and wrong:
            faults.append(f"ended with {', '.join(sorted(wrong))}")
        if flood.is_timed and played.lives_s:
            low, high = min(played.lives_s), max(played.lives_s)
            longest = self.timeout_s * (4 if flood.is_sampled else 1) + late_s
            if low < 0.9 * self.timeout_s or high > longest:
                faults.append(f"lived {low:.1f} to {high:.1f} s, not {self.timeout_s} s")
        return faults

    def upstream_faults(self, cancel_s: float = CANCEL_S) -> list[str]:
        """Whether its work ended with it."""
        faults = []
        if self.late_s > cancel_s:
            faults.append(f"upstream work outlived the cut by {1000 * self.late_s:.0f} ms")
        if self.peak_upstream > ADVERTISED_STREAMS:
            faults.append(f"{self.peak_upstream} in flight at the backend")
        if self.left:
            faults.append(f"left behind: {self.left}")
        return faults

    def neighbour_faults(self) -> list[str]:
        """Whether others had to suffer."""
        faults = []
        if self.errors:
            faults.append(f"{len(self.errors)} good requests failed, as {self.errors[0]!r}")
        if self.state_changes:
            faults.append(f"{self.state_changes:.0f} state changes of a healthy backend")
        if self.tracebacks:
            faults.append("traceback in the log")
        return faults

    def cost_faults(self) -> list[str]:
        """Memory and log."""
        faults = []
        if self.rss_growth > self.flood.rss_limit:
            faults.append(f"RSS grew by {self.rss_growth / 2**20:.1f} MiB")
        lines, access_lines = self.log_lines
        if lines > LINES_PER_CONNECTION * self.played.lines + LINES_ANYWAY:
            faults.append(f"{lines} log lines")
        if access_lines > self.finished_requests:
            faults.append(f"{access_lines} access lines of {self.finished_requests} requests")
        return faults

    def slower_faults(self) -> list[str]:
        """Whether good requests took much longer than before."""
        limit = SLOWER * max(quantile(self.quiet, 0.99), FLOOR_S)
        beside = quantile(self.beside, 0.99)
        if beside <= limit:
            return []
        return [f"good p99 {1000 * beside:.1f} ms over {1000 * limit:.1f} ms"]

    @property
    def is_only_slower(self) -> bool:
        """Nothing else is wrong."""
        return self.faults() == self.slower_faults() != []

    def faults(self) -> list[str]:
        """Everything that is wrong."""
        return [
            *self.slower_faults(),
            *self.attacker_faults(),
            *self.cost_faults(),
            *self.neighbour_faults(),
            *self.upstream_faults(),
        ]
