"""`ModelStreamInfer`: a stream whose messages may have to go to several backends.

The first message chooses the backend of the stream, and as long as all others belong there they
are told apart by their prefixes and passed on as they come (`stream_single`, `stream_answer`). The
first one that belongs elsewhere (`stream_router`) turns the call into one of several upstream
streams (`stream_merge`), each of which is an attempt of its own. Errors in the stream are looked
into (`lb.kserve.gate`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from lb.domain.backend import Backend, Port
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Outcome, Reason
from lb.kserve.pending_responses import PendingResponses, StreamMessage
from lb.proxy.eligible import placement_of
from lb.proxy.exchange import RoutingHints
from lb.proxy.http2.attempt import GrpcAttempt, attempt_of
from lb.proxy.http2.call import Call, CallPart
from lb.proxy.http2.inspection import INSPECTED_BYTES, Inspected
from lb.proxy.http2.replies import status_trailers, trailers_only
from lb.proxy.http2.stream_answer import StreamAnswers
from lb.proxy.http2.stream_branch import Branch
from lb.proxy.http2.stream_held import HeldMessage
from lb.proxy.http2.stream_merge import StreamMerge
from lb.proxy.http2.stream_message import read_message
from lb.proxy.http2.stream_resumption import Resumption
from lb.proxy.http2.stream_router import StreamRouter, is_loaded_on_demand
from lb.proxy.http2.stream_single import SingleBackend
from lb.proxy.placement import OUT_OF_MEMORY
from lb.telemetry.meter import AnswerTimes
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.grpc.status import GrpcStatus
from lb.wire.http2.budget import Spending
from lb.wire.http2.flow import Payload, Pipe
from lb.wire.http2.frames import ErrorCode

_FIRST_LOOK: Final = 1024
"""Bytes of a message that nearly always tell where it goes; they are copied to be looked at."""
INSPECTED_AT_ONCE: Final = 64
"""What the messages of one frame may cost, counted in frames, before others have their turn: one or
two milliseconds."""
_TINY_MESSAGE: Final = 16
"""Messages of fewer bytes, prefix included, ask for nothing; one frame may bring 50,000 of them.
The first of a frame is free: who sends a frame for each, pays for that already."""
CUT_OFF: Final = "the stream ends within a message"
_OF_ONE_MESSAGE: Final = frozenset({Reason.SEQUENCE_LOST, Reason.SEQUENCE_ID})
"""Refusals that say nothing of other messages of a stream."""


class StreamSession(CallPart):
    """A stream of inferences: cuts it into messages, and sends each to where it belongs."""

    __slots__ = (
        "_again", "_answers", "_cutter", "_has_rest", "_head", "_held", "_is_due", "_is_pausing",
        "_is_placing", "_look_at", "_resumption", "_times", "_unrouted", "answers", "merge",
        "router", "single",
    )  # fmt: skip

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        call.part = self
        self.router = StreamRouter(call)
        self.single = SingleBackend(call)
        """The backend, while it is one."""
        self.answers: StreamAnswers | None = None
        """Takes the answers of that one backend."""
        self.merge: StreamMerge | None = None
        """With several upstream streams."""
        self._times = AnswerTimes(call.relay.traffic, call, 0.0)
        self._cutter = MessageCutter()
        self._head: Pipe[Any] | None = None
        """The first bytes of a message, until it is known where it goes, and while it is held."""
        self._unrouted: Pipe[Any] | None = None
        """All that came behind these, and is not routed yet."""
        self._has_rest = False
        """Some of that is left for a later iteration of the event loop: nothing holds it up."""
        self._is_due = False
        """A later iteration will look for such a rest."""
        self._held: HeldMessage | None = None
        """A message that waits."""
        self._look_at = 0
        """Bytes of it that must have come before it is looked at again."""
        self._is_pausing = False
        """An attempt has ended, and another one follows soon."""
        self._answers = 0
        """Answers of the stream that had come when `models_used` was asked last."""
        self._is_placing = False
        """Messages so far are being routed anew; only then the attempt is started."""
        self._resumption = Resumption()
        """How often requests of the one upstream stream were lost."""
        self._again: list[Payload] = []
        """Requests that go again before all that waits, until another attempt begins."""

    # The client's side

    def begin(self, end_stream: bool) -> None:
        """See `CallPart`."""
        if end_stream:
            self._end_request(b"")

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the request arrived."""
        # HOT PATH (benchmarks/bench_stream_relay.py). A whole message that begins as the last
        # one did goes on as it is; the reference is `_take`.
        size = len(payload)
        if not end_stream and self.single.send_unseen(payload, size):
            return
        call = self.call
        if call.guard is not None and not call.pass_guard(call.guard, payload, end_stream):
            return
        call.bytes_in += size
        if call.messages is not None and not call.check_message(payload):
            return
        self.resume_request(payload, end_stream)

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """See `CallPart`: it is counted already, but not inspected where that is still under
        way."""
        call = self.call
        if call.guard is not None and call.guard.is_under_way:
            self.request_data(payload, end_stream)
            return
        request = call.request
        if self.is_answered:
            request.ended = request.ended or bool(end_stream)
            call.drop_upload(len(payload))
            return
        size = len(payload)
        stop = 0 if self._is_waiting or not size else self._take(payload, INSPECTED_AT_ONCE)
        if stop < 0:
            return
        if stop < size:
            if not self._is_waiting:
                call.server.postpone(request, payload[stop:], end_stream)
                return
            if not self._hold(payload[stop:]):
                return
        if end_stream:
            self._end_request(b"")

    def request_trailers(self, block: bytes) -> None:
        """The request ended with trailers."""
        if self.is_answered:
            self.call.request.ended = True
        else:
            self._end_request(block)

    @property
    def is_answered(self) -> bool:
        """Whether nobody needs more of the request."""
        return self.call.response.ended or (self.merge is not None and self.merge.is_closing)

    @property
    def _is_waiting(self) -> bool:
        """Whether it waits for a backend, a message for its model, or a rest for its turn: what
        comes is routed then."""
        call = self.call
        return (
            self._is_pausing
            or self._has_rest
            or self._held is not None
            or (call.backend is None and call.relay.dispatcher.queue.has(call))
        )

    def _hold(self, payload: Payload) -> bool:
        """Keep what comes until it can be routed. False when the call had to give way."""
        return self._rest.push(payload)

    def _end_request(self, trailers: bytes) -> None:
        call = self.call
        request = call.request
        request.trailers = trailers
        request.ended = True
        if not call.check_length() or self._is_waiting:
            return
        if not self.single.is_between:
            call.fail(Reason.BAD_REQUEST, CUT_OFF)
        elif self.merge is not None:
            self.merge.half_close(trailers)
        elif call.backend is None:
            self._end_without_backend()
        elif request.sink is not None:
            request.sink.end_stream(request)

    def _end_without_backend(self) -> None:
        """The request ended, and no backend owes an answer."""
        call = self.call
        call.grpc_status = GrpcStatus.OK
        if call.begun:
            call.end_response(status_trailers(GrpcStatus.OK) + call.facts(), None)
            return
        # Not a single message. Some Tritons die of such a stream, so no backend gets it.
        call.status = 200
        call.answer_whole(trailers_only(GrpcStatus.OK, ""), None)

    # Messages

    def _take(self, payload: Payload, at_once: int, *, is_rest: bool = False) -> int:
        """Send on what came, message by message, until a message must wait.

        Args:
            payload: of any number of messages.
            at_once: what they may cost, counted in frames, before others have their turn.
            is_rest: it came earlier.

        Returns:
            How much of it was taken; -1 when the call is over.
        """
        at, size = 0, len(payload)
        call, single = self.call, self.single
        server = call.server
        while at < size:
            is_first = single.is_between
            cutter = self._cutter
            stop = cutter.advance(payload, at)
            piece = payload if stop - at == size else payload[at:stop]
            single.is_between = cutter.is_between
            is_crumb = at and is_first and single.is_between and len(piece) < _TINY_MESSAGE
            if is_crumb and not is_rest:
                server.spend(Spending.CRUMB)
            at = stop
            if is_first or self._is_looking:
                self._find_way(piece)
            else:
                self._pending_responses.keep_more(piece, is_whole=single.is_between)
                self._send(piece)
                if single.is_between and self.merge is not None:
                    self.merge.message_sent()
            if call.finished:
                return -1
            if server.inspected >= at_once or (
                (self._held is not None or call.backend is None or self._has_rest)
                and self._is_waiting
            ):
                break
        return at

    @property
    def _is_looking(self) -> bool:
        """Whether it is not known yet where the message under way goes."""
        return self._head is not None and bool(self._head.queue)

    def _find_way(self, piece: Payload) -> None:
        """The beginning of a message, or more of it: find out where it goes."""
        call, single = self.call, self.single
        head = self._head
        pieces: tuple[Payload, ...] = (piece,)
        held = len(piece)
        if head is not None and head.queue:
            pieces = (*head.queue, piece)
            held += head.waiting
        message = None
        if held >= self._look_at or single.is_between:
            # Looked at anew only when there is twice as much: crumbs must not cost its square.
            self._look_at = 2 * held
            snapshot = call.relay.dispatcher.pool.current
            for limit in (_FIRST_LOOK, INSPECTED_BYTES):
                data = b"".join(part[:limit] for part in pieces)[:limit]
                is_all = single.is_between and len(data) < limit
                cost = Inspected()
                message = read_message(data, snapshot, is_all=is_all, cost=cost)
                call.server.inspected += 1 + cost.frames
                if message is not None or len(data) < limit:
                    break
        if message is None:
            self._begun.push(piece)
            return
        self._look_at = 0
        if head is not None:
            head.clear()
        self._route(message, pieces)
        if call.finished or self._held is not None:
            return
        is_kept = self._is_kept(message)
        if self.merge is None:
            single.remember(message, data, snapshot, is_kept=is_kept)
        elif message.rows and not snapshot.parting and is_kept:
            single.remember(message, data, snapshot, self._take_spread, is_kept=True)

    @property
    def _begun(self) -> Pipe[Any]:
        """Where the first bytes of a message wait, until it is known where it goes."""
        if self._head is None:
            self._head = Pipe(self.call, self.call.relay.memory_budget, 0, 0)
        return self._head

    @property
    def _rest(self) -> Pipe[Any]:
        """Where what came behind these waits."""
        if self._unrouted is None:
            self._unrouted = Pipe(self.call, self.call.relay.memory_budget, 0, 0)
        return self._unrouted

    def _is_kept(self, message: StreamMessage) -> bool:
        """Whether a message is kept to go again: it has one answer, any backend with its model can
        serve it, and it may run twice."""
        call = self.call
        return (
            message.has_one_answer
            and call.relay.options.retained_size > 0
            and not (message.is_unserved or message.step or message.version or message.regions)
            and message.model not in call.relay.retry.rules.never
        )

    @property
    def _target(self) -> Branch | None:
        """Where the message under way goes, where there are several upstream streams."""
        return None if self.merge is None else self.merge.target

    @property
    def _pending_responses(self) -> PendingResponses:
        """What is owed where the message under way goes."""
        return (self._target or self.single).pending_responses

    def _keep(self, message: StreamMessage, pieces: tuple[Payload, ...]) -> None:
        """Keep what has come of a message to send it again, if it may be."""
        if not message.has_one_answer:
            return
        pending_responses = self._pending_responses
        if self._is_kept(message):
            pending_responses.keep_pieces(pieces, is_whole=self.single.is_between)
        else:
            pending_responses.drop_kept()

    def _take_spread(self, payload: bytes, size: int) -> bool:
        """A small frame of the request came, where messages go to several backends. False when it
        is not a whole message that begins as the last one did, and `request_data` is to take it."""
        # HOT PATH (benchmarks/bench_stream_relay.py). The reference is `_take`.
        call, single, merge = self.call, self.single, self.merge
        if (
            merge is None
            or merge.is_closing
            or call.response.ended
            or not single.recognizes(payload, size)
            or (pattern := single.pattern_of(size - PREFIX_SIZE)) is None
        ):
            return False
        backend = call.relay.dispatcher.queue.scheduler.best(pattern, call.relay.now)
        branch = None if backend is None else merge.live.get(backend)
        if branch is None:
            return False
        due = single.due_alike(payload, size)
        if not merge.send_alike(branch, pattern, due, payload, size):
            return False
        call.bytes_in += size
        return True

    def _send(self, piece: Payload) -> None:
        """Some of the message under way."""
        target = self._target
        if target is not None:
            target.send(piece)
            return
        call = self.call
        request = call.request
        if request.retained is not None:
            call.retain(piece)
        if request.sink is not None:
            request.sink.send_data(request, piece)
        else:
            request.push(piece)

    # Where messages go

    def _route(self, message: StreamMessage, pieces: tuple[Payload, ...]) -> None:
        """Send a message, or the beginning of it, to where it belongs."""
        call, router = self.call, self.router
        if not self._times.last_at:
            self._times.last_at = call.relay.now
        try:
            backend = router.backend_for(message)
            if router.news is not None:
                self._hold_back(message, pieces)
                return
            if self.merge is None and call.backend is None:
                self._begin(message, pieces, backend)
                return
            if backend is None and self._shares_attempt(message):
                backend = call.backend
            if backend is None:
                self._hold_back(message, pieces)
                return
        except RequestRefused as refusal:
            self._refuse(message, pieces, refusal)
            return
        if self.single.is_uncounted:
            message = message._replace(has_one_answer=False)
        if self.merge is None and (backend is not call.backend or self.single.mixes(message)):
            self._fan_out()
        merge = self.merge
        if merge is None:
            if not self._note(message):
                return
            self._keep(message, pieces)
            for piece in pieces:
                self._send(piece)
            return
        parting = call.relay.dispatcher.pool.current.parting
        if parting:
            merge.leave(parting - {backend})
        branch = merge.live.get(backend)
        is_new = branch is None
        branch = merge.target = branch or merge.new_branch(backend, message.model)
        if call.backend is None:  # the first message had to wait
            call.backend, call.attempts = backend, 1
            if message.step is not None:
                call.hints = RoutingHints()
                call.hints.step = message.step
        router.note_model(message.model)
        work = router.take_work()
        self.single.see(work)
        merge.expect(branch, message, work, backend)
        self._keep(message, pieces)
        for piece in pieces:
            branch.send(piece)
        if is_new and not call.finished:
            branch.open()

    def _begin(
        self, message: StreamMessage, pieces: tuple[Payload, ...], backend: Backend | None
    ) -> None:
        """The first message: choose the backend of the stream, if that is open, and start it."""
        call = self.call
        relay = call.relay
        call.model = message.model
        step = message.step
        hints = None
        route = relay.dispatcher.pool.current.routes.get(message.model)
        if message.version or message.regions or (route is not None and not route.is_uniform):
            hints = call.hints = RoutingHints()
            hints.version, hints.regions = message.version, message.regions
        if backend is None:
            attempt = relay.placer.place(call, self._make_attempt, relay.now, call)
            if attempt is None:
                for piece in pieces:
                    if not call.request.push(piece):
                        break  # it had to give way
                return
        elif relay.memory_budget.is_short:
            raise RequestRefused(Reason.MEMORY, OUT_OF_MEMORY)
        else:
            attempt = relay.placer.begin_attempt(call, self._make_attempt, backend, relay.now)
        if step is not None:
            call.hints = hints = hints or RoutingHints()
            hints.step = step
        if not self._note(message):
            return
        self._keep(message, pieces)
        for piece in pieces:
            self._send(piece)
        if not (call.finished or self._is_placing):
            relay.start(attempt)

    def _make_attempt(
        self, call: Call, backend: Backend, port: Port, began_at: float
    ) -> GrpcAttempt:
        """An attempt at all of the stream."""
        attempt = GrpcAttempt(call, backend, port, began_at)
        attempt.sink = self.answers = StreamAnswers(call, self.single, self.router, self._times)
        return attempt

    def _note(self, message: StreamMessage) -> bool:
        """A message goes to the one backend. False when the call had to give way."""
        self.router.note_model(message.model)
        self.router.note_first(message)
        work = self.router.take_work() if message.has_one_answer else None
        return self.single.note(message, work)

    def models_used(self) -> Collection[bytes]:
        """See `CallPart`. Of messages that go on unseen it is known what they are for, and that
        some were answered."""
        models, self.router.models_lately = self.router.models_lately, frozenset()
        answers = self.single.mask.completed
        if answers != self._answers and self.single.known_model:
            models |= {self.single.known_model}
        self._answers = answers
        return models

    def _refuse(
        self, message: StreamMessage, pieces: tuple[Payload, ...], refusal: RequestRefused
    ) -> None:
        """A message that can go nowhere: the stream goes on, unless this is how it begins."""
        call = self.call
        is_first = self.merge is None and call.backend is None
        if is_first and refusal.reason not in _OF_ONE_MESSAGE:
            call.model = message.model
            call.fail(refusal.reason, refusal.detail)
            return
        merge = self.merge or self._fan_out()
        merge.refuse(message, refusal.detail)
        call.drop_upload(sum(map(len, pieces)))

    # A message that waits

    def _shares_attempt(self, message: StreamMessage) -> bool:
        """Whether a message whose model is loaded nowhere shares the attempt of those before it,
        which has no connection yet. If its backend is gone, all go again, and wait together."""
        attempt = attempt_of(self.call)
        return (
            self.merge is None
            and attempt is not None
            and attempt.outcome is None
            and attempt.connection is None
            and self.router.is_stateless
            and message.model == self.call.model
            and not (message.step or message.version or message.regions)
        )

    def _hold_back(self, message: StreamMessage, pieces: tuple[Payload, ...]) -> None:
        """Hold a message until its model is loaded, or there is news of its sequence, and all
        behind it. Answers to earlier ones go on meanwhile, and the stream outlives its backends.

        Raises:
            RequestRefused: the model is not loaded now.
        """
        call = self.call
        if call.relay.memory_budget.is_short:
            raise RequestRefused(Reason.MEMORY, OUT_OF_MEMORY)
        request = self.router.as_request(message)
        held = HeldMessage(call, self, request, message, sum(map(len, pieces)))
        held.wait(self.router.news)
        call.model = call.model or message.model
        self._held = held
        merge = self.merge or self._fan_out()
        merge.has_held = True
        self.single.forget()
        self.single.is_between = True  # nothing of it is under way to a backend
        for piece in pieces:
            if not self._begun.push(piece):
                return

    def route_held(self) -> None:
        """See `Holder`: what was known of the message is known no more."""
        if self.is_answered:
            self._drop_unrouted()
            return
        self._cutter = MessageCutter()
        self._route_from_held()

    def refuse_held(self, refusal: RequestRefused) -> None:
        """See `Holder`."""
        if self.is_answered:
            self._drop_unrouted()
            return
        held, head = self._held, self._begun
        assert held is not None
        pieces: list[Payload] = []
        left = held.size
        while left:
            pieces.append(head.pull(left))
            left -= len(pieces[-1])
        self.single.is_between = self._cutter.is_between
        self._refuse(held.message, tuple(pieces), refusal)
        if not self.call.finished:
            self._route_from_held()

    def _route_from_held(self) -> None:
        """Route what is left of the held message, and all behind it."""
        self._held = None
        head = self._begun
        begun = tuple(head.queue or ())
        head.clear()
        if self._rest.put_back(begun):
            self._route_rest()

    # What is routed later than it came

    def _route_rest(self) -> None:
        """Route what waits in `_rest`: as much as of one frame, and more in later iterations of the
        event loop. What comes meanwhile is held behind it."""
        call, rest = self.call, self._rest
        server, iteration = call.server, call.relay.iteration
        before, server.inspected = server.inspected, 0
        at_once = INSPECTED_AT_ONCE if iteration.left > 0 else 1
        count = 0
        self._has_rest = False
        try:
            while rest.queue and not self._is_waiting:
                has_backend = call.backend is not None or self.merge is not None
                if has_backend and max(count, server.inspected) >= at_once:
                    break
                count += 1
                piece = rest.pull(len(rest.queue[0]))
                at = self._take(piece, at_once, is_rest=True)
                if at < 0 or (at < len(piece) and not rest.put_back((piece[at:],))):
                    return
        finally:
            iteration.spend(max(count, server.inspected) * server.frame_cost)
            server.inspected = before
        self._has_rest = bool(rest.queue) and not self._is_waiting
        if self._has_rest:
            self._go_on_later()
            return
        self._is_placing = False
        if not self._is_waiting:
            self._end_routed()

    def _go_on_later(self) -> None:
        if self.merge is not None:
            self.single.forget()  # what comes unseen would overtake the rest
        if not self._is_due:
            self._is_due = True
            self.call.relay.iteration.later(self._go_on)

    def _go_on(self) -> None:
        """Route more, after others had their turn."""
        self._is_due = False
        call = self.call
        if not self._has_rest:
            return
        if call.server.parted:
            call.client_gone()
            return
        call.relay.now = call.relay.clock()
        if self.is_answered:
            call.drop_upload(self._drop_unrouted())
        else:
            self._route_rest()

    def _end_routed(self) -> None:
        """All that has come of the request was routed."""
        call = self.call
        request = call.request
        if request.ended and not self.single.is_between:
            call.fail(Reason.BAD_REQUEST, CUT_OFF)
        elif self.merge is not None:
            self.merge.has_held = False
            if request.ended:
                self.merge.half_close(request.trailers)
            else:
                self.merge.pump()
        elif call.is_under_way and (attempt := attempt_of(call)) is not None:
            # Not before: what is sent of an ended request ends the stream, and what was credited
            # once is told from the rest only while it waits.
            call.relay.start(attempt)
        elif request.ended:
            self._end_without_backend()

    def drop_rest(self) -> int:
        """See `CallPart`."""
        return self._drop_unrouted()

    def _drop_unrouted(self) -> int:
        """Nobody needs any more what is not routed. Returns how many bytes that is."""
        self._has_rest = False
        if self._held is not None:
            self._held.leave()
            self._held = None
        size = 0
        for pipe in (self._head, self._unrouted):
            if pipe is not None:
                size += pipe.held
                pipe.clear()
        return size

    # Several upstream streams

    def _fan_out(self) -> StreamMerge:
        """More than one upstream stream from now on."""
        call, single = self.call, self.single
        attempt = attempt_of(call)
        if attempt is not None and self.answers is not None:
            self.answers.let_go(attempt)
        single.take_off_answered()
        single.forget()
        self.merge = merge = StreamMerge(call, self.router, single, self._times)
        merge.has_held = self._is_placing
        merge.begin(self._resumption)
        return merge

    def leave_parting(self) -> None:
        """See `CallPart`. What is under way there is answered; only then that ends."""
        parting = self.call.relay.dispatcher.pool.current.parting
        if self._finds_another(parting):
            self._leave(parting)

    def leave_backend(self, backend: Backend) -> None:
        """See `CallPart`."""
        self._leave(frozenset({backend}))

    def _leave(self, backends: frozenset[Backend]) -> None:
        """Ask nothing more of some backends over the upstream streams that there are."""
        call, merge = self.call, self.merge
        backend = call.backend
        is_all_sent = call.request.ended and self._held is None and not self._has_rest
        if call.finished or is_all_sent or not self.single.is_between:
            return
        if merge is None:
            if call.request.sink is None or backend is None or backend not in backends:
                return
            if self.router.has_steps and backend.open_sequences:
                return
            merge = self._fan_out()
        merge.leave(backends)

    def _finds_another(self, parting: frozenset[Backend]) -> bool:
        """Whether another backend than these may serve what follows, perhaps after a load."""
        pool = self.call.relay.dispatcher.pool
        eligible = placement_of(self.call, pool).eligible
        if eligible:
            return bool(set(eligible) - parting)
        return is_loaded_on_demand(pool.current.routes.get(self.call.model))

    # Another attempt

    @property
    def may_run_twice(self) -> bool:
        """See `CallPart`: nothing was answered yet, and no message must run only once."""
        return self.merge is None and not self.router.runs_once

    def pause(self) -> None:
        """See `CallPart`. What comes meanwhile is held."""
        self._is_pausing = True
        self._is_placing = self._has_rest = False
        self.router.forget_first()

    def take_resumption(self, has_begun: bool, outcome: Outcome) -> bool | None:
        """See `CallPart`. A stream that was not answered yet begins anew instead."""
        call, single = self.call, self.single
        resumption = self._resumption
        if (
            self.merge is not None
            or call.finished
            or not (has_begun or resumption.has_begun)
            or not single.mask.is_between
        ):
            return None
        single.take_off_answered()
        request, pending_responses = call.request, single.pending_responses
        if self.router.has_steps and (pending_responses.counted or not request.ended):
            return None
        again = None if pending_responses.has_uncounted else pending_responses.unanswered()
        unpaid = request.waiting - min(request.replayed, request.waiting)
        size = 0 if again is None else sum(map(len, again))
        if again is None or unpaid > size:  # something was answered before all of it was sent
            return None
        models = [due.model for due in pending_responses.counted]
        if models:
            call.hints = None  # of the first request, which went where it had to
        completed = pending_responses.completed
        if not resumption.take(call.relay.retry, call, outcome, models, completed):
            return False
        request.clear()
        request.replayed = size - unpaid
        request.finished = False
        self._again = again
        return True

    def resume(self, outcome: Outcome) -> None:
        """See `CallPart`."""
        call = self.call
        self.single.forget()
        call.response.source = None
        self.pause()
        if self._again:
            call.relay.retry.go_again(call, outcome, call.place_anew)
        else:
            self.place()  # nothing is owed: the next message begins the next attempt

    def place(self) -> None:
        """See `CallPart`: all messages so far are routed anew."""
        self._is_pausing = False
        self._is_placing = True
        if self._begin_anew():
            self._route_rest()

    def _begin_anew(self) -> bool:
        """Forget where the messages so far went: they are to be routed. False when the call had to
        give way."""
        call, head = self.call, self._head
        request = call.request
        pieces = [
            *self._again,
            *(request.queue or ()),
            *(head.queue or () if head is not None else ()),
        ]
        self._again = []
        request.clear()
        request.retained = []
        if head is not None:
            head.clear()
        call.backend = call.hints = None
        self.router.forget_first()
        self.single.begin_anew()
        self._cutter = MessageCutter()
        return self._rest.put_back(pieces)

    # Ends

    @property
    def merged_at(self) -> float:
        """See `CallPart`."""
        return self.merge.begun_at if self.merge is not None else 0.0

    @property
    def is_between(self) -> bool:
        """See `CallPart`."""
        return self.single.mask.is_between

    def end_attempts(self, code: ErrorCode | None) -> bool:
        """See `CallPart`. Attempts whose answers are merged end with the merge."""
        if self.merge is None:
            return False
        self.merge.detach(code)
        return True

    def leave(self, reason: Reason | None) -> None:
        """See `CallPart`."""
        self._drop_unrouted()
        self._again = []
        for pipe in (self._head, self._unrouted):
            if pipe is not None:
                pipe.owner = None
        if self.merge is not None:
            self.merge.close(Outcome.DEADLINE if reason is Reason.DEADLINE else Outcome.CANCELLED)
        self.single.leave()
