"""Health of one port of one backend as a state machine.

    STARTING --first finding--> UP or DOWN
    UP --refused, or `fall` misses in a row--> DOWN --`rise` good probes in a row--> UP
    UP --owes an answer and is silent--> SUSPECTED --answer or live byte--> UP

A Triton that exits closes its HTTP port first and goes on with gRPC for a while, until it unloads
its models and answers at once that it has none. So when the HTTP port closes, its sibling is
*leaving*: suspected, and probed often, until it closes too, the other comes back, or the time that
Triton takes to exit has passed.

A time-out is no news while live traffic brings bytes: such a port is busy, not gone. Suspicion
is quicker than the time-outs and takes nothing down: a process that is stopped accepts
connections and stays silent, so others are preferred to it until it speaks. It *hangs* from then
on, or from the time-outs where nobody had suspected it: what it owes may be asked of another one.

A server that answers that not all of its models are ready (it loads one) is PARTIAL while it is
known to have a ready model, and UNREADY while it has none. A balancer that answers that it is not
ready has no backend left, whatever it was known to have: it is UNREADY.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from random import Random
from typing import Final

from lb.domain.backend import BackendState, Health
from lb.health.thresholds import REPROBE_S, Thresholds

LEAVING_S: Final = 35.0
"""Triton's default for exiting (`--exit-timeout-secs`) is 30 s."""
SILENT_SHARE: Final = 0.1
"""A port that comes back is noticed after so much of the time for which it was away, at most, where
that is longer than the interval."""


class Finding(Enum):
    """What one probe found."""

    READY = "ready"
    MODELS_NOT_READY = "models_not_ready"
    """It lives, and says that not all of its models are ready."""
    NO_BACKEND_READY = "no_backend_ready"
    """It is a balancer, and says that none of its backends is ready."""
    NOT_READY = "not_ready"
    """Any other answer than that it is ready: it exits, or is no such server."""
    REFUSED = "refused"
    """Refused or reset the connection: the port is closed."""
    TIMEOUT = "timeout"
    ERROR = "error"
    """Any other failure: no route, a broken or foreign answer."""


_ANSWERS: Final = frozenset({
    Finding.READY, Finding.MODELS_NOT_READY, Finding.NO_BACKEND_READY,
})  # fmt: skip
_CERTAIN: Final = frozenset({Finding.REFUSED, Finding.NOT_READY})
"""One of these is enough to know that a server that was not ready serves nothing."""


class PortHealth:
    """The record of one port. Methods are told what happened; `state` says what it means."""

    __slots__ = (
        "_hurried", "_leaving_until", "_misses", "_says_unready", "_serves_nothing", "_silences",
        "_silent_since", "_streak", "_suspected", "_unanswered_since", "answers", "has_models",
        "health", "is_hung", "is_refusing", "is_silent", "probe_sent_at", "probes_sent", "rules",
    )  # fmt: skip

    def __init__(self, rules: Thresholds) -> None:
        self.rules = rules
        self.health = Health.UNKNOWN
        self.probes_sent = 0
        self.probe_sent_at = 0.0
        self._streak = 0
        """Findings in a row that contradict `health`."""
        self._suspected = False
        self._unanswered_since: float | None = None
        """When the oldest probe was sent after which nothing answered; a time-out is no answer."""
        self._hurried = False
        """Live traffic gave a reason to look again soon."""
        self._leaving_until: float | None = None
        """Until when the process is taken to be exiting; None when it is not."""
        self.answers = False
        """The server lives, whether it is ready or not."""
        self._misses = 0
        """Findings in a row that contradict `answers`."""
        self._says_unready = False
        """Since it last answered anew, it has said that not all of its models are ready."""
        self._serves_nothing = False
        """It is a balancer, and said so when it last answered: the models that it listed were those
        of its backends."""
        self.is_silent = True
        """It says nothing at all. A server that exits says that it is not ready, and goes on with
        the sequences that it runs."""
        self.is_hung = False
        """It has spoken and fell silent, owing an answer, and has not spoken since."""
        self.is_refusing = False
        """The newest connection was refused: no process listens there."""
        self._silences = 0
        """Probes in a row that it left without any answer."""
        self._silent_since = inf
        """When the probe was sent that found it silent; infinite while it is not, or nothing was
        found yet."""
        self.has_models = False
        """Told from outside: some model of it is known to be ready."""

    @property
    def state(self) -> BackendState:
        """The state in one word."""
        if self.health is Health.UNKNOWN:
            return BackendState.STARTING
        if self.health is Health.UNHEALTHY:
            if self.answers and self.has_models and not self._serves_nothing:
                return BackendState.SUSPECTED if self._suspected else BackendState.PARTIAL
            return BackendState.UNREADY if self._says_unready else BackendState.DOWN
        return BackendState.SUSPECTED if self._suspected else BackendState.UP

    @property
    def is_open(self) -> bool:
        """Whether the server answers on it, ready or not."""
        return self.health is Health.HEALTHY or self.answers

    # Probes

    def probe_sent(self, now: float) -> None:
        """A probe goes out now."""
        self.probes_sent += 1
        self.probe_sent_at = now
        self._hurried = False
        if self._unanswered_since is None:
            self._unanswered_since = now

    def probed(self, finding: Finding, last_byte_at: float) -> None:
        """The last probe sent came to an end.

        Args:
            finding: what it found.
            last_byte_at: when live traffic last brought a byte from this port.
        """
        if finding is Finding.TIMEOUT:
            if last_byte_at > self.probe_sent_at:
                return
        else:
            self._unanswered_since = None
            self._suspected = self._leaving_until is not None
        self.is_refusing = finding is Finding.REFUSED
        self._note_answer(finding)
        target = Health.HEALTHY if finding is Finding.READY else Health.UNHEALTHY
        if self.health is target:
            self._streak = 0
            return
        self._streak += 1
        if self._streak >= self._needed(finding):
            self._move(target)

    def _note_answer(self, finding: Finding) -> None:
        if finding in _ANSWERS or finding is Finding.NOT_READY:
            self.is_silent = self.is_hung = False
            self._silent_since = inf
            self._silences = 0
        else:
            self._silences += 1
            if finding is Finding.REFUSED or self._silences >= self.rules.fall:
                self.is_hung |= finding is Finding.TIMEOUT and not self.is_silent
                self.is_silent = True
                self._silent_since = min(self._silent_since, self.probe_sent_at)
        if finding in _ANSWERS:
            self.answers = True
            self._says_unready |= finding is not Finding.READY
            self._serves_nothing = finding is Finding.NO_BACKEND_READY
            self._misses = 0
            return
        self._misses += 1
        if finding in _CERTAIN or self._misses >= self.rules.fall:
            self._stop_answering()

    def _stop_answering(self) -> None:
        self.answers = False
        self._says_unready = False

    def excused(self) -> None:
        """The last probe sent timed out while we were too late ourselves to hear an answer."""
        self._unanswered_since = None

    def _needed(self, finding: Finding) -> int:
        if self.health is Health.UNKNOWN or finding is Finding.REFUSED:
            return 1
        return self.rules.rise if finding is Finding.READY else self.rules.fall

    def _move(self, target: Health) -> None:
        self.health = target
        self._streak = 0
        self._suspected = False
        self._leaving_until = None

    def next_probe_at(self, rng: Random, silent_pause_s: float = 0.0) -> float:
        """When the next probe is due; in the past when the last one took longer than that.

        Args:
            rng: spreads probes.
            silent_pause_s: how far the pause grows while the port says nothing. It grows with the
                time for which that is so.
        """
        if self._hurried or self._streak or self._leaving_until is not None:
            return self.probe_sent_at + min(REPROBE_S, self.rules.interval_s)
        if self.probes_sent == 1:
            # All ports are probed together at the start; from here on they are spread.
            return self.probe_sent_at + self.rules.interval_s * rng.random()
        pause_s = self.rules.jittered_interval_s(rng)
        if silent_pause_s > self.rules.interval_s:
            silent_s = max(self.probe_sent_at - self._silent_since, 0.0)
            pause_s *= max(
                1.0, min(silent_pause_s, SILENT_SHARE * silent_s) / self.rules.interval_s
            )
        return self.probe_sent_at + pause_s

    # Silence

    @property
    def is_at_ease(self) -> bool:
        """Whether `check_stall` would change nothing, whenever it comes and whatever was heard."""
        return (
            self._unanswered_since is None and self._leaving_until is None and not self._suspected
        )

    def check_stall(self, last_byte_at: float, now: float) -> None:
        """Suspect a port that owes an answer and is silent, and clear one that spoke."""
        if self._leaving_until is not None:
            if now < self._leaving_until:
                return
            self._leaving_until = None
        owing = self._unanswered_since
        if owing is None:
            self._suspected = False
            return
        is_stalled = now - max(owing, last_byte_at) >= self.rules.suspect_after_s
        if is_stalled:
            self.is_hung |= not self.is_silent
        elif last_byte_at > owing:
            self.is_hung = False
        self._suspected = is_stalled and self.is_open

    # The other port of the process

    def sibling_closed(self, now: float) -> None:
        """The other port refuses connections: this one will probably follow."""
        if self.health is Health.HEALTHY:
            self._leaving_until = now + LEAVING_S
            self._suspected = True

    def sibling_opened(self) -> None:
        """The other port is back: nobody is leaving."""
        if self._leaving_until is not None:
            self._leaving_until = None
            self._suspected = False

    # Live traffic

    def refused(self) -> None:
        """A live connection attempt was refused: out at once, and look again soon."""
        self._move(Health.UNHEALTHY)
        self._stop_answering()
        self.is_silent = self.is_refusing = True
        self._hurried = True

    def awaited(self) -> None:
        """Somebody waits for the server to become ready: look again soon."""
        self._hurried = True

    def doubted(self) -> None:
        """A live attempt failed in a way that may be the backend's fault: look again soon."""
        self._hurried = True
