"""One account of all payload bytes that the process holds, with a ceiling.

Invariant: `held` never passes `ceiling`. This order decides who gives way, so that one client
cannot starve the others:

1. `spares`, whose bytes nobody waits for, before memory becomes short.
2. Holders of more than `relayed_at_most`, the largest first, before memory becomes short. Their
   bytes are held whole: no credit that is withheld makes them fewer.
3. While memory is short, new requests are refused and credit is withheld. Most holders that are
   left become smaller then.
4. At the ceiling the largest holder gives way, even if it is the one that asks for more.

So a request should be one holder, whatever it consists of. Transport write buffers are not counted:
they are bounded by their water marks.
"""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """Something that holds bytes and can be told to let go of them all."""

    held: int
    """Bytes on this holder's account; written by the memory budget only."""

    def evict(self) -> None:
        """End the work that needs these bytes and release them (`MemoryBudget.release`)."""
        ...


class MemoryBudget:
    """Counts bytes held. Callers `take` before they keep payload and `release` after."""

    __slots__ = (
        "_holders", "_large", "ceiling", "evictions", "held", "keep_up_to", "relayed_at_most",
        "short_at", "shortages", "spares", "unkept",
    )  # fmt: skip

    def __init__(self, ceiling: int) -> None:
        self.held = 0
        self.resize(ceiling)
        self.relayed_at_most = ceiling
        """Bytes that a request holds at most which is relayed as it comes."""
        self.evictions = 0
        """How often a holder had to give way."""
        self.shortages = 0
        """How often it became short; while it is short and this stays, it always was."""
        self.unkept = 0
        """How often something was not kept because much is held."""
        self.spares: tuple[Holder, ...] = ()
        """Give way before memory becomes short: nobody waits for what they hold."""
        self._holders: dict[Holder, None] = {}
        self._large: dict[Holder, None] = {}
        """Holders that hold, or held, more than `relayed_at_most`. They are few, so that nobody
        looks through all holders whenever memory becomes short."""

    def __len__(self) -> int:
        return len(self._holders)

    def resize(self, ceiling: int) -> None:
        """Have another ceiling. While more than that is held, the largest holders give way as soon
        as anybody takes more."""
        self.ceiling = ceiling
        self.short_at = ceiling - ceiling // 8
        """From here on new work should be refused and credit withheld."""
        self.keep_up_to = ceiling // 2
        """Up to here bytes may be kept that nobody waits for."""

    @property
    def is_short(self) -> bool:
        """Whether new work should be refused and credit withheld."""
        return self.held >= self.short_at

    def admit_kept(self, size: int) -> bool:
        """Admit bytes that are kept only to be sent once more, perhaps, if there is room: they
        leave half of it to what waits. They are to be taken then. False is counted."""
        if self.held + size <= self.keep_up_to:
            return True
        self.unkept += 1
        return False

    def take(self, holder: Holder, size: int) -> bool:
        """Put `size` bytes on the holder's account. False when it was evicted instead."""
        if self.held + size >= self.short_at and not self._make_room(holder, size):
            return False
        self.held += size
        if not holder.held:
            self._holders[holder] = None
        holder.held += size
        if holder.held > self.relayed_at_most:
            self._large[holder] = None
        return True

    def _make_room(self, holder: Holder, size: int) -> bool:
        """Make holders give way for so many bytes that another holder takes, and note a shortage.
        False when it was evicted itself."""
        while self.held + size >= self.short_at:
            if self._give_up_spares():
                continue
            among = self._large if self.held + size <= self.ceiling else self._holders
            largest = max(among, key=_held, default=holder)
            most = largest.held
            if most < holder.held + size:
                largest, most = holder, holder.held + size
            if self.held + size <= self.ceiling and most <= self.relayed_at_most:
                break
            self.evict_holder(largest)
            if largest is holder:
                return False
        if self.held < self.short_at <= self.held + size:
            self.shortages += 1
        return True

    def evict_holder(self, holder: Holder) -> None:
        """Make a holder give way."""
        self.evictions += 1
        holder.evict()
        if holder.held:
            raise RuntimeError(f"{holder!r} was evicted and still holds bytes")

    def _give_up_spares(self) -> bool:
        """Give up what is held and nobody waits for. Returns whether there was something."""
        is_given_up = False
        for spare in self.spares:
            if spare.held:
                spare.evict()
                is_given_up = True
        return is_given_up

    def relieve(self) -> None:
        """Make the largest holders give way until it is short no more."""
        while self.is_short:
            self.evict_holder(max(self._holders, key=_held))

    def release(self, holder: Holder, size: int) -> None:
        """Take `size` bytes off the holder's account."""
        holder.held -= size
        self.held -= size
        if not holder.held:
            self._holders.pop(holder, None)
            if self._large:
                self._large.pop(holder, None)


class SharedBytes(MemoryBudget):
    """Bytes that many holders have in common: in the memory budget once, as long as one has some of
    them.

    It stands in the place of the memory budget for those holders. When the memory budget wants the
    bytes back, all of them give way.
    """

    __slots__ = ("_memory_budget", "_size")

    def __init__(self, memory_budget: MemoryBudget, size: int) -> None:
        """
        Args:
            memory_budget: the account.
            size: bytes that all have in common.
        """
        super().__init__(memory_budget.ceiling)
        self._memory_budget = memory_budget
        self._size = size

    @property
    def is_short(self) -> bool:
        """See `MemoryBudget`."""
        return self._memory_budget.is_short

    def admit_kept(self, size: int) -> bool:
        """See `MemoryBudget`."""
        return self._memory_budget.admit_kept(size)

    def take(self, holder: Holder, size: int) -> bool:
        """See `MemoryBudget`."""
        if not self._holders and not self._memory_budget.take(self, self._size):
            holder.evict()
            return False
        self._holders[holder] = None
        holder.held += size
        return True

    def release(self, holder: Holder, size: int) -> None:
        """See `MemoryBudget`."""
        holder.held -= size
        if not holder.held:
            self._holders.pop(holder, None)
            if not self._holders:
                self._memory_budget.release(self, self.held)

    def evict(self) -> None:
        """See `Holder`."""
        for holder in tuple(self._holders):
            holder.evict()


def _held(holder: Holder) -> int:
    return holder.held
