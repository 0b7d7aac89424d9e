"""Heads that arrive in pieces: put together, bounded, and refused at the first illegal byte.

Text that can never become a head is refused at once, not when the head would be complete: a
client that speaks TLS or HTTP/2 to this port should not have to wait for a time-out.
"""

from __future__ import annotations

from typing import Final

from lb.wire.http1.errors import MessageError
from lb.wire.http1.grammar import CRLF, has_violation
from lb.wire.http1.limits import HeadLimits

END: Final = b"\r\n\r\n"
_RESPONSE: Final = b"HTTP/1."
"""A backend that speaks something else often waits for us, so that no head ever ends."""


class HeadCollector:
    """Collects one head. Feed it until it gives the head; what follows is in `rest`."""

    __slots__ = ("_checked", "_may_skip", "_of_request", "_text", "limits", "rest")

    def __init__(self, limits: HeadLimits, *, of_request: bool) -> None:
        self.limits = limits
        self._of_request = of_request
        self._text = bytearray()
        self._checked = 0
        """Everything before this is known to be legal, without a CR that lacks its LF."""
        self._may_skip = of_request
        self.rest = b""

    def __len__(self) -> int:
        """Bytes collected of a head that is not complete."""
        return len(self._text)

    @property
    def is_of_head_request(self) -> bool:
        """Whether what was collected begins a HEAD request."""
        return self._text.startswith(b"HEAD ")

    def feed(self, data: bytes) -> bytes | None:
        """Add `data`; return the head with its empty line once it is complete.

        Raises:
            MessageError: 400, 414 or 431.
        """
        text = self._text
        text += data
        self.rest = b""  # a part of a head leaves nothing: what followed the last one is used
        if self._may_skip and text.startswith(CRLF):
            # RFC 9112 2.2: one empty line before a request; some clients end bodies with it.
            del text[:2]
            self._checked = 0
            self._may_skip = False
        end = text.find(END, max(self._checked - 3, 0))
        if end >= 0:
            head = bytes(text[: end + 4])
            self.rest = bytes(text[end + 4 :])
            text.clear()
            self._checked = 0
            self._may_skip = self._of_request
            return head
        if has_violation(text, self._checked) or not (
            self._of_request or text.startswith(_RESPONSE[: len(text)])
        ):
            raise MessageError(400, "malformed head")
        check_size(text, self.limits)
        self._checked = max(len(text) - 1, 0)
        return None


def check_size(head: bytes | bytearray, limits: HeadLimits) -> None:
    """Hold a head, complete or not, against its limits.

    Raises:
        MessageError: 414, 431, or 400 for a first line of one endless word.
    """
    if len(head) > limits.line_bytes and head.find(CRLF, 0, limits.line_bytes + 2) < 0:
        if head.find(b" ", 0, limits.line_bytes) < 0:
            raise MessageError(400, "malformed start line")
        raise MessageError(414, "request line too long")
    if len(head) > limits.head_bytes:
        raise MessageError(431, "head too large")
