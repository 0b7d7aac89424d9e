"""Where each message of a `ModelStreamInfer` goes."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.domain.retry import REPLAY_TABLE, Ran
from lb.domain.schedule import Ticket
from lb.domain.sequence import SequenceStep
from lb.kserve.gate import StreamMask
from lb.kserve.stream_debts import Debts, StreamMessage
from lb.proxy.exchange import Exchange, Particulars
from lb.proxy.http2.call import Call
from lb.proxy.http2.stream_work import StepUnderway, Work
from lb.proxy.steps import check_id, idle_of, refusal, slots_of
from lb.wire.http2.fields import FieldCache
from lb.wire.http2.flow import Pipe
from lb.wire.http2.heads import RequestHead

if TYPE_CHECKING:
    from lb.domain.pool import ModelRoute, Placement
    from lb.proxy.http2.relay import Http2Relay
    from lb.proxy.http2.server import ServerLink
    from lb.proxy.http2.stream_merge import StreamMerge

_GRPC: Final = AppProtocol.GRPC
_ENDS_AT_ERROR: Final = b"triton_grpc_error"


class RoutedStream(Call):
    """A stream of inferences: what it knows of its backends, and which of them gets a message."""

    __slots__ = (
        "_first", "_work", "debts", "has_steps", "is_timed", "mask", "may_move", "merge",
        "runs_once",
    )  # fmt: skip

    def __init__(
        self, relay: Http2Relay, server: ServerLink, stream_id: int, head: RequestHead
    ) -> None:
        super().__init__(relay, server, stream_id, head)
        self.mask = StreamMask()
        """Of the answers, and how many have come."""
        self.is_timed = False
        """Somebody wants to know when answers come."""
        self.merge: StreamMerge | None = None
        """With several upstream streams."""
        self.debts = Debts(self, relay.ledger)
        """Of the backend, while it is one."""
        self._work: Work | None = None
        """Of the last request that it was told where to go, until it goes."""
        self._first: StreamMessage | None = None
        """The first request."""
        self.may_move = True
        """Where the first request did not run, nor did the others: all are for the same model, and
        steps of one sequence that the first one was to begin, or may run twice."""
        self.runs_once = False
        """Some request belongs to a sequence, or to a model whose requests must not run twice."""
        self.has_steps = False
        """Some request belongs to a sequence."""

    def passes(self, _pipe: Pipe[Any]) -> bool:
        """See `Call`: all of it is looked at."""
        return False

    def backend_for(self, message: StreamMessage) -> Backend | None:
        """Where a message goes. This is the one place that decides it.

        What belongs to no sequence stays with the first backend of the stream, as long as that
        has what it needs.

        Returns:
            None for the first message, where the policy decides.

        Raises:
            RequestRefused: it can go nowhere.
        """
        dispatcher = self.relay.dispatcher
        self._work = None
        home = self._home
        step = message.step
        snapshot = dispatcher.pool.current
        route = snapshot.routes.get(message.model)
        may_stay = home not in snapshot.parting
        if (
            step is None
            and not message.rows
            and home is not None
            and may_stay
            and not message.regions
            and _is_everywhere(route)
        ):
            return home
        asked = Exchange(_GRPC, self.operation, self.client, self.relay.now)
        asked.model = message.model
        asked.particulars = particulars = Particulars()
        particulars.version, particulars.regions = message.version, message.regions
        placement = dispatcher.placement(asked)
        if step is not None:
            backend = self._backend_of(step, placement, route)
            if backend is not None:
                if message.has_one_answer:
                    self._note_step(step, backend)
                return backend
        elif message.rows:
            backend = self._best_for(message, asked, particulars)
            if backend is not None:
                return backend
        if home is None and self.merge is None:
            return None
        # Where no new streams go, this one goes on, unless that is for good.
        if home in placement.eligible or (home and may_stay and home not in snapshot.usable(_GRPC)):
            return home
        for other in self.merge.live if self.merge is not None else ():
            if other in placement.eligible:
                return other
        picked = placement.picker.pick() if placement.picker is not None else None
        if picked is None and home is None:
            raise RequestRefused(Reason.NO_BACKEND, "no backend is available")
        return picked or home

    def _best_for(
        self, message: StreamMessage, asked: Exchange, particulars: Particulars
    ) -> Backend | None:
        """The backend of a request of a scheduled model: the one where it ends first, but the home
        of a stream that has one backend unless another one is clearly better."""
        queue = self.relay.dispatcher.queue
        terms = queue.terms.find(asked, particulars)
        home = self._home if self.merge is None else None
        if terms is None or (home is None and self.merge is None and terms.trial is not None):
            return None
        if home is not None and home not in terms.eligible:
            return None
        now = self.relay.now
        ticket = Ticket(message.model, terms.version, terms.plan, terms.eligible, now)
        ticket.rows, ticket.size = message.rows, message.size
        if home is None and self.merge is None:
            ticket.tried = self.tried
        backend = queue.scheduler.best(ticket, now, home)
        if backend is not None:
            self._work = ticket
        return backend

    def _note_step(self, step: SequenceStep, backend: Backend) -> None:
        """A step goes to a backend, which answers it once: its time teaches."""
        cost = self.relay.dispatcher.steps.table.cost(step.key.model, backend)
        if cost is not None:
            self._work = StepUnderway(cost, self.relay.now)

    def take_work(self) -> Work | None:
        """What keeps accounts of the request that `backend_for` was asked about last."""
        work, self._work = self._work, None
        return work

    def _backend_of(
        self, step: SequenceStep, placement: Placement, route: ModelRoute | None
    ) -> Backend | None:
        """The backend of a step, if the table of sequences has one for it.

        Raises:
            RequestRefused: the sequence is lost, its backend cannot take the step, or the model
                knows no such ids.
        """
        facts = None if route is None else route.facts
        check_id(step, facts)
        table = self.relay.dispatcher.steps.table
        now = self.relay.now
        tried = self.tried if self._home is None else ()
        idle_s = idle_of(facts)
        joined = self._joined
        slots = slots_of(facts)
        backend, pin = table.place(step, placement, idle_s, now, tried, joined, slots)
        refused = None if backend is None else refusal(step, backend, _GRPC, joined)
        if pin is not None:
            # Nobody can say when a step on a stream is over: its answers may be many.
            table.ended(step, pin, pin.starts, now, surely_not_run=refused is not None)
        if refused is not None:
            raise refused
        return backend

    @property
    def _joined(self) -> Collection[Backend]:
        """Where the stream goes already."""
        if self.merge is not None:
            return self.merge.live
        return () if self.backend is None else (self.backend,)

    @property
    def _home(self) -> Backend | None:
        """The backend of what belongs to no other one."""
        if self.merge is None:
            return self.backend
        return next(iter(self.merge.live), None)

    # Whether it can go elsewhere

    def note_first(self, message: StreamMessage) -> None:
        """A request goes to the backend: what it means for another attempt."""
        step = message.step
        is_once = step is not None or message.model in self.relay.dispatcher.reruns.never
        self.runs_once |= is_once
        self.has_steps |= step is not None
        first = self._first
        if first is None:
            self._first = message
            self.may_move = step is None or step.is_start
        elif (message.version, message.regions) != (first.version, first.regions):
            self.may_move = False
        elif step is None:
            self.may_move &= message.model == first.model and not is_once
        else:
            is_same = first.step is not None and first.step.key == step.key
            self.may_move &= is_same and not step.is_start

    def forget_first(self) -> None:
        """Another attempt begins."""
        self._first = None
        self.may_move = True
        self.runs_once = self.has_steps = False

    @property
    def is_stateless(self) -> bool:
        """Whether another backend can serve all requests: they are for the same model, and belong
        to no sequence."""
        first = self._first
        return (
            self.may_move
            and first is not None
            and not (first.step or first.version or first.regions)
        )

    # What `StreamMerge` and its branches ask for

    def drop_upload(self, size: int) -> None:
        """Payload that nobody reads: the client may go on sending."""
        if size and not self.finished:
            super().drop_upload(size)

    def answers_went_out(self) -> None:
        """Nothing waits for the client any more: it may get more."""
        if self.merge is not None:
            self.merge.answers_went_out()

    @property
    def ends_at_first_error(self) -> bool:
        """Whether the client has asked for that (Triton's `triton_grpc_error`)."""
        return any(
            field.name == _ENDS_AT_ERROR and field.value == b"true"
            for field in FieldCache().split(self.head.block)
        )

    def forget_starts(self, debts: Debts, backend: Backend | None, outcome: Outcome) -> None:
        """Sequences that surely did not begin on a backend may begin elsewhere."""
        if backend is not None and REPLAY_TABLE[outcome].ran is Ran.NO:
            for key in debts.begun():
                self.relay.dispatcher.steps.table.forget(key, backend)


def _is_everywhere(route: ModelRoute | None) -> bool:
    """Whether all backends have a model, as far as is known."""
    return route is None or (route.placements is None and not route.versions)
