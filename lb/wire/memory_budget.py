"""One account of all payload bytes that the process holds, with a ceiling.

Invariant: `held` never passes `ceiling`. This order decides who gives way, so that one client
cannot starve the others:

1. `spares`, whose bytes nobody waits for, before memory becomes short.
2. Holders of more than `relayed_at_most`, the largest first, before memory becomes short. Their
   bytes are held whole: no credit that is withheld makes them fewer.
3. While memory is short, new requests are refused and credit is withheld. Most holders that are
   left become smaller then.
4. When a request is refused, the bytes of all holders are added up by client and by connection
   (`make_room_for`). Who holds far more than the refused one gives way until there is room: a
   thousand small holders of one client count as a large one.
5. At the ceiling the largest holder gives way, even if it is the one that asks for more.

So a request should be one holder, whatever it consists of. Transport write buffers are not counted:
they are bounded by their water marks.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable
from typing import Final, NamedTuple, Protocol, TypeAlias

Seat: TypeAlias = tuple[Hashable, Hashable]
"""A client, and one of its connections."""

_KEPT_SHARES: Final = 32
"""A client, or a connection, keeps one of so many parts of the ceiling, whatever others need. By
default that is as much as a request that is relayed can hold (`MemoryBudget.relayed_at_most`)."""
_KEPT_SHARES_LATER: Final = 1024
"""What each keeps is one of so many parts once memory has been short for long: half a megabyte by
default, several usual requests. Dozens of connections with some megabytes each may be what keeps
all others out."""
_FAR_MORE: Final = 8
"""One gives way that holds so many times the bytes of one that is refused. Clients that load the
process alike do not push each other out."""
_COUNTED_AT_ONCE: Final = 500
"""Holders that are looked at in a step: about a millisecond."""
_EVICTED_AT_ONCE: Final = 25
"""Holders that give way in a step: about a millisecond."""


class Payer(Protocol):
    """A request of a client, or its connection: bytes are held on its behalf."""

    @property
    def client_key(self) -> Hashable:
        """Tells clients apart."""
        ...

    @property
    def client_connection(self) -> Hashable:
        """The connection that the request came over; None once the client has left."""
        ...


class Holder(Protocol):
    """Something that holds bytes and can be told to let go of them all."""

    held: int
    """Bytes on this holder's account; written by the memory budget only."""

    def evict(self) -> None:
        """End the work that needs these bytes and release them (`MemoryBudget.release`)."""
        ...

    @property
    def charged_to(self) -> Payer | None:
        """On whose behalf it holds them; None where that is no client, or not known."""
        ...


class Room(NamedTuple):
    """What was done to make room."""

    greedy: tuple[Hashable, ...]
    """Who had to give way: clients, and seats."""
    evicted: int
    """Holders of theirs."""
    size: int
    """Bytes that these held."""


def seat_of(payer: Payer) -> Seat:
    """Find the client of a request, and its connection."""
    return payer.client_key, payer.client_connection


class _Share:
    """What a client, or one of its connections, holds."""

    __slots__ = ("held", "largest")

    def __init__(self) -> None:
        self.held = 0
        """Bytes of all its holders."""
        self.largest = 0
        """Bytes of one of them."""

    def add(self, size: int) -> None:
        """Add a holder."""
        self.held += size
        self.largest = max(self.largest, size)


class MemoryBudget:
    """Counts bytes held. Callers `take` before they keep payload and `release` after."""

    __slots__ = (
        "_holders", "_large", "ceiling", "evictions", "held", "keep_up_to", "relayed_at_most",
        "roomy_at", "short_at", "shortages", "spares", "unkept",
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
        self.roomy_at = self.short_at - ceiling // 8
        """Down to here holders give way once they must, so that this is not soon needed again."""
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
        """Make the largest holders give way until there is room for a while."""
        for holder in sorted(self._holders, key=_held, reverse=True):
            if self.held <= self.roomy_at:
                return
            if holder.held:
                self.evict_holder(holder)

    def make_room_for(
        self, refused: Collection[Seat], *, is_long: bool = False
    ) -> Generator[None, None, Room]:
        """Make clients give way that hold far more than one of whom a request was refused because
        memory is short, and connections that hold far more than another one of their client.

        Each keeps as much as its largest holder, and `1 / _KEPT_SHARES` of the ceiling at least.
        Once memory has been short for long it keeps `1 / _KEPT_SHARES_LATER`: its largest holder
        might have ended soon, but does not. Those that hold most give way first, and of their
        holders those that began to hold bytes last: the others are nearer to their end. It yields
        between steps of about a millisecond.

        Args:
            refused: whose requests were refused. More may be added while it counts.
            is_long: memory has been short for long, without a break.
        """
        if not self.is_short:
            return Room((), 0, 0)
        holders = tuple(self._holders)
        clients: dict[Hashable, _Share] = {}
        seats: dict[Seat, _Share] = {}
        for count, holder in enumerate(holders, 1):
            payer = holder.charged_to
            if payer is not None:
                seat = seat_of(payer)
                if seat not in seats:
                    seats[seat] = _Share()
                    clients.setdefault(seat[0], _Share())
                seats[seat].add(holder.held)
                clients[seat[0]].add(holder.held)
            if not count % _COUNTED_AT_ONCE:
                yield
        excess = self._excess(clients, seats, refused, is_long=is_long)
        greedy = tuple(excess)
        evictions, held = self.evictions, self.held
        for count, holder in enumerate(reversed(holders) if excess else (), 1):
            payer = holder.charged_to if holder.held else None
            if payer is not None and self._take_excess(holder, seat_of(payer), excess):
                if not excess:
                    break
                if not (self.evictions - evictions) % _EVICTED_AT_ONCE:
                    yield
            if not count % _COUNTED_AT_ONCE:
                yield
        return Room(greedy, self.evictions - evictions, held - self.held)

    def _excess(
        self,
        clients: dict[Hashable, _Share],
        seats: dict[Seat, _Share],
        refused: Collection[Seat],
        *,
        is_long: bool,
    ) -> dict[Hashable, int]:
        """How many bytes each client, and each seat, is to give up; nothing without shortage."""
        none = _Share()
        fewest = min([clients.get(client, none).held for client, _ in refused], default=self.held)
        greedy: list[tuple[Hashable, _Share]] = [
            (client, share) for client, share in clients.items() if share.held >= _FAR_MORE * fewest
        ]
        fewest_of: dict[Hashable, int] = {}
        for seat in refused:
            size = seats.get(seat, none).held
            fewest_of[seat[0]] = min(fewest_of.get(seat[0], size), size)
        greedy_seats: list[tuple[Hashable, _Share]] = [
            (seat, share)
            for seat, share in seats.items()
            if seat[0] in fewest_of and share.held >= _FAR_MORE * fewest_of[seat[0]]
        ]
        excess: dict[Hashable, int] = {}
        wanted = self.held - self.roomy_at if self.is_short else 0
        for some in (greedy, greedy_seats):
            for key, share in sorted(some, key=_share_held, reverse=True):
                if is_long:
                    kept = self.ceiling // _KEPT_SHARES_LATER
                else:
                    kept = max(share.largest, self.ceiling // _KEPT_SHARES)
                surplus = share.held - kept
                if surplus > 0 and wanted > 0:
                    excess[key] = min(surplus, wanted)
                    wanted -= excess[key]
        return excess

    def _take_excess(self, holder: Holder, seat: Seat, excess: dict[Hashable, int]) -> bool:
        """Make a holder give way if its client or its connection is still to give up bytes."""
        keys: list[Hashable] = [key for key in (seat[0], seat) if key in excess]
        if not keys:
            return False
        before = self.held
        self.evict_holder(holder)
        for key in keys:
            excess[key] -= before - self.held
            if excess[key] <= 0:
                del excess[key]
        return True

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

    @property
    def charged_to(self) -> Payer | None:
        """See `Holder`: many clients have these bytes."""
        return None


def _share_held(each: tuple[Hashable, _Share]) -> int:
    return each[1].held


def _held(holder: Holder) -> int:
    return holder.held
