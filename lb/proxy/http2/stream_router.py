"""Where each message of a `ModelStreamInfer` goes."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Final

from lb.balancing.sequences import Pin
from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import ModelRoute, Placement
from lb.domain.retry import REPLAY_TABLE, Ran
from lb.domain.schedule import Ticket
from lb.domain.sequence import Question, SequenceStep
from lb.kserve.pending_responses import PendingResponses, StreamMessage
from lb.proxy.eligible import placement_of
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.http2.call import Call
from lb.proxy.http2.stream_work import StepInFlight, Work
from lb.proxy.queue import NO_BACKEND
from lb.proxy.steps import check_id, idle_of, refusal, slots_of

_GRPC: Final = AppProtocol.GRPC


class StreamRouter:
    """Decides which backend gets a message, and knows what the messages so far mean for another
    attempt."""

    __slots__ = (
        "_call", "_first", "_work", "has_steps", "live", "may_move", "models", "models_lately",
        "news", "runs_once",
    )  # fmt: skip

    def __init__(self, call: Call) -> None:
        self._call = call
        self.live: Collection[Backend] | None = None
        """Backends with an upstream stream that is open, the first one first; None while the call
        has one attempt at most."""
        self._work: Work | None = None
        """The work of the last request that it was told where to go, until it goes."""
        self.news: Question | None = None
        """What the last request waits for that `backend_for` was asked about: news of its
        sequence."""
        self._first: StreamMessage | None = None
        """The first request."""
        self.may_move = True
        """Where the first request did not run, nor did the others: all are for the same model, and
        steps of one sequence that the first one was to begin, or may run twice."""
        self.runs_once = False
        """Some request belongs to a sequence, or to a model whose requests must not run twice."""
        self.has_steps = False
        """Some request belongs to a sequence."""
        self.models: frozenset[bytes] = frozenset()
        """Models on demand of the requests that were looked at."""
        self.models_lately: frozenset[bytes] = frozenset()
        """Models among them since somebody last asked which ones the stream uses."""

    def backend_for(self, message: StreamMessage) -> Backend | None:
        """Where a message goes. This is the one place that decides it.

        What belongs to no sequence stays with the first backend of the stream, as long as that
        has what it needs.

        Returns:
            None for the first message, where the policy decides, for a later one whose model is
            loaded nowhere, and may be loaded for it, and for a step that waits for `news`.

        Raises:
            RequestRefused: it can go nowhere.
        """
        dispatcher = self._call.relay.dispatcher
        self._work = None
        asked_for, self.news = self.news, None
        home = self._home
        step = message.step
        snapshot = dispatcher.pool.current
        route = snapshot.routes.get(message.model)
        may_stay = home is None or not (home in snapshot.parting or home.port(_GRPC).is_given_up)
        if (
            step is None
            and not message.rows
            and home is not None
            and may_stay
            and not message.regions
            and _is_everywhere(route)
        ):
            return home
        asked = self.as_request(message)
        placement = placement_of(asked, dispatcher.pool)
        if step is not None:
            self.news = dispatcher.steps.table.question(step, asked_for)
            if self.news is not None:
                return None
            backend = self._backend_of(message, step, placement, route)
            if backend is not None:
                return backend
        is_first = home is None and self.live is None
        if not (is_first or placement.eligible) and is_loaded_on_demand(route):
            return None
        if step is None and message.rows and asked.hints is not None:
            backend = self._best_for(message, asked, asked.hints)
            if backend is not None:
                return backend
        if is_first:
            return None
        # Where no new streams go, this one goes on, unless that is for good, or nobody answers.
        if home in placement.eligible or (home and may_stay and home not in snapshot.usable(_GRPC)):
            return home
        for other in self.live or ():
            if other in placement.eligible:
                return other
        picked = placement.picker.pick() if placement.picker is not None else None
        if picked is None and home is None:
            raise RequestRefused(Reason.NO_BACKEND, NO_BACKEND)
        return picked or home

    def as_request(self, message: StreamMessage) -> Exchange:
        """A message as a request of its own, for who places requests."""
        call = self._call
        request = Exchange(_GRPC, call.operation, call.client, call.relay.now)
        request.model = message.model
        request.hints = hints = RoutingHints()
        hints.version, hints.regions = message.version, message.regions
        return request

    def _best_for(
        self, message: StreamMessage, asked: Exchange, hints: RoutingHints
    ) -> Backend | None:
        """The backend of a request of a scheduled model: the one where it ends first, but the home
        of a stream that has one backend unless another one is clearly better."""
        queue = self._call.relay.dispatcher.queue
        request_class = queue.request_class.find(asked, hints)
        home = self._home if self.live is None else None
        if request_class is None or (
            home is None and self.live is None and request_class.trial is not None
        ):
            return None
        if home is not None and home not in request_class.eligible:
            return None
        now = self._call.relay.now
        ticket = Ticket(request_class, now, message.rows, message.size)
        if home is None and self.live is None:
            ticket.tried = self._call.tried
        backend = queue.scheduler.best(ticket, now, home)
        if backend is None or backend in ticket.tried:
            return None
        self._work = ticket
        return backend

    def _note_step(self, step: SequenceStep, backend: Backend, pin: Pin | None) -> None:
        """A step goes to a backend, which answers it once: its time teaches, and an error may mean
        that its sequence did not begin."""
        table = self._call.relay.dispatcher.steps.table
        latency = table.latency(step.key.model, backend)
        if latency is not None:
            on_error = None
            if pin is not None and pin.is_unproven:
                on_error = partial(table.refused, step.key, backend)
            self._work = StepInFlight(latency, self._call.relay.now, on_error)

    def take_work(self) -> Work | None:
        """What keeps accounts of the request that `backend_for` was asked about last."""
        work, self._work = self._work, None
        return work

    def _backend_of(
        self,
        message: StreamMessage,
        step: SequenceStep,
        placement: Placement,
        route: ModelRoute | None,
    ) -> Backend | None:
        """The backend of a message that is a step, if the table of sequences has one for it.

        Raises:
            RequestRefused: the sequence is lost, its backend cannot take the step, or the model
                knows no such ids.
        """
        facts = None if route is None else route.facts
        check_id(step, facts)
        table = self._call.relay.dispatcher.steps.table
        now = self._call.relay.now
        tried = self._call.tried if self._home is None else ()
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
        if backend is not None and message.has_one_answer:
            self._note_step(step, backend, pin)
        return backend

    @property
    def _joined(self) -> Collection[Backend]:
        """Where the stream goes already."""
        if self.live is not None:
            return self.live
        return () if self._call.backend is None else (self._call.backend,)

    @property
    def _home(self) -> Backend | None:
        """The backend of what belongs to no other one."""
        return self._call.backend if self.live is None else next(iter(self.live), None)

    # Models

    def note_model(self, model: bytes) -> None:
        """A request for a model goes to a backend."""
        if model in self._call.relay.dispatcher.pool.current.loadable:
            # Most streams ask for one model, so that a set of their own is rarely made.
            if model not in self.models:
                self.models |= {model}
            if model not in self.models_lately:
                self.models_lately |= {model}

    def has_asked(self, model: bytes) -> bool:
        """Whether some request was for a model, as far as is known where it is not on demand."""
        return model in self.models or model == self._call.model

    # Whether it can go elsewhere

    def note_first(self, message: StreamMessage) -> None:
        """A request goes to the backend: what it means for another attempt."""
        step = message.step
        is_once = step is not None or message.model in self._call.relay.retry.rules.never
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

    def forget_starts(
        self, pending_responses: PendingResponses, backend: Backend | None, outcome: Outcome
    ) -> None:
        """Sequences that surely did not begin on a backend may begin elsewhere."""
        if backend is not None and REPLAY_TABLE[outcome].ran is Ran.NO:
            for key in pending_responses.begun():
                self._call.relay.dispatcher.steps.table.forget(key, backend)


def is_loaded_on_demand(route: ModelRoute | None) -> bool:
    """Whether a model is loaded nowhere, and will be when a request needs it."""
    return route is not None and route.on_demand is not None


def _is_everywhere(route: ModelRoute | None) -> bool:
    """Whether all backends have a model, as far as is known."""
    return route is None or (route.placements is None and not route.versions)
