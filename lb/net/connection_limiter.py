"""How many connections each client has."""

from __future__ import annotations

from lb.domain.client import ClientKey, IpAddress, key_of_client


class ConnectionLimiter:
    """Open connections by client. They are counted without a limit too, since it may be set while
    they are open."""

    __slots__ = ("_counts", "limit")

    def __init__(self, limit: int = 0) -> None:
        """
        Args:
            limit: connections of one client; 0 is no limit.
        """
        self.limit = limit
        """It may be set at any time. Clients that have more connections by then keep them."""
        self._counts: dict[ClientKey, int] = {}

    def __len__(self) -> int:
        """Clients with connections."""
        return len(self._counts)

    def enter(self, address: IpAddress | None) -> bool:
        """A connection begins. False when it is one too many; `leave` is due all the same.

        Clients of Unix sockets have no address, and no limit.
        """
        if address is None:
            return True
        key = key_of_client(address)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return not self.limit or count <= self.limit

    def has_room(self, address: IpAddress | None, waiting: int) -> bool:
        """Whether a client may have one more connection beside some that have not begun yet."""
        if not self.limit or address is None:
            return True
        return self._counts.get(key_of_client(address), 0) + waiting < self.limit

    def leave(self, address: IpAddress | None) -> None:
        """A connection has ended."""
        if address is None:
            return
        key = key_of_client(address)
        count = self._counts.pop(key, 0) - 1
        if count > 0:
            self._counts[key] = count
