"""One gRPC call: a stream of a client, and the stream of a backend that serves it.

Phases: the first message may be awaited to learn the model; then the call is placed and waits for
a connection or has one; a call that we answer ourselves never has a backend. How it ends:
`lb.proxy.http2.joined`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from lb.domain.backend import AppProtocol
from lb.domain.errors import RequestRefused
from lb.domain.operation import ModelIn, OperationKind
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import ModelRoute
from lb.proxy.http2.admission import is_refused
from lb.proxy.http2.attempt import AttemptedCall
from lb.proxy.http2.look import look_again, look_closer, look_quickly
from lb.proxy.http2.replies import status_trailers
from lb.wire.grpc.message import PREFIX_SIZE, model_name
from lb.wire.grpc.status import GrpcStatus, status_of_http
from lb.wire.http2.codec import COPY_BELOW
from lb.wire.http2.flow import UNCOUNTED, Payload, Pipe
from lb.wire.http2.frames import ErrorCode, Malformed, StreamError, pack_header, window_update
from lb.wire.http2.heads import NO_LENGTH, NO_STATUS, ResponseHead

_ANSWERED: Final = Outcome.ANSWERED
_GRPC: Final = AppProtocol.GRPC
_INFERENCE: Final = OperationKind.INFERENCE
_IN_MESSAGE: Final = ModelIn.MESSAGE
_MODEL_PEEK: Final = 2048
"""Bytes of the first message that are looked at before a call is placed without a model."""
_SEQUENCE_ID: Final = b"sequence_id"
_NAME_AT: Final = PREFIX_SIZE + 2
"""Where the name of a model stands in a message, behind its length."""
_OK: Final = 200
_UNUSABLE: Final = "status OK without exactly one whole message"
_FOREIGN: Final = "HTTP status 200 with a content-type that is not gRPC's"
_HELD_AT_MOST: Final = UNCOUNTED
"""Bytes of a message that are held while it is not whole, so that another backend may be asked
instead. They are as few as the ledger does not count, and never so many that the backend waits for
its window."""
_MAX_EARLY_HEADS: Final = 10
"""Informational responses to one request."""


class Call(AttemptedCall):
    """A gRPC call in the relay."""

    __slots__ = ()

    may_wait: ClassVar[bool] = True

    # The client's side

    def begin(self, end_stream: bool) -> None:
        """The head is complete."""
        # HOT PATH (benchmarks/load).
        relay = self.relay
        relay.dispatcher.begin(self)
        head = self.head
        if head.is_plain and not end_stream:
            if head.timeout_s or relay.options.request_timeout_s:
                self.set_timer()
            self.held_back = True
        else:
            self._begin_other(end_stream)

    def _begin_other(self, end_stream: bool) -> None:
        """Begin a call of which something needs a second look."""
        relay = self.relay
        head = self.head
        if end_stream:
            self.request.ended = True
            if not self._length_fits():
                return
        if head.timeout_s is not None and head.timeout_s <= 0:
            self.fail(Reason.DEADLINE, "deadline exceeded")
            return
        if head.timeout_s or relay.options.request_timeout_s:
            self.set_timer()
        if not is_refused(self):
            self._proceed(end_stream)

    def _proceed(self, end_stream: bool) -> None:
        """The head may pass."""
        if self.operation.model_in is _IN_MESSAGE and not end_stream:
            self.held_back = True
        else:
            self._place()

    def begin_whole(self, payload: bytes, size: int) -> None:
        """The request is complete, small and plain."""
        # HOT PATH (benchmarks/bench_http2_relay.py). `begin` and `request_data` in one for the
        # common unary call; those are the reference.
        relay = self.relay
        relay.dispatcher.open_exchanges += 1
        if self.head.timeout_s or relay.options.request_timeout_s:
            self.set_timer()
        self._place_whole(payload, size)

    def _place_whole(self, payload: bytes, size: int) -> None:
        """Place a call whose request is one small message, and send both in one piece."""
        # HOT PATH (benchmarks/bench_http2_relay.py). What such a message says is looked up by how
        # it begins; the reference is `_find_model`.
        relay = self.relay
        self.bytes_in = size
        request = self.request
        request.ended = True
        request.retained = [payload]
        request.retained_size = size
        dispatcher = relay.dispatcher
        models = relay.models
        if (
            models.snapshot is dispatcher.pool.current
            and size > _NAME_AT
            and (known := models.by_start(payload[: payload[_NAME_AT - 1] + _NAME_AT])) is not None
            and (
                known.is_plain
                or (known.work is None and _SEQUENCE_ID not in payload)
                or (known.work is not None and look_again(self, known.work, payload))
            )
        ):
            self.model = known.name
        elif not self._find_model(payload):
            return
        try:
            backend = dispatcher.place(self, relay.now)
        except RequestRefused as refusal:
            self.refuse(refusal)
            return
        if backend is None:
            request.push(payload)
            return
        pool = relay.pools.get(backend)
        if pool is None:
            pool = relay.pool(backend)
        links = pool.links
        if links and len((link := links[0]).streams) < link.stream_limit:
            link.open_whole(self, payload, size)
        else:
            pool.start_whole(self, payload, size)

    def _find_model(self, payload: bytes) -> bool:
        """Look for what a whole small message says. False when the call has gone its way."""
        # HOT PATH (benchmarks/bench_schedule.py). What a scheduled model goes by is read in one
        # pass; `look_closer` is the reference.
        self.model = name = model_name(payload) or b""
        snapshot = self.relay.dispatcher.pool.current
        route = snapshot.routes.get(name)
        is_plain = route is not None and route.is_plain
        if not snapshot.regions and name and (is_plain or route is None):
            self.relay.models.learn(snapshot, payload, name, is_plain=is_plain)
        elif (
            route is not None
            and route.plan is not None
            and route.facts.is_stateful is False
            and not snapshot.regions
            and payload[_NAME_AT - 1] == len(name)
            and look_quickly(self, snapshot, payload)
        ):
            return True
        if (
            snapshot.regions
            or (route is not None and not is_plain)
            or (route is None and (_SEQUENCE_ID in payload or not payload.startswith(b"\0")))
        ):
            look_closer(self, payload, route, is_all=True)
            if self.particulars is not None and self.particulars.step is not None:
                if self.request.push(payload):
                    self._place()
                return False
        return True

    def request_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the request arrived."""
        # HOT PATH (benchmarks/load). Once per DATA frame, or part of one.
        request = self.request
        size = len(payload)
        if (
            self.held_back
            and end_stream
            and size < COPY_BELOW
            and self.head.is_plain
            and not self.bytes_in
            and self.head.content_length in (NO_LENGTH, size)
        ):
            self.held_back = False
            self._place_whole(payload, size)  # type: ignore[arg-type]  # below COPY_BELOW: bytes
            return
        self.bytes_in += size
        retained = request.retained
        if retained is not None and size:
            if retained:
                request.retain(payload, self.relay.options.retained_size)
            elif size < UNCOUNTED:
                retained.append(payload)
                request.retained_size = size
            else:
                self._retain(payload)
        if self.messages is not None and not self._message_fits(payload):
            return
        if self.held_back and not self._peek(payload, end_stream):
            return
        if end_stream:
            request.ended = True
            if not self._length_fits():
                return
        sink = request.sink
        if sink is not None:
            sink.send_data(request, payload)
        else:
            self._keep(payload)

    def resume_request(self, payload: Payload, end_stream: int) -> None:
        """Payload that was postponed comes again (`Http2Codec.postpone`)."""
        self.request_data(payload, end_stream)

    def passes(self, pipe: Pipe[Any]) -> bool:
        """Whether payload of a direction goes on as it comes, but for being counted."""
        if pipe is self.request:
            return not self.held_back and self.messages is None
        return self.begun

    def _retain(self, payload: Payload) -> None:
        """Keep payload for another attempt."""
        request = self.request
        limit = self.relay.options.retained_size
        if not request.retained and len(payload) >= PREFIX_SIZE:
            announced = int.from_bytes(payload[1:PREFIX_SIZE], "big")
            if announced + PREFIX_SIZE > limit:
                # It will not fit, so do not copy the first part of it.
                request.drop_retained()
                return
        request.retain(payload, limit)

    def _peek(self, payload: Payload, end_stream: int) -> bool:
        """Look for the model's name in the first bytes and place the call when it is known.

        False when the call is over.
        """
        queue = self.request.queue
        head = bytes(payload[:_MODEL_PEEK])
        if queue:
            head = b"".join((*queue, head))[:_MODEL_PEEK]
        name = model_name(head)
        if name is None and not end_stream and len(head) < _MODEL_PEEK:
            return True
        self.model = name = name or b""
        snapshot = self.relay.dispatcher.pool.current
        route = snapshot.routes.get(name)
        if (route is None or not route.is_plain or snapshot.regions) and not self._look(
            payload, route, end_stream
        ):
            return True
        self.held_back = False
        self._place()
        return not self.finished

    def _look(self, payload: Payload, route: ModelRoute | None, end_stream: int) -> bool:
        """Take a second look at what has come. False while that is too little."""
        # Looked at anew only when there is much more, or crumbs would cost the square of the size.
        if self.bytes_in < getattr(self, "look_again_at", 0) and not end_stream:
            return False
        self.look_again_at = 2 * self.bytes_in
        queue = self.request.queue or ()
        data = b"".join((*queue, payload))
        return look_closer(self, data, route, is_all=bool(end_stream))

    def _message_fits(self, payload: Payload) -> bool:
        assert self.messages is not None
        self.messages.feed(payload)
        limit = self.messages.limit
        if self.messages.largest <= limit:
            return True
        self.fail(Reason.BODY_TOO_LARGE, f"message is larger than the limit of {limit} bytes")
        return False

    def _length_fits(self) -> bool:
        expected = self.head.content_length
        if expected in (NO_LENGTH, self.bytes_in):
            return True
        # Only the end shows it, so the backend has seen most of it.
        error = Malformed(ErrorCode.PROTOCOL_ERROR, "content-length differs from the data")
        self.server.on_stream_error(self.client_id, error)
        return False

    def _keep(self, payload: Payload) -> None:
        """Nowhere to send it: not yet, or not any more."""
        request = self.request
        if self.begun:
            self._drop_upload(len(payload))
        else:
            request.push(payload)

    def _drop_upload(self, size: int) -> None:
        """Payload that nobody reads: the client may go on sending."""
        increment = self.request.went_out(size)
        if increment:
            self.server.out.append(window_update(self.client_id, increment))
            self.server.mark()

    def request_trailers(self, block: bytes) -> None:
        """The request ended with trailers."""
        request = self.request
        request.trailers = block
        request.ended = True
        if not self._length_fits():
            return
        if self.held_back:
            self.held_back = False
            self._place()
        elif request.sink is not None:
            request.sink.end_stream(request)

    # Attempts: `lb.proxy.http2.attempt`

    def _place(self) -> None:
        relay = self.relay
        try:
            backend = relay.dispatcher.place(self, relay.now)
        except RequestRefused as refusal:
            self.refuse(refusal)
            return
        if backend is not None:
            relay.pool(backend).start(self)

    def go_on(self) -> None:
        """See `Exchange`."""
        self._place_anew()

    # The backend's side

    def response_head(self, head: ResponseHead, end_stream: bool) -> None:
        """The head of the response arrived, or its trailers."""
        # HOT PATH (benchmarks/load). Twice per call.
        response = self.response
        server = self.server
        if not self.begun:
            if self.held_head is not None:
                self._end_held(self.held_head, head, end_stream)
                return
            if not head.is_answer:
                self._other_head(head, end_stream)
                return
            if not end_stream:
                if self.operation.kind is _INFERENCE and head.status == _OK:
                    self.held_head = head
                else:
                    self._begin_response(head)
                return
            if self._goes_on_elsewhere(head):
                return
            self.begun = True
            self.status = head.status
            self.first_byte_at = self.relay.now
            self.request.drop_retained()
            response.ended = True
            self._answered(head.grpc_status)
            response.finished = True
            server.send_head(self.client_id, head.block, end_stream=True)
            self.pipe_finished(response)
            return
        if head.status or not end_stream:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "second head in a response")
        response.ended = True
        status, block = head.grpc_status, head.block
        if status > 0:
            self._tell_of_error(head)
        if not status and self.message_size not in (0, self.bytes_out):
            block = self._answered_badly(block)
        else:
            self._answered(status)
        if response.queue:
            response.trailers = block
            return
        response.finished = True
        server.send_head(self.client_id, block, end_stream=True)
        self.pipe_finished(response)

    def end_whole(
        self, head: ResponseHead, payload: bytes, size: int, trailers: ResponseHead
    ) -> bool:
        """The whole answer came: pass it on. False when that takes more than a write."""
        # HOT PATH (benchmarks/bench_http2_relay.py). `response_head` twice and `response_data` in
        # one for the common unary call; those are the reference.
        response, server = self.response, self.server
        if (
            self.begun
            or self.held_head is not None
            or size > response.credit
            or size > server.credit
            or size > server.peer_frame_size
            or server.congested
            or server.fresh
        ):
            return False
        relay = self.relay
        now = relay.now
        self.begun = response.ended = response.finished = True
        self.status, self.first_byte_at, self.bytes_out = head.status, now, size
        server.credit -= size
        if not server.dirty:
            server.mark()
        stream_id, block, last = self.client_id, head.block, trailers.block
        server.out += (
            pack_header(len(block) << 8 | 1, 4, stream_id),
            block,
            pack_header(size << 8, 0, stream_id),
            payload,
            pack_header(len(last) << 8 | 1, 5, stream_id),
            last,
        )
        request = self.request
        upstream = self.upstream
        status = trailers.grpc_status
        if (
            upstream is None
            or not request.finished
            or status
            or request.held
            or ((particulars := self.particulars) is not None and particulars.queued is None)
            or self.permit is not None
        ):
            self._end_slowly(trailers)
            return True
        self.grpc_status = status
        upstream.close_stream(request.sink_id)
        self.upstream = request.sink = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        request.retained = None
        server.close_stream(stream_id)
        request.owner = response.owner = None
        response.opposite = relay.no_pipe
        relay.dispatcher.answered_whole(self, status, now)
        if particulars is not None:
            relay.dispatcher.queue.ended(self, particulars.queued, _ANSWERED, status, now)
        return True

    def _end_slowly(self, trailers: ResponseHead) -> None:
        """The whole answer went out, and something is left to be done."""
        if trailers.grpc_status > 0:
            self._tell_of_error(trailers)
        self._answered(trailers.grpc_status)
        self.pipe_finished(self.response)

    def _other_head(self, head: ResponseHead, end_stream: bool) -> None:
        """What came is not the head of an answer to a call."""
        if head.status < 200:
            self._early_head(head, end_stream)
            return
        # "gRPC over HTTP2" has clients take this for an error, whatever follows.
        self._detach(None if end_stream and self.request.finished else ErrorCode.CANCEL)
        self.attempt_failed(Outcome.PROTOCOL_ERROR, _FOREIGN, status_of_http(head.status))

    def _early_head(self, head: ResponseHead, end_stream: bool) -> None:
        """An informational response, which gRPC has no use for, or none at all."""
        if not head.status or end_stream:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "response without a final status")
        if head.status == 101:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "status 101")  # RFC 9113 8.6
        # Set here for the first time: nearly no call has one.
        self.early_heads = getattr(self, "early_heads", 0) + 1
        if self.early_heads > _MAX_EARLY_HEADS:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "too many informational responses")

    def response_data(self, payload: Payload, end_stream: int) -> None:
        """Payload of the response arrived."""
        # HOT PATH (benchmarks/load). Once per DATA frame, or part of one.
        if not self.begun:
            head = self.held_head
            if head is None:
                self._broken_response("DATA before the head of a response")
                return
            if self.held_text:
                payload = b"".join((self.held_text, payload))
            size = len(payload)
            self.message_size = int.from_bytes(payload[1:PREFIX_SIZE], "big") + PREFIX_SIZE
            if (
                size < self.message_size
                and not end_stream
                and size <= min(_HELD_AT_MOST, self.response.window_size // 2)
            ):
                self.held_text = bytes(payload)
                self.message_size = 0
                return
            self._begin_response(head)
        self.bytes_out += len(payload)
        if end_stream:
            self.response.ended = True
            self._answered(NO_STATUS)
        self.server.send_data(self.response, payload)

    def _goes_on_elsewhere(self, head: ResponseHead) -> bool:
        """Whether a response without a message does not go on to the client, because another
        backend may do better, or because it claims to be OK."""
        if head.grpc_status > 0:
            return self._is_served_elsewhere(head)
        if head.grpc_status or self.operation.kind is not _INFERENCE or head.status != _OK:
            return False
        self._unusable_answer()
        return True

    def _end_held(self, held: ResponseHead, trailers: ResponseHead, end_stream: bool) -> None:
        """A response to an inference ends without a message: if its status is OK another backend
        may be asked, since nothing of it went to the client."""
        if trailers.status or not end_stream:
            raise StreamError(ErrorCode.PROTOCOL_ERROR, "second head in a response")
        if not trailers.grpc_status:
            self._unusable_answer()
            return
        self._begin_response(held)
        if self.held_text:
            self.response_data(self.held_text, 0)
        self.response_head(trailers, end_stream)

    def _begin_response(self, head: ResponseHead) -> None:
        """Send the head of a response to the client."""
        self.held_head = None
        self.begun = True
        self.status = head.status
        self.first_byte_at = self.relay.now
        request = self.request
        if request.held:
            request.drop_retained()
        else:
            request.retained = None
            request.retained_size = 0
        self.server.send_head(self.client_id, head.block, end_stream=False)

    def _unusable_answer(self) -> None:
        """The backend says that all is well, but the response contains no whole message; nothing of
        it went to the client."""
        upstream = self.upstream
        if upstream is not None:
            if not self.request.finished:
                upstream.reset(self.request.sink_id, ErrorCode.NO_ERROR)
            upstream.close_stream(self.request.sink_id)
        self.attempt_failed(Outcome.PROTOCOL_ERROR, _UNUSABLE)

    def _answered_badly(self, block: bytes) -> bytes:
        """As `_unusable_answer` where some of it did go to the client. The trailers for it: of more
        than one message clients make what they like."""
        if self.bytes_out > self.message_size:
            self._answered(GrpcStatus.OK, Outcome.PROTOCOL_ERROR)
            return block
        _, text = self.relay.dispatcher.steps.failure(self, Outcome.PROTOCOL_ERROR)
        self.reason = Reason.UPSTREAM_PROTOCOL
        self._answered(GrpcStatus.INTERNAL, Outcome.PROTOCOL_ERROR)
        return status_trailers(GrpcStatus.INTERNAL, f"{text}: {_UNUSABLE}")

    def _broken_response(self, detail: str) -> None:
        upstream = self.upstream
        if upstream is not None:
            error = StreamError(ErrorCode.PROTOCOL_ERROR, detail)
            upstream.on_stream_error(self.request.sink_id, error)

    def _answered(self, status: int, outcome: Outcome = _ANSWERED) -> None:
        """The backend's part is over."""
        self.grpc_status = status
        port = self.port
        if port is not None:
            port.bytes_sent += self.bytes_in
            port.bytes_received += self.bytes_out
        dispatcher = self.relay.dispatcher
        if status < 0:
            status = status_of_http(self.status)
            dispatcher.answered_with_error(self, status, "")
        dispatcher.attempt_ended(self, outcome, status, self.relay.now)
        upstream = self.upstream
        if upstream is not None:
            request = self.request
            if not request.finished:
                # The answer is complete and the client still sends: nobody reads that.
                upstream.reset(request.sink_id, ErrorCode.NO_ERROR)
                upstream.forget(request)
                waited = request.held
                request.clear()
                self._drop_upload(waited)
            upstream.close_stream(request.sink_id)
            self.upstream = None
            request.sink = None

    def pipe_finished(self, pipe: Pipe[Any]) -> None:
        """END_STREAM went out on one side."""
        # HOT PATH (benchmarks/load).
        if pipe is not self.response or self.finished:
            return
        request = self.request
        if not request.ended:
            # RFC 9113 8.1: a complete answer, and no need for the rest of the request.
            self.server.reset(self.client_id, ErrorCode.NO_ERROR)
            request.ended = True
        self._leave(None, self.relay.now)
