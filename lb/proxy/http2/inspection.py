"""The inspection of the first message of a call, for what beside its model decides where it goes:
the model's version, the sequence that it is a step of, the shared memory that it names, and how
much work it is.

Only models that may be stateful, that are scheduled, or that not all backends have ready, need it.
Nothing is decoded; a compressed message is inflated as far as it is looked at, and goes on as it
came.
"""

from __future__ import annotations

from typing import Final

from lb.kserve.inspect import (
    MAX_FIELDS,
    MAX_TENSOR_FIELDS,
    Findings,
    inspect,
    inspect_quickly,
)
from lb.kserve.operations import MODEL_INFER
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.findings import note_findings
from lb.proxy.http2.connection import Http2Connection
from lb.wire.grpc.compression import inflated_start
from lb.wire.grpc.message import NAME_SEARCH_LIMIT, PREFIX_SIZE
from lb.wire.protobuf import FieldBudget

INSPECTED_BYTES: Final = 32 * 1024
"""Bytes of the first message that are held back at most; parameters take a few hundred. A message
for a scheduled model is held back until so much or all of it has come."""
SEQUENCE_ID: Final = b"sequence_id"
"""What says nothing of it is no step of a sequence."""
_INFLATED_BYTES: Final = (4 * 1024, 256 * 1024)
"""Bytes of a compressed message at first, and when that was too little."""
NAME_AT: Final = PREFIX_SIZE + 2
"""Where a name of one byte's length stands in a message."""
_FIELDS_PER_FRAME: Final = 24
"""Fields that take as long as a frame: a microsecond each, against 20 to 30."""
_BYTES_PER_FRAME: Final = 16 * 1024
"""Bytes that are inflated in that time."""


class Inspected:
    """What looking at one message costs: the fields that may be walked over, and those that were.

    A compressed message of a few bytes may take a millisecond, and a connection can bring
    hundreds in one read. So they count against what one read may bring before others have their
    turn, see `Http2Codec.inspected`.
    """

    __slots__ = ("_limit", "budget", "inflated")

    def __init__(self) -> None:
        self._limit = MAX_FIELDS
        self.budget = FieldBudget(MAX_FIELDS)
        self.inflated = 0
        """Bytes."""

    def count_tensors(self) -> None:
        """The fields of tensors will be walked over, too: the message may have more of them."""
        self.budget.left += MAX_TENSOR_FIELDS - self._limit
        self._limit = MAX_TENSOR_FIELDS

    @property
    def frames(self) -> int:
        """How many frames take as long to be handled."""
        seen = self._limit - self.budget.left
        return frames_of(seen) + frames_of_inflated(self.inflated)


def frames_of(fields: int) -> int:
    """How many frames take as long to be handled as so many fields."""
    return fields // _FIELDS_PER_FRAME


def frames_of_inflated(size: int) -> int:
    """How many frames take as long to be handled as so many bytes are inflated."""
    return size // _BYTES_PER_FRAME


def inspect_first(
    call: Exchange, connection: Http2Connection, data: bytes, *, is_all: bool
) -> bool:
    """Note in a call what decides where it goes. False while more of it is needed to tell.

    Args:
        call: whose model is set, unless its message is compressed.
        connection: of its client, on which what it costs is counted.
        data: the first bytes of the request, prefix included.
        is_all: there is no more to come.
    """
    # HOT PATH (benchmarks/bench_schedule.py). Of a small whole message of a scheduled model that
    # has no sequences the work is read by `inspect_quickly`. What follows is the reference.
    name = call.model
    relay = connection.relay
    snapshot = relay.dispatcher.pool.current
    route = snapshot.routes.get(name)
    regions = snapshot.regions
    if is_all and name and not regions:
        if route is None or route.is_plain:
            if name not in relay.split_models:
                relay.prefixes.learn(snapshot, data, name, is_plain=route is not None)
        elif (
            route.plan is not None
            and route.facts.is_stateful is False
            and call.operation is MODEL_INFER
            and data[NAME_AT - 1] == len(name)
            and (quick := inspect_quickly(data, NAME_AT + len(name))) is not None
        ):
            version, rows, priority, end = quick
            call.hints = hints = RoutingHints(version, rows, priority)
            may_be_cut = name in relay.split_models and relay.dispatcher.splits.may_cut(name, rows)
            if not (may_be_cut and version):
                relay.prefixes.learn_work(snapshot, data, name, hints, end, may_be_cut=may_be_cut)
            return True
    if not regions and route is not None and route.is_plain:
        return True
    may_wait = not is_all and len(data) < INSPECTED_BYTES
    if len(data) < PREFIX_SIZE:
        return not may_wait
    size = int.from_bytes(data[1:PREFIX_SIZE], "big")
    message = data[PREFIX_SIZE : PREFIX_SIZE + size]
    is_there = len(message) == size or not may_wait
    if is_there and route is None and not (data[0] or regions or SEQUENCE_ID in message):
        return True  # of a model without a route only a sequence is of interest
    is_inference = call.operation is MODEL_INFER
    is_scheduled = route is not None and route.plan is not None
    if is_inference and not is_there and (regions or is_scheduled or data[0]):
        # Who sends a little and stops is not to take a place of a scheduled model. A compressed
        # message may be for one.
        return False
    cost = Inspected()
    found = inspect_message(
        message,
        size,
        cost,
        is_compressed=bool(data[0]),
        with_rows=is_inference and (data[0] != 0 or is_scheduled),
        with_regions=is_inference and bool(regions),
    )
    connection.inspected += cost.frames
    if may_wait and not found.is_complete:
        return False
    if data[0] and len(found.model) <= NAME_SEARCH_LIMIT:
        call.model = found.model
        route = snapshot.routes.get(found.model)
    if not is_inference:
        found.step = None
    note_findings(call, found, route, regions, PREFIX_SIZE + size)
    return True


def inspect_message(
    message: bytes,
    size: int,
    cost: Inspected,
    *,
    is_compressed: bool,
    with_rows: bool,
    with_regions: bool,
    only_names: bool = False,
) -> Findings:
    """What a message says, see `inspect`.

    Args:
        message: what has come of it, without its prefix.
        size: bytes of all of it, as its prefix announces.
        cost: where to note what it costs.
        is_compressed: by gzip or zlib.
        with_rows: find the rows.
        with_regions: find the regions.
        only_names: as for `inspect`; not of a compressed one.
    """
    if with_regions:
        cost.count_tensors()
    if not is_compressed:
        return inspect(
            message,
            size,
            cost.budget,
            with_rows=with_rows,
            with_regions=with_regions,
            only_names=only_names,
        )
    found = Findings()
    for limit in _INFLATED_BYTES:
        text, full_size = inflated_start(message, limit)
        cost.inflated += len(text)
        found = inspect(
            text, full_size, cost.budget, with_rows=with_rows, with_regions=with_regions
        )
        if found.is_complete or len(text) < limit:
            break
    return found
