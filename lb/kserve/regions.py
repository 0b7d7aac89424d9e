"""Regions of shared memory that inference requests name, found without decoding them.

A region is the parameter `shared_memory_region` of an input or output (Triton's shared-memory
extension). `http_regions` says which ones a request in JSON names, for routing; `lb.kserve.inspect`
says it of a message of gRPC. The watches only say that there is one, in requests that come in
pieces of any size, compressed or not; they follow the framing, so that a tensor which holds the
same text is none.

A watch inspects a piece in steps of about a millisecond, between which others have their turn: a
few bytes may inflate to very many fields.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterator
from itertools import islice
from json import loads
from typing import Final

from lb.wire.grpc.compression import GZIP_OR_ZLIB
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    ProtobufError,
    varint,
)

KEY: Final = b"shared_memory_region"
REFUSED: Final = (
    "inferences of this client may not use shared memory; triton-lb allows it to "
    "access.control.networks and to tokens with the role control"
)
"""Where `access.strict_shared_memory` is on."""
UNREADABLE: Final = (
    "the inference cannot be looked into for shared memory, which its client may not use: it is "
    "malformed, has too many fields, or inflates to too much at once"
)
"""The same, of what such a client must not send either."""

TENSOR_PARAMETERS: Final = {5: 4, 6: 2}
"""Fields of `ModelInferRequest` that are inputs and outputs: the field with their parameters."""
_KEY_IN_JSON: Final = b"".join(rb"(?:%c|\\u00%02x)" % (byte, byte) for byte in KEY)
"""Where each character may be escaped."""
_NAME: Final = re.compile(
    rb'"%b"\s*+:\s*+("[^"\\]*+(?:\\.[^"\\]*+)*+")' % _KEY_IN_JSON, re.IGNORECASE | re.DOTALL
)
_KEY: Final = re.compile(rb'"%b"\s*+(:|\Z)' % _KEY_IN_JSON, re.IGNORECASE)
_KEY_BYTES: Final = 6 * len(KEY) + 2
"""Longest way to write it in JSON."""
_MOST_NAMES: Final = 1024
"""Names of regions in one JSON that are read; every tensor may have one."""
_SLICE: Final = 128 * 1024
"""Bytes that are inflated, or searched, in one step."""
_SLICES: Final = 128
"""Of one read: 16 MiB."""
_HEADER_BYTES: Final = 20
"""Tag and length of a field have at most this many bytes."""
_ENTRY_BYTES: Final = 4096
"""Longest parameter of a tensor that is looked into."""
MAX_FIELDS: Final = 10_000
"""Fields of one watched message, those of its tensors included; what they hold is skipped. A model
with 1,000 inputs takes some 6,000."""
_STEP: Final = 256
"""Fields that are looked at in one step."""
_MESSAGE_COST: Final = 8
"""The beginning of a message takes as long as this many fields."""
_BYTES_PER_FIELD: Final = 256
"""Bytes that are inflated in the time that a field takes."""
_SIZES: Final = {FIXED32: 4, FIXED64: 8}
_WITH_NUMBER: Final = frozenset({VARINT, BYTES})
"""Kinds of fields that have a number behind the tag: a value, or a length."""
_KINDS: Final = frozenset({VARINT, FIXED64, BYTES, FIXED32})


Inspection = Generator[None, None, str]
"""Yields between its steps; returns why the request is to be refused, nothing where it is not."""


def http_regions(json_head: bytes) -> tuple[bytes, ...]:
    """The regions that the JSON of an inference request names."""
    if KEY not in json_head and b"\\u" not in json_head:
        return ()
    names: dict[bytes, None] = {}
    for match in islice(_NAME.finditer(json_head), _MOST_NAMES):
        try:
            names[loads(match[1]).encode()] = None
        except ValueError:
            continue  # no server can read it either
    return tuple(names)


class HttpRegionWatch:
    """Looks for the name of a region in an inference request that comes in pieces."""

    __slots__ = ("_before", "_inflater", "_rest", "inspected")

    def __init__(self, json_length: int, *, is_compressed: bool) -> None:
        """
        Args:
            json_length: how much of the body, not compressed, is JSON; -1 is all of it.
            is_compressed: by gzip or zlib.
        """
        self._rest = json_length
        self._inflater = zlib.decompressobj(wbits=GZIP_OR_ZLIB) if is_compressed else None
        self._before = b""
        self.inspected = 0
        """Bytes that were searched so far."""

    def is_longer(self, size: int, limit: int) -> bool:
        """Whether so many bytes more of the body may be more than `limit` to be searched. A few
        compressed bytes may inflate to very many."""
        if self._inflater is not None:
            return size > 0
        return (size if self._rest < 0 else min(size, self._rest)) > limit

    def inspect(self, piece: bytes | memoryview) -> Inspection:
        """Look at the next piece. Returns why the request must not go on."""
        if not self._rest:
            return ""
        slices = _slices(piece) if self._inflater is None else _inflated(self._inflater, piece)
        is_first = True
        try:
            for text in slices:
                if not is_first:
                    yield
                is_first = False
                if self._looks_at(text):
                    return REFUSED
                if not self._rest:
                    break
        except zlib.error:
            return UNREADABLE
        return ""

    def _looks_at(self, text: bytes) -> bool:
        if self._rest > 0:
            text = text[: self._rest]
            self._rest -= len(text)
        self.inspected += len(text)
        text = self._before + text
        match = _KEY.search(text)
        if match is not None and match[1]:
            return True
        # At the end it may be a key, or a string that happens to read so.
        self._before = text[-_KEY_BYTES:] if match is None else b'"%b"' % KEY
        return False


def _slices(piece: bytes | memoryview) -> Iterator[bytes]:
    """A piece as it is, in slices."""
    view = memoryview(piece)
    return (bytes(view[at : at + _SLICE]) for at in range(0, len(view), _SLICE))


def _inflated(inflater: zlib._Decompress, piece: bytes | memoryview) -> Iterator[bytes]:
    """What a piece inflates to, in slices.

    Raises:
        zlib.error: it is broken, or inflates to so much that looking at it takes too long.
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

    __slots__ = ("_inflater", "_message", "_pace", "_prefix", "_rest")

    def __init__(self) -> None:
        self._prefix = b""
        self._rest = 0
        """Bytes of the message under way that are still to come."""
        self._pace = _Pace()
        self._message = _MessageWatch(self._pace)
        self._inflater: zlib._Decompress | None = None

    @property
    def seen(self) -> int:
        """Fields that the step under way, or the last one, has looked at."""
        return _STEP - self._pace.left

    def inspect(self, payload: bytes | memoryview) -> Inspection:
        """Look at the next payload. Returns why the call must not go on."""
        at, end = 0, len(payload)
        self._pace.left = _STEP
        while at < end:
            if not self._rest:
                at += self._read_prefix(payload[at : at + PREFIX_SIZE])
                self._pace.left -= _MESSAGE_COST
            else:
                stop = min(at + self._rest, end)
                self._rest -= stop - at
                refusal = yield from self._inspect_part(bytes(payload[at:stop]))
                if refusal:
                    return refusal
                at = stop
            if self._pace.left <= 0:
                self._pace.left = _STEP
                yield
        return ""

    def _read_prefix(self, data: bytes | memoryview) -> int:
        had = len(self._prefix)
        self._prefix += bytes(data)[: PREFIX_SIZE - had]
        taken = len(self._prefix) - had
        if len(self._prefix) == PREFIX_SIZE:
            self._rest = int.from_bytes(self._prefix[1:], "big")
            self._inflater = zlib.decompressobj(wbits=GZIP_OR_ZLIB) if self._prefix[0] else None
            self._message = _MessageWatch(self._pace)
            self._prefix = b""
        return taken

    def _inspect_part(self, piece: bytes) -> Inspection:
        """Look at some of the message under way."""
        if self._inflater is None:
            return (yield from self._message.inspect(piece))
        try:
            for text in _inflated(self._inflater, piece):
                refusal = yield from self._message.inspect(text)
                if refusal:
                    return refusal
                self._pace.left -= len(text) // _BYTES_PER_FIELD
                if self._pace.left <= 0:
                    self._pace.left = _STEP
                    yield
        except zlib.error:
            return UNREADABLE
        return ""


class _Pace:
    """What is left of a step, in fields."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _STEP


class _MessageWatch:
    """One `ModelInferRequest` in pieces: goes into its tensors, and looks at their parameters."""

    __slots__ = (
        "_at", "_begun", "_fields", "_pace", "_parameters", "_refusal", "_skip_end", "_tensor_end",
    )  # fmt: skip

    def __init__(self, pace: _Pace) -> None:
        self._at = 0
        """Bytes of the message so far."""
        self._begun = b""
        """What there is of a field that must be complete to be read."""
        self._parameters = 0
        """Field with the parameters of the tensor that it is in; 0 outside of tensors."""
        self._tensor_end = self._skip_end = self._fields = 0
        self._refusal = ""
        self._pace = pace

    def inspect(self, piece: bytes) -> Inspection:
        """Look at the next piece. Returns why the message must not go on."""
        data = self._begun + piece
        base = self._at - len(self._begun)
        self._begun = b""
        self._at += len(piece)
        pace = self._pace
        at, end = 0, len(data)
        while at < end and not self._refusal:
            if base + at < self._skip_end:
                at = min(self._skip_end - base, end)
                continue
            stop = self._read_field(data, at, base + at)
            if not stop:
                self._begun = data[at:]
                break
            at = stop
            pace.left -= 1
            if pace.left <= 0:
                pace.left = _STEP
                yield
        return self._refusal

    def _read_field(self, data: bytes, at: int, position: int) -> int:
        """Read the field at an offset; gives where to go on, 0 while too little of it is there."""
        if self._parameters and position >= self._tensor_end:
            self._parameters = 0
        end, begin = len(data), at
        try:
            tag = data[at]
            at += 1
            if tag & 0x80:
                tag, at = varint(data, begin, end)
            kind = tag & 7
            if kind in _WITH_NUMBER:
                size = data[at]
                at += 1
                if size & 0x80:
                    size, at = varint(data, at - 1, end)
            else:
                size = _SIZES.get(kind, 0)
        except (IndexError, ProtobufError):
            if end - begin >= _HEADER_BYTES:
                self._refusal = UNREADABLE
            return 0
        number = tag >> 3
        if kind == BYTES and number == self._parameters:
            at = self._read_parameter(data, at, at + size)
        elif kind == BYTES and not self._parameters and number in TENSOR_PARAMETERS:
            self._parameters = TENSOR_PARAMETERS[number]
            self._tensor_end = position + at - begin + size
        elif kind != VARINT:
            self._skip_end = position + at - begin + size
        self._fields += at > 0
        # No client of this protocol writes groups, or so many fields, or tags of more than 32 bits,
        # of which protobuf's parser in C++ drops the rest: another field for it than for us.
        if kind not in _KINDS or self._fields > MAX_FIELDS or tag >> 32:
            self._refusal = UNREADABLE
        return at

    def _read_parameter(self, data: bytes, at: int, end: int) -> int:
        if end - at > _ENTRY_BYTES:
            self._refusal = UNREADABLE  # no parameter of a tensor is as long
        elif end <= len(data):
            if KEY in data[at:end]:
                self._refusal = REFUSED
            return end
        return 0
