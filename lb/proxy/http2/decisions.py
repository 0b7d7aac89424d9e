"""What is done with a call by its head: which operation it is, what serves it, and if it may pass.

Decided once for each head, and for most of it once for each path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lb.domain.backend import BackendKind
from lb.domain.operation import ModelIn, Operation, Treatment
from lb.kserve.control import grpc_control
from lb.kserve.operations import (
    HEALTH_CHECK,
    HEALTH_WATCH,
    MODEL_INFER,
    MODEL_READY,
    MODEL_STREAM_INFER,
    SERVER_LIVE,
    SERVER_READY,
    grpc_operation,
)
from lb.proxy.http2.asked import AskedCall
from lb.proxy.http2.call import Call
from lb.proxy.http2.health import HealthCall, ReadyCall, ServerCall
from lb.proxy.http2.spec import SpecCall
from lb.proxy.http2.stream_call import StreamCall
from lb.proxy.http2.watched import WatchedCall, WatchedStreamCall
from lb.wire.hops import HOPS, loop_in, passed
from lb.wire.http2 import frames as fr
from lb.wire.http2.fields import encode_field
from lb.wire.http2.heads import RequestHead

if TYPE_CHECKING:
    from lb.proxy.http2.relay import Http2Relay

_ASKED: Final = frozenset({Treatment.BROADCAST, Treatment.MERGE})
_COLLECTED: Final[dict[Operation, type[Call]]] = {
    SERVER_LIVE: ServerCall,
    SERVER_READY: ServerCall,
    HEALTH_CHECK: HealthCall,
    HEALTH_WATCH: HealthCall,
    MODEL_READY: ReadyCall,
}
_WATCHED: Final[dict[type[Call], type[Call]]] = {Call: WatchedCall, StreamCall: WatchedStreamCall}
_INFERENCES: Final = frozenset({MODEL_INFER, MODEL_STREAM_INFER})
_NESTED: Final = frozenset({ModelIn.SPEC, ModelIn.TASK})
_PATHS: Final = 256
"""Whose decisions are remembered; they come from clients."""
_PATH_BYTES: Final = 256


class Decision(NamedTuple):
    """What a path alone decides."""

    operation: Operation
    control: Operation | None
    """As which a call may change a server."""
    handler: type[Call] | None
    """What serves it; None for the common way."""
    is_plain: bool
    """Nothing about the path needs a second look."""


class Decisions:
    """Decides for all connections of a relay."""

    __slots__ = ("_by_path", "_gate", "_identity", "_marker", "_relay")

    def __init__(self, relay: Http2Relay) -> None:
        self._relay = relay
        self._gate = relay.dispatcher.gate
        self._identity = identity = relay.dispatcher.identity
        self._marker = encode_field(HOPS, identity) if identity else b""
        """What is added to each head for a backend."""
        self._by_path: dict[bytes, Decision] = {}

    def __len__(self) -> int:
        """Paths that are remembered."""
        return len(self._by_path)

    def decide(self, head: RequestHead) -> Operation:
        """Decide once what is done with requests that look like `head`."""
        # HOT PATH (benchmarks/bench_http2_relay.py). Once for each head that was not seen lately;
        # what its path alone decides is remembered.
        operation, control, handler, is_plain = self._by_path.get(head.path) or self._look(
            head.path
        )
        head.route = operation
        head.handler = handler
        head.block += self._marker
        if head.hops and self._identity:
            head.passed = passed(head.hops)
            head.loop = loop_in(head.passed, self._identity)
            is_plain = is_plain and not head.loop
        if control is not None or self._gate.asks_all:
            is_control = control is not None
            head.claim = self._gate.claim(control or operation, head.noted, is_control=is_control)
            is_plain = is_plain and head.claim is None
        if is_plain:
            options = self._relay.options
            head.is_plain = (
                head.is_grpc
                and head.method == b"POST"
                and not head.fault
                and head.size <= options.head_size
                and len(head.block) <= fr.MIN_FRAME_SIZE
                and head.count <= options.fields
                and not head.unusable
                and (head.timeout_s is None or head.timeout_s > 0)
            )
        return operation

    def _look(self, path: bytes) -> Decision:
        operation = grpc_operation(path)
        handler = self._handler(operation)
        is_plain = (
            handler is None
            and operation.treatment is Treatment.BALANCE
            and operation.model_in is ModelIn.MESSAGE
            and not self._relay.options.message_size
        )
        decision = Decision(operation, grpc_control(path), handler, is_plain)
        if len(path) <= _PATH_BYTES:
            if len(self._by_path) >= _PATHS:
                self._by_path.clear()
            self._by_path[path] = decision
        return decision

    def _handler(self, operation: Operation) -> type[Call] | None:
        handler = self._kind_of_call(operation)
        if operation in _INFERENCES and self._gate.guards_regions:
            return _WATCHED[handler or Call]
        return handler

    def _kind_of_call(self, operation: Operation) -> type[Call] | None:
        relay = self._relay
        if operation is MODEL_STREAM_INFER:
            # Other servers put other messages into their streams.
            return StreamCall if BackendKind.TRITON in relay.kinds else None
        if operation in _COLLECTED:
            return _COLLECTED[operation]
        if operation.treatment in _ASKED:
            is_asked = relay.fan_out is not None and operation.asks in relay.kinds
            return AskedCall if is_asked else None
        return SpecCall if operation.model_in in _NESTED else None
