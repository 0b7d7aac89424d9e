"""Where the messages of a gRPC stream begin and end, however DATA frames cut it."""

from __future__ import annotations

from lb.wire.grpc.message import PREFIX_SIZE


class MessageCutter:
    """Follows the length prefixes of one direction of a stream; holds no payload."""

    __slots__ = ("_prefix", "_rest")

    def __init__(self, prefix: bytes = b"", rest: int = 0) -> None:
        self._prefix = prefix
        """What has come of a length prefix."""
        self._rest = rest
        """Bytes of the message under way that are still to come."""

    @property
    def is_between(self) -> bool:
        """Whether no message is under way."""
        return not self._rest and not self._prefix

    def copy(self) -> MessageCutter:
        """Another one, at the same place."""
        return MessageCutter(self._prefix, self._rest)

    def advance(self, payload: bytes | memoryview, start: int) -> int:
        """Take the bytes of one message.

        Args:
            payload: the next bytes of the stream.
            start: where in them to go on.

        Returns:
            Where what they hold of the message under way ends; `is_between` says whether the
            message ends there, too.
        """
        end = len(payload)
        rest = self._rest
        if not rest:
            need = PREFIX_SIZE - len(self._prefix)
            prefix = self._prefix + bytes(payload[start : start + need])
            start = min(start + need, end)
            if len(prefix) < PREFIX_SIZE:
                self._prefix = prefix
                return start
            self._prefix = b""
            rest = int.from_bytes(prefix[1:], "big")
        step = min(rest, end - start)
        self._rest = rest - step
        return start + step
