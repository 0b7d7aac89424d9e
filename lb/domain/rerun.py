"""How often requests that may have run go again: a budget, what a dead backend had, and no more for
models that kill.

Re-runs are work that the clients did not ask for: when everything fails they would multiply it.
And a request may be what the server died of.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

_MEMORY_S: Final = 10.0
"""The budget of this time may be spent at once: all that ran on a server is lost in one moment."""
_RATE_S: Final = 1.0
"""The rate of requests is taken over so long at least."""
_BLOCK_S: Final = 30.0
"""So long nothing of a model runs again after its requests seem to have killed two servers."""
_SEEN_S: Final = 0.1
"""What is sent to a server so soon after it died is its victim, too: what waited for its turn goes
where places have become free, until closed ports are seen."""
_LOST_AT_ONCE_S: Final = 1.0
"""All that a backend had is lost within this time, once its connections begin to end."""
_MAX_MODELS: Final = 1000
_MAX_CLIENTS: Final = 1000
"""Clients whose spending is remembered; that of others counts as none."""


class RerunBudget:
    """A share of all requests, and a few in any case.

    Args:
        share: of requests; 0.2 is one re-run for five requests.
        floor: re-runs a second that are always there.
        now: monotonic seconds.
    """

    __slots__ = ("_at", "_cap", "_seen", "_spent", "_tokens", "floor", "share")

    def __init__(self, share: float, floor: float, now: float) -> None:
        self.share = share
        self.floor = floor
        self._at = now
        self._seen = 0
        self._spent = 0
        self._cap = self._tokens = floor * _MEMORY_S

    def configure(self, share: float, floor: float) -> None:
        """Go by another share and floor. What was saved up by others is forgotten."""
        if (share, floor) != (self.share, self.floor):
            self.share, self.floor = share, floor
            self._cap = self._tokens = floor * _MEMORY_S

    def take(self, attempts: int, now: float, count: int = 1) -> bool:
        """Spend some for one attempt, if there are so many.

        Args:
            attempts: at all backends since they are known; re-runs are among them.
            now: monotonic seconds.
            count: requests of that attempt.
        """
        if self.left(attempts, now) < count:
            return False
        self._tokens -= count
        self._spent += 1
        return True

    def left(self, attempts: int, now: float) -> float:
        """How many there are; see `take`."""
        elapsed = now - self._at
        if elapsed >= _RATE_S:
            self._refill(attempts, elapsed)
            self._at = now
        return self._tokens

    def overdraw(self) -> None:
        """One was spent that is not in this budget: it earns nothing, as others do not."""
        self._spent += 1

    def give_back(self) -> None:
        """What was spent last was of no use."""
        self._tokens += 1.0
        self._spent -= 1

    def _refill(self, attempts: int, elapsed: float) -> None:
        # Backends that left took their counts along.
        requests = max(0, attempts - self._seen - self._spent)
        self._seen, self._spent = attempts, 0
        earned = self.share * requests + self.floor * elapsed
        self._cap = earned / elapsed * _MEMORY_S
        self._tokens = min(self._tokens + earned, self._cap)


class FairRerunBudget:
    """A budget for all clients, and a reserve for those that have not used it up.

    The reserve is what the floor earns. Nobody spends of it who has spent as much lately, of both,
    as is left in it. So a client whose requests always fail spends the budget and then no more, and
    others still have their requests run again when a backend dies. A client that is alone has the
    whole budget.
    """

    __slots__ = ("_budget", "_reserve", "_spent")

    def __init__(self, share: float, floor: float, now: float) -> None:
        """See `RerunBudget`."""
        self._budget = RerunBudget(share, floor, now)
        self._reserve = RerunBudget(0.0, floor, now)
        self._spent: dict[Hashable, tuple[float, float]] = {}
        """By client: how many, and when the last one. They count less and less for ten seconds."""

    @property
    def share(self) -> float:
        """That of the budget."""
        return self._budget.share

    @property
    def floor(self) -> float:
        """Re-runs a second that are always there, in the budget and in the reserve."""
        return self._budget.floor

    def configure(self, share: float, floor: float) -> None:
        """Go by another share and floor; see `RerunBudget.configure`."""
        self._budget.configure(share, floor)
        self._reserve.configure(0.0, floor)

    def take(self, client: Hashable, attempts: int, now: float, count: int = 1) -> bool:
        """Spend some, if there are so many for a client; see `RerunBudget.take`."""
        spent, at = self._spent.get(client, (0.0, now))
        spent *= max(1.0 - (now - at) / _MEMORY_S, 0.0)
        if not self._budget.take(attempts, now, count):
            if spent + count - 1 >= self._reserve.left(0, now):
                return False
            self._reserve.take(0, now, count)
            self._budget.overdraw()
        if client not in self._spent and len(self._spent) >= _MAX_CLIENTS:
            self._spent = {
                each: last for each, last in self._spent.items() if now < last[1] + _MEMORY_S
            }
        if client in self._spent or len(self._spent) < _MAX_CLIENTS:
            self._spent[client] = (spent + count, now)
        return True


class DeathGrants:
    """Re-runs of what was under way on a backend that died, beside the budget.

    All requests of a dead backend are lost in one moment, however long they have been under way.
    Within ten seconds a backend grants as many re-runs as it had requests in flight at most when
    it lost one. So one that dies again and again grants no more, and a connection that was reset
    before takes one place only. A stream counts as one in flight: its other requests are added, if
    they are lost in the first second.
    """

    __slots__ = ("_grants",)

    def __init__(self) -> None:
        self._grants: dict[Hashable, _Grant] = {}

    def take(self, backend: Hashable, in_flight: int, now: float, count: int = 1) -> bool:
        """Spend one for each lost request, if there are so many.

        Args:
            backend: which lost a request, or a stream of them.
            in_flight: its requests that were under way then, the lost one or its stream included.
            now: monotonic seconds.
            count: requests that were lost with it.
        """
        grant = self._grants.get(backend)
        if grant is None or now >= grant.until:
            # Backends that left must not stay here.
            self._grants = {each: old for each, old in self._grants.items() if now < old.until}
            grant = self._grants[backend] = _Grant(now + _MEMORY_S)
        grant.most = max(grant.most, in_flight)
        if now < grant.until - _MEMORY_S + _LOST_AT_ONCE_S:
            grant.beside += count - 1
        if grant.spent + count > grant.most + grant.beside:
            return False
        grant.spent += count
        return True


class _Grant:
    """What one backend grants for ten seconds."""

    __slots__ = ("beside", "most", "spent", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.most = 0
        self.beside = 0
        """Requests of lost streams, but for one of each."""
        self.spent = 0


class PoisonModels:
    """Models of which a request was lost twice with its server: it may be what they died of."""

    __slots__ = ("_since", "seen")

    def __init__(self) -> None:
        self._since: dict[bytes, float] = {}
        self.seen = 0
        """How often a model was suspected."""

    def suspect(self, model: bytes, now: float) -> None:
        """A request for a model took a second server with it."""
        if not self.is_blocked(model, now, now + 1.0):
            self.seen += 1
        if len(self._since) >= _MAX_MODELS:
            self._since = {m: at for m, at in self._since.items() if now < at + _BLOCK_S}
        if len(self._since) < _MAX_MODELS:
            self._since[model] = now

    def is_blocked(self, model: bytes, now: float, sent_at: float) -> bool:
        """Whether a request that was sent at a time may not run again.

        What was under way when the second server died is its victim, and may; so is what went
        there before anybody knew.
        """
        since = self._since.get(model)
        return since is not None and now < since + _BLOCK_S and sent_at > since + _SEEN_S

    def blocked(self, now: float) -> list[bytes]:
        """The models of which nothing runs again."""
        return [model for model, since in self._since.items() if now < since + _BLOCK_S]
