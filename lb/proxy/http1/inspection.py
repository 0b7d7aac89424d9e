"""A second look at an inference's body, for what beside its model decides where it goes: the
sequence that it is a step of, and the shared memory that it names.

Only models that may be stateful, that are scheduled, or that not all backends have ready, need it.
Of a body with binary tensors only its JSON head is read. In one that is all JSON the parameters
stand behind the tensors, so such a request is held back until they have come; bodies of more than
`SMALL_BODY` are only when their model is known to be stateful. The beginning of a request for a
scheduled model is held back in any case. A compressed body is inflated as far as it is looked at, a
little at a time however short it is, and goes on as it came.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from lb.domain.pool import ModelRoute, Placements
from lb.domain.sequence import SequenceStep
from lb.kserve.inspect import Findings
from lb.kserve.json_parameters import ParametersScan
from lb.kserve.regions import http_regions
from lb.kserve.sequence import http_step, json_step
from lb.kserve.work import Work, json_priority, json_rows, json_work
from lb.net.iteration import IterationBudget
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.findings import note_findings
from lb.proxy.http1.heads import KnownRows, RequestPlan
from lb.wire.grpc.compression import GZIP_OR_ZLIB
from lb.wire.http1.body import Payload
from lb.wire.rope import Held, in_memory

SMALL_BODY: Final = 64 * 1024
"""Bytes of JSON that are looked at whatever the model."""
LARGE_BODY: Final = 64 * 2**20
"""Bytes of a body for a model that is known to be stateful; as much as Triton takes unless told
otherwise."""
LITTLE: Final = 64 * 1024
"""Bytes of a body that may be looked at in the iteration of the loop in which they came."""
ORDINARY: Final = 4 * 1024
"""Bytes of JSON that are looked at without counting against the budget of the iteration."""
INSPECTED_AT_ONCE: Final = 128 * 1024
"""Bytes of a body that are looked at in one go: a millisecond, whatever they are."""
_BYTES_PER_UNIT: Final = 128
"""Inspected bytes for a unit of `IterationBudget`. A KiB of JSON that is all keys takes 8 us,
one of numbers 2 us, and inflating one as much."""
FIRST_BYTES: Final = 16 * 1024
"""Bytes of JSON that are looked at for how much work a request is."""
_REMEMBERED: Final = 1024
"""Bytes of a body at most."""
_PATIENCE: Final = 16
"""Bodies that do not begin like the one that is remembered, before another one is."""
ENOUGH: Final = 32 * 1024
"""Bytes of small parts that are looked at in one turn, and of a compressed body."""
_HELD_BACK: Final = 32 * 1024
"""Bytes of a request for a scheduled model that must have come before it takes a place there, or
all of it: who sends a little and stops is not to take one."""


def count_inspected(iteration: IterationBudget, size: int) -> None:
    """Count so many inspected bytes against the budget of the iteration, unless they are few."""
    if size > ORDINARY:
        iteration.spend(size // _BYTES_PER_UNIT)


class BodyInspection:
    """Reads the body of an inference as it comes, as far as need be."""

    __slots__ = (
        "_inflater", "_keeps_text", "_left", "_scan", "_text", "held_back", "inflated", "rest",
        "size",
    )  # fmt: skip

    def __init__(
        self,
        json_size: int,
        limit: int,
        *,
        is_compressed: bool,
        keeps_text: bool,
        held_back: int = 0,
    ) -> None:
        """
        Args:
            json_size: how much of the body, not compressed, is JSON; -1 is all of it.
            limit: bytes of JSON that are looked at; 0: none.
            is_compressed: by gzip or zlib.
            keeps_text: regions of shared memory, or how much work it is, are of interest, too.
            held_back: bytes of the body that are held back in any case, unless it is shorter.
        """
        self._left = limit if json_size < 0 else min(json_size, limit)
        self._inflater = zlib.decompressobj(wbits=GZIP_OR_ZLIB) if is_compressed else None
        self._scan = ParametersScan()
        self._keeps_text = keeps_text
        self.held_back = held_back
        self.rest = b""
        """The end of the last part, if it is to be fed again: it inflates to more than is read at
        once."""
        self.size = 0
        """Bytes of JSON that were read."""
        self.inflated = 0
        """Compressed bytes that were inflated."""
        self._text = bytearray()
        """The JSON so far, if it is kept; of small bodies only."""

    def feed(self, piece: Payload) -> bool:
        """Take the next part of the body. True once more would change nothing."""
        if self._left and self._is_decided_by(piece):
            self._left = 0
            self.rest = b""
        return not self._left

    def _is_decided_by(self, piece: Payload) -> bool:
        inflater = self._inflater
        if inflater is None:
            return self._read(bytes(piece))
        try:
            # Not more than is looked at; and never 0, which is no limit at all.
            text = inflater.decompress(piece, max(1, min(INSPECTED_AT_ONCE, self._left)))
        except zlib.error:
            return True
        self.rest = inflater.unconsumed_tail
        self.inflated += len(piece) - len(self.rest)
        return self._read(text) or inflater.eof

    def is_costly(self, size: int) -> bool:
        """Whether to look at so many bytes more of the body counts against the budget of the
        iteration. A few compressed bytes may inflate to very many."""
        return size > 0 if self._inflater is not None else min(size, self._left) > ORDINARY

    @property
    def inspected(self) -> int:
        """Bytes that were inflated or read so far."""
        return self.size + self.inflated

    def first_of(self, pieces: Sequence[Held]) -> list[Payload]:
        """The beginning of a body, as far as it is looked at."""
        if self._inflater is not None:
            return in_memory(pieces)
        first: list[Payload] = []
        left = self._left
        for piece in pieces:
            if left <= 0:
                break
            first += in_memory([piece])
            left -= len(piece)
        return first

    def slices(self, piece: Payload) -> Iterator[memoryview]:
        """Cut a part of the body into what is fed at once."""
        step = INSPECTED_AT_ONCE if self._inflater is None else ENOUGH
        view = memoryview(piece)
        return (view[at : at + step] for at in range(0, len(view), step))

    def _read(self, text: bytes) -> bool:
        text = text[: self._left]
        self._left -= len(text)
        self.size += len(text)
        is_decided = self._scan.feed(text)
        if self._keeps_text:
            self._text += text
            is_decided = len(self._text) >= SMALL_BODY
        return is_decided or not self._left

    def step(self, model: bytes) -> SequenceStep | None:
        """The step that it is, as far as was read."""
        return json_step(self._scan.parameters, model)

    @property
    def regions(self) -> tuple[bytes, ...]:
        """The regions that it names, as far as was read."""
        return http_regions(bytes(self._text))

    @property
    def work(self) -> Work:
        """How much work it is, as far as was read."""
        return json_work(bytes(self._text))


def begin_inspection(
    plan: RequestPlan, route: ModelRoute | None, *, has_regions: bool
) -> BodyInspection | None:
    """A look at a body that comes in parts; None where there is nothing in it to look for, and its
    request need not be held back."""
    if not plan.is_inference:
        return None
    facts = None if route is None else route.facts
    is_stateful = None if facts is None else facts.is_stateful
    is_scheduled = route is not None and route.plan is not None
    limit = LARGE_BODY if is_stateful else SMALL_BODY
    if is_stateful is False and not has_regions:
        limit = FIRST_BYTES if is_scheduled and not plan.is_compressed else 0
    elif plan.json_size < 0 and not plan.is_compressed and plan.length > limit:
        limit = 0
    if not (limit or is_scheduled):
        return None
    return BodyInspection(
        plan.json_size,
        limit,
        is_compressed=plan.is_compressed and limit > 0,
        keeps_text=has_regions or is_scheduled,
        held_back=_HELD_BACK if is_scheduled else 0,
    )


def inspect_whole(
    exchange: Exchange,
    plan: RequestPlan,
    route: ModelRoute | None,
    regions: Mapping[bytes, Placements],
    body: bytes,
) -> bool:
    """Note what decides where a request goes that came in one read, not compressed.

    Returns:
        False where nothing was noted, since it takes so long that a `BodyInspection` is to wait for
        its turn.
    """
    # HOT PATH (benchmarks/bench_schedule.py). Of a model that has no sequences only the version is
    # noted, and of a scheduled one the work, in one go: the rows are known by how its JSON begins.
    # What follows is the reference.
    if (
        route is not None
        and route.plan is None
        and route.facts.is_stateful is False
        and not regions
    ):
        exchange.hints = RoutingHints(plan.route.version)
        return True
    if (
        route is not None
        and route.plan is not None
        and route.facts.is_stateful is False
        and not regions
        and plan.is_inference
        and plan.length <= SMALL_BODY
    ):
        head = body if plan.json_size < 0 else body[: plan.json_size]
        if plan.origin is not None:
            plan = plan.origin
        known = plan.known_rows
        if known is not None and head.startswith(known.head):
            hints = known.hints
        else:
            hints = _look_for_rows(plan, head)
        if b'"priority"' in head:
            rows, priority = hints.rows, json_priority(head)
            hints = RoutingHints(plan.route.version, rows, priority)
        exchange.hints = hints
        return True
    if plan.is_inference and (plan.length if plan.json_size < 0 else plan.json_size) > ORDINARY:
        return False
    if len(body) > SMALL_BODY:
        look = begin_inspection(plan, route, has_regions=bool(regions))
        if look is not None:
            any(map(look.feed, look.slices(body)))
        note(exchange, plan, route, regions, look)
        return True
    found = Findings(plan.route.version)
    head = b""
    if plan.is_inference:
        head = body if plan.json_size < 0 else body[: plan.json_size]
        if route is None or route.facts.is_stateful is not False:
            found.step = http_step(head, exchange.model)
        if regions:
            found.regions = http_regions(head)
    if route is not None and route.plan is not None:
        found.rows, found.priority = json_work(head)
    note_findings(exchange, found, route, regions, max(plan.length, exchange.bytes_in))
    return True


def _look_for_rows(plan: RequestPlan, head: bytes) -> RoutingHints:
    """The hints of an inference but for its priority. They are remembered by all up to the
    rows; where that is different each time, those of one now and then."""
    rows, end = json_rows(head)
    hints = RoutingHints(plan.route.version, rows)
    known = plan.known_rows
    if known is not None:
        known.misses += 1
    if 0 < end <= _REMEMBERED and (known is None or known.misses % _PATIENCE == 0):
        hints.is_shared = True
        plan.known_rows = KnownRows(head[:end], hints)
    return hints


def note(
    exchange: Exchange,
    plan: RequestPlan,
    route: ModelRoute | None,
    regions: Mapping[bytes, Placements],
    look: BodyInspection | None,
) -> None:
    """Note what a look at its body has found."""
    found = Findings(plan.route.version)
    if look is not None:
        if regions:
            found.regions = look.regions
        if route is None or route.facts.is_stateful is not False:
            found.step = look.step(exchange.model)
        if route is not None and route.plan is not None:
            found.rows, found.priority = look.work
    note_findings(exchange, found, route, regions, max(plan.length, exchange.bytes_in))
