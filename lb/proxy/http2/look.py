"""A second look at the first message of a call, for what beside its model decides where it goes:
the model's version, the sequence that it is a step of, the shared memory that it names.

Only models that may be stateful, or that not all backends have ready, need it. Nothing is decoded;
a compressed message is inflated as far as it is looked at, and goes on as it came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lb.domain.pool import ModelRoute, PoolSnapshot
from lb.kserve.operations import MODEL_INFER
from lb.kserve.regions import MAX_ROUTING_FIELDS, grpc_regions
from lb.kserve.sequence import MAX_FIELDS, Asked, Incomplete, grpc_asked
from lb.kserve.work import grpc_work, quick_look
from lb.proxy.exchange import Particulars, Queued
from lb.wire.grpc.compression import inflated_start
from lb.wire.grpc.message import NAME_SEARCH_LIMIT, PREFIX_SIZE
from lb.wire.protobuf import FieldBudget

if TYPE_CHECKING:
    from lb.proxy.http2.call import Call
    from lb.proxy.http2.models import KnownWork

LOOK_BYTES: Final = 32 * 1024
"""Of the first message that are held back at most; parameters take a few hundred."""
_INFLATED_BYTES: Final = (4 * 1024, 256 * 1024)
"""Of a compressed message at first, and when that was too little."""
_ID: Final = b"sequence_id"
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

    __slots__ = ("asked", "inflated", "regions", "work")

    def __init__(self) -> None:
        self.asked = FieldBudget(MAX_FIELDS)
        self.regions = FieldBudget(MAX_ROUTING_FIELDS)
        self.work = FieldBudget(MAX_FIELDS)
        self.inflated = 0
        """Bytes."""

    @property
    def frames(self) -> int:
        """How many frames take as long to be handled."""
        left = self.asked.left + self.regions.left + self.work.left
        seen = 2 * MAX_FIELDS + MAX_ROUTING_FIELDS - left
        return frames_of(seen) + self.inflated // _BYTES_PER_FRAME


def frames_of(fields: int) -> int:
    """How many frames take as long to be handled as so many fields."""
    return fields // _FIELDS_PER_FRAME


def look_closer(call: Call, data: bytes, route: ModelRoute | None, *, is_all: bool) -> bool:
    """Note in a call what decides where it goes. False while more of it is needed to tell.

    Args:
        call: whose model is set, unless its message is compressed.
        data: the first bytes of the request, prefix included.
        route: of the model.
        is_all: there is no more to come.
    """
    snapshot = call.relay.dispatcher.pool.current
    may_wait = not is_all and len(data) < LOOK_BYTES
    if len(data) < PREFIX_SIZE:
        return not may_wait
    size = int.from_bytes(data[1:PREFIX_SIZE], "big")
    message = data[PREFIX_SIZE : PREFIX_SIZE + size]
    is_there = len(message) == size or not may_wait
    if is_there and route is None and not (data[0] or snapshot.regions or _ID in message):
        return True  # of a model without a route only a sequence is of interest
    cost = Inspected()
    try:
        message, size, asked = read_asked(message, size, cost, is_compressed=bool(data[0]))
    except Incomplete:
        if may_wait:
            call.server.inspected += cost.frames
            return False
        asked = Asked(call.model, b"", None)
    if data[0] and len(asked.model) <= NAME_SEARCH_LIMIT:
        call.model = asked.model
        route = snapshot.routes.get(asked.model)
    regions: tuple[bytes, ...] = ()
    if snapshot.regions and call.operation is MODEL_INFER:
        if len(message) < size and may_wait:
            call.server.inspected += cost.frames
            return False
        regions = known_regions(message, snapshot, cost)
    step = asked.step
    if call.operation is not MODEL_INFER or (route and route.facts.is_stateful is False):
        step = None
    if step is not None or regions or (route is not None and not route.is_plain):
        call.particulars = particulars = Particulars(asked.version)
        particulars.step = step
        particulars.regions = regions
        if route is not None and route.plan is not None and step is None and _may_wait(call):
            work = grpc_work(message, cost.work)
            particulars.queued = Queued(work.rows, work.priority, size)
    call.server.inspected += cost.frames
    return True


def known_regions(message: bytes, snapshot: PoolSnapshot, cost: Inspected) -> tuple[bytes, ...]:
    """The regions that a message names and that some backend has."""
    return tuple([
        name for name in grpc_regions(message, cost.regions) if name in snapshot.regions
    ])  # fmt: skip


def look_again(call: Call, known: KnownWork, payload: bytes) -> bool:
    """As `look_quickly`, for a message that begins like an earlier one; False: it does not."""
    # HOT PATH (benchmarks/bench_schedule.py). One comparison of bytes; `look_quickly` is the
    # reference.
    if call.operation is not MODEL_INFER or not payload.startswith(known.head):
        return False
    queued = Queued(known.rows, known.priority, len(payload) - PREFIX_SIZE)
    call.particulars = Particulars(known.version, queued)
    return True


def look_quickly(call: Call, snapshot: PoolSnapshot, payload: bytes) -> bool:
    """Note how much work a small whole message is, of a model that is scheduled and has no
    sequences. False where `look_closer` has to.

    Args:
        call: whose model is known.
        snapshot: the pool.
        payload: the message with its prefix, and a name of one byte's length.
    """
    # HOT PATH (benchmarks/bench_schedule.py). `look_closer` is the reference.
    name = call.model
    if payload[0] or call.operation is not MODEL_INFER:
        return False
    found = quick_look(payload, PREFIX_SIZE + 2 + len(name))
    if found is None:
        return False
    call.relay.models.learn_work(snapshot, payload, name, found)
    version, rows, priority, _ = found
    call.particulars = Particulars(version, Queued(rows, priority, len(payload) - PREFIX_SIZE))
    return True


def _may_wait(call: Call) -> bool:
    return call.may_wait and call.operation is MODEL_INFER


def read_asked(
    message: bytes, size: int, cost: Inspected, *, is_compressed: bool
) -> tuple[bytes, int, Asked]:
    """What a message asks for, with as much of it as was read and the size of all of it.

    Raises:
        Incomplete: too little of it has come.
    """
    if not is_compressed:
        return message, size, grpc_asked(message, size, cost.asked)
    for limit in _INFLATED_BYTES:
        text, full_size = inflated_start(message, limit)
        cost.inflated += len(text)
        try:
            return text, full_size, grpc_asked(text, full_size, cost.asked)
        except Incomplete:
            if len(text) < limit:
                break
    raise Incomplete
