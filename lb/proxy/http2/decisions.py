"""What is done with a call by its head: which operation it is, what serves it, and if it may pass.

Decided once for each head, and for most of it once for each path.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from lb.domain.backend import BackendKind
from lb.domain.operation import ModelIn, Operation, Treatment
from lb.kserve.control import grpc_control
from lb.kserve.operations import (
    HEALTH_CHECK,
    HEALTH_WATCH,
    MODEL_READY,
    MODEL_STREAM_INFER,
    REFLECTION,
    SERVER_LIVE,
    SERVER_READY,
    grpc_operation,
)
from lb.proxy.fan_out.question import QUESTION_BYTES
from lb.proxy.http2.asked import Collector, OwnAnswer
from lb.proxy.http2.call import Call
from lb.proxy.http2.connection import Http2Connection
from lb.proxy.http2.health import (
    HEALTH_QUESTION_BYTES,
    answer_health,
    answer_ready,
    answer_server,
)
from lb.proxy.http2.memory_guard import INFERENCES
from lb.proxy.http2.reflection import ReflectionSession
from lb.proxy.http2.shared import Http2Shared
from lb.proxy.http2.stream_session import StreamSession
from lb.proxy.http2.variant_stream import VariantStream
from lb.wire.hops import loop_in, passed
from lb.wire.http2 import frames as fr
from lb.wire.http2.heads import RequestHead
from lb.wire.trace_context import Traces, read_context

_ASKED: Final = frozenset({Treatment.BROADCAST, Treatment.MERGE})
Handler = Callable[[Http2Shared, Http2Connection, int, RequestHead], Call]
"""Makes a call."""


def _ours(answer: OwnAnswer) -> Handler:
    """Makes a call about health, which we answer."""
    return partial(_collected, answer=answer, most=HEALTH_QUESTION_BYTES)


def _collected(
    relay: Http2Shared,
    server: Http2Connection,
    stream_id: int,
    head: RequestHead,
    *,
    answer: OwnAnswer | None = None,
    most: int = QUESTION_BYTES,
) -> Call:
    """A call whose request is collected: see `Collector`."""
    call = Call(relay, server, stream_id, head)
    Collector(call, answer, most)
    return call


def _streamed(
    relay: Http2Shared, server: Http2Connection, stream_id: int, head: RequestHead
) -> Call:
    """A stream of inferences."""
    call = Call(relay, server, stream_id, head)
    if relay.options.variant_names:
        VariantStream(call)
    else:
        StreamSession(call)
    return call


def _reflected(
    relay: Http2Shared, server: Http2Connection, stream_id: int, head: RequestHead
) -> Call:
    """Questions about our services."""
    call = Call(relay, server, stream_id, head)
    ReflectionSession(call)
    return call


_OURS: Final[dict[Operation, Handler]] = {
    SERVER_LIVE: _ours(answer_server),
    SERVER_READY: _ours(answer_server),
    HEALTH_CHECK: _ours(answer_health),
    HEALTH_WATCH: _ours(answer_health),
    MODEL_READY: _ours(answer_ready),
}
_ROOM_FOR_TRACE: Final = fr.MIN_FRAME_SIZE - 256
"""Bytes of a header block and a `tracestate` up to which it fits one frame with a `traceparent`."""
_PATHS: Final = 256
"""Whose decisions are remembered; they come from clients."""
_PATH_BYTES: Final = 256


class PathDecision(NamedTuple):
    """What a path alone decides."""

    operation: Operation
    control: Operation | None
    """As which a call may change a server."""
    handler: Handler | None
    """What serves it; None for the common way."""
    is_plain: bool
    """Nothing about the path needs a second look."""


class Decisions:
    """Decides for all connections of a relay."""

    __slots__ = ("_by_path", "_gate", "_identity", "_relay", "_traces")

    def __init__(self, relay: Http2Shared) -> None:
        self._relay = relay
        self._gate = relay.dispatcher.gate
        self._identity = relay.dispatcher.identity
        self._by_path: dict[bytes, PathDecision] = {}
        self._traces = relay.options.traces

    def __len__(self) -> int:
        """Paths that are remembered."""
        return len(self._by_path)

    def decide(self, head: RequestHead) -> Operation:
        """Decide once what is done with requests that look like `head`."""
        # HOT PATH (benchmarks/bench_http2_relay.py). Once for each head that was not seen lately;
        # what its path alone decides is remembered.
        facts = head.facts
        operation, control, handler, is_plain = self._by_path.get(facts.path) or self._look(
            facts.path
        )
        facts.route = operation
        facts.handler = handler
        if head.noted and self._traces is not Traces.OFF:
            context = head.context = read_context(head.noted)
            if len(head.block) + len(context.state if context else b"") > _ROOM_FOR_TRACE:
                is_plain = False
        if facts.hops and self._identity:
            facts.passed = passed(facts.hops)
            facts.loop = loop_in(facts.passed, self._identity)
            is_plain = is_plain and not facts.loop
        credentials = None
        if control is not None or self._gate.asks_all:
            is_control = control is not None
            credentials = self._gate.credentials(
                control or operation, head.noted, is_control=is_control
            )
            facts.credentials = credentials
            is_plain = is_plain and credentials is None
        disclosure = self._relay.options.disclosure
        facts.discloses = disclosure.may_concern(credentials)
        if facts.discloses or (disclosure.request_ids and not facts.request_id):
            is_plain = False
        if is_plain:
            options = self._relay.options
            facts.is_plain = (
                facts.is_grpc
                and facts.method == b"POST"
                and not facts.fault
                and facts.size <= options.head_size
                and len(head.block) <= fr.MIN_FRAME_SIZE
                and facts.count <= options.fields
                and not facts.unusable
                and (facts.timeout_s is None or facts.timeout_s > 0)
            )
        return operation

    def _look(self, path: bytes) -> PathDecision:
        operation = grpc_operation(path)
        handler = self._handler(operation)
        is_plain = (
            handler is None
            and operation.treatment is Treatment.BALANCE
            and operation.model_in is ModelIn.MESSAGE
            and not self._relay.options.message_size
            and not (self._gate.guards_regions and operation in INFERENCES)
        )
        decision = PathDecision(operation, grpc_control(path), handler, is_plain)
        if len(path) <= _PATH_BYTES:
            if len(self._by_path) >= _PATHS:
                self._by_path.clear()
            self._by_path[path] = decision
        return decision

    def _handler(self, operation: Operation) -> Handler | None:
        relay = self._relay
        if operation is MODEL_STREAM_INFER:
            # Other servers put other messages into their streams.
            return _streamed if BackendKind.TRITON in relay.kinds else None
        if operation is REFLECTION:
            # Servers of other kinds have other services, and may describe them.
            return _reflected if BackendKind.TRITON in relay.kinds else None
        if operation in _OURS:
            return _OURS[operation]
        if operation.treatment in _ASKED:
            is_asked = relay.parts.fan_out is not None and operation.asks in relay.kinds
            return _collected if is_asked else None
        return None
