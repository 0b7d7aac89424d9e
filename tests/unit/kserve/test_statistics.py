from __future__ import annotations

import json
from typing import Any

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.statistics import (
    fit,
    measured_from_json,
    measured_from_message,
    memory_from_json,
    memory_from_message,
)

ROWS = ((1, 100, 0.005), (8, 50, 0.012))
"""Rows, executions, seconds of each: 4 ms and 1 ms for each row."""


def content(name: str = "m", version: str = "1", rows: object = ROWS) -> dict[str, Any]:
    assert isinstance(rows, tuple)
    return {
        "name": name,
        "version": version,
        "inference_count": 500,
        "inference_stats": {"success": {"count": 300, "ns": 1}},
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": {"count": count, "ns": int(count * took_s * 0.25e9)},
                "compute_infer": {"count": count, "ns": int(count * took_s * 0.5e9)},
                "compute_output": {"count": count, "ns": int(count * took_s * 0.25e9)},
            }
            for size, count, took_s in rows
        ],
    }


def message(*entries: dict[str, Any]) -> bytes:
    def duration(part: dict[str, int]) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=part["count"], ns=part["ns"])

    return pb.ModelStatisticsResponse(
        model_stats=[
            pb.ModelStatistics(
                name=entry["name"],
                version=entry["version"],
                batch_stats=[
                    pb.InferBatchStatistics(
                        batch_size=row["batch_size"],
                        compute_input=duration(row["compute_input"]),
                        compute_infer=duration(row["compute_infer"]),
                        compute_output=duration(row["compute_output"]),
                    )
                    for row in entry["batch_stats"]
                ],
            )
            for entry in entries
        ]
    ).SerializeToString()


def test_executions_are_told_by_their_rows_from_both_protocols() -> None:
    entries = (content(), content("idle", rows=()), content("n", "2", rows=((1, 20, 0.01),)))
    from_json = measured_from_json(json.dumps({"model_stats": entries}).encode())
    assert from_json == measured_from_message(message(*entries))
    assert from_json.keys() == {(b"m", b"1"), (b"n", b"2")}
    measured = from_json[b"m", b"1"]
    assert measured.row_s == pytest.approx(0.001)
    assert measured.base_s == pytest.approx(0.004)
    assert measured.rows == pytest.approx(500 / 150)
    assert measured.mean_s == pytest.approx((100 * 0.005 + 50 * 0.012) / 150)
    assert from_json[b"n", b"2"].row_s == 0.0
    assert from_json[b"n", b"2"].base_s == pytest.approx(0.01)


def test_a_few_executions_say_nothing() -> None:
    assert fit([(1, 9, 30.0)]) is None
    assert fit([]) is None
    assert fit([(0, 100, 1.0), (1, 100, 0.0)]) is None


def test_more_rows_never_cost_less_and_a_row_never_more_than_all() -> None:
    falling = fit([(1, 10, 1.0), (8, 10, 0.5)])
    assert falling is not None
    assert falling.row_s == 0.0
    steep = fit([(1, 10, 0.01), (8, 10, 8.0)])
    assert steep is not None
    assert steep.base_s >= 0.0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"model_stats": 3}',
        b'{"model_stats": [3]}',
        b'{"model_stats": [{"name": "m", "version": "1", "batch_stats": 3}]}',
        b'{"model_stats": [{"name": "m", "version": "1", "batch_stats": [{"batch_size": 1}]}]}',
        b'{"model_stats": [{"version": "1"}]}',
        json.dumps({"model_stats": [content(rows=((True, 10, 1.0),))]}).encode(),
        json.dumps({"model_stats": [content(rows=((-1, 10, 1.0),))]}).encode(),
        json.dumps({"model_stats": [content(rows=((1, 10**30, 1.0),))]}).encode(),
        b"[" * 100_000,
    ],
)
def test_what_are_no_statistics_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"statistics|JSON|value"):
        measured_from_json(body)


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(ValueError, match="statistics"):
        measured_from_message(b"\xff\xff")


def test_an_old_server_that_does_not_tell_batches_says_nothing() -> None:
    body = b'{"model_stats": [{"name": "m", "version": "1"}]}'
    assert measured_from_json(body) == {}


def test_memory_of_gpus_is_read_where_it_is_told() -> None:
    rows = [
        {"type": "GPU", "id": 0, "byte_size": 5},
        {"type": "CPU", "id": 0, "byte_size": 7},
        {"type": "GPU", "id": 1, "byte_size": 6},
    ]
    told = {"model_stats": [{"name": "m", "version": "1", "memory_usage": rows}, {"name": "m"}]}
    assert memory_from_json(json.dumps(told).encode()) == 11
    assert memory_from_json(b'{"model_stats": [{"name": "m"}]}') == 0
    message = pb.ModelStatisticsResponse()
    entry = message.model_stats.add(name="m", version="1")
    for row in rows:
        entry.memory_usage.add(**row)
    assert memory_from_message(message.SerializeToString()) == 11
    for body in (b"[]", b"{", b'{"model_stats": [{"memory_usage": [{"type": "GPU"}]}]}'):
        with pytest.raises(ValueError):  # noqa: PT011
            memory_from_json(body)
    with pytest.raises(ValueError, match="these are no statistics"):
        memory_from_message(b"\xff")
