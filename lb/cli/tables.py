"""The models of the admin API as tables and lines of text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from shutil import get_terminal_size
from textwrap import wrap
from typing import Final

from lb.admin.models import (
    Backend,
    Device,
    Model,
    ModelDrain,
    ModelQueue,
    Models,
    PlacementView,
    Queue,
    Source,
    Status,
    VariantSet,
)
from lb.domain.durations import short_duration

Row = tuple[str, ...]

_BACKEND_HEADINGS: Final = ("NAME", "STATE", "SINCE", "IN FLIGHT", "SERVED", "P50", "P99", "WHY")
_GPU_HEADINGS: Final = ("GPU", "GPU MEMORY")
_MODEL_HEADINGS: Final = ("MODEL", "VERSION", "STATE", "REASON")
_PLACEMENT_HEADING: Final = "PLACEMENT"
_QUEUE_HEADINGS: Final = (
    "MODEL", "VERSION", "QUEUED", "OLDEST", "BACKEND", "IN FLIGHT", "LIMIT", "EXPECTED",
)  # fmt: skip
_PLACEMENT_HEADINGS: Final = ("BACKEND", "MODEL", "STATE", "AGE", "VALUE", "LOAD", "SIZE", "KEPT")
_SOURCE_HEADINGS: Final = ("NAME", "BACKENDS", "AGE", "UPDATES", "FAILURES", "ERROR")
_VARIANT_HEADINGS: Final = (
    "NAME", "VARIANT", "MODEL", "SHARE %", "ANSWERED", "ERRORS", "P50", "P99", "NOTE",
)  # fmt: skip
_SAME_SHARE: Final = 0.001
"""Percent by which shares are not told apart."""
_NUMBERS: Final = frozenset(
    {"SINCE", "IN FLIGHT", "SERVED", "P50", "P99", *_GPU_HEADINGS}
    | {"VALUE", "LOAD", "SIZE", "QUEUED", "OLDEST", "LIMIT", "EXPECTED"}
    | {"BACKENDS", "AGE", "UPDATES", "FAILURES"}
    | {"SHARE %", "ANSWERED", "ERRORS"}
)
"""Columns that are aligned to the right."""
_NONE: Final = "-"
_LEAST_ROOM: Final = 12
"""A column with less room for its texts is not worth it: the terminal divides the lines then."""


_MOST_NAMED: Final = 8
"""Backends that a line names: what a person reads at a glance."""


def status_line(status: Status) -> str:
    """The state of a process in one line."""
    others = [f"{name} {state}" for name, state in islice(status.not_up.items(), _MOST_NAMED)]
    if (more := len(status.not_up) - _MOST_NAMED) > 0:
        others.append(f"and {more} more")
    rest = printable(f" ({', '.join(others)})") if others else ""
    return (
        f"{status.up} of {status.backends} backends up{rest}, {status.in_flight} in flight, "
        f"{status.served} served{_changed_shares(status)}"
    )


def _changed_shares(status: Status) -> str:
    texts = [
        f"{each.variant} {each.percent:.4g} % (file: {each.file_percent:.4g} %, {each.changed})"
        for each in status.changed_shares
    ]
    return printable(f"; {', '.join(texts)}") if texts else ""


def change_line(backend: Backend) -> str:
    """The state of a backend in one line, after a change."""
    running = f", {backend.open_sequences} sequences open" if backend.open_sequences else ""
    text = f"{backend.name}: {backend.state}, {backend.in_flight} in flight{running}"
    return printable(text)


def model_change_line(model: ModelDrain) -> str:
    """The state of a model on a backend in one line, after a change."""
    running = f", {model.open_sequences} sequences open" if model.open_sequences else ""
    state = "draining" if model.draining else "enabled"
    text = f"{model.backend}, model {model.model}: {state}, {model.in_flight} in flight{running}"
    return printable(text)


def backend_table(backends: Sequence[Backend]) -> list[str]:
    """All backends, with columns for GPUs if any backend reports one."""
    rows = [_backend_row(backend) for backend in backends]
    if not any(backend.load.devices for backend in backends):
        return plain_table(rows, _BACKEND_HEADINGS)
    headings = (*_BACKEND_HEADINGS[:-1], *_GPU_HEADINGS, _BACKEND_HEADINGS[-1])
    return plain_table(
        [
            (*row[:-1], *_gpu_cells(backend.load.devices), row[-1])
            for row, backend in zip(rows, backends, strict=True)
        ],
        headings,
    )


def _backend_row(backend: Backend) -> Row:
    return (
        backend.name,
        backend.state,
        short_duration(backend.since_s),
        str(backend.in_flight),
        str(backend.served),
        _milliseconds(backend.latency.p50_ms),
        _milliseconds(backend.latency.p99_ms),
        backend.why,
    )


def _gpu_cells(devices: Sequence[Device]) -> Row:
    """Average utilization of the devices, and how much of their memory is in use."""
    shares = [each.utilization for each in devices if each.utilization is not None]
    used = sum(each.memory_used_bytes or 0 for each in devices) / 2**30
    total = sum(each.memory_total_bytes or 0 for each in devices) / 2**30
    return (
        f"{sum(shares) / len(shares):.0%}" if shares else _NONE,
        f"{used:.1f}/{total:.1f}GiB" if total else _NONE,
    )


def model_lines(name: str, models: Models) -> list[str]:
    """The models of the backend `name` as a table, and below it how the backend differs from the
    others."""
    if models.listed:
        rows: list[Row] = [
            (each.name, each.version, _state(each), each.reason) for each in models.models
        ]
        headings: Row = _MODEL_HEADINGS
        if any(each.placement for each in models.models):
            headings = (*_MODEL_HEADINGS[:-1], _PLACEMENT_HEADING, _MODEL_HEADINGS[-1])
            rows = [
                (*row[:-1], each.placement, row[-1])
                for row, each in zip(rows, models.models, strict=True)
            ]
        lines = plain_table(rows, headings)
    elif models.listed is None:
        lines = [f"{name} has not listed its models yet"]
    else:
        lines = [f"{name} does not list its models"]
    drift = models.drift
    for what, names in (
        ("not ready here, but on another backend", drift.models),
        ("not configured as on most backends", drift.configurations),
        ("settings that differ from most backends", drift.settings),
    ):
        if names:
            lines.append(f"{what}: {', '.join(map(printable, names))}")
    return lines


def _state(model: Model) -> str:
    return f"{model.state}, drained" if model.draining else model.state


def queue_lines(queue: Queue) -> list[str]:
    """The queues as a table with a row for each backend of a model."""
    lines = plain_table(list(chain.from_iterable(map(_queue_rows, queue.models))), _QUEUE_HEADINGS)
    if queue.without_backend:
        lines.append(f"queued without an eligible backend: {queue.without_backend}")
    return lines


def _queue_rows(queue: ModelQueue) -> Iterator[Row]:
    queued = sum(queue.waiting.values())
    oldest = _milliseconds(queue.oldest_ms if queued else None)
    # The model is named once, in the row of its first backend.
    model: Row = (queue.model, queue.version, str(queued), oldest)
    if not queue.backends:
        yield (*model, _NONE, _NONE, _NONE, _NONE)
    for each in queue.backends:
        limit = str(each.limit) if each.limit else _NONE
        expected = _milliseconds(each.expected_ms)
        yield (*model, each.name, str(each.in_flight), limit, expected)
        model = ("", "", "", "")


def placement_lines(view: PlacementView) -> list[str]:
    """The loaded models of managed backends as a table, and below it what is done about them."""
    lines = plain_table(
        [
            (
                each.backend,
                each.model,
                each.state,
                _NONE if each.age_s is None else short_duration(each.age_s),
                f"{each.value:.1f}",
                f"{each.load:.0%}",
                f"{each.size_bytes / 2**30:.1f}GiB" if each.size_bytes else _NONE,
                each.kept,
            )
            for each in view.models
        ],
        _PLACEMENT_HEADINGS,
    )
    load, unload = "loading", "unloading"
    if view.mode == "observe":
        load, unload = "would load", "would unload"
    lines += [f"requests wait for {each.model}" for each in view.wanted]
    for step in view.steps:
        evicted = ", ".join(step.evict)
        if step.model:
            instead = f" in place of {evicted}" if evicted else ""
            lines.append(f"{load} {step.model} on {step.backend}{instead}")
        else:
            lines.append(f"{unload} {evicted} on {step.backend}")
    for failed in view.failures:
        retry = f"again in {short_duration(failed.retry_in_s)}"
        lines.append(f"{failed.model} was not loaded on {failed.backend}, {retry}: {failed.error}")
    if view.left_alone:
        lines.append(f"do not load models on request: {', '.join(view.left_alone)}")
    for name, size in view.unreturned_bytes.items():
        lines.append(f"{size / 2**30:.1f} GiB of unloaded models did not come back on {name}")
    bounds = [f"{view.max_models} models"] if view.max_models else []
    bounds += [f"{view.memory_bytes / 2**30:g} GiB"] if view.memory_bytes else []
    room = f"at most {' and '.join(bounds)} on each of {len(view.backends)} backends"
    lines.append(f"placement.mode is {view.mode}" + (f", {room}" if view.mode != "off" else ""))
    return [*map(printable, lines)]


def source_table(sources: Sequence[Source]) -> list[str]:
    """All sources of backends."""
    rows = [
        (
            each.name,
            str(each.backends),
            _NONE if each.age_s is None else short_duration(each.age_s),
            str(each.updates),
            str(each.failures),
            each.error,
        )
        for each in sources
    ]
    return plain_table(rows, _SOURCE_HEADINGS)


def variant_table(models: Sequence[VariantSet]) -> list[str]:
    """All names with variants, the first variant first."""
    rows = []
    for model in models:
        for each in model.variants:
            differs = abs(each.percent - each.file_percent) > _SAME_SHARE
            note = f"file: {each.file_percent:g} % ({model.changed})" if differs else ""
            if not each.ready:
                note = "not ready, gets nothing"
            rows.append((
                model.model,
                each.name,
                f"{each.model}:{each.version}" if each.version else each.model,
                f"{each.percent:.4g}",
                str(each.answers),
                str(each.errors),
                _milliseconds(each.latency.p50_ms),
                _milliseconds(each.latency.p99_ms),
                note,
            ))  # fmt: skip
    reasons = [f"{each.model}: rolled back: {each.why}" for each in models if each.why]
    return [*plain_table(rows, _VARIANT_HEADINGS), *map(printable, reasons)]


def printable(text: str) -> str:
    """A text of a server, harmless to a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]


def plain_table(rows: Sequence[Row], headings: Row) -> list[str]:
    """Align columns. At a terminal long texts of the last column go on in the next lines."""
    columns = list(zip(headings, *(map(printable, row) for row in rows), strict=True))
    padded = []
    for column in columns:
        width = max(len(cell) for cell in column)
        right = column[0] in _NUMBERS
        padded.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    *others, last = padded
    starts = ["".join(f"{cell}  " for cell in cells) for cells in zip(*others, strict=True)]
    indent = len(starts[0])
    room = _terminal_width() - indent
    if room < _LEAST_ROOM or headings[-1] in _NUMBERS:
        return [f"{start}{text}".rstrip() for start, text in zip(starts, last, strict=True)]
    lines = []
    for start, text in zip(starts, last, strict=True):
        first, *more = wrap(text.rstrip(), room) or [""]
        lines += [f"{start}{first}".rstrip(), *(" " * indent + each for each in more)]
    return lines


def _terminal_width() -> int:
    """Columns of the terminal; 0 where standard output is none."""
    return get_terminal_size().columns if sys.stdout.isatty() else 0


def _milliseconds(value: float | None) -> str:
    return _NONE if value is None else short_duration(value / 1000)
