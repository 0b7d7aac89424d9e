"""Who is out because of how requests fare: a backend for one ML model, or as a whole.

    SERVING --worse than the rest--> EJECTED --time has passed--> PROBATION
    PROBATION --good answer--> SERVING      PROBATION --bad answer--> EJECTED, for twice as long
    EJECTED or PROBATION --the rest fails as well--> SERVING

A backend on which most of the models in use are out is out as a whole. Whether what is out is left
out indeed is up to whoever makes routes: when too little would be left, all are used.

Good answers cost nothing as long as nobody asks for them: `Backend.reports_due` says how many of
the next ones are to be told of. A few per look are, as samples, and all while a run of bad ones is
to be ended by the first good one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from lb.domain.backend import Backend
from lb.domain.fault import Fault
from lb.domain.trial import Trial
from lb.health.evidence import CLEAR, LIKELY, SURE, Rest, is_slow_beside, may_be_slow
from lb.health.outlier_state import FailureRate, OutlierState, Phase, Run
from lb.settings.model import Settings

MAX_MODELS: Final = 2000
"""Names of models are made up by clients; more are not looked after."""
_SAMPLES: Final = 4
"""Good answers per backend and look that are told of."""
_SAMPLES_OF_ALL: Final = 40
"""Of all backends together; with more of them they take turns."""
_CERTAIN: Final = 3
"""Failures in a row that are enough when no request can be to blame."""
_LONG_RUN: Final = 64
"""Runs that are longer are ended by a sample, so that a model which always fails costs little."""
_SLOW_RUN: Final = 5
_SLOW_S: Final = 1.0
"""How long all answers must have been slow: a pause of the process is over by then."""
_SHORT_RUN: Final = 8
"""Each bad answer of a short run is a reason to compare with the rest."""
_JUDGE_S: Final = 0.01
"""Between two comparisons of a longer one, for each backend that has the model: so a model that
fails everywhere costs little, however many there are."""
_WATCHED_S: Final = 10.0
"""How long after its return less evidence is enough."""
_FORGIVEN_S: Final = 60.0
_UNUSED_S: Final = 60.0
"""A model that is not asked for has no say in whether most of them fail; and nobody waits for its
trial."""
_FORGOTTEN_S: Final = 600.0
_FAILS_EVERYWHERE: Final = 0.5


MAX_EJECTION_S: Final = 300.0
"""The longest ejection: a server that fails for so long is tried once in a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierRules:
    """When a backend is ejected, and for how long. Times in seconds."""

    consecutive: int = 5
    """Failures in a row."""
    share: float = 0.2
    """Of all requests."""
    latency_factor: float = 5.0
    """How many times longer than usual answers take; 0: it does not matter."""
    base_s: float = 5.0
    """The first ejection; each further one takes twice as long."""
    max_s: float = MAX_EJECTION_S


def outlier_rules(settings: Settings) -> OutlierRules | None:
    """Read from settings when a backend is ejected; None: never."""
    detection = settings.outlier_detection
    if not detection.enabled:
        return None
    return OutlierRules(
        consecutive=detection.consecutive_failures,
        latency_factor=detection.latency_factor,
        base_s=detection.base_ejection_time,
        max_s=max(MAX_EJECTION_S, detection.base_ejection_time),
    )


@dataclass(frozen=True, slots=True)
class Move:
    """A change of phase, for the log."""

    backend: Backend
    model: bytes
    phase: Phase
    reason: Fault
    seconds: float
    """How long it will be out; 0 unless it is ejected."""
    failures: int
    """In a row."""


class Outliers:
    """Standings of all backends and models. Methods say whether anybody's phase has changed."""

    def __init__(self, rules: OutlierRules) -> None:
        self.rules = rules
        self._outlier_states: dict[bytes, dict[Backend, OutlierState]] = {}
        self._open_runs: dict[Backend, int] = {}
        """Runs of failures that the next good answer ends."""
        self._out: dict[tuple[Backend, bytes], OutlierState] = {}
        """Those that are not serving."""
        self._moves: list[Move] = []
        self._sweep_due = 0.0
        self._turn = 0
        """Whose turn it is to give samples."""

    # What is told to others

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is out."""
        return not self._out

    def ejected(self, backend: Backend) -> frozenset[bytes]:
        """The models for which a backend is out."""
        return frozenset(model for other, model in self._out if other is backend)

    def is_out(self, backend: Backend, now: float) -> bool:
        """Whether most of the models that are in use on it are out."""
        out = self.ejected(backend)
        if not out:
            return False
        used = sum(
            backend in of_model and (model in out or now - of_model[backend].used_at <= _UNUSED_S)
            for model, of_model in self._outlier_states.items()
        )
        return 2 * len(out) > used

    def out(self) -> Iterator[tuple[Backend, bytes, OutlierState]]:
        """All that are out."""
        for (backend, model), outlier_state in self._out.items():
            yield backend, model, outlier_state

    @property
    def trials(self) -> dict[bytes, Trial]:
        """The trials that are given, one per model at most."""
        return {
            model: outlier_state.trial
            for (_, model), outlier_state in self._out.items()
            if outlier_state.trial is not None
        }

    def take_moves(self) -> list[Move]:
        """What has changed since this was last asked for."""
        moves, self._moves = self._moves, []
        return moves

    # What is told by others

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> bool:
        """A good answer came, and `reports_due` asked for it."""
        outlier_state = self._find(backend, model, now)
        if outlier_state is not None:
            self._end_run(backend, outlier_state)
        backend.reports_due = max(backend.reports_due - 1, 1 if backend in self._open_runs else 0)
        if outlier_state is None:
            return False
        outlier_state.used_at = now
        if outlier_state.phase is not Phase.SERVING:
            return self._trial_answered(backend, model, outlier_state, took_s, now)
        factor = self.rules.latency_factor
        is_slow = (
            factor > 0.0
            and may_be_slow(outlier_state, took_s, factor)
            and is_slow_beside(self._rest(model, outlier_state, now), took_s, factor)
        )
        outlier_state.errors.add(is_bad=False)
        outlier_state.late.add(is_bad=is_slow)
        outlier_state.usual.add(took_s, is_outlying=is_slow)
        if is_slow:
            return self._note_slow(backend, model, outlier_state, now)
        outlier_state.slow.end()
        return False

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> bool:
        """An attempt failed, and not by what is known to be the client's fault."""
        outlier_state = self._find(backend, model, now)
        is_sample = backend.reports_due > 0
        backend.reports_due = max(backend.reports_due - 1, 1)
        if outlier_state is None:
            return False
        outlier_state.used_at = now
        if outlier_state.phase is not Phase.SERVING:
            return self._trial_failed(backend, model, outlier_state, fault, took_s, now)
        run = outlier_state.failing
        run.add(fault, now)
        self._follow_run(backend, run)
        if is_sample:
            outlier_state.errors.add(is_bad=True)
        if not self._begin_judging(model, outlier_state, run, now):
            return False
        if not self._fails(outlier_state, self._rest(model, outlier_state, now), now):
            return False
        self._eject(backend, model, outlier_state, run.last, now)
        return True

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> bool:
        """A client did not wait any longer for an answer, for whatever reason. That says nothing of
        a model without answers, whose name may be made up."""
        outlier_state = self._outlier_states.get(model, {}).get(backend)
        factor = self.rules.latency_factor
        if outlier_state is None or not factor or not may_be_slow(outlier_state, waited_s, factor):
            return False
        rest = self._rest(model, outlier_state, now)
        if not is_slow_beside(rest, waited_s, factor):
            return False
        outlier_state.used_at = now
        if outlier_state.phase is not Phase.SERVING:
            return self._trial_failed(backend, model, outlier_state, Fault.LATENCY, waited_s, now)
        outlier_state.late.add(is_bad=True)
        return self._note_slow(backend, model, outlier_state, now)

    def judge(self, backends: Iterable[Backend], now: float) -> bool:
        """Ask for samples, and let time pass: due every 100 ms or so.

        Args:
            backends: that get requests.
            now: the time.
        """
        self._ask_for_samples(tuple(backends))
        if now >= self._sweep_due:
            self._sweep_due = now + _UNUSED_S
            self._sweep(now)
        changed = False
        for (backend, model), outlier_state in tuple(self._out.items()):
            changed |= self._look_at(backend, model, outlier_state, now)
        return changed

    def _ask_for_samples(self, backends: tuple[Backend, ...]) -> None:
        count = len(backends)
        samples = max(1, min(_SAMPLES, _SAMPLES_OF_ALL // max(count, 1)))
        if count > _SAMPLES_OF_ALL:
            start = self._turn % count
            self._turn = start + _SAMPLES_OF_ALL
            backends = (backends + backends)[start : self._turn]
        for backend in backends:
            backend.reports_due = max(backend.reports_due, samples)

    def forget(self, backend: Backend) -> bool:
        """It may be another process that answers next, or it has left."""
        was_out = False
        for model, of_model in tuple(self._outlier_states.items()):
            if of_model.pop(backend, None) is not None and not of_model:
                del self._outlier_states[model]
            was_out |= self._out.pop((backend, model), None) is not None
        self._open_runs.pop(backend, None)
        return was_out

    # Serving

    def _find(self, backend: Backend, model: bytes, now: float) -> OutlierState | None:
        of_model = self._outlier_states.get(model)
        if of_model is None:
            if len(self._outlier_states) >= MAX_MODELS:
                return None
            of_model = self._outlier_states[model] = {}
        outlier_state = of_model.get(backend)
        if outlier_state is None:
            outlier_state = of_model[backend] = OutlierState(now)
        return outlier_state

    def _rest(self, model: bytes, outlier_state: OutlierState, now: float) -> Rest:
        return Rest(self._outlier_states[model].values(), outlier_state, now)

    def _follow_run(self, backend: Backend, run: Run) -> None:
        """Have all good answers of a backend told while one of them ends a run."""
        if run.count == 1:
            self._open_runs[backend] = self._open_runs.get(backend, 0) + 1
        elif run.count == _LONG_RUN:
            self._close_run(backend)

    def _end_run(self, backend: Backend, outlier_state: OutlierState) -> None:
        run = outlier_state.failing
        if 0 < run.count < _LONG_RUN:
            self._close_run(backend)
        run.end()

    def _close_run(self, backend: Backend) -> None:
        left = self._open_runs.get(backend, 0) - 1
        if left > 0:
            self._open_runs[backend] = left
        else:
            self._open_runs.pop(backend, None)

    def _begin_judging(
        self, model: bytes, outlier_state: OutlierState, run: Run, now: float
    ) -> bool:
        if run.count > _SHORT_RUN:
            if now < outlier_state.judge_due:
                return False
            outlier_state.judge_due = now + _JUDGE_S * len(self._outlier_states[model])
        return True

    def _fails(self, outlier_state: OutlierState, rest: Rest, now: float) -> bool:
        """Whether its failures cannot be explained by the requests."""
        if rest.fails_too(_failing):
            return False
        run = outlier_state.failing
        is_watched = bool(outlier_state.ejections) and now < outlier_state.until
        certain = 1 if is_watched else min(_CERTAIN, self.rules.consecutive)
        clear = LIKELY if is_watched else CLEAR
        if run.certain >= certain and rest.odds(run, _errors, certain=True) >= clear:
            return True
        needed, sure = (2, LIKELY) if is_watched else (self.rules.consecutive, SURE)
        if run.count >= needed and rest.odds(run, _errors, certain=False) >= sure:
            return True
        share = outlier_state.errors
        return share.value >= self.rules.share and rest.deviation(share, _errors) >= SURE

    def _note_slow(
        self, backend: Backend, model: bytes, outlier_state: OutlierState, now: float
    ) -> bool:
        run = outlier_state.slow
        run.add(Fault.LATENCY, now)
        if run.count < _SLOW_RUN or now - run.since < _SLOW_S:
            return False
        if not self._begin_judging(model, outlier_state, run, now):
            return False
        rest = self._rest(model, outlier_state, now)
        if (
            rest.out + 1 > len(rest.serving)  # slow is better than overloaded
            or rest.fails_too(_slow)
            or rest.odds(run, _late, certain=False) < SURE
        ):
            return False
        self._eject(backend, model, outlier_state, Fault.LATENCY, now)
        return True

    # Out

    def _eject(
        self, backend: Backend, model: bytes, outlier_state: OutlierState, reason: Fault, now: float
    ) -> None:
        if outlier_state.phase is Phase.SERVING and now >= outlier_state.forgiven_at:
            outlier_state.ejections = 0
        failures = max(outlier_state.failing.count, outlier_state.slow.count, 1)
        self._end_run(backend, outlier_state)
        outlier_state.slow.end()
        rules = self.rules
        seconds = min(rules.base_s * 2.0 ** min(outlier_state.ejections, 30), rules.max_s)
        outlier_state.ejections += 1
        outlier_state.phase = Phase.EJECTED
        outlier_state.reason = reason
        outlier_state.ejected_at = now
        outlier_state.until = now + seconds
        outlier_state.trial = None
        self._out[backend, model] = outlier_state
        self._moves.append(Move(backend, model, Phase.EJECTED, reason, seconds, failures))

    def _return(
        self, backend: Backend, model: bytes, outlier_state: OutlierState, now: float
    ) -> None:
        out_s = outlier_state.until - outlier_state.ejected_at
        outlier_state.phase = Phase.SERVING
        outlier_state.until = now + _WATCHED_S
        outlier_state.forgiven_at = now + max(_FORGIVEN_S, 2.0 * out_s)
        outlier_state.trial = None
        outlier_state.errors = FailureRate()
        outlier_state.late = FailureRate()
        del self._out[backend, model]
        self._moves.append(Move(backend, model, Phase.SERVING, outlier_state.reason, 0.0, 0))

    def _trial_answered(
        self, backend: Backend, model: bytes, outlier_state: OutlierState, took_s: float, now: float
    ) -> bool:
        if now - took_s < outlier_state.ejected_at:
            return False  # it was under way before
        factor = self.rules.latency_factor
        if outlier_state.reason is Fault.LATENCY and is_slow_beside(
            self._rest(model, outlier_state, now), took_s, factor
        ):
            return self._trial_failed(backend, model, outlier_state, Fault.LATENCY, took_s, now)
        self._return(backend, model, outlier_state, now)
        return True

    def _trial_failed(
        self,
        backend: Backend,
        model: bytes,
        outlier_state: OutlierState,
        fault: Fault,
        took_s: float,
        now: float,
    ) -> bool:
        if outlier_state.phase is Phase.EJECTED or now - took_s < outlier_state.ejected_at:
            return False  # it was under way before, or all are used since too few are left
        rest = self._rest(model, outlier_state, now)
        if not fault.is_certain and rest.rate(_errors, certain=False) > self.rules.share:
            # That request would perhaps have failed anywhere: another one will tell.
            self._give_trial(backend, outlier_state, now)
        else:
            self._eject(backend, model, outlier_state, fault, now)
        return True

    def _look_at(
        self, backend: Backend, model: bytes, outlier_state: OutlierState, now: float
    ) -> bool:
        rest = self._rest(model, outlier_state, now)
        if outlier_state.reason is not Fault.LATENCY and _mostly_fails(rest):
            # The requests are to blame, or the model: that makes no later ejection longer.
            outlier_state.ejections -= 1
            self._return(backend, model, outlier_state, now)
            return True
        if now < outlier_state.until:
            return False
        if outlier_state.phase is Phase.EJECTED:
            outlier_state.phase = Phase.PROBATION
            self._give_trial(backend, outlier_state, now)
            self._moves.append(Move(backend, model, Phase.PROBATION, outlier_state.reason, 0.0, 0))
            return True
        trial = outlier_state.trial
        if trial is not None and not trial.is_open and now >= outlier_state.trial_due:
            self._give_trial(backend, outlier_state, now)
            return True
        if now - outlier_state.until > _UNUSED_S and trial is not None and trial.is_open:
            self._return(backend, model, outlier_state, now)  # nobody asks for it any more
            return True
        return False

    def _give_trial(self, backend: Backend, outlier_state: OutlierState, now: float) -> None:
        outlier_state.trial = Trial(backend)
        outlier_state.trial_due = now + max(self.rules.base_s, 2.0 * outlier_state.usual.seconds)

    def _sweep(self, now: float) -> None:
        for model, of_model in tuple(self._outlier_states.items()):
            for backend, outlier_state in tuple(of_model.items()):
                if (
                    outlier_state.phase is Phase.SERVING
                    and now - outlier_state.used_at > _FORGOTTEN_S
                    and now >= outlier_state.forgiven_at
                ):
                    self._end_run(backend, outlier_state)
                    del of_model[backend]
            if not of_model:
                del self._outlier_states[model]


def _mostly_fails(rest: Rest) -> bool:
    shares = [each.errors.recent for each in rest.serving]
    return bool(shares) and sum(shares) / len(shares) >= _FAILS_EVERYWHERE


def _failing(outlier_state: OutlierState) -> Run:
    return outlier_state.failing


def _slow(outlier_state: OutlierState) -> Run:
    return outlier_state.slow


def _errors(outlier_state: OutlierState) -> FailureRate:
    return outlier_state.errors


def _late(outlier_state: OutlierState) -> FailureRate:
    return outlier_state.late
