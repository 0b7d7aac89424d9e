"""The life of one batch that runs as several, for both protocols.

It is held whole and read, and waits for room in memory for the answers to its parts. These run, and
their answers are joined. Long work is done in turns with that of others. What depends on the
protocol is left to a `BatchSide`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from lb.kserve.errors import meaning
from lb.kserve.inflation import GaveWay
from lb.kserve.merge.steps import Steps, finish
from lb.kserve.split.tensors import NotMerged, NotSplit, VersionsDiffer
from lb.net.steps import at_once, in_turns
from lb.proxy.exchange import Exchange, SplitHints
from lb.proxy.parts import RelayParts
from lb.proxy.split import (
    JOINED_AT_ONCE,
    HeldBytes,
    Part,
    Parts,
    SplitPlan,
    pinned,
    rows_text,
    units_at_once,
)
from lb.proxy.split_memory import BatchMemory, MemoryOwner
from lb.wire.memory_budget import Holder
from lb.wire.rope import Rope

_log = logging.getLogger(__name__)


class Cut(Protocol):
    """A batch that was read, and can be cut by rows."""

    @property
    def rows(self) -> int:
        """Rows of all inputs."""
        ...

    @property
    def part_units(self) -> int:
        """Microseconds at most to make a part."""
        ...


CutT = TypeVar("CutT", bound=Cut)
JoinedT = TypeVar("JoinedT")
ResultT = TypeVar("ResultT")


class BatchSide(Protocol[CutT, JoinedT]):
    """What one protocol does of a batch."""

    def read(self) -> Steps[CutT]:
        """Read the request, which is complete.

        Raises:
            NotSplit: it cannot be cut.
            GaveWay: the batch had to give way to others for want of memory.
        """
        ...

    def note(self, cut: CutT) -> bool:
        """Note what the request says, now that it is read. Returns False if the batch had to give
        way to others for want of memory."""
        ...

    def pass_on(self) -> None:
        """Have the request placed like any other, as it came; see `SplitBatch.give_back`."""
        ...

    def make_part(self, first: int, count: int) -> Part:
        """Make a part of `count` rows from row `first` on."""
        ...

    def join(self, parts: Sequence[Part]) -> tuple[Steps[JoinedT], int | None]:
        """Begin to join the answers to all parts.

        Returns:
            The work, which raises `NotMerged` where they cannot be joined, and `GaveWay`; and the
            bytes that it is about, None while they are not known.
        """
        ...

    def answer(self, joined: JoinedT) -> Holder | None:
        """Answer the batch. Returns what holds as much of that as its client does not read."""
        ...

    def not_joined(self, text: str, *, is_of_model: bool) -> None:
        """Answer that the answers cannot be joined, because of the model or of one of them."""
        ...

    def pin(self, cut: CutT, version: bytes) -> None:
        """Have the parts ask for a version of the model."""
        ...

    def fail(self) -> None:
        """Answer that something is wrong with ourselves."""
        ...

    def wake(self) -> None:
        """Others had their turns: time has passed."""
        ...


class SplitBatch(Generic[CutT, JoinedT]):
    """One batch that is cut, or may be."""

    __slots__ = (
        "_exchange", "_is_fresh", "_is_pinned", "_known_side", "_parts", "_plan", "_relay",
        "_splits", "_work", "cut", "held", "hints", "memory",
    )  # fmt: skip

    def __init__(
        self,
        side: BatchSide[CutT, JoinedT],
        exchange: Exchange,
        relay: RelayParts,
        owner: MemoryOwner,
        plan: SplitPlan | None,
    ) -> None:
        """
        Args:
            side: of its protocol.
            exchange: whose request it is.
            relay: parts of the process.
            owner: gives way when the memory is short.
            plan: how it is cut; None while nobody knows whether it is.
        """
        self._known_side: BatchSide[CutT, JoinedT] | None = side
        """None once the batch is over."""
        self._exchange = exchange
        self._relay = relay
        self._splits = relay.dispatcher.splits
        self._plan = plan
        self.hints = exchange.hints
        """The hints of the whole batch."""
        self.memory = BatchMemory(relay.memory_budget, owner)
        """What the request and the answers to its parts take."""
        self.held = HeldBytes(self.memory)
        """The request."""
        self.cut: CutT | None = None
        """The request once it is read."""
        self._is_fresh = True
        """The plan is of this iteration of the event loop."""
        self._is_pinned = False
        """Its parts ask for a version of the model, since several answered before."""
        self._parts: Parts | None = None
        self._work: asyncio.Task[None] | None = None
        """Reads a long request, or joins long answers."""

    @property
    def _side(self) -> BatchSide[CutT, JoinedT]:
        assert self._known_side is not None
        return self._known_side

    # The plan

    @property
    def is_planned(self) -> bool:
        """Whether it is known how it is cut."""
        return self._plan is not None

    @property
    def plan(self) -> SplitPlan:
        """How it is cut."""
        assert self._plan is not None
        return self._plan

    def use(self, plan: SplitPlan) -> None:
        """It is cut so."""
        self._plan = plan

    def age(self) -> None:
        """The iteration of the event loop ends in which it was planned. Others may come before it
        begins, so it is planned again then."""
        self._is_fresh = False

    def _plan_again(self) -> SplitPlan | None:
        return self._splits.plan(self._exchange, self.plan.rows, self.held.size)

    # The request

    def begin(self, size: int) -> None:
        """The request is complete.

        Args:
            size: bytes of it that are to be read.
        """
        side, work = self._side, self._read()
        try:
            cut = at_once(work, self._relay.iteration, units_at_once(size))
            if cut is None:
                self._do_in_turns("cut", work, self._begin_parts)
            else:
                self._begin_parts(cut)
        except Exception as error:
            self._on_error(side, error)

    def _read(self) -> Steps[CutT]:
        cut = yield from self._side.read()
        if cut.rows != self.plan.rows:
            raise NotSplit("inputs differ in their batch dimension")
        return cut

    def _do_in_turns(
        self, name: str, work: Steps[ResultT], then: Callable[[ResultT], None]
    ) -> None:
        """Do work while others have their turns. `close` ends it."""
        name = f"{name}:{self._exchange.operation.name}"
        self._work = self._relay.tasks.spawn(self._in_turns(work, then), name=name)

    async def _in_turns(self, work: Steps[ResultT], then: Callable[[ResultT], None]) -> None:
        side = self._side
        try:
            result = await in_turns(work, self._relay.iteration)
            self._end_work()
            then(result)
        except Exception as error:
            self._end_work()
            self._on_error(side, error)

    def _end_work(self) -> None:
        self._work = None
        if self._known_side is not None:
            self._known_side.wake()

    def _on_error(self, side: BatchSide[CutT, JoinedT], error: Exception) -> None:
        """A step of the batch cannot be done. It ends no more than the batch: steps begin where
        clients, backends or other batches have their turns.

        Args:
            side: of its protocol, also if the batch is over.
            error: why.
        """
        if isinstance(error, GaveWay):
            return
        if isinstance(error, NotSplit):
            side.pass_on()
        elif isinstance(error, NotMerged):
            self._not_merged(error)
        else:
            text = "a batch cannot be cut, or the answers to its parts not joined"
            _log.error(text, exc_info=error)
            side.fail()

    def _begin_parts(self, cut: CutT) -> None:
        exchange, plan = self._exchange, self.plan
        if not self._side.note(cut):
            return
        self.hints = exchange.hints
        self.cut = cut
        room = self._splits.room
        if room.begin(self.memory, exchange.model, plan.rows, must=plan.must):
            self._go_on(cut)
        elif plan.must:
            self._is_fresh = False
            go_on = partial(self._begin_late, cut)
            room.wait(self.memory, exchange.model, plan.rows, go_on, self._relay)
        else:
            self._side.pass_on()

    def _begin_late(self, cut: CutT) -> None:
        side = self._side
        side.wake()
        try:
            self._go_on(cut)
        except Exception as error:
            self._on_error(side, error)

    def _go_on(self, cut: CutT) -> None:
        """There is room for the answers to the parts."""
        if not self._is_fresh:
            now_best = self._plan_again()
            if now_best is None:
                self._side.pass_on()  # others have come since it began
                return
            self._plan = now_best
        self._splits.counts.batches += 1
        self._run(cut)

    def _run(self, cut: CutT) -> None:
        exchange, side, plan = self._exchange, self._side, self.plan
        made = []
        first = 0
        for count in plan.parts:
            made.append(side.make_part(first, count))
            first += count
        self._splits.counts.parts += len(made)
        exchange.hints = SplitHints(self.hints, len(made))
        exchange.may_have_run = True  # some of it, before an error of ours
        on_error = partial(self._on_error, side)
        budget = self._relay.iteration
        self._parts = Parts(made, plan.rule.at_once, budget, on_error, cut.part_units)
        self._parts.begin()

    # The parts

    def part_answered(self, count: int, size: int) -> None:
        """A part of so many rows has its answer, of so many bytes."""
        exchange, parts, side = self._exchange, self._parts, self._known_side
        self._splits.room.answered(exchange.model, count, size, self._relay)
        if exchange.finished or parts is None or side is None:
            return
        try:
            if parts.one_done():
                self._join(parts)
        except Exception as error:
            self._on_error(side, error)

    def _join(self, parts: Parts) -> None:
        work, size = self._side.join(parts.parts)
        budget = self._relay.iteration
        if size is None or size > JOINED_AT_ONCE or budget.left <= 0:
            self._do_in_turns("join", work, self._answer)
            return
        budget.spend(units_at_once(size))
        self._answer(finish(work))

    def _answer(self, joined: JoinedT) -> None:
        self._splits.fit(self._exchange.model, self.plan)
        holder = self._side.answer(joined)
        if holder is not None:
            self._splits.room.handed_over(holder, self._relay)

    def _not_merged(self, error: NotMerged) -> None:
        exchange, plan = self._exchange, self.plan
        if error.is_of_model:
            self._splits.unfit(exchange.model, plan, str(error))
        if not plan.must:
            exchange.hints = self.hints
            exchange.attempts = 0  # it is hedged and retried as if it had not been cut
            self._side.pass_on()
            return
        if isinstance(error, VersionsDiffer) and self._try_run_again(error.newest):
            return
        text = f"the answers to {len(plan.parts)} parts cannot be joined: {error}"
        self._side.not_joined(text, is_of_model=error.is_of_model)

    def _try_run_again(self, version: bytes) -> bool:
        """Run the batch once more, on the backends that have a version of the model: others had
        another one. False where it was, or its model cannot be cut any more."""
        cut = self.cut
        if self._is_pinned or not version or cut is None:
            return False
        now_best = self._plan_again()
        if now_best is None:
            return False
        self._drop_answers()
        self._is_pinned = True
        self._plan = now_best
        self.hints = pinned(self.hints, version)
        self._side.pin(cut, version)
        self._run(cut)
        return True

    def lacks_version(self, text: str) -> bool:
        """Whether an error of a backend says that nobody has the version any more that the parts
        ask for."""
        return self._is_pinned and meaning(text) is not None

    def error_text(self, first: int, count: int, text: str) -> str:
        """The text of an error of the batch which is that of a part."""
        return f"{rows_text(first, count, self.plan.rows)}: {text}"

    # Ends

    def cancel_parts(self) -> None:
        """Nobody wants answers to the parts any more."""
        if self._parts is not None:
            self._parts.cancel()

    def give_back(self) -> Rope:
        """Return the request as it came, of which nothing is held here any more."""
        data = self.held.rope()
        self.close()
        return data

    def close(self) -> None:
        """Leave nothing behind. Idempotent."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        self.cancel_parts()
        self._drop_answers()
        self._parts = None
        self._splits.room.leave(self.memory, self._relay)
        self.held.drop()
        self.cut = None
        self._known_side = None  # they point at each other

    def _drop_answers(self) -> None:
        for part in () if self._parts is None else self._parts.parts:
            part.drop_answer()
