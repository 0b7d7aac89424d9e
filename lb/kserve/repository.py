"""What a server says it has: its list of models and its regions of shared memory.

For the control plane; merged answers for clients are made elsewhere. All of it comes from
backends, so texts are cut and everything else is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from lb.domain.model import ModelEntry, ModelState
from lb.kserve import inference_pb2 as pb

NAME_BYTES: Final = 1024
"""Models with longer names are left out."""
_REASON_LENGTH: Final = 1024
_STATES: Final = {state.name: state for state in ModelState}


@dataclass(frozen=True, slots=True)
class Region:
    """A registered region of system shared memory."""

    name: str
    key: str
    offset: int
    byte_size: int


def entries_from_json(body: bytes) -> tuple[ModelEntry, ...]:
    """Read the answer to `POST v2/repository/index`.

    Raises:
        ValueError: it is no list of models.
    """
    items = (_text_fields(item, "name", "version", "state", "reason") for item in _array(body))
    return _entries(items)


def entries_from_message(message: bytes) -> tuple[ModelEntry, ...]:
    """Read a `RepositoryIndexResponse`.

    Raises:
        ValueError: it is none.
    """
    try:
        models = pb.RepositoryIndexResponse.FromString(message).models
    except DecodeError as error:
        raise ValueError(f"not a list of models: {error}") from error
    return _entries((model.name, model.version, model.state, model.reason) for model in models)


def _entries(items: Iterable[tuple[str, ...]]) -> tuple[ModelEntry, ...]:
    entries = []
    for name, version, state, reason in items:
        key = name.encode("utf-8", "surrogatepass")
        if key and len(key) <= NAME_BYTES:
            entries.append(
                ModelEntry(
                    key,
                    version[:NAME_BYTES].encode("utf-8", "surrogatepass"),
                    # A model that was never loaded has no state.
                    _STATES.get(state, ModelState.UNAVAILABLE),
                    reason[:_REASON_LENGTH],
                )
            )
    return tuple(entries)


def regions_from_json(body: bytes) -> tuple[Region, ...]:
    """Read the answer to `GET v2/systemsharedmemory/status`, or of CUDA without keys.

    Raises:
        ValueError: it is no list of regions.
    """
    regions = []
    for item in _array(body):
        name, key = _text_fields(item, "name", "key")
        offset, size = (item.get(field) or 0 for field in ("offset", "byte_size"))
        if not (isinstance(offset, int) and isinstance(size, int)):
            raise ValueError("a region's offset and size must be numbers")
        regions.append(Region(name, key, offset, size))
    return tuple(regions)


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


def _array(body: bytes) -> list[dict[str, Any]]:
    content = _json(body)
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise ValueError("expected an array of objects")
    return content


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


def _text_fields(item: dict[str, Any], *names: str) -> tuple[str, ...]:
    values = tuple(item.get(name) or "" for name in names)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"expected texts for {', '.join(names)}")
    return values
