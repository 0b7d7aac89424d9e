"""A look at one message of a `ModelStreamInfer`, for what decides where it goes."""

from __future__ import annotations

from typing import Final

from lb.domain.pool import ModelRoute, PoolSnapshot
from lb.kserve.pending_responses import StreamMessage
from lb.proxy.http2.inspection import INSPECTED_BYTES, SEQUENCE_ID, Inspected, inspect_message
from lb.wire.grpc.message import PREFIX_SIZE, model_name

_VERSION_BYTES: Final = 256
"""Bytes of a version that are remembered; ten thousands of messages may wait for answers."""


def read_message(
    data: bytes, snapshot: PoolSnapshot, *, is_all: bool, cost: Inspected | None = None
) -> StreamMessage | None:
    """What a message says.

    Args:
        data: its first bytes, prefix included; at most `INSPECTED_BYTES` are of use.
        snapshot: the pool at this time.
        is_all: no more of it will come.
        cost: where to note what looking at it costs.

    Returns:
        None when more bytes are needed to tell.
    """
    cost = cost or Inspected()
    may_wait = not is_all and len(data) < INSPECTED_BYTES
    name = model_name(data)
    if name is None and may_wait:
        return None
    model = name or b""
    route = snapshot.routes.get(model)
    regions = snapshot.regions
    size = int.from_bytes(data[1:PREFIX_SIZE], "big")
    message = data[PREFIX_SIZE : PREFIX_SIZE + size]
    is_there = len(message) == size or not may_wait
    if regions and not is_there:
        return None
    is_compressed = bool(data[0])
    needs_only_name = not (is_compressed or regions) and (
        is_plain(route) or (route is None and is_there and SEQUENCE_ID not in message)
    )
    found = inspect_message(
        message,
        size,
        cost,
        is_compressed=is_compressed,
        with_rows=is_compressed or not model or _has_rows(route),
        with_regions=bool(regions),
        only_names=needs_only_name,
    )
    if needs_only_name:
        found.version, found.step = b"", None
    elif found.is_complete:
        model = found.model
        route = snapshot.routes.get(model)
    elif may_wait:
        return None
    step = None if route is not None and route.facts.is_stateful is False else found.step
    rows = found.rows if step is None and _has_rows(route) else 0
    is_unserved = _is_unserved(model, route, snapshot)
    return StreamMessage(
        model,
        found.version[:_VERSION_BYTES],  # what is cut off makes no version that anybody has
        found.request_id,
        step,
        tuple([name for name in found.regions if name in regions]) if regions else (),
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


def _has_rows(route: ModelRoute | None) -> bool:
    """Whether the batch dimension of requests for a model is of interest: they are scheduled."""
    return route is not None and route.plan is not None and route.facts.is_decoupled is False
