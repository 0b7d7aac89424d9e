"""One HTTP/1.1 request and its answer: placed, connected, relayed both ways, ended once.

Invariants: an attempt is ended exactly once, however the two sides end; nothing is written to a
side that was ended; once a byte of an answer came there is no other attempt.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from lb.domain.backend import Backend, BackendKind, Port
from lb.domain.errors import RequestRefused, UpstreamError
from lb.domain.outcome import Outcome, Reason
from lb.net.dial import dial
from lb.net.timers import Timer
from lb.proxy.failure import http_status
from lb.proxy.http1.answers import Answer, error
from lb.proxy.http1.answers import refusal as refusal_of
from lb.proxy.http1.client import ClientConnection
from lb.proxy.http1.download import Download
from lb.proxy.http1.look import ENOUGH, LITTLE, BodyLook, begin_look, look_at_whole, note
from lb.proxy.lost import abandoned_until, report_abandoned
from lb.wire.http1.body import Payload, few
from lb.wire.http1.response import CONTINUE

if TYPE_CHECKING:
    from lb.proxy.http1.server import ServerConnection

_log = logging.getLogger(__name__)


class Http1Exchange(Download):
    """A request between a client's connection and a backend's."""

    __slots__ = ("_abandoned", "_look", "_unseen", "_was_continued")

    _abandoned: Timer
    """Ends an attempt that nobody waits for; set with that, since nearly none has one."""

    may_wait: ClassVar[bool] = True

    # The request

    def start_whole(self, body: Payload) -> None:
        """Relay a request that is complete, see `keep_whole`."""
        # HOT PATH (benchmarks/bench_http1_relay.py). The slots that only other requests read
        # are set where they are needed first.
        self.response_begun = False
        dispatcher = self.relay.dispatcher
        dispatcher.open_exchanges += 1
        if self.keep_whole(body):
            snapshot = dispatcher.pool.current
            route = snapshot.routes.get(self.model)
            if route is None or not route.is_plain or snapshot.regions:
                if self.plan.is_compressed:
                    self._expect_parts()
                    self._look_and_place([body])
                    return
                look_at_whole(self, route, bytes(body))
            self._place()

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """Relay a request whose head is complete, with what there is of its body."""
        self.response_begun = False
        self._expect_parts()
        self.relay.dispatcher.begin(self)
        if not self._is_too_large(pieces) and self.keep_first(head, pieces, ended=ended):
            self._look_and_place(pieces)

    def _expect_parts(self) -> None:
        """Set what only a request has that may be held back."""
        self._was_continued = False
        self._look: BodyLook | None = None
        self._unseen: deque[Payload] = deque()
        """Parts of its body that were not looked at yet."""

    def _look_and_place(self, pieces: list[Payload]) -> None:
        """Begin with a request that comes in parts: at once, or when enough of it has come."""
        snapshot = self.relay.dispatcher.pool.current
        route = snapshot.routes.get(self.model)
        if route is None or not route.is_plain or snapshot.regions:
            look = begin_look(self.plan, route, has_regions=bool(snapshot.regions))
            if look is not None:
                self._look = look
                self._look_later(look, pieces)
                return
            note(self, route, None)
        self._place()

    def _look_later(self, look: BodyLook, pieces: list[Payload]) -> None:
        """More has come of a request that is held back. Looking at much of it takes a while: each
        part then has a turn of the loop to itself, and no more is read meanwhile."""
        is_under_way = bool(self._unseen)
        for piece in few(pieces):
            self._unseen += look.slices(piece)
        if is_under_way:
            return
        if sum(map(len, pieces)) <= LITTLE:
            self._look_on()
        else:
            self.relay.loop.call_soon(self._look_on)

    def _look_on(self) -> None:
        """Look at the next part of a request that is held back."""
        look, unseen = self._look, self._unseen
        if look is None or self.server is None:
            return
        is_decided = False
        stop = look.size + ENOUGH
        while unseen and not is_decided and look.size < stop:
            is_decided = look.feed(unseen.popleft())
            if look.rest:
                unseen.appendleft(look.rest)
        if is_decided or (self.request_ended and not unseen):
            self._look = None
            unseen.clear()
            note(self, self.relay.dispatcher.pool.current.routes.get(self.model), look)
            self._place()
        elif unseen:
            self.relay.loop.call_soon(self._look_on)
        else:
            self._invite_body(self.server)

    def answer_only(self, answer: Answer, *, ended: bool) -> None:
        """Answer a request ourselves from the start."""
        self.response_begun = False
        self.request_ended = ended
        self.relay.dispatcher.begin(self)
        self.answer(answer)

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """Relay a further part of the body."""
        if not self._is_too_large(pieces):
            self.add_body(pieces, ended=ended)
            if self._look is not None and (pieces or ended):
                self._look_later(self._look, pieces)

    @property
    def wants_body(self) -> bool:
        """Whether the client should send more now: to a backend, to be looked at first, or to be
        held while it waits."""
        upstream = self.upstream
        if upstream is not None:
            return not upstream.is_full and self._unsent is None
        if self.request_ended:
            return False
        return self._may_hold_more() if self._look is None else not self._unseen

    def _may_hold_more(self) -> bool:
        """Whether more is read of a request that waits for its turn. Nobody needs it yet, but a
        client that leaves is noticed at once only while it is read from. Some of the memory for
        what may not be needed is left to bodies that are kept for another attempt."""
        relay = self.relay
        ledger = relay.ledger
        is_uninvited = self.plan.expects_continue and not self._was_continued and not self.bytes_in
        return (
            not is_uninvited
            and ledger.held < ledger.keep_up_to * 3 // 4
            and self.bytes_in < relay.dispatcher.queue.room(self)
        )

    def _is_too_large(self, pieces: list[Payload]) -> bool:
        """Whether the body passes the limit with `pieces`; the exchange is over then."""
        options = self.relay.options if self.server is None else self.server.options
        limit = options.body_size
        if limit and self.bytes_in + sum(map(len, pieces)) > limit:
            self.cut(Outcome.CANCELLED, Reason.BODY_TOO_LARGE, "request body too large")
            return True
        return False

    # Attempts

    def _place(self) -> None:
        # HOT PATH (benchmarks/bench_http1_relay.py). Nearly always a connection is waiting; only
        # dialing takes a task.
        relay = self.relay
        try:
            backend = relay.dispatcher.place(self)
        except RequestRefused as refused:
            self.refuse(refused)
            return
        if backend is None:
            self._begin_to_wait()
            return
        # After a failure other waiting connections may be as dead as the one that failed.
        upstream = relay.upstreams.take(backend) if self.attempts == 1 else None
        if upstream is not None:
            self.connected_at = self.attempt_at
            self._send_over(upstream)
        elif self.port is not None:
            if self.server is not None and not self.request_ended:
                self.server.update_reading()  # what comes could only be kept
            relay.tasks.spawn(self._dial(backend, self.port), name=f"dial-http:{backend.name}")

    def _begin_to_wait(self) -> None:
        """It waits, for the first time or again."""
        if self.server is not None:
            self.server.update_reading()

    def go_on(self) -> None:
        """See `Exchange`."""
        self._place()

    def refuse(self, refusal: RequestRefused) -> None:
        """See `Exchange`."""
        self.answer(refusal_of(refusal))

    @property
    def due(self) -> float:
        """See `Exchange`."""
        options = self.relay.options if self.server is None else self.server.options
        timeout_s, own_s = self.plan.timeout_s, options.request_timeout_s
        if own_s and own_s < timeout_s:
            timeout_s = own_s
        return self.started_at + timeout_s

    def hint(self, name: bytes) -> bytes:
        """See `Exchange`."""
        return next((value for field, value in self.plan.noted if field == name), b"")

    async def _dial(self, backend: Backend, port: Port) -> None:
        relay = self.relay
        attempt = self.attempts
        upstream: ClientConnection | None
        try:
            _, upstream = await dial(
                relay.loop,
                port.address,
                lambda: ClientConnection(relay, backend, port),
                relay.options.connect_timeout_s,
                tls=relay.tls.find(port.tls, self.protocol),
                handshake_s=relay.options.handshake_timeout_s,
            )
        except UpstreamError as failure:
            port.connect_failures += 1
            outcome, detail = failure.outcome, failure.detail
            upstream = None
        else:
            port.connects += 1
            outcome, detail = Outcome.CONNECT_FAILED, "closed as soon as it was open"
        is_wanted = self.port is port and self.attempts == attempt
        if upstream is None or upstream.transport is None:
            if is_wanted:
                self.attempt_failed(outcome, detail)
        elif is_wanted:
            self.connected_at = relay.clock()
            self._send_over(upstream)
        else:
            upstream.release(reusable=True)

    def _send_over(self, upstream: ClientConnection) -> None:
        self.upstream = upstream
        upstream.exchange = self
        self.send_kept(upstream)
        if not self.request_ended and self.server is not None:
            self._invite_body(self.server)

    def _invite_body(self, server: ServerConnection) -> None:
        """There is a place for it: let the client send the rest of the body."""
        if self.plan.expects_continue and not self._was_continued and not self.bytes_in:
            self._was_continued = True
            server.write([CONTINUE])
        server.update_reading()

    def attempt_failed(self, outcome: Outcome, detail: str) -> None:
        """The attempt under way ended without a complete answer; its connection is closed."""
        backend = self.backend
        self.upstream = None
        if self.server is not None:
            self.server.end_pump()
        dispatcher = self.relay.dispatcher
        dispatcher.attempt_ended(self, outcome)
        name = backend.name if backend is not None else ""
        _log.debug(
            "attempt failed", extra={"backend": name, "outcome": outcome.value, "detail": detail}
        )
        if self.server is None:
            self.stop_abandoned()
            return
        if self._may_retry(outcome):
            self._go_again(outcome)
        else:
            reason, text = dispatcher.steps.failure(self, outcome)
            if outcome is Outcome.PROTOCOL_ERROR:
                text = f"{text}: {detail}"
            self._fail(reason, text)

    def _may_retry(self, outcome: Outcome) -> bool:
        return self.relay.dispatcher.may_retry(
            self, outcome, body_retained=self.is_retained, response_begun=self.response_begun
        )

    def _go_again(self, outcome: Outcome) -> None:
        self.relay.dispatcher.go_again(self, outcome, self._place)
        server = self.server
        if self.port is None and server is not None and not self.request_ended:
            server.update_reading()  # what comes meanwhile could only be kept

    def backend_hung(self) -> None:
        """The backend is silent: go elsewhere, if that is allowed and there is somebody."""
        self._leave_backend(Outcome.STALLED)

    def attempt_late(self) -> None:
        """See `Exchange`."""
        self._leave_backend(Outcome.LATE)

    def _leave_backend(self, outcome: Outcome) -> None:
        if self.server is not None and not self.response_begun and self._may_retry(outcome):
            self._end_attempt(outcome)
            self._go_again(outcome)

    @property
    def is_sent(self) -> bool:
        """See `Exchange`."""
        return self.request_ended and not self.response_begun and self.server is not None

    # Ends before the answer is complete

    def answer(self, answer: Answer) -> None:
        """Answer ourselves; there is no attempt under way."""
        self.status = answer.status
        self.bytes_out = len(answer.body)
        server = self._leave_client(answer.reason)
        if server is not None:
            server.send_answer(answer, self.plan)

    def cut(self, outcome: Outcome, reason: Reason, detail: str, *, status: int = 0) -> None:
        """End the exchange from our side.

        Args:
            outcome: of the attempt under way, if there is one.
            reason: for the client and the log.
            detail: what to tell the client.
            status: where the reason alone does not say it.
        """
        self._end_attempt(outcome)
        if self.server is not None:
            self._fail(reason, detail, status=status)

    def client_gone(self, reason: Reason) -> None:
        """There is nobody left to answer.

        A plain inference on a Triton runs on: it cannot be stopped, so it stays in flight until
        its answer, which is dropped, and the connection is used again. If the answer takes far
        longer than expected the connection is closed. An answer for which the client was too slow
        is long computed, and too long to be read for nobody.
        """
        self._leave_client(reason)
        self.leave_to_backend(Outcome.CANCELLED)

    def leave_to_backend(self, outcome: Outcome) -> None:
        """Nobody wants the answer: let a Triton compute it, or end the attempt with `outcome`."""
        upstream = self.upstream
        backend = self.backend
        if (
            upstream is not None
            and backend is not None
            and self.request_ended
            and self.plan.is_inference
            and backend.spec.kind is BackendKind.TRITON
            and (upstream.is_reading or not self.response_begun)
        ):
            upstream.set_reading(True)
            left_s = abandoned_until(self) - self.relay.clock()
            give_up = partial(self._give_up, outcome)
            self._abandoned = self.relay.timers.after(max(left_s, 0.0), give_up)
        else:
            self._end_attempt(outcome)

    def _give_up(self, outcome: Outcome) -> None:
        """Nobody waits for the answer, and it will probably never come."""
        report_abandoned(self, self.relay.clock())
        self._end_attempt(outcome)

    def stop_abandoned(self) -> None:
        """The attempt is over: no time-out is left of one that nobody waited for."""
        timer = getattr(self, "_abandoned", None)
        if timer is not None:
            timer.cancel()

    def _end_attempt(self, outcome: Outcome) -> None:
        self.stop_abandoned()
        upstream = self.upstream
        self.upstream = None
        if upstream is not None:
            upstream.close()
        self.relay.dispatcher.attempt_ended(self, outcome)

    def _fail(self, reason: Reason, detail: str, *, status: int = 0) -> None:
        """Tell the client: by an answer of ours, or by cutting the one that has begun."""
        if not self.response_begun:
            self.answer(error(status or http_status(reason), reason, detail))
            return
        server = self._leave_client(reason)
        if server is not None:
            server.truncate(reset=self.plan.is_http10)

    def _leave_client(self, reason: Reason | None) -> ServerConnection | None:
        self.end_upload()
        if self.upstream is not None:
            self.upstream.end_pump()
        server = self.server
        self.server = None
        self.relay.dispatcher.finish(self, reason)
        return server
