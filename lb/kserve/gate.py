"""What is between a client and a Triton beside the protocol: names that must not get out or in.

Triton's Python backend talks to its models through shared memory, in regions whose names begin
with `RESERVED`. Old versions tell such a name in an error and let a client register that region
as its own, from where it takes over the server (CVE-2025-23319, -23320, -23334). So the names are
masked in errors, and registrations that speak of one are refused.

Everything here looks at bytes and not at parsed messages: what is searched for is found whatever
a parser would make of repeated keys, unknown fields or trailing text.
"""

from __future__ import annotations

import re
from typing import Final

from lb.domain.operation import Operation
from lb.wire.grpc.cutter import MessageCutter

RESERVED: Final = b"triton_python_backend_shm_region_"
"""The default; `--backend-config=python,shm-region-prefix-name=...` sets another."""
REGISTER_BYTES: Final = 64 * 1024
"""A registration is a few hundred bytes; longer ones are refused."""
REFUSED: Final = "shared memory region has a reserved name"

_NAME: Final = re.compile(RESERVED + rb"[0-9A-Za-z_.-]*+")
_OF_NAMES: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_.-"
"""The characters of a name."""
_ESCAPED: Final = re.compile(
    b"".join(rb"(?:%c|\\u00%02x)" % (byte, byte) for byte in RESERVED), re.IGNORECASE
)
"""`RESERVED` in JSON, where each character may be escaped."""
_ESCAPE_BYTES: Final = 6
_ENCODED: Final = re.compile(
    b"".join(rb"(?:%c|%%%02x)" % (byte, byte) for byte in RESERVED), re.IGNORECASE
)
"""`RESERVED` in a path."""
_PREFIX_SIZE: Final = 5
ERROR_TAG: Final = 0x0A
"""Field 1 of `ModelStreamInferResponse`, a string."""
_LINE_END: Final = 0x0A
"""No name has the end of a line."""
_REGISTERS: Final = frozenset({"SystemSharedMemoryRegister", "CudaSharedMemoryRegister"})


def is_registration(operation: Operation) -> bool:
    """Whether a request names shared memory that the server is to open."""
    return operation.name in _REGISTERS


def names_reserved_region(path: bytes) -> bool:
    """Whether a request path holds a reserved name, percent-encoded or not."""
    return _ENCODED.search(path) is not None


def masked(text: bytes) -> bytes:
    """`text` with an asterisk for each byte of a reserved name."""
    if RESERVED not in text:
        return text
    return _NAME.sub(lambda match: b"*" * len(match[0]), text)


class NameMask:
    """Masks reserved names in a text that comes in pieces.

    Nothing is held back and no length changes, so the text keeps its framing. Where a piece ends
    inside `RESERVED` that part of the prefix has gone out; what follows it has not.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = b""
        """The end of the text so far, as far as a name in it may go on."""

    def passes(self, data: bytes) -> bool:
        """Whether the next piece goes on as it is, and no name may begin at its end, as with
        events, which end with lines. If not, it is to be fed.

        Args:
            data: what was read: the piece is its last chunk, with the CRLF at the end.
        """
        return not self._before and data[-3] == _LINE_END and RESERVED not in data

    def feed(self, piece: bytes) -> bytes:
        """The next piece, masked."""
        text = self._before + piece
        skip = len(self._before)
        self._before = b"" if text.endswith(b"\n") else text[1 - len(RESERVED) :]
        if RESERVED not in text:
            return piece
        # Not by an expression: it would be tried at each of many prefixes, with what follows.
        if RESERVED in text[len(text.rstrip(_OF_NAMES)) :]:
            self._before = RESERVED
        return masked(text)[skip:]


class StreamMask:
    """Masks reserved names in the errors of a stream of `ModelStreamInferResponse`.

    Follows the length prefixes, however the stream is cut; results are not looked into. An error
    is field 1 and comes first in its message.
    """

    __slots__ = ("_at_start", "_error", "_prefix", "_rest", "completed")

    def __init__(self) -> None:
        self.completed = 0
        """Messages of which all has come."""
        self._prefix = b""
        """What has come of a length prefix."""
        self._rest = 0
        """Bytes of the message under way that are still to come."""
        self._at_start = False
        self._error: NameMask | None = None
        """Of the message under way, if it is an error."""

    @property
    def is_between(self) -> bool:
        """Whether no message is under way."""
        return not self._rest and not self._prefix

    @property
    def is_error(self) -> bool:
        """Whether the message under way is an error, or the last one was if none is."""
        return self._error is not None

    def cutter(self) -> MessageCutter:
        """What cuts the rest of the stream into messages."""
        return MessageCutter(self._prefix, self._rest)

    def feed(self, payload: bytes | memoryview) -> bytes | memoryview:
        """The next bytes of the stream, masked; most often the same object."""
        size = len(payload)
        if (
            not self._rest
            and not self._prefix
            and size > _PREFIX_SIZE
            and int.from_bytes(payload[1:_PREFIX_SIZE], "big") + _PREFIX_SIZE == size
            and (
                payload[_PREFIX_SIZE] != ERROR_TAG
                or (isinstance(payload, bytes) and RESERVED not in payload)
            )
        ):
            self.completed += 1
            return payload
        changed: bytearray | None = None
        pos = 0
        while pos < size:
            if not self._rest:
                pos += self._read_prefix(payload[pos : pos + _PREFIX_SIZE])
                continue
            if self._at_start:
                self._at_start = False
                self._error = NameMask() if payload[pos] == ERROR_TAG else None
            stop = min(pos + self._rest, size)
            if self._error is not None:
                changed = changed or bytearray(payload)
                changed[pos:stop] = self._error.feed(bytes(payload[pos:stop]))
            self._rest -= stop - pos
            self.completed += not self._rest
            pos = stop
        return payload if changed is None else bytes(changed)

    def _read_prefix(self, data: bytes | memoryview) -> int:
        had = len(self._prefix)
        self._prefix += bytes(data)[: _PREFIX_SIZE - had]
        taken = len(self._prefix) - had
        if len(self._prefix) == _PREFIX_SIZE:
            self._rest = int.from_bytes(self._prefix[1:], "big")
            self._prefix = b""
            self._at_start = True
            self.completed += not self._rest
        return taken


class RegistrationWatch:
    """Looks for a reserved name in the JSON of a registration that comes in pieces."""

    __slots__ = ("_before", "_size")

    def __init__(self) -> None:
        self._before = b""
        self._size = 0

    def feed(self, piece: bytes) -> bool:
        """The next piece. Returns whether the request must not go on."""
        text = self._before + piece
        self._before = text[-_ESCAPE_BYTES * len(RESERVED) :]
        self._size += len(piece)
        return self._size > REGISTER_BYTES or _ESCAPED.search(text) is not None
