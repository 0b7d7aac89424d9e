"""The statistics of several servers as those of one.

Counts and durations are summed, `last_inference` is the latest, batches are summed by size and
responses by key. What is used of devices is summed by device, over those that answer now.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.counters import (
    MEMORY,
    Counters,
    ModelKey,
    json_counters,
    json_key,
    message_counters,
    message_key,
    set_json,
    set_message,
)
from lb.kserve.merge.form import Json, read_message, read_object, write_json
from lb.kserve.merge.memory import StatisticsMemory

_ENTRIES: Final = "model_stats"
_BYTES: Final = "byte_size"


WholeT = TypeVar("WholeT", Json, pb.ModelStatisticsResponse)


@dataclass(frozen=True, slots=True)
class StatisticsAnswer(Generic[WholeT]):
    """One server's statistics. They count once the memory has taken them over."""

    whole: WholeT
    counters: list[tuple[ModelKey, Counters]]
    """Of each entry."""


class HttpStatistics:
    """See `lb.kserve.merge.form.Merge`."""

    def __init__(self, memory: StatisticsMemory) -> None:
        self._memory = memory

    def read(self, body: bytes) -> StatisticsAnswer[Json]:
        """One server's statistics."""
        whole = read_object(body)
        entries = whole.get(_ENTRIES)
        if not (isinstance(entries, list) and all(isinstance(each, dict) for each in entries)):
            raise ValueError("the answer holds no statistics")
        for entry in entries:
            _check_usage(entry.get(MEMORY, []))
        counters = [(json_key(each), json_counters(each)) for each in entries]
        return StatisticsAnswer(whole, _each_once(counters))

    def combine(self, answers: Sequence[tuple[str, StatisticsAnswer[Json]]]) -> bytes:
        """The sums of all that the memory knows, for the models that somebody has now."""
        entries: dict[ModelKey, Json] = {}
        for _, answer in answers:
            for (key, _), entry in zip(answer.counters, answer.whole[_ENTRIES], strict=True):
                known = entries.get(key)
                if known is None:
                    entries[key] = deepcopy(entry)
                else:
                    _add_usage(known, entry)
        for key, entry in entries.items():
            set_json(entry, self._memory.total(key))
        whole = dict(answers[0][1].whole)
        whole[_ENTRIES] = [entry for _, entry in sorted(entries.items(), key=_by_name)]
        return write_json(whole)


class GrpcStatistics:
    """See `lb.kserve.merge.form.Merge`."""

    def __init__(self, memory: StatisticsMemory) -> None:
        self._memory = memory

    def read(self, body: bytes) -> StatisticsAnswer[pb.ModelStatisticsResponse]:
        """One server's statistics."""
        whole = read_message(pb.ModelStatisticsResponse, body)
        counters = [(message_key(each), message_counters(each)) for each in whole.model_stats]
        return StatisticsAnswer(whole, _each_once(counters))

    def combine(
        self, answers: Sequence[tuple[str, StatisticsAnswer[pb.ModelStatisticsResponse]]]
    ) -> bytes:
        """The sums of all that the memory knows, for the models that somebody has now."""
        entries: dict[ModelKey, pb.ModelStatistics] = {}
        for _, answer in answers:
            for entry in answer.whole.model_stats:
                key = message_key(entry)
                if key not in entries:
                    entries[key] = pb.ModelStatistics()
                    entries[key].CopyFrom(entry)
                else:
                    _add_message_usage(entries[key], entry)
        for key, entry in entries.items():
            set_message(entry, self._memory.total(key))
        whole = pb.ModelStatisticsResponse()
        whole.CopyFrom(answers[0][1].whole)
        del whole.model_stats[:]
        whole.model_stats.extend(entry for _, entry in sorted(entries.items(), key=_by_name))
        return whole.SerializeToString(deterministic=True)


def _each_once(counters: list[tuple[ModelKey, Counters]]) -> list[tuple[ModelKey, Counters]]:
    if len({key for key, _ in counters}) < len(counters):
        raise ValueError("the answer names a version of a model twice")
    return counters


def _by_name(item: tuple[ModelKey, Any]) -> tuple[str, int, str]:
    """The order in which Triton lists models and their versions."""
    name, version = item[0]
    return name, len(version), version


def _check_usage(rows: Any) -> None:
    if not isinstance(rows, list) or not all(
        isinstance(row, dict)
        and isinstance(row.get(_BYTES), int)
        and isinstance(row.get("type"), str)
        and isinstance(row.get("id"), int)
        for row in rows
    ):
        raise ValueError("a row of the memory usage is none")


def _add_usage(entry: Json, other: Json) -> None:
    rows = entry.setdefault(MEMORY, [])
    devices = {_device(row): row for row in rows}
    for row in other.get(MEMORY, []):
        twin = devices.get(_device(row))
        if twin is None:
            rows.append(deepcopy(row))
        else:
            twin[_BYTES] += row[_BYTES]


def _device(row: Json) -> tuple[object, object]:
    return row.get("type"), row.get("id")


def _add_message_usage(entry: pb.ModelStatistics, other: pb.ModelStatistics) -> None:
    devices = {(row.type, row.id): row for row in entry.memory_usage}
    for row in other.memory_usage:
        twin = devices.get((row.type, row.id))
        if twin is None:
            entry.memory_usage.append(row)
        else:
            twin.byte_size += row.byte_size
