"""Plain readers of gRPC messages: they look at all bytes that there are, every time."""

from __future__ import annotations

from collections.abc import Sequence

from lb.wire.grpc.message import NAME_SEARCH_LIMIT


def announced(stream: bytes) -> list[int]:
    """The lengths of the messages whose prefix is in `stream`."""
    lengths = []
    while len(stream) >= 5:
        lengths.append(int.from_bytes(stream[1:5], "big"))
        stream = stream[5 + lengths[-1] :]
    return lengths


def first_name(stream: bytes) -> bytes | None:
    """The string in field 1 at the start of the first message; see `model_name`."""
    if len(stream) < 5:
        return None
    compressed, length, message = stream[0], int.from_bytes(stream[1:5], "big"), stream[5:]
    if length < 2:
        return b""
    if len(message) < 2:
        return None
    if compressed or message[0] != 1 << 3 | 2:
        return b""
    varint, rest = message[1:2], message[2:]
    if varint[0] >= 128:
        if not rest:
            return None
        varint, rest = message[1:3], message[3:]
    size = sum((byte % 128) << 7 * place for place, byte in enumerate(varint))
    if len(varint) == 2 and (varint[1] >= 128 or size > NAME_SEARCH_LIMIT):
        return b""
    if 1 + len(varint) + size > length:
        return b""
    return rest[:size] if len(rest) >= size else None


def largest(parts: Sequence[bytes]) -> int:
    """What a meter that got `parts` has to say."""
    return max(announced(b"".join(parts)), default=0)
