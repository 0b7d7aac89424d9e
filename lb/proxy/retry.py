"""Whether there is another attempt: after one that failed, instead of one whose backend is silent,
at another backend than one that cannot serve the request, beside one that is slow.

The one place that decides, for both protocols; what is to be done on a connection then, the
protocols know. What may run twice says `lb.domain.retry`; requests that may have run go again
through `lb.proxy.reruns`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import Final

from lb.domain.backend import Backend
from lb.domain.operation import OperationKind
from lb.domain.outcome import OUTCOME_REASONS, Outcome, Reason
from lb.domain.pool import PoolRef
from lb.domain.retry import MIN_RETRIES_PER_S, REPLAY_TABLE, Ran, RetryRules, Verdict, decide
from lb.kserve.errors import NOT_READY, Meaning, model_without_version
from lb.proxy.accounts import Accounts
from lb.proxy.blame import Blame
from lb.proxy.eligible import NO_HINTS, placement_of
from lb.proxy.exchange import Attempt, Exchange
from lb.proxy.failure import upstream_detail
from lb.proxy.queue import Queue
from lb.proxy.reruns import RerunLimits
from lb.proxy.steps import Steps
from lb.settings.model import Settings
from lb.settings.retry import RetryMode

SAME_BACKEND_WILL_DO: Final = frozenset({Outcome.STALE, Outcome.REFUSED})
"""What a fresh connection to the same backend mends, where there is no other."""
_UNKNOWN: Final = frozenset({Meaning.NO_VERSION, Meaning.UNKNOWN_MODEL})
_MODEL_IS_ELSEWHERE: Final = NOT_READY - {Meaning.LEAVING}
_MOVABLE: Final = frozenset({OperationKind.READ, OperationKind.INFERENCE, OperationKind.STREAM})
"""Requests that another backend can serve as well when one says that it cannot."""

Misplaced = Callable[[Backend, bytes, bytes | None], None]
"""Is told of a backend, a model and a version that it says it does not have ready. None: it has no
version of the model."""


class Next(Enum):
    """What follows an attempt that failed."""

    HEDGE = "hedge"
    """The attempt beside it has taken its place."""
    AGAIN = "again"
    """The exchange is to be placed again, by `RetryPolicy.go_again`."""
    NOTHING = "nothing"
    """The client is told."""


def outcome_of_silence(attempt: Attempt) -> Outcome:
    """How an attempt ends that hangs. A port that is only suspected may be back in a moment, so its
    attempts end only where another one follows (STALLED). Once it is given up they end in any case
    (SILENT), and the client is told where nothing follows."""
    return Outcome.SILENT if attempt.is_given_up else Outcome.STALLED


def retry_rules(settings: Settings) -> RetryRules:
    """Read from settings how often requests go again."""
    retry = settings.retry
    never = frozenset(
        name.encode() for name, own in settings.models.items() if own.retry is RetryMode.NEVER
    )
    return RetryRules(
        max_attempts=retry.attempts,
        share=retry.budget,
        floor=MIN_RETRIES_PER_S if retry.budget else 0.0,
        never=never,
    )


class RetryPolicy:
    """Decides for the requests of one process. To be used from one event loop."""

    __slots__ = (
        "_accounts", "_blame", "_clock", "_misplaced", "_pool", "_queue", "_reruns", "_steps",
        "rules",
    )  # fmt: skip

    def __init__(
        self,
        pool: PoolRef,
        clock: Callable[[], float],
        rules: RetryRules,
        *,
        queue: Queue,
        steps: Steps,
        reruns: RerunLimits,
        blame: Blame,
        accounts: Accounts,
        misplaced: Misplaced,
    ) -> None:
        """
        Args:
            pool: the published pool.
            clock: monotonic seconds.
            rules: those in force until `configure`.
            queue: says whether requests may wait for a backend that takes them.
            steps: of sequences, which other backends know nothing of.
            reruns: requests that may have run and go again.
            blame: is told of what does not go again.
            accounts: of all attempts.
            misplaced: is told who does not have a model.
        """
        self._pool = pool
        self._clock = clock
        self.rules = rules
        """The rules in force."""
        self._queue = queue
        self._steps = steps
        self._reruns = reruns
        self._blame = blame
        self._accounts = accounts
        self._misplaced = misplaced

    def configure(self, rules: RetryRules) -> None:
        """Go by other rules from now on."""
        self.rules = rules
        self._reruns.configure(rules)

    # After an attempt, or in place of one

    def after_failure(
        self,
        exchange: Exchange,
        outcome: Outcome,
        *,
        body_retained: bool,
        response_begun: bool,
        is_hedge_sent: bool = False,
    ) -> Next:
        """What follows an attempt that ended without an answer, or one that may be ended since its
        backend is silent or answers too late. To be asked once about each outcome.

        Args:
            exchange: whose attempt it was.
            outcome: of that.
            body_retained: see `take_retry`.
            response_begun: likewise.
            is_hedge_sent: there is an attempt beside it, whose backend has all of the request.
        """
        if is_hedge_sent and not response_begun and self._try_promote_hedge(exchange, outcome):
            return Next.HEDGE
        is_again = self.take_retry(
            exchange, outcome, body_retained=body_retained, response_begun=response_begun
        )
        return Next.AGAIN if is_again else Next.NOTHING

    def _try_promote_hedge(self, exchange: Exchange, outcome: Outcome) -> bool:
        """Put the attempt beside the first in its place, so that no third one begins. False where
        it is not under way any more."""
        first, hedge = exchange.attempt, exchange.hedge
        if first is None or hedge is None or hedge.outcome is not None:
            return False
        self._reruns.ended_beside(first, outcome, self._clock())
        self._accounts.promote(exchange)
        return True

    def take_retry(
        self, exchange: Exchange, outcome: Outcome, *, body_retained: bool, response_begun: bool
    ) -> bool:
        """Take one more attempt for an exchange whose last one just ended, or will, if it may have
        one: it is to be placed again then, by `go_again`.

        To be called once about an attempt: what may have run is taken out of a budget, and what
        may not go again leaves nobody to tell whose fault it was.

        Args:
            exchange: to be placed again.
            outcome: of its attempt.
            body_retained: every byte that was sent of the request's body is still held.
            response_begun: some of an answer has gone to the client.
        """
        if self._try_retry(
            exchange, outcome, body_retained=body_retained, response_begun=response_begun
        ):
            return True
        self._reruns.given_up(exchange, outcome)
        self._blame.given_up(exchange)
        return False

    def _try_retry(
        self, exchange: Exchange, outcome: Outcome, *, body_retained: bool, response_begun: bool
    ) -> bool:
        verdict = decide(
            outcome,
            may_run_twice=exchange.may_run_twice,
            body_retained=body_retained,
            response_begun=response_begun,
        )
        # A loss is noted even where nothing can follow it: its server may have died of the request.
        if (
            verdict is Verdict.FAIL
            or not self._reruns.note_loss(exchange, outcome)
            or not self._has_attempt(exchange, outcome, exchange.attempts)
            or not self._find_backend(exchange, outcome)
        ):
            return False
        if verdict is Verdict.REPLAY:
            return True
        if exchange.model in self.rules.never:
            return self._reruns.refuse("never")
        return self._reruns.take(exchange, outcome)

    def _has_attempt(self, exchange: Exchange, outcome: Outcome, attempts: int) -> bool:
        """Whether an exchange may have another attempt after so many."""
        most = self.rules.max_attempts
        return (
            attempts < most
            # A refused connection costs nobody anything, and is not repeated at the same backend.
            # Where many have died at once, their number must not use up all attempts.
            or (outcome is Outcome.CONNECT_REFUSED and most > 1)
            or (REPLAY_TABLE[outcome].ran is Ran.NO and self._is_patient(exchange))
            or (outcome is Outcome.NOT_HERE and exchange.leave_variant())
        )

    def movable_models(
        self, exchange: Exchange, outcome: Outcome, models: Collection[bytes]
    ) -> Collection[bytes]:
        """Find the models among some for which there is a backend for another attempt, perhaps
        after a load.

        Args:
            exchange: of a stream, whose last attempt just ended or will.
            outcome: of that attempt.
            models: of its requests.
        """
        before = exchange.model
        found = []
        for model in models:
            exchange.model = model
            if self._find_backend(exchange, outcome):
                found.append(model)
        exchange.model = before
        return found

    def take_resumption(
        self, exchange: Exchange, outcome: Outcome, models: Collection[bytes], attempts: int
    ) -> bool:
        """Take one more attempt for the requests of a stream that its last attempt, which just
        ended, has not answered: as `take_retry`, whatever was answered before.

        Args:
            exchange: of the stream, to be placed again.
            outcome: of its attempt.
            models: of each of these requests, which may run twice.
            attempts: that they have had.
        """
        if self._try_resumption(exchange, outcome, models, attempts):
            return True
        self._reruns.given_up(exchange, outcome, models)
        self._blame.given_up(exchange)
        return False

    def _try_resumption(
        self, exchange: Exchange, outcome: Outcome, models: Collection[bytes], attempts: int
    ) -> bool:
        verdict = decide(outcome, may_run_twice=True, body_retained=True, response_begun=False)
        if (
            verdict is Verdict.FAIL
            or not self._reruns.note_loss(exchange, outcome, models)
            or not self._has_attempt(exchange, outcome, attempts)
            or not self._find_backend(exchange, outcome)
        ):
            return False
        if verdict is Verdict.REPLAY:
            return True
        if not self.rules.never.isdisjoint(models):
            return self._reruns.refuse("never")
        return self._reruns.take(exchange, outcome, models)

    def go_again(self, exchange: Exchange, outcome: Outcome, place: Callable[[], None]) -> None:
        """Have an exchange placed again: at once if it did not run, else a little later.

        Args:
            exchange: `take_retry` allowed it.
            outcome: of the attempt that ended.
            place: places it; is not called once it is finished.
        """
        if REPLAY_TABLE[outcome].ran is Ran.NO:
            place()
        else:
            self._reruns.later(exchange, place)

    def _is_patient(self, exchange: Exchange) -> bool:
        """Whether it may wait for a backend that takes it."""
        return self._queue.may_hold_again(exchange, self._clock())

    def _find_backend(self, exchange: Exchange, outcome: Outcome) -> bool:
        """Find out whether there is a backend for another attempt; to find one, the request may
        leave its variant."""
        if outcome in SAME_BACKEND_WILL_DO:
            return True
        # Whoever is only suspected is eligible still: who waits would get there again.
        if outcome is not Outcome.STALLED and self._is_patient(exchange):
            return True
        step = exchange.hints.step if exchange.hints else None
        if step is not None:
            home = self._steps.home(step)
            if home is not None or self._steps.table.is_lost(step.key):
                # Only a START can have been placed elsewhere meanwhile.
                return home is not None and home not in exchange.tried
        return self._has_other(exchange, exchange.backend) or exchange.leave_variant()

    def _has_other(self, exchange: Exchange, here: Backend | None) -> bool:
        """Whether there is a backend that was not asked yet."""
        eligible = placement_of(exchange, self._pool).eligible
        return any(each is not here and each not in exchange.tried for each in eligible)

    def failure(self, exchange: Exchange, outcome: Outcome) -> tuple[Reason, str]:
        """What to tell a client whose attempt has ended so, where nothing follows it."""
        backend = exchange.backend
        reason = OUTCOME_REASONS[outcome]
        text = upstream_detail(backend.name if backend else "-", exchange.protocol, outcome)
        step = exchange.hints.step if exchange.hints else None
        if step is None or backend is None:
            return reason, text
        return self._steps.failure(step, backend, reason, text)

    # Answers that another backend may not give

    def take_failover(self, exchange: Exchange, meaning: Meaning, *, body_retained: bool) -> bool:
        """Have another backend asked, since this one says that it cannot serve the request. Notes
        that the model or the sequence is not there, and may have the request leave its variant.

        Args:
            exchange: whose attempt was answered with an error; nothing of it went to the client.
            meaning: of that error.
            body_retained: every byte of the request's body is still held.

        Returns:
            False where the error is for the client.
        """
        backend = exchange.backend
        hints = exchange.hints or NO_HINTS
        if backend is None:
            return False
        step = hints.step
        if meaning is Meaning.NO_SEQUENCE:
            if hints.pin is not None:
                self._steps.table.unknown(hints.pin)
            may_search = step is not None and self._steps.may_search(step)
            return may_search and body_retained and self._may_ask_other(exchange, backend)
        if meaning in _MODEL_IS_ELSEWHERE:
            version = None if meaning is Meaning.NO_VERSION else hints.version
            self._misplaced(backend, exchange.model, version)
            if step is not None:
                # There is none there; STARTs of what nobody has must not fill the table.
                self._steps.table.forget(step.key, backend)
        if (
            not body_retained
            or exchange.operation.kind not in _MOVABLE
            or (step is not None and not step.is_start)
        ):
            return False
        if meaning in _MODEL_IS_ELSEWHERE and self._is_loaded_again(exchange, hints.version):
            return True
        if meaning in _UNKNOWN:
            snapshot = self._pool.current
            route = snapshot.routes.get(exchange.model)
            if snapshot.knows_all and (route is None or not route.is_ready):
                return exchange.leave_variant()  # nobody has it
        if self._may_ask_other(exchange, backend):
            return True
        # Another variant may be ready, where no backend is left that has this one.
        return meaning in NOT_READY and exchange.leave_variant()

    def note_error(self, backend: Backend, text: str) -> None:
        """Note what an error among the answers of a stream says of its backend. That answer is for
        the client, and the next request for the model may go elsewhere."""
        model = model_without_version(text)
        if model:
            self._misplaced(backend, model.encode(), None)

    def _is_loaded_again(self, exchange: Exchange, version: bytes) -> bool:
        """Whether a model that a backend has no longer is loaded on demand: the backend has
        restarted, or somebody has unloaded the model, and the list that we have is older. Nobody
        loads versions that the repository does not have."""
        return (
            not version
            and exchange.model in self._pool.current.loadable
            and exchange.attempts < self.rules.max_attempts
            and self._is_patient(exchange)
        )

    def _may_ask_other(self, exchange: Exchange, backend: Backend) -> bool:
        """Whether there is a backend that was not asked yet, and an attempt left."""
        return exchange.attempts < self.rules.max_attempts and self._has_other(exchange, backend)

    # Beside an attempt

    def may_hedge(self, exchange: Exchange, now: float) -> bool:
        """Whether a slow exchange may be sent to a second backend as well, and there is one."""
        hints = exchange.hints
        if (
            not exchange.is_under_way
            or not exchange.may_run_twice
            or exchange.model in self.rules.never
            or self._reruns.poison_models.is_blocked(exchange.model, now, now)
            or (hints is not None and hints.regions)
        ):
            return False
        here = exchange.backend
        others = placement_of(exchange, self._pool).eligible
        return any(each is not here and each.has_room for each in others)
