"""Regions of shared memory that inference requests name, found without decoding them.

A region is the parameter `shared_memory_region` of an input or output (Triton's shared-memory
extension). `grpc_regions` and `http_regions` say which ones a request names, for routing. The
watches only say that there is one, in requests that come in pieces of any size, compressed or
not; they follow the framing, so that a tensor which holds the same text is none.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import Final

from lb.wire.grpc.compression import GZIP_OR_ZLIB
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.protobuf import BYTES, FIXED32, FIXED64, VARINT, ProtobufError, fields, varint

KEY: Final = b"shared_memory_region"
REFUSED: Final = (
    "inferences of this client may not use shared memory; triton-lb allows it to "
    "access.control.networks and to tokens with the role control"
)
"""Where `access.strict_shared_memory` is on."""

_TENSORS: Final = {5: 4, 6: 2}
"""Fields of `ModelInferRequest` that are inputs and outputs: the field with their parameters."""
_STRING: Final = 3
"""Field of `InferParameter`."""
_KEY_IN_JSON: Final = b"".join(rb"(?:%c|\\u00%02x)" % (byte, byte) for byte in KEY)
"""Where each character may be escaped."""
_NAME: Final = re.compile(rb'"%b"\s*:\s*("(?:[^"\\]|\\.)*")' % _KEY_IN_JSON, re.IGNORECASE)
_KEY: Final = re.compile(rb'"%b"\s*(:|\Z)' % _KEY_IN_JSON, re.IGNORECASE)
_KEY_BYTES: Final = 6 * len(KEY) + 2
"""Longest way to write it in JSON."""
_SLICE: Final = 256 * 1024
"""Inflated at once."""
_SLICES: Final = 64
"""Of one read: 16 MiB take 30 ms."""
_HEADER_BYTES: Final = 20
"""Tag and length of a field have at most this many bytes."""
_ENTRY_BYTES: Final = 4096
"""Longest parameter of a tensor that is looked into."""
_FIELDS: Final = 20_000
"""Most fields of one message, those of its tensors included."""
_SIZES: Final = {FIXED32: 4, FIXED64: 8}
_KINDS: Final = frozenset({VARINT, FIXED64, BYTES, FIXED32})


def grpc_regions(message: bytes | memoryview) -> tuple[bytes, ...]:
    """The regions that a `ModelInferRequest` without its prefix names, or the first part of one:
    those before the place where it is cut off or broken."""
    names: dict[bytes, None] = {}
    try:
        _find_names(message, names)
    except ProtobufError:
        pass
    return tuple(names)


def _find_names(message: bytes | memoryview, names: dict[bytes, None]) -> None:
    for tensor, kind, start, end in fields(message):
        parameters = _TENSORS.get(tensor)
        if parameters is None or kind != BYTES:
            continue
        for number, kind_within, first, last in fields(message, start, end):
            if number == parameters and kind_within == BYTES:
                name = _region(message, first, last)
                if name:
                    names[name] = None


def _region(message: bytes | memoryview, start: int, end: int) -> bytes:
    """The string in one entry of a map of parameters, if it is a region; the last one counts."""
    key = name = b""
    for number, kind, first, last in fields(message, start, end):
        if number == 1 and kind == BYTES:
            key = bytes(message[first:last])
        elif number == 2 and kind == BYTES:
            for value, kind_within, begin, stop in fields(message, first, last):
                if value == _STRING and kind_within == BYTES:
                    name = bytes(message[begin:stop])
    return name if key == KEY else b""


def http_regions(json_head: bytes) -> tuple[bytes, ...]:
    """The regions that the JSON of an inference request names."""
    if KEY not in json_head and b"\\u" not in json_head:
        return ()
    names: dict[bytes, None] = {}
    for match in _NAME.finditer(json_head):
        try:
            names[json.loads(match[1]).encode()] = None
        except ValueError:
            continue  # no server can read it either
    return tuple(names)


class HttpRegionWatch:
    """Looks for the name of a region in an inference request that comes in pieces."""

    __slots__ = ("_before", "_inflater", "_rest")

    def __init__(self, json_length: int, *, is_compressed: bool) -> None:
        """
        Args:
            json_length: how much of the body, not compressed, is JSON; -1 is all of it.
            is_compressed: by gzip or zlib.
        """
        self._rest = json_length
        self._inflater = zlib.decompressobj(wbits=GZIP_OR_ZLIB) if is_compressed else None
        self._before = b""

    def refuses(self, piece: bytes | memoryview) -> bool:
        """Whether the request must not go on, now that `piece` has come."""
        if not self._rest:
            return False
        if self._inflater is None:
            return self._looks_at(bytes(piece))
        try:
            for text in _inflated(self._inflater, piece):
                if self._looks_at(text):
                    return True
                if not self._rest:
                    break
        except zlib.error:
            return True
        return False

    def _looks_at(self, text: bytes) -> bool:
        if self._rest > 0:
            text = text[: self._rest]
            self._rest -= len(text)
        text = self._before + text
        match = _KEY.search(text)
        if match is not None and match[1]:
            return True
        # At the end it may be a key, or a string that happens to read so.
        self._before = text[-_KEY_BYTES:] if match is None else b'"%b"' % KEY
        return False


def _inflated(inflater: zlib._Decompress, piece: bytes | memoryview) -> Iterator[bytes]:
    """What a piece inflates to, in slices.

    Raises:
        zlib.error: it is broken, or so much that others would have to wait.
    """
    for _ in range(_SLICES):
        text = inflater.decompress(piece, _SLICE)
        if not text:
            return
        yield text
        piece = inflater.unconsumed_tail
    if piece:
        raise zlib.error("too much at once")


class GrpcRegionWatch:
    """Looks for the name of a region in a stream of `ModelInferRequest` that comes in pieces."""

    __slots__ = ("_inflater", "_message", "_prefix", "_rest")

    def __init__(self) -> None:
        self._prefix = b""
        self._rest = 0
        """Bytes of the message under way that are still to come."""
        self._message = _MessageWatch()
        self._inflater: zlib._Decompress | None = None

    def refuses(self, payload: bytes | memoryview) -> bool:
        """Whether the call must not go on, now that `payload` has come."""
        at, end = 0, len(payload)
        while at < end:
            if not self._rest:
                at += self._read_prefix(payload[at : at + PREFIX_SIZE])
                continue
            stop = min(at + self._rest, end)
            self._rest -= stop - at
            if self._sees(bytes(payload[at:stop])):
                return True
            at = stop
        return False

    def _read_prefix(self, data: bytes | memoryview) -> int:
        had = len(self._prefix)
        self._prefix += bytes(data)[: PREFIX_SIZE - had]
        taken = len(self._prefix) - had
        if len(self._prefix) == PREFIX_SIZE:
            self._rest = int.from_bytes(self._prefix[1:], "big")
            self._inflater = zlib.decompressobj(wbits=GZIP_OR_ZLIB) if self._prefix[0] else None
            self._message = _MessageWatch()
            self._prefix = b""
        return taken

    def _sees(self, piece: bytes) -> bool:
        sees = self._message.sees
        if self._inflater is None:
            return sees(piece)
        try:
            return any(map(sees, _inflated(self._inflater, piece)))
        except zlib.error:
            return True


class _MessageWatch:
    """One `ModelInferRequest` in pieces: goes into its tensors, and looks at their parameters."""

    __slots__ = ("_at", "_begun", "_fields", "_found", "_parameters", "_skip_end", "_tensor_end")

    def __init__(self) -> None:
        self._at = 0
        """Bytes of the message so far."""
        self._begun = b""
        """What there is of a field that must be complete to be read."""
        self._parameters = 0
        """Field with the parameters of the tensor that it is in; 0 outside of tensors."""
        self._tensor_end = self._skip_end = self._fields = 0
        self._found = False

    def sees(self, piece: bytes) -> bool:
        """Whether a region is named, or nothing can be made of the message."""
        data = self._begun + piece
        base = self._at - len(self._begun)
        self._begun = b""
        self._at += len(piece)
        at, end = 0, len(data)
        while at < end and not self._found:
            if base + at < self._skip_end:
                at = min(self._skip_end - base, end)
                continue
            stop = self._read_field(data, at, base + at)
            if not stop:
                self._begun = data[at:]
                break
            at = stop
        return self._found

    def _read_field(self, data: bytes, at: int, position: int) -> int:
        """Read the field at an offset; gives where to go on, 0 while too little of it is there."""
        if self._parameters and position >= self._tensor_end:
            self._parameters = 0
        end, begin = len(data), at
        try:
            tag, at = varint(data, at, end)
            kind, size = tag & 7, _SIZES.get(tag & 7, 0)
            if kind in (VARINT, BYTES):
                size, at = varint(data, at, end)
        except ProtobufError:
            self._found = end - begin >= _HEADER_BYTES
            return 0
        self._fields += 1
        number = tag >> 3
        if kind == BYTES and number == self._parameters:
            return self._read_parameter(data, at, at + size)
        if kind == BYTES and not self._parameters and number in _TENSORS:
            self._parameters = _TENSORS[number]
            self._tensor_end = position + at - begin + size
        elif kind in (BYTES, FIXED32, FIXED64):
            self._skip_end = position + at - begin + size
        # No client of this protocol writes groups, or so many fields, or tags of more than 32 bits,
        # of which protobuf's parser in C++ drops the rest: another field for it than for us.
        self._found = kind not in _KINDS or self._fields > _FIELDS or bool(tag >> 32)
        return at

    def _read_parameter(self, data: bytes, at: int, end: int) -> int:
        if end - at > _ENTRY_BYTES:
            self._found = True  # no parameter of a tensor is as long
        elif end <= len(data):
            self._found = KEY in data[at:end]
            return end
        return 0
