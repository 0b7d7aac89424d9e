from __future__ import annotations

import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve.server_settings import (
    Settings,
    differing,
    log_from_message,
    log_to_message,
    settings_from_json,
    settings_to_json,
    to_copy,
    trace_from_message,
    trace_to_message,
)

TRACE: Settings = {"trace_level": ("TIMESTAMPS",), "trace_rate": "1", "trace_count": "-1"}
LOG: Settings = {"log_info": True, "log_verbose_level": 2, "log_format": "default"}


def test_files_are_no_settings_to_copy() -> None:
    body = b'{"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "-1",'
    assert settings_from_json(body + b' "trace_file": "/tmp/t", "trace_mode": "triton"}') == TRACE
    assert settings_from_json(b'{"log_file": "", "log_info": true}') == {"log_info": True}


def test_both_protocols_say_the_same() -> None:
    trace = pb.TraceSettingResponse.FromString(trace_to_message(TRACE).SerializeToString())
    trace.settings["trace_file"].value.append("/tmp/t")
    assert trace_from_message(trace.SerializeToString()) == TRACE
    assert settings_from_json(settings_to_json(TRACE)) == TRACE
    log = log_to_message(LOG)
    log.settings["log_file"].string_param = "/tmp/l"
    log.settings["log_warning"].SetInParent()
    assert log_from_message(log.SerializeToString()) == LOG
    assert settings_from_json(settings_to_json(LOG)) == LOG


def test_strange_values_are_kept_as_text() -> None:
    assert settings_from_json(b'{"log_info": null, "trace_level": [1]}') == {
        "log_info": "None",
        "trace_level": ("1",),
    }


@pytest.mark.parametrize("body", [b"[]", b"", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        settings_from_json(body)


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(ValueError, match="trace"):
        trace_from_message(b"\x0a\xff")
    with pytest.raises(ValueError, match="log"):
        log_from_message(b"\x0a\xff")


def test_what_all_others_agree_on_is_copied() -> None:
    mine: Settings = {"log_info": True, "log_verbose_level": 0, "log_format": "default"}
    others: list[Settings] = [
        {"log_info": False, "log_verbose_level": 1, "log_format": "default"},
        {"log_info": False, "log_verbose_level": 2, "log_format": "default"},
    ]
    assert to_copy(mine, others) == {"log_info": False}
    assert to_copy(mine, []) == {}


def test_settings_that_one_server_does_not_have_are_not_copied() -> None:
    assert to_copy({}, [LOG]) == {}


def test_servers_differ_in_what_is_not_alike() -> None:
    other = LOG | {"log_verbose_level": 0}
    assert differing([LOG, other, {}]) == ("log_verbose_level",)
    assert differing([TRACE, TRACE | {"trace_count": "5"}]) == ()
    assert differing([]) == ()
