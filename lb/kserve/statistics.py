"""What a Triton's statistics say of how long executions take (the statistics extension)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import DecodeError

from lb.domain.load import Measured
from lb.kserve import inference_pb2 as pb

_ENOUGH: Final = 10
"""Executions before which nothing is concluded: the first ones often take very long."""
_PARTS: Final = ("compute_input", "compute_infer", "compute_output")
_VARIES: Final = 0.01
"""Squared coefficient of variation of the rows above which they can explain something."""
_LARGEST: Final = 2**63
_GPU: Final = "GPU"
"""Name of a kind of memory (`TRITONSERVER_MemoryTypeString`)."""

Executions = tuple[int, int, float]
"""Rows of an execution, how many of these there were, and seconds of all of them."""
MeasuredVersions = dict[tuple[bytes, bytes], Measured]
"""By model and version."""


def measured_from_json(body: bytes) -> MeasuredVersions:
    """Read the answer to `GET v2/models/stats`.

    Raises:
        ValueError: it is none.
    """
    try:
        content = json.loads(body)
        entries = [
            (str(entry["name"]), str(entry["version"]), [_row(row) for row in _rows_of(entry)])
            for entry in content["model_stats"]
        ]
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"these are no statistics: {error}") from error
    return _measured(entries)


def measured_from_message(message: bytes) -> MeasuredVersions:
    """Read a `ModelStatisticsResponse`.

    Raises:
        ValueError: it is none.
    """
    try:
        answer = pb.ModelStatisticsResponse.FromString(message)
    except DecodeError as error:
        raise ValueError(f"these are no statistics: {error}") from error
    return _measured(
        (
            entry.name,
            entry.version,
            [
                (
                    row.batch_size,
                    row.compute_infer.count,
                    (row.compute_input.ns + row.compute_infer.ns + row.compute_output.ns) / 1e9,
                )
                for row in entry.batch_stats
            ],
        )
        for entry in answer.model_stats
    )


def memory_from_json(body: bytes) -> int:
    """Read the bytes of GPUs that the versions of one model take, from the answer to
    `GET v2/models/{name}/stats`. Most backends of Triton tell none.

    Raises:
        ValueError: it is none.
    """
    try:
        return sum(
            _count(row["byte_size"])
            for entry in json.loads(body)["model_stats"]
            for row in entry.get("memory_usage", ())
            if row["type"] == _GPU
        )
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"these are no statistics: {error}") from error


def memory_from_message(message: bytes) -> int:
    """Read the same from a `ModelStatisticsResponse`.

    Raises:
        ValueError: it is none.
    """
    try:
        answer = pb.ModelStatisticsResponse.FromString(message)
    except DecodeError as error:
        raise ValueError(f"these are no statistics: {error}") from error
    return sum(
        row.byte_size
        for entry in answer.model_stats
        for row in entry.memory_usage
        if row.type == _GPU
    )


def _rows_of(entry: dict[str, Any]) -> list[dict[str, Any]]:
    rows = entry.get("batch_stats", [])
    if not isinstance(rows, list):
        raise TypeError("a list was expected")
    return rows


def _row(row: dict[str, Any]) -> Executions:
    ns = sum(_count(row[part]["ns"]) for part in _PARTS)
    return _count(row["batch_size"]), _count(row["compute_infer"]["count"]), ns / 1e9


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise TypeError("a number was expected")
    return value


def _measured(entries: Iterable[tuple[str, str, list[Executions]]]) -> MeasuredVersions:
    found = {}
    for name, version, rows in entries:
        fitted = fit(rows)
        if fitted is not None:
            key = (name.encode("utf-8", "replace"), version.encode("utf-8", "replace"))
            found[key] = fitted
    return found


def fit(batches: Iterable[Executions]) -> Measured | None:
    """What an execution takes by its rows, by weighted regression; None: nothing can be said."""
    known = [each for each in batches if each[0] and each[1] and each[2]]
    count = sum(each[1] for each in known)
    if count < _ENOUGH:
        return None
    mean_s = sum(seconds for _, _, seconds in known) / count
    mean_rows = sum(rows * executions for rows, executions, _ in known) / count
    variance = sum(n * (rows - mean_rows) ** 2 for rows, n, _ in known) / count
    row_s = 0.0
    if variance > _VARIES * mean_rows * mean_rows:
        covariance = sum((rows - mean_rows) * (s - n * mean_s) for rows, n, s in known) / count
        row_s = min(max(0.0, covariance / variance), mean_s / mean_rows)
    return Measured(
        base_s=mean_s - row_s * mean_rows, row_s=row_s, rows=mean_rows, rows_variance=variance
    )
