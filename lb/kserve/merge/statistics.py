"""The statistics of several servers as those of one.

Counts and durations are summed, `last_inference` is the latest, batches are summed by size and
responses by key. What is used of devices is summed by device, over those that answer now.

An answer may name ten thousand models, which would take thirty times its length once read. So it
is only looked through for where the entry of each model lies, and one model after the other is
read, summed and written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.counters import (
    BATCHES,
    MAX_NAMES,
    MAX_ROWS,
    MEMORY,
    RESPONSES,
    ModelKey,
    check_row,
    check_rows,
    first_keys,
    first_rows,
    json_counters,
    json_key,
    message_counters,
    message_key,
    set_json,
    set_message,
)
from lb.kserve.merge.form import MAX_BYTES, Json, Unreadable, read_message, write_json
from lb.kserve.merge.json_reader import MAX_PARTS, JsonReader
from lb.kserve.merge.memory import StatisticsMemory
from lb.kserve.merge.message_list import ListWriter, read_list
from lb.kserve.merge.steps import LongText, Pace, Steps

_ENTRIES: Final = "model_stats"
_ENTRIES_FIELD: Final = 1
_BYTES: Final = "byte_size"
_MAX_ENTRIES: Final = 2**15
"""Models and versions of one answer: ten thousand have 10 MiB."""
_MAX_DEVICES: Final = 1024
"""Rows of the memory usage of one entry: one for each kind of memory and GPU."""
_MAX_MESSAGE: Final = 4 * 2**20
"""Longest entry of a gRPC answer, which is parsed in one step."""
_MAX_MESSAGE_ROWS: Final = 16_384
"""Most rows of such an entry: those that count have to be picked from them in one step."""

_ENTRY_WORK: Final = 1024
"""What it costs to sum an entry beside its length, in bytes that a step may read."""
_KEY_WORK: Final = 16
_MANY: Final = 1000
"""Numbers of an entry from which on reading, summing and writing it is a step each."""
_ROW_PARTS: Final = 64
"""Brackets and commas of a row. One of a Triton has 18."""
_MEMBER_PARTS: Final = 4096
"""The same of any other member of an entry: 1,024 rows of the memory usage."""

_Span = tuple[int, int]


@dataclass(slots=True)
class StatisticsAnswer:
    """One server's statistics: where the entry of each model lies."""

    body: bytes
    spans: dict[ModelKey, _Span]
    others: Any
    """What the answer holds beside entries: members of the object, or fields as they came."""
    asked_at: float = field(default=0.0)
    answered_at: float = field(default=0.0)
    """Monotonic seconds, to be set before answers are combined."""

    def add(self, key: ModelKey, begin: int, end: int) -> None:
        """Note an entry.

        Raises:
            ValueError: there was one of this model already, or there are too many.
        """
        if key in self.spans:
            raise ValueError("the answer names a version of a model twice")
        if len(self.spans) >= _MAX_ENTRIES:
            raise ValueError("the answer names too many models")
        self.spans[key] = (begin, end)


class HttpStatistics:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = MAX_BYTES

    def __init__(self, memory: StatisticsMemory) -> None:
        self._memory = memory

    def read(self, body: bytes) -> Steps[StatisticsAnswer]:
        """Find the entries of one server's statistics."""
        answer = StatisticsAnswer(body, {}, {})
        reader = JsonReader(body)
        pace = Pace()
        if reader.peek() != "{":
            raise ValueError("the answer is no JSON object")
        for name in reader.members("{"):
            if name != _ENTRIES:
                answer.others[name] = yield from reader.value()
                continue
            if reader.peek() != "[":
                raise ValueError("the answer holds no statistics")
            answer.others[name] = None
            answer.spans.clear()
            for _ in reader.members("["):
                reader.peek()
                begin = reader.position
                entry, _ = yield from _read_entry(reader)
                end = reader.position
                answer.add(json_key(entry), begin, end)
                if pace.count(end - begin):
                    yield
        reader.finish()
        if _ENTRIES not in answer.others:
            raise ValueError("the answer holds no statistics")
        return answer

    def combine(self, answers: Sequence[tuple[str, StatisticsAnswer]]) -> Steps[bytes]:
        """The sums of all that the memory knows, for the models that somebody has now."""
        text = LongText()
        pace = Pace()
        self._memory.asked = len(answers)
        for key in (yield from _keys(answers)):
            whole: Json | None = None
            for at, (name, answer) in enumerate(answers):
                span = answer.spans.get(key)
                if span is None:
                    continue
                entry, is_whole = yield from _read_entry(JsonReader(answer.body, *span))
                try:
                    counters = json_counters(entry)
                except ValueError as error:
                    raise Unreadable(at, str(error)) from error
                if len(counters) > _MANY:
                    yield
                self._memory.take(
                    name, key, counters, answer.asked_at, answer.answered_at, is_whole=is_whole
                )
                if whole is None:
                    whole = entry
                else:
                    _add_usage(whole, entry)
                if pace.count(span[1] - span[0] + _ENTRY_WORK):
                    yield
            total = yield from self._memory.total(key)
            self._memory.trim()
            if whole is not None:
                if len(total) > _MANY:
                    yield
                set_json(whole, total)
                if len(total) > _MANY:
                    yield
                written = write_json(whole)
                text.add(b"," if text else b"", written)
                if pace.count(len(written)):
                    yield
        return _object_of(answers[0][1].others, text)


def _object_of(members: Json, entries: LongText) -> bytes:
    """The object with other members than entries as the first answer has them, in its order."""
    before = after = b""
    for name, value in members.items():
        start = b"%b%b:" % (b"," if before or after else b"{", write_json(name))
        if name == _ENTRIES:
            before, after = after + start + b"[", b"]"
        else:
            after += start + write_json(value)
    return entries.finish(before, after + b"}")


class GrpcStatistics:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = MAX_BYTES

    def __init__(self, memory: StatisticsMemory) -> None:
        self._memory = memory

    def read(self, body: bytes) -> Steps[StatisticsAnswer]:
        """Find the entries of one server's statistics."""
        found = yield from read_list(body, _ENTRIES_FIELD, _MAX_MESSAGE)
        answer = StatisticsAnswer(body, {}, found.others)
        pace = Pace()
        for begin, end in found.spans:
            answer.add(message_key(_read_message(body, begin, end)), begin, end)
            if pace.count(end - begin + _ENTRY_WORK // 8):
                yield
        return answer

    def combine(self, answers: Sequence[tuple[str, StatisticsAnswer]]) -> Steps[bytes]:
        """The sums of all that the memory knows, for the models that somebody has now."""
        writer = ListWriter(_ENTRIES_FIELD)
        pace = Pace()
        self._memory.asked = len(answers)
        for key in (yield from _keys(answers)):
            whole: pb.ModelStatistics | None = None
            for at, (name, answer) in enumerate(answers):
                span = answer.spans.get(key)
                if span is None:
                    continue
                entry = _read_message(answer.body, *span)
                is_whole = not _cut_message(entry)
                try:
                    counters = message_counters(entry)
                except ValueError as error:
                    raise Unreadable(at, str(error)) from error
                if len(counters) > _MANY:
                    yield
                self._memory.take(
                    name, key, counters, answer.asked_at, answer.answered_at, is_whole=is_whole
                )
                if whole is None:
                    whole = entry
                else:
                    _add_message_usage(whole, entry)
                if pace.count(span[1] - span[0] + _ENTRY_WORK):
                    yield
            total = yield from self._memory.total(key)
            self._memory.trim()
            if whole is not None:
                if len(total) > _MANY:
                    yield
                set_message(whole, total)
                if writer.add(whole):
                    yield
        return writer.finish(answers[0][1].others)


def _keys(answers: Sequence[tuple[str, StatisticsAnswer]]) -> Steps[list[ModelKey]]:
    """All models that somebody has, in the order in which Triton lists them: by name, and by the
    number of the version."""
    found: set[ModelKey] = set()
    ordered: list[tuple[str, int, str]] = []
    pace = Pace()
    for _, answer in answers:
        for key in answer.spans:
            if key not in found:
                found.add(key)
                name, version = key
                ordered.append((name, len(version), version))
            if pace.count(_KEY_WORK):
                yield
    ordered.sort()  # little work: what a Triton lists is in order
    return [(name, version) for name, _, version in ordered]


# JSON


def _read_entry(reader: JsonReader) -> Steps[tuple[Json, bool]]:
    """Read one entry. Returns it, and whether it has all of its rows.

    Raises:
        ValueError: it is none.
    """
    is_whole = True
    is_read, entry = reader.within_window()
    if not is_read:
        if reader.peek() != "{":
            raise ValueError("the answer holds no statistics")
        entry, is_whole = yield from _read_long_entry(reader)
    if not isinstance(entry, dict):
        raise ValueError("the answer holds no statistics")
    _check_usage(entry.get(MEMORY, []))
    rows = check_rows(entry.get(BATCHES, []))
    if len(rows) > MAX_ROWS:
        entry[BATCHES] = first_rows(rows, check_row)
        is_whole = False
    responses = entry.get(RESPONSES)
    if isinstance(responses, dict) and len(responses) > MAX_ROWS:
        entry[RESPONSES] = {key: responses[key] for key in first_keys(responses)}
        is_whole = False
    return entry, is_whole


def _read_long_entry(reader: JsonReader) -> Steps[tuple[Json, bool]]:
    """Read an entry that may have rows without end: never much more than count are kept."""
    entry: Json = {}
    is_whole = True
    for name in reader.members("{"):
        opening = reader.peek()
        if name == BATCHES and opening == "[":
            rows: list[Json] = []
            for _ in reader.members("["):
                reader.room = _ROW_PARTS
                row = yield from reader.value()
                check_row(row)
                rows.append(row)
                if len(rows) >= 2 * MAX_ROWS:
                    rows = first_rows(rows, check_row)
                    is_whole = False
            entry[name] = rows
        elif name == RESPONSES and opening == "{":
            found: Json = {}
            for key in reader.members("{"):
                reader.room = _ROW_PARTS
                found[key] = yield from reader.value()
                if len(found) >= 2 * MAX_ROWS:
                    found = {kept: found[kept] for kept in first_keys(found)}
                    is_whole = False
            entry[name] = found
        else:
            reader.room = _MEMBER_PARTS
            entry[name] = yield from reader.value()
        if len(entry) > MAX_NAMES:
            raise ValueError("the statistics of a model have too many names")
    reader.room = MAX_PARTS
    return entry, is_whole


def _check_usage(rows: object) -> None:
    if not isinstance(rows, list) or len(rows) > _MAX_DEVICES:
        raise ValueError("the memory usage is no list, or has too many rows")
    if not all(
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
            rows.append(row)
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


# gRPC


def _read_message(body: bytes, begin: int, end: int) -> pb.ModelStatistics:
    entry = read_message(pb.ModelStatistics, body[begin:end])
    if len(entry.batch_stats) + len(entry.response_stats) > _MAX_MESSAGE_ROWS:
        raise ValueError("the statistics of a model have too many rows")
    return entry


def _cut_message(entry: pb.ModelStatistics) -> bool:
    """Leave out rows that do not count. Whether there were any."""
    has_more = len(entry.batch_stats) > MAX_ROWS or len(entry.response_stats) > MAX_ROWS
    if len(entry.batch_stats) > MAX_ROWS:
        rows = first_rows(entry.batch_stats, lambda row: row.batch_size)
        kept = [pb.InferBatchStatistics.FromString(row.SerializeToString()) for row in rows]
        del entry.batch_stats[:]
        entry.batch_stats.extend(kept)
    if len(entry.response_stats) > MAX_ROWS:
        names = set(first_keys(entry.response_stats))
        for key in [key for key in entry.response_stats if key not in names]:
            del entry.response_stats[key]
    return has_more
