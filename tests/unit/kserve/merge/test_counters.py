"""Numbers of model statistics, the same from both protocols."""

from __future__ import annotations

import pytest
from google.protobuf.json_format import MessageToDict

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.counters import (
    MAX_ROWS,
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


def make_message() -> pb.ModelStatistics:
    duration = pb.StatisticDuration
    return pb.ModelStatistics(
        name="m",
        version="2",
        last_inference=1000,
        inference_count=8,
        execution_count=3,
        inference_stats=pb.InferStatistics(success=duration(count=8, ns=80)),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=4, compute_infer=duration(count=2, ns=20)),
            pb.InferBatchStatistics(batch_size=1, compute_infer=duration(count=1, ns=9)),
        ],
        response_stats={"0": pb.InferResponseStatistics(cancel=duration(count=1, ns=2))},
        memory_usage=[pb.MemoryUsage(type="GPU", id=0, byte_size=100)],
    )


COUNTERS = {
    ("last_inference",): 1000,
    ("inference_count",): 8,
    ("execution_count",): 3,
    ("inference_stats", "success", "count"): 8,
    ("inference_stats", "success", "ns"): 80,
    ("batch_stats", 4, "compute_infer", "count"): 2,
    ("batch_stats", 4, "compute_infer", "ns"): 20,
    ("batch_stats", 1, "compute_infer", "count"): 1,
    ("batch_stats", 1, "compute_infer", "ns"): 9,
    ("response_stats", "0", "cancel", "count"): 1,
    ("response_stats", "0", "cancel", "ns"): 2,
}


def as_json(message: pb.ModelStatistics) -> dict[str, object]:
    """The numbers as Triton's HTTP gives them: not as text, which is protobuf's way."""
    found = MessageToDict(message, preserving_proto_field_name=True)

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return int(value) if isinstance(value, str) and value.isdigit() else value

    return {**{key: plain(value) for key, value in found.items()}, "version": message.version}


def test_both_protocols_give_the_same_numbers() -> None:
    message = make_message()
    assert message_counters(message) == COUNTERS
    assert json_counters(as_json(message)) == COUNTERS
    assert message_key(message) == json_key(as_json(message)) == ("m", "2")


def test_equal_paths_are_one_object() -> None:
    one, two = message_counters(make_message()), message_counters(make_message())
    assert all(a is b for a, b in zip(one, two, strict=True))


def test_numbers_are_written_where_they_came_from() -> None:
    doubled = {path: 2 * value for path, value in COUNTERS.items()}
    message, entry = make_message(), as_json(make_message())
    set_message(message, doubled)
    set_json(entry, doubled)
    assert message_counters(message) == json_counters(entry) == doubled
    assert [row.batch_size for row in message.batch_stats] == [1, 4]
    assert entry["batch_stats"][0]["batch_size"] == 1  # type: ignore[index]


def test_rows_that_are_missing_are_added() -> None:
    message = pb.ModelStatistics(name="m")
    entry: dict[str, object] = {"name": "m"}
    set_message(message, COUNTERS)
    set_json(entry, COUNTERS)
    assert message_counters(message) == json_counters(entry) == COUNTERS


def test_unknown_numbers_of_json_are_numbers_and_do_not_fit_into_messages() -> None:
    counters = json_counters({"name": "m", "new": {"count": 3}, "flag": True, "text": "x"})
    assert counters == {("new", "count"): 3}
    message = pb.ModelStatistics(name="m")
    set_message(message, counters | {("newer",): 1})
    assert message == pb.ModelStatistics(name="m")


def test_numbers_that_are_too_large_for_a_field_fill_it() -> None:
    message = pb.ModelStatistics()
    set_message(message, {("inference_count",): 2**64 + 5})
    assert message.inference_count == 2**64 - 1


def test_another_shape_of_the_same_name_is_left_alone() -> None:
    entry: dict[str, object] = {"inference_stats": "none"}
    set_json(entry, {("inference_stats", "success", "count"): 3})
    assert entry == {"inference_stats": "none"}


def test_rows_without_a_size_and_bottomless_entries_are_refused() -> None:
    with pytest.raises(ValueError, match="no size"):
        check_rows([{"compute_infer": {"count": 1}}])
    with pytest.raises(ValueError, match="no list"):
        check_rows({})
    deep: dict[str, object] = {"count": 1}
    for _ in range(20):
        deep = {"x": deep}
    with pytest.raises(ValueError, match="too deeply"):
        json_counters(deep)


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "n" * 1025},
        {"name": "m", "x" * 129: 1},
        {"name": "m", "inference_count": 2**64},
    ],
)
def test_what_no_server_says_is_not_kept(entry: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="too l"):
        json_counters(entry | {"of": json_key(entry)})


def test_long_names_in_messages_are_not_kept() -> None:
    response = pb.InferResponseStatistics(cancel=pb.StatisticDuration(count=1))
    with pytest.raises(ValueError, match="too long"):
        message_counters(pb.ModelStatistics(name="m", response_stats={"k" * 129: response}))
    with pytest.raises(ValueError, match="too long"):
        message_key(pb.ModelStatistics(name="n" * 1025))


@pytest.mark.parametrize(
    "entry",
    [
        {str(at): at for at in range(100)},
        {"stats": {str(at): at for at in range(100)}},
        {"response_stats": {"0": {str(at): at for at in range(100)}}},
        {"batch_stats": [{"batch_size": 1, **{str(at): at for at in range(100)}}]},
    ],
)
def test_numbers_without_end_are_refused(entry: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="too many"):
        json_counters(entry)


def test_the_first_responses_and_the_smallest_batches_count() -> None:
    assert first_keys(map(str, range(5000, -1, -1))) == [str(at) for at in range(MAX_ROWS)]
    rows = [{"batch_size": size} for size in range(5000, 0, -1)]
    assert [check_row(row) for row in first_rows(rows, check_row)] == list(range(1, MAX_ROWS + 1))
