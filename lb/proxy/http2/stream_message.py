"""A look at one message of a `ModelStreamInfer`, for what decides where it goes."""

from __future__ import annotations

from typing import Final

from lb.domain.pool import ModelRoute, PoolSnapshot
from lb.kserve.sequence import Asked, Incomplete
from lb.kserve.stream_debts import StreamMessage
from lb.kserve.work import grpc_work
from lb.proxy.http2.look import LOOK_BYTES, Inspected, known_regions, read_asked
from lb.wire.grpc.message import PREFIX_SIZE, model_name
from lb.wire.protobuf import BYTES, FieldBudget, ProtobufError, fields

SEQUENCE_ID: Final = b"sequence_id"
"""What says nothing of it is no step of a sequence."""
_ID: Final = 3
"""Field of ModelInferRequest."""
_FIELDS_BEFORE_ID: Final = 16
"""Before the id there are the names of the model and of its version."""
_REMEMBERED_BYTES: Final = 256
"""Of a client's own words in one message; ten thousands of messages may wait for answers."""


def read_message(
    data: bytes, snapshot: PoolSnapshot, *, is_all: bool, cost: Inspected | None = None
) -> StreamMessage | None:
    """What a message says.

    Args:
        data: its first bytes, prefix included; at most `LOOK_BYTES` are of use.
        snapshot: the pool at this time.
        is_all: no more of it will come.
        cost: where to note what looking at it costs.

    Returns:
        None when more bytes are needed to tell.
    """
    cost = cost or Inspected()
    may_wait = not is_all and len(data) < LOOK_BYTES
    name = model_name(data)
    if name is None and may_wait:
        return None
    model = name or b""
    route = snapshot.routes.get(model)
    size = int.from_bytes(data[1:PREFIX_SIZE], "big")
    message = data[PREFIX_SIZE : PREFIX_SIZE + size]
    if not (data[0] or snapshot.regions):
        is_there = len(message) == size or not may_wait
        if is_plain(route) or (route is None and is_there and SEQUENCE_ID not in message):
            rows = _rows(route, message, cost)
            is_unserved = _is_unserved(model, route, snapshot)
            return StreamMessage(
                model, b"", _request_id(message), None, (), is_unserved or _has_one_answer(route),
                rows, size if rows else 0, is_unserved,
            )  # fmt: skip
    try:
        message, size, asked = read_asked(message, size, cost, is_compressed=bool(data[0]))
    except Incomplete:
        if may_wait:
            return None
        asked = Asked(model, b"", None)
    if snapshot.regions and len(message) < size and may_wait:
        return None
    regions = known_regions(message, snapshot, cost) if snapshot.regions else ()
    route = snapshot.routes.get(asked.model)
    step = asked.step
    if route is not None and route.facts.is_stateful is False:
        step = None
    rows = _rows(route, message, cost) if step is None else 0
    is_unserved = _is_unserved(asked.model, route, snapshot)
    return StreamMessage(
        asked.model,
        asked.version[:_REMEMBERED_BYTES],  # what is cut off makes no version that anybody has
        _request_id(message),
        step,
        regions,
        is_unserved or _has_one_answer(route),
        rows,
        size if rows else 0,
        is_unserved,
    )


def is_plain(route: ModelRoute | None) -> bool:
    """Whether requests for a model need no second look."""
    return route is not None and route.is_uniform


def _has_one_answer(route: ModelRoute | None) -> bool:
    """Whether each request for a model is known to get exactly one answer."""
    return route is not None and route.facts.is_decoupled is False


def _is_unserved(model: bytes, route: ModelRoute | None, snapshot: PoolSnapshot) -> bool:
    """Whether a model, of which nothing else is known, is one that no backend has ready: a request
    for it gets an error, which Triton gives in its turn like any answer. Where no name was found
    the model may be any."""
    if route is not None and (route.is_ready or route.facts.is_decoupled is not None):
        return False
    return bool(model) and snapshot.knows_all


def _rows(route: ModelRoute | None, message: bytes, cost: Inspected) -> int:
    """The batch dimension of a request that is scheduled; 0 of others."""
    if route is None or route.plan is None or route.facts.is_decoupled is not False:
        return 0
    return grpc_work(message, cost.work).rows


def _request_id(message: bytes) -> bytes:
    """The client's name for a request; empty where it has none, or none of usual length was
    seen."""
    try:
        for number, kind, start, end in fields(message, 0, None, FieldBudget(_FIELDS_BEFORE_ID)):
            if number == _ID and kind == BYTES:
                return message[start:end] if end - start <= _REMEMBERED_BYTES else b""
            if number > _ID:
                break
    except (IndexError, ProtobufError):
        pass
    return b""
