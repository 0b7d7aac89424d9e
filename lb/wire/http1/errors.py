"""The one exception of the HTTP/1.1 codec."""

from __future__ import annotations


class MessageError(Exception):
    """A message that is not relayed.

    `status` is the answer that a client gets for such a request; for a response it only names
    the kind of fault, since the client of a broken backend gets 502.
    """

    def __init__(self, status: int, text: str, *, to_head: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.to_head = to_head
        """The request is known to be HEAD, whose answers have no body."""
