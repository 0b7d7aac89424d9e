"""The numbers in one entry of model statistics, the same from JSON and from protobuf."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from heapq import nsmallest
from typing import Any, Final, TypeAlias, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import Json

RowT = TypeVar("RowT")

Path: TypeAlias = tuple[str | int, ...]
"""Names that lead to a number; a batch size or the key of a response for a row of a list."""
Counters: TypeAlias = dict[Path, int]
"""Numbers that only grow while a model stays loaded."""
ModelKey: TypeAlias = tuple[str, str]
"""Name and version of a model."""

LAST: Final = "last_inference"
BATCHES: Final = "batch_stats"
BATCH_SIZE: Final = "batch_size"
RESPONSES: Final = "response_stats"
MEMORY: Final = "memory_usage"
_U64: Final = 2**64 - 1
MAX_ROWS: Final = 512
"""Batch sizes of one entry, and keys of responses, that count. Each takes up to 1 KiB of memory per
backend. Of more rows, the smallest batch sizes and the first responses count: those that a model
had first are then the ones that stay."""
_MAX_NUMBERS: Final = 32
"""Numbers below one name of an entry, and of one row. A Triton has 16 and 12."""
MAX_NAMES: Final = 64
"""Names of an entry. A Triton has ten."""
_DEPTH: Final = 8
_NAME_LENGTH: Final = 1024
"""Longest name of a model."""
_WORD_LENGTH: Final = 128
"""Longest name of a number, and key of a response, which are kept."""


@lru_cache(16_384)
def _path(*names: str | int) -> Path:
    """The same object for the same path: there are few, and each is kept very often."""
    return names


def json_key(entry: Json) -> ModelKey:
    """Whose statistics an entry is."""
    return _key(str(entry.get("name", "")), str(entry.get("version", "")))


def _key(name: str, version: str) -> ModelKey:
    if len(name) > _NAME_LENGTH or len(version) > _NAME_LENGTH:
        raise ValueError("the name of a model is too long")
    return name, version


def json_counters(entry: Json) -> Counters:
    """The numbers of one entry, `last_inference` among them."""
    found: Counters = {}
    if len(entry) > MAX_NAMES:
        raise ValueError("the statistics of a model have too many names")
    for name, value in entry.items():
        if name == BATCHES:
            for row in value:
                _collect_json(row, (BATCHES, row[BATCH_SIZE]), found, len(found) + _MAX_NUMBERS)
        elif name == RESPONSES and isinstance(value, dict):
            for key, row in value.items():
                _collect_json({key: row}, (RESPONSES,), found, len(found) + _MAX_NUMBERS)
        elif name != MEMORY:
            _collect_json({name: value}, (), found, len(found) + _MAX_NUMBERS)
    return found


def check_rows(rows: object) -> list[Json]:
    """The batch statistics: a list of rows that each have their size.

    Raises:
        ValueError: they are something else.
    """
    if not isinstance(rows, list):
        raise ValueError("the batch statistics are no list")
    for row in rows:
        check_row(row)
    return rows


def check_row(row: object) -> int:
    """The size of a row of the batch statistics.

    Raises:
        ValueError: it has none.
    """
    size = row.get(BATCH_SIZE) if isinstance(row, dict) else None
    if not isinstance(size, int) or abs(size) > _U64:
        raise ValueError("a row of the batch statistics has no size")
    return size


def first_keys(keys: Iterable[str]) -> list[str]:
    """The keys of responses that count: a Triton numbers the responses to a request from 0."""
    return nsmallest(MAX_ROWS, keys, key=lambda key: (len(key), key))


def first_rows(rows: Iterable[RowT], size_of: Callable[[RowT], int]) -> list[RowT]:
    """The rows of batch statistics that count."""
    return nsmallest(MAX_ROWS, rows, key=size_of)


def _collect_json(values: Json, path: Path, found: Counters, most: int) -> None:
    if len(path) > _DEPTH:
        raise ValueError("the statistics are nested too deeply")
    if len(found) + len(values) > most:
        raise ValueError("the statistics of a model have too many numbers")
    for name, value in values.items():
        if len(name) > _WORD_LENGTH:
            raise ValueError("a name in the statistics is too long")
        # Not isinstance: what was read from JSON has no other types, and a bool is no number.
        kind = type(value)
        if kind is dict:
            _collect_json(value, (*path, name), found, most)
        elif kind is int and name != BATCH_SIZE:
            if not -_U64 <= value <= _U64:
                raise ValueError("a number in the statistics is too large")
            found[_path(*path, name)] = value


def set_json(entry: Json, counters: Counters) -> None:
    """Write numbers into an entry; rows that are missing are added, each at its place."""
    rows: dict[Any, Json] = {row[BATCH_SIZE]: row for row in entry.get(BATCHES, ())}
    for path, value in counters.items():
        at, names = entry, path
        if path[0] == BATCHES:
            at, names = rows.setdefault(path[1], {BATCH_SIZE: path[1]}), path[2:]
        _set_json_number(at, names, value)
    if rows:
        entry[BATCHES] = [row for _, row in sorted(rows.items())]


def _set_json_number(at: Json, names: Path, value: int) -> None:
    *above, last = names
    for name in above:
        below = at.get(str(name))
        if below is None:
            below = at[str(name)] = {}
        elif type(below) is not dict:
            return  # another server of the pool has something else of this name
        at = below
    at[str(last)] = value


def message_key(entry: pb.ModelStatistics) -> ModelKey:
    """Whose statistics an entry is."""
    return _key(entry.name, entry.version)


def message_counters(entry: pb.ModelStatistics) -> Counters:
    """The numbers of one entry, `last_inference` among them."""
    found: Counters = {}
    _collect_message(entry, (), found)
    for row in entry.batch_stats:
        _collect_message(row, (BATCHES, row.batch_size), found)
    for key, response in entry.response_stats.items():
        if len(key) > _WORD_LENGTH:
            raise ValueError("a name in the statistics is too long")
        _collect_message(response, (RESPONSES, key), found)
    return found


def _collect_message(message: Message, path: Path, found: Counters) -> None:
    for field, value in message.ListFields():
        if field.is_repeated:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            _collect_message(value, (*path, field.name), found)
        elif isinstance(value, int) and field.name != BATCH_SIZE:
            found[_path(*path, field.name)] = value


def set_message(entry: pb.ModelStatistics, counters: Counters) -> None:
    """Write numbers into an entry; rows that are missing are added, each at its place.

    Numbers that the message has no field for are left out.
    """
    rows = {row.batch_size: row for row in entry.batch_stats}
    for path, value in counters.items():
        at: Message = entry
        names = path
        if path[0] == BATCHES:
            size = cast(int, path[1])
            if size not in rows:
                rows[size] = pb.InferBatchStatistics(batch_size=size)
            at, names = rows[size], path[2:]
        elif path[0] == RESPONSES:
            at, names = entry.response_stats[str(path[1])], path[2:]
        _set_number(at, names, min(value, _U64))
    copies = [pb.InferBatchStatistics() for _ in rows]
    for copy, (_, row) in zip(copies, sorted(rows.items()), strict=True):
        copy.CopyFrom(row)
    del entry.batch_stats[:]
    entry.batch_stats.extend(copies)


def _set_number(at: Any, names: Path, value: int) -> None:
    for name in names[:-1]:
        if name not in at.DESCRIPTOR.fields_by_name:
            return
        at = getattr(at, str(name))
    if value and names[-1] in at.DESCRIPTOR.fields_by_name:
        setattr(at, str(names[-1]), value)
