"""Settings of several servers: the same, or an error that says where they differ."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import Disagreement
from lb.kserve.merge.settings import GrpcLogSettings, GrpcTraceSettings, HttpSettings
from tests.fakes.merges import AtOnce

TRACE = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
LOG = {"log_file": "", "log_info": True, "log_verbose_level": 0, "log_format": "default"}


def merged(*settings: dict[str, Any]) -> dict[str, Any]:
    merge = AtOnce(HttpSettings())
    answers = [
        (f"b{at}", merge.read(json.dumps(each).encode())) for at, each in enumerate(settings)
    ]
    found: dict[str, Any] = json.loads(merge.combine(answers))
    return found


def test_what_all_have_is_the_answer() -> None:
    assert merged(TRACE, dict(reversed(TRACE.items()))) == TRACE
    assert merged(LOG, LOG, LOG) == LOG


def test_a_difference_is_an_error_that_says_where() -> None:
    with pytest.raises(Disagreement) as error:
        merged(LOG, LOG | {"log_info": False}, LOG)
    assert str(error.value) == (
        "settings differ between backends: log_info is true on b0, b2 and false on b1"
    )


def test_a_setting_that_only_some_have_differs() -> None:
    with pytest.raises(Disagreement, match="log_error is missing on b0 and true on b1"):
        merged(LOG, LOG | {"log_error": True})


def test_only_some_of_many_differences_are_told() -> None:
    with pytest.raises(Disagreement, match=r"; and 2 more$"):
        merged({f"s{at}": 1 for at in range(6)}, {f"s{at}": 2 for at in range(6)})


def test_files_may_differ_and_the_first_is_shown() -> None:
    assert merged(TRACE | {"trace_file": "/a"}, TRACE | {"trace_file": "/b"})["trace_file"] == "/a"
    assert merged(LOG, LOG | {"log_file": "/b"})["log_file"] == ""


@pytest.mark.parametrize(
    ("counts", "shown"),
    [(("5", "7"), "7"), (("0", "-1"), "-1"), (("10", "9"), "10"), (("x", "3"), "3")],
)
def test_the_most_traces_that_are_left_are_shown(counts: tuple[str, str], shown: str) -> None:
    one, two = ({**TRACE, "trace_count": count} for count in counts)
    assert merged(one, two)["trace_count"] == shown


def trace_message(**changes: list[str]) -> pb.TraceSettingResponse:
    message = pb.TraceSettingResponse()
    base: dict[str, list[str]] = {
        key: list(value) if isinstance(value, list) else [str(value)]
        for key, value in TRACE.items()
    }
    for key, values in (base | changes).items():
        message.settings[key].value.extend(values)
    return message


def test_trace_settings_of_grpc_are_merged_alike() -> None:
    merge = AtOnce(GrpcTraceSettings())
    one = trace_message(trace_count=["3"])
    two = trace_message(trace_count=["8"], trace_file=["/b"])
    answers = [("a", merge.read(one.SerializeToString())), ("b", two)]
    found = pb.TraceSettingResponse.FromString(merge.combine(answers))
    assert found == trace_message(trace_count=["8"])
    other = trace_message(trace_level=["TIMESTAMPS", "TENSORS"])
    expected = r'trace_level is \["OFF"\] on a and \["TIMESTAMPS","TENSORS"\] on b'
    with pytest.raises(Disagreement, match=expected):
        merge.combine([("a", one), ("b", other)])


def test_trace_settings_without_a_count_are_merged_too() -> None:
    merge = AtOnce(GrpcTraceSettings())
    one = trace_message()
    del one.settings["trace_count"]
    found = pb.TraceSettingResponse.FromString(merge.combine([("a", one), ("b", one)]))
    assert found == one


def log_message(**changes: Any) -> pb.LogSettingsResponse:
    message = pb.LogSettingsResponse()
    settings: dict[str, Any] = LOG | changes
    for key, value in settings.items():
        setting = message.settings[key]
        if isinstance(value, bool):
            setting.bool_param = value
        elif isinstance(value, int):
            setting.uint32_param = value
        else:
            setting.string_param = value
    return message


def test_log_settings_of_grpc_are_merged_alike() -> None:
    merge = AtOnce(GrpcLogSettings())
    one, two = log_message(), log_message(log_file="/b")
    answers = [("a", merge.read(one.SerializeToString())), ("b", two)]
    assert pb.LogSettingsResponse.FromString(merge.combine(answers)) == one
    with pytest.raises(Disagreement, match="log_info is true on a and false on b"):
        merge.combine([("a", one), ("b", log_message(log_info=False))])


def test_a_difference_between_many_is_told_in_short() -> None:
    merge = AtOnce(HttpSettings())
    answers: list[tuple[str, dict[str, Any]]] = [
        (f"b{at}", {"log_format": "x" * 5000 + str(at % 9)}) for at in range(99)
    ]
    with pytest.raises(Disagreement) as raised:
        merge.combine(answers)
    assert len(str(raised.value)) < 1500
    assert "5 other values" in str(raised.value)
    assert "and 3 more" in str(raised.value)


def test_odd_values_differ_like_all_others() -> None:
    merge = AtOnce(HttpSettings())
    with pytest.raises(Disagreement, match="log_format is"):
        merge.combine([("a", merge.read(b'{"log_format":"\\ud800"}')), ("b", {"log_format": "x"})])
    answers = [("a", merge.read(b'{"trace_count":1e999}')), ("b", {"trace_count": "5"})]
    assert merge.combine(answers) == b'{"trace_count":"5"}'
