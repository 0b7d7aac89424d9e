"""One batch over several backends: which batches are cut, and the parts of one.

A part is an exchange of its own for whoever places and retries it, and none for the client, for its
limits, and in the log: those know the whole. What is done with messages and bodies say
`lb.kserve.split`, `lb.proxy.http2.split_session` and `lb.proxy.http1.split_request`. What becomes
of a batch says `lb.proxy.split_batch`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from lb.domain.model import ModelFacts
from lb.domain.names import readable
from lb.domain.pool import PoolRef
from lb.net.iteration import IterationBudget
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.split_memory import AnswerRoom, BatchMemory
from lb.settings.model import Settings
from lb.settings.retry import RetryMode
from lb.settings.scheduling import SplitMode
from lb.telemetry.counts import SplitCounts
from lb.wire.http2.codec import COPY_BELOW
from lb.wire.memory_budget import MemoryBudget
from lb.wire.rope import Held, Rope, Stored, in_memory

_log = logging.getLogger(__name__)

_UNFIT_S: Final = 60.0
"""How long batches of a model are not cut whose answers could not be joined. Twice as long each
time that it turns out so again."""
_MAX_UNFIT_S: Final = 3600.0
_MAX_PARTS: Final = 1024
"""Parts of one batch, each of which costs as much as a request."""
_FREE_PARTS: Final = 128
"""Parts of one batch however short it is: a thousand rows for a model that takes eight. A message
of a few bytes could ask for any number otherwise."""
_BYTES_PER_PART: Final = 1024
"""Bytes of the batch for each further part."""
_WHOLE_S: Final = 0.25
"""How long batches stay whole without a plan, after one turned out not to be divided even by idle
backends."""
PARTS_PER_ITERATION: Final = 8
"""Parts of one batch that begin in one iteration of the event loop. A thousand at once would hold
up everybody else for a tenth of a second."""
_PART_UNITS: Final = 100
"""Work to begin one, in units of `IterationBudget`: about a microsecond each."""
_SHORT_BYTES: Final = 64 * 1024
"""Short payload is kept in pieces of about so many bytes."""
JOINED_AT_ONCE: Final = 16 * 1024
"""Bytes of answers that are joined in one loop iteration; more are joined in steps. JSON takes 60
to 250 ns per byte."""
_BYTES_PER_UNIT: Final = 4
"""Bytes of JSON that are read, or joined, in a unit of `IterationBudget`."""
TOO_LARGE: Final = "the batch is larger than models.NAME.split_max_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How batches of a model are cut."""

    at_once: int
    """Parts of one batch that are under way at most."""
    max_bytes: int
    """Bytes of the longest request that is cut, not compressed."""
    is_auto: bool = False
    """Also those that one backend would take, if the answer comes sooner."""


def split_rules(settings: Settings) -> dict[bytes, SplitRule]:
    """Read from settings which models' batches are cut, by name."""
    return {
        name.encode(): SplitRule(
            at_once=own.split_max,
            max_bytes=own.split_max_bytes,
            is_auto=own.split is SplitMode.AUTO,
        )
        for name, own in settings.models.items()
        if own.split is not SplitMode.OFF and own.retry is not RetryMode.NEVER
    }


def longest_batch(settings: Settings) -> int:
    """Bytes of the longest request of any model that is held whole to be cut; 0: none is."""
    return max((rule.max_bytes for rule in split_rules(settings).values()), default=0)


class Divider(Protocol):
    """Knows how a batch is best divided now."""

    def divide(
        self, exchange: Exchange, rows: int, size: int, facts: ModelFacts, most: int
    ) -> tuple[int, ...]:
        """Divide a batch among idle backends, if its answer comes sooner so.

        Args:
            exchange: the whole batch.
            rows: of it.
            size: its bytes.
            facts: of its model.
            most: parts at most.

        Returns:
            Rows of each part; nothing if it does not.
        """
        ...

    def may_divide(
        self, exchange: Exchange, rows: int, size: int, facts: ModelFacts, most: int
    ) -> bool:
        """Whether a batch would be divided if all backends were idle, as far as is known yet. See
        `divide`."""
        ...


class _Unfit(NamedTuple):
    """A model whose answers could not be joined."""

    facts: ModelFacts
    """What was known of it."""
    pause_s: float
    until: float
    """In monotonic seconds."""


class _Whole(NamedTuple):
    """Batches of a model that are not divided, however idle backends are."""

    rows: int
    """The most of one."""
    until: float
    """In monotonic seconds."""


class Splits:
    """What the relays of both protocols know of batches that are cut."""

    __slots__ = (
        "_clock", "_divider", "_fit", "_pool", "_unfit", "_whole", "counts", "room", "rules",
    )  # fmt: skip

    def __init__(
        self,
        pool: PoolRef,
        divider: Divider,
        clock: Callable[[], float],
        memory_budget: MemoryBudget,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._divider = divider
        self.rules: Mapping[bytes, SplitRule] = {}
        """By model; most have none."""
        self._fit: dict[bytes, ModelFacts] = {}
        """What was known of models whose answers to unequal parts could be joined."""
        self._unfit: dict[bytes, _Unfit] = {}
        """Models whose answers seem not to be by rows."""
        self._whole: dict[bytes, _Whole] = {}
        """By model, of requests that name no version."""
        self.counts = SplitCounts()
        self.room = AnswerRoom(memory_budget, clock)

    def configure(self, rules: Mapping[bytes, SplitRule]) -> None:
        """Go by these from now on."""
        self.rules = rules
        self._fit = {}
        self._unfit = {}
        self._whole = {}
        self.room.forget()

    def stays_whole(self, model: bytes, rows: int) -> bool:
        """Whether a batch of a model, which names no version of it, need not be planned: it stays
        whole."""
        # Once per small request of a model whose batches may be cut: as little as can be.
        if rows < 2:
            return True
        whole = self._whole.get(model)
        return whole is not None and rows <= whole.rows and self._clock() < whole.until

    def may_cut(self, model: bytes, rows: int) -> bool:
        """Whether a batch may be cut, now or another time, as far as its rows tell."""
        rule = self.rules.get(model)
        facts = self._facts(model)
        if rule is None or facts is None:
            return False
        return rows > (1 if rule.is_auto else facts.max_rows)

    def _facts(self, model: bytes) -> ModelFacts | None:
        """What is known of a model whose batches may be cut."""
        route = self._pool.current.routes.get(model)
        if route is None or not route.facts.max_rows:
            return None
        unfit = self._unfit.get(model)
        if unfit is not None and unfit.facts == route.facts and self._clock() < unfit.until:
            return None
        return route.facts

    def plan(self, exchange: Exchange, rows: int, size: int) -> SplitPlan | None:
        """How a batch is cut if it is cut now.

        Args:
            exchange: the whole batch, whose model is known.
            rows: of it.
            size: its bytes.

        Returns:
            None where it goes on as it is.
        """
        if rows < 2:
            return None
        model = exchange.model
        rule = self.rules.get(model)
        facts = self._facts(model)
        if rule is None or facts is None:
            return None
        limit = facts.max_rows
        must = rows > limit
        most = min(_MAX_PARTS, _FREE_PARTS + size // _BYTES_PER_PART)
        if rows > limit * most:
            return None
        is_scheduled = self._pool.current.routes[model].plan is not None
        if not (must or (rule.is_auto and is_scheduled)):
            self._whole[model] = _Whole(limit, self._clock() + _WHOLE_S)
            return None
        parts: tuple[int, ...] = ()
        if is_scheduled:
            parts = self._divider.divide(exchange, rows, size, facts, rule.at_once)
        if not parts:
            if not must:
                self._note_whole(exchange, rows, size, facts, rule)
                return None
            parts = even_parts(rows, limit)
        if self._fit.get(model) != facts:
            parts = unequal_parts(parts, limit)
        return SplitPlan(rule, facts, parts, is_scheduled=is_scheduled, must=must)

    def _note_whole(
        self, exchange: Exchange, rows: int, size: int, facts: ModelFacts, rule: SplitRule
    ) -> None:
        """Note that a batch stays whole, unless others of as many rows may be divided soon."""
        hints = exchange.hints
        if hints is not None and hints.version:
            return
        if not self._divider.may_divide(exchange, rows, size, facts, rule.at_once):
            self._whole[exchange.model] = _Whole(rows, self._clock() + _WHOLE_S)

    def fit(self, model: bytes, plan: SplitPlan) -> None:
        """Note that the answers to the parts of a batch could be joined."""
        if len(set(plan.parts)) > 1:
            self._fit[model] = plan.facts
            self._unfit.pop(model, None)

    def unfit(self, model: bytes, plan: SplitPlan, why: str) -> None:
        """Note that the answers to the parts of a batch are not by rows. No batch of the model is
        cut for a while; if some could be joined before, one answer was wrong, and nothing changes.
        """
        if self._fit.get(model) == plan.facts:
            return
        before = self._unfit.get(model)
        pause_s = _UNFIT_S
        if before is not None and before.facts == plan.facts:
            pause_s = min(2 * before.pause_s, _MAX_UNFIT_S)
        self._unfit[model] = _Unfit(plan.facts, pause_s, self._clock() + pause_s)
        self.counts.unfit += 1
        name = readable(model)
        fields = {"model": name, "why": why, "seconds": pause_s}
        _log.warning("batches of the model are not cut for a while", extra=fields)


def even_parts(rows: int, limit: int) -> tuple[int, ...]:
    """Rows of as few parts as `limit` rows in each allow, all of about the same size."""
    parts = -(-rows // limit)
    each, more = divmod(rows, parts)
    return tuple([each + (part < more) for part in range(parts)])


def unequal_parts(parts: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """Return the same parts, but not all of the same size: an output that has as many entries as
    each of them, whatever the batch, would seem to be one by rows."""
    first = parts[0]
    if len(parts) < 2 or parts[-1] != first or first == 1:
        return parts
    if first < limit:
        return (first + 1, *parts[1:-1], first - 1)
    return (*parts[:-1], first - 1, 1)


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How one batch is cut."""

    rule: SplitRule
    facts: ModelFacts
    """What is known of the model."""
    parts: tuple[int, ...]
    """Rows of each."""
    is_scheduled: bool
    """Parts take their turns with other requests of the model."""
    must: bool = True
    """No backend takes all of its rows at once."""

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(self.parts)


def part_hints(
    whole: RoutingHints | None, plan: SplitPlan, rows: int, size: int
) -> RoutingHints | None:
    """What decides where a part goes.

    Args:
        whole: the same of the whole batch.
        plan: how that is cut.
        rows: of the part.
        size: its bytes.
    """
    if whole is None and not plan.is_scheduled:
        return None
    hints = RoutingHints()
    if whole is not None:
        hints.version, hints.priority = whole.version, whole.priority
        hints.regions = whole.regions
    hints.rows = rows if plan.is_scheduled else 0
    hints.size = size
    return hints


def pinned(whole: RoutingHints | None, version: bytes) -> RoutingHints:
    """What decides where the parts of a batch go that all ask for a version of the model.

    Args:
        whole: the same of the whole batch, which asks for none.
        version: of the model.
    """
    found = RoutingHints(version)
    if whole is not None:
        found.priority, found.regions = whole.priority, whole.regions
    return found


class Part(Protocol):
    """Some rows of a batch, under way or not."""

    def begin(self) -> None:
        """Have it placed for the first time."""
        ...

    def cancel(self) -> None:
        """Nobody wants its answer any more. Nothing is to be left behind."""
        ...

    def drop_answer(self) -> None:
        """Hold nothing any more of its answer."""
        ...


class Parts:
    """The parts of one batch, in the order of their rows."""

    __slots__ = (
        "_at_once", "_begun", "_budget", "_done", "_is_due", "_is_over", "_on_error", "_units",
        "parts",
    )  # fmt: skip

    def __init__(
        self,
        parts: Sequence[Part],
        at_once: int,
        budget: IterationBudget,
        on_error: Callable[[Exception], None],
        units: int = 0,
    ) -> None:
        """
        Args:
            parts: in the order of their rows.
            at_once: how many are under way at most.
            budget: of work in one iteration of the event loop.
            on_error: told why a part cannot be made in a later iteration.
            units: of it to make a request of a part, beside what each part costs.
        """
        self._units = _PART_UNITS + units
        self.parts = parts
        self._at_once = at_once
        self._budget = budget
        self._on_error = on_error
        self._is_due = False
        """More begin in a later iteration."""
        self._begun = 0
        self._done = 0
        self._is_over = False

    def begin(self) -> None:
        """Begin as many as may be under way, some in each iteration of the event loop."""
        budget = self._budget
        left = 0 if self._is_due else PARTS_PER_ITERATION
        while (
            not self._is_over
            and self._begun < len(self.parts)
            and self._begun - self._done < self._at_once
        ):
            if not left or budget.left <= 0:
                self._go_on_later()
                return
            left -= 1
            budget.spend(self._units)
            self._begun += 1
            self.parts[self._begun - 1].begin()

    def _go_on_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._budget.later(self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        try:
            self.begin()
        except Exception as error:
            self._on_error(error)

    def one_done(self) -> bool:
        """One has been answered. Whether that was the last; otherwise others may begin."""
        self._done += 1
        if self._done == len(self.parts):
            self._is_over = True
            return True
        self.begin()
        return False

    def cancel(self) -> None:
        """End those that are under way, and begin no others."""
        if not self._is_over:
            self._is_over = True
            for part in self.parts[: self._begun]:
                part.cancel()


class HeldBytes:
    """A request or an answer that is held whole, in pieces as they were read. It is on the account
    of its batch."""

    __slots__ = ("_buffer", "_first_view", "_memory", "_pieces", "_short", "held", "size")

    def __init__(self, memory: BatchMemory) -> None:
        """
        Args:
            memory: of the batch.
        """
        self._memory = memory
        self.held = 0
        """Bytes of the account that are for this."""
        self._clear()

    def _clear(self) -> None:
        self._pieces: list[Held] = []
        """All pieces but `_short`, which comes behind them."""
        self._short = bytearray()
        """The last short pieces, copied into one: an object for each would take more memory than
        its bytes."""
        self._buffer: Any = None
        """The buffer of the last read, if the last pieces are views of it."""
        self._first_view = 0
        """Index of the first of these views."""
        self.size = 0
        """Bytes of all pieces."""

    def add(self, payload: Held) -> bool:
        """Hold one more piece. Returns False if the owner had to give way instead."""
        size = len(payload)
        if not size:
            return True
        if not self.charge(size):
            return False
        self.size += size
        if not isinstance(payload, bytes | memoryview):
            self._add_stored(payload)
            return True
        if size < COPY_BELOW:
            self._short += payload
            if len(self._short) >= _SHORT_BYTES:
                self._end_short()
            return True
        if self._short:
            self._end_short()
        buffer = payload.obj if isinstance(payload, memoryview) else None
        if buffer is not self._buffer:
            self._end_views()
            self._buffer = buffer
        self._pieces.append(payload)
        return True

    def charge(self, size: int) -> bool:
        """Count memory that these bytes need beside their own. Returns False if the owner had to
        give way instead."""
        if not self._memory.take(size):
            return False
        self.held += size
        return True

    def _add_stored(self, piece: Stored) -> None:
        """Hold a piece that is not in memory. It becomes one with the piece before it, if it lies
        right behind that."""
        if self._short:
            self._end_short()
        self._end_views()
        pieces = self._pieces
        last = pieces[-1] if pieces else b""
        both = None if isinstance(last, bytes | memoryview) else last.followed_by(piece)
        if both is None:
            pieces.append(piece)
        else:
            pieces[-1] = both
        self._first_view = len(pieces)

    def _end_short(self) -> None:
        """Make one piece of the short ones."""
        self._end_views()
        self._pieces.append(bytes(self._short))
        self._short = bytearray()
        self._first_view = len(self._pieces)

    def _end_views(self) -> None:
        """The next piece is no view of the last read. Copy the views of that if they have less than
        half of its bytes: each of them keeps the whole buffer in memory."""
        views = self._pieces[self._first_view :]
        if self._buffer is not None and 2 * sum(map(len, views)) < len(self._buffer):
            self._pieces[self._first_view :] = [b"".join(in_memory(views))]
        self._buffer = None
        self._first_view = len(self._pieces)

    def rope(self) -> Rope:
        """All pieces."""
        if self._short:
            self._end_short()
        self._end_views()
        return Rope(self._pieces)

    def drop(self) -> None:
        """Drop all pieces, and take them off the account."""
        self._clear()
        held, self.held = self.held, 0
        self._memory.release(held)


def units_at_once(size: int) -> int:
    """Units of `IterationBudget` for what is done at once with so many bytes, whether requests or
    answers. Longer ones are read in steps."""
    return min(size, JOINED_AT_ONCE) // _BYTES_PER_UNIT


def rows_text(first: int, count: int, rows: int) -> str:
    """Which rows of a batch a part has, for clients: the first row is 0."""
    return f"rows {first} to {first + count - 1} of {rows}"


def take_over_marks(whole: Exchange, part: Exchange) -> None:
    """The log shows of a batch when its first part was placed, who ran the last one that was
    placed, and the attempts at all parts."""
    whole.attempts += part.attempts
    if part.placed_at and (not whole.placed_at or part.placed_at < whole.placed_at):
        whole.placed_at = part.placed_at
    if part.backend is not None:
        whole.backend = part.backend
