"""What a server says it has: its list of models and its regions of shared memory.

For the control plane; merged answers for clients are made elsewhere. All of it comes from
backends, so texts are cut and everything else is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from lb.domain.model import ModelEntry, ModelState
from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.message_list import read_list
from lb.kserve.merge.steps import finish

NAME_BYTES: Final = 1024
"""Models with longer names are left out."""
_MODELS: Final = 1
"""Number of the field of a `RepositoryIndexResponse` with the lines."""
_REASON_LENGTH: Final = 1024
_DECODER: Final = json.JSONDecoder()
_GAP: Final = re.compile(r"[ \t\n\r]*")
_U64: Final = 2**64 - 1
_STATES: Final = {state.name: state for state in ModelState}


@dataclass(frozen=True, slots=True)
class Region:
    """A registered region of system shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


def entries_from_json(body: bytes) -> Iterator[ModelEntry]:
    """Read the answer to `POST v2/repository/index`, one line after the other.

    Raises:
        ValueError: it is no list of models; lines before the one that is none are given all the
            same.
    """
    for item in _items(body):
        entry = _entry(*_text_fields(item, "name", "version", "state", "reason"))
        if entry is not None:
            yield entry


def entries_from_message(message: bytes) -> Iterator[ModelEntry]:
    """Read a `RepositoryIndexResponse`, one line after the other.

    Raises:
        ValueError: it is none.
    """
    models: Iterable[pb.RepositoryIndexResponse.ModelIndex]
    try:
        models = pb.RepositoryIndexResponse.FromString(message).models
    except DecodeError:
        models = _readable_lines(message)
    for model in models:
        entry = _entry(model.name, model.version, model.state, model.reason)
        if entry is not None:
            yield entry


def _readable_lines(message: bytes) -> Iterator[pb.RepositoryIndexResponse.ModelIndex]:
    """The lines but for those that are no text: Triton lists directories of any name."""
    try:
        found = finish(read_list(message, _MODELS, len(message)))
    except ValueError as error:
        raise ValueError(f"not a list of models: {error}") from error
    for begin, end in found.spans:
        try:
            line = pb.RepositoryIndexResponse.ModelIndex.FromString(message[begin:end])
        except DecodeError:
            continue
        yield line


def _entry(name: str, version: str, state: str, reason: str) -> ModelEntry | None:
    try:
        key, number = name.encode(), version[:NAME_BYTES].encode()
    except UnicodeEncodeError:
        return None  # it is no text, so that no request can name it
    if not key or len(key) > NAME_BYTES:
        return None
    return ModelEntry(
        key,
        number,
        # A model that was never loaded has no state.
        _STATES.get(state, ModelState.UNAVAILABLE),
        reason[:_REASON_LENGTH],
    )


def regions_from_json(body: bytes) -> tuple[Region, ...]:
    """Read the answer to `GET v2/systemsharedmemory/status`, or of CUDA without keys.

    A region whose name is no text is left out: no request can name it. A region whose key is no
    text is kept: requests may name it, although it can be registered nowhere else.

    Raises:
        ValueError: it is no list of regions.
    """
    regions = []
    for item in _items(body):
        name, key = _text_fields(item, "name", "key")
        offset, size = (item.get(field) or 0 for field in ("offset", "byte_size"))
        if not (_is_u64(offset) and _is_u64(size)):
            raise ValueError("a region's offset and size must be numbers of 64 bits")
        if _is_text(name):
            regions.append(Region(name, key, offset, size))
    return tuple(regions)


def _is_u64(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= _U64


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def cuda_regions_from_message(message: bytes) -> tuple[Region, ...]:
    """Read a `CudaSharedMemoryStatusResponse`.

    Raises:
        ValueError: it is none.
    """
    try:
        regions = pb.CudaSharedMemoryStatusResponse.FromString(message).regions
    except DecodeError as error:
        raise ValueError(f"not a list of regions: {error}") from error
    return tuple(Region(r.name, "", 0, r.byte_size) for r in regions.values())


def regions_from_message(message: bytes) -> tuple[Region, ...]:
    """Read a `SystemSharedMemoryStatusResponse`.

    Raises:
        ValueError: it is none.
    """
    try:
        regions = pb.SystemSharedMemoryStatusResponse.FromString(message).regions
    except DecodeError as error:
        raise ValueError(f"not a list of regions: {error}") from error
    return tuple(Region(r.name, r.key, r.offset, r.byte_size) for r in regions.values())


def _items(body: bytes) -> Iterator[dict[str, Any]]:
    """The objects of an array as far as they are asked for: it may be long."""
    try:
        text = body.decode(json.detect_encoding(body), "surrogateescape")
        at = _next_sign(text, 0, "[")
        while text[at : at + 1] != "]":
            item, at = _DECODER.raw_decode(text, at)
            if not isinstance(item, dict):
                raise ValueError("expected an array of objects")
            yield item
            at = _skip(text, at)
            if text[at : at + 1] != "]":
                at = _next_sign(text, at, ",")
                if text[at : at + 1] == "]":
                    raise ValueError("an object is missing")
        if _skip(text, at + 1) != len(text):
            raise ValueError("more than an array")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def _next_sign(text: str, at: int, sign: str) -> int:
    """Go on behind a sign, and the blanks before and after it."""
    at = _skip(text, at)
    if text[at : at + 1] != sign:
        raise ValueError(f"{sign!r} is missing")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return at if gap is None else gap.end()


def _text_fields(item: dict[str, Any], *names: str) -> list[str]:
    values = [item.get(name) or "" for name in names]
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"expected texts for {', '.join(names)}")
    return values
