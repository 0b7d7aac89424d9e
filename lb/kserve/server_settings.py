"""Trace and log settings of one server, in one form for both protocols: compared and copied.

Only settings that calls can change and that should be the same everywhere: files are named when a
server starts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from lb.kserve import inference_pb2 as pb

Value = bool | int | str | tuple[str, ...]
Settings = dict[str, Value]
"""Values by name: a tuple for `trace_level`, texts for the other trace settings, and for log
settings what they are."""

_TRACE: Final = frozenset({"trace_level", "trace_rate", "trace_count", "log_frequency"})
_LISTS: Final = frozenset({"trace_level"})
_LOG: Final = frozenset({"log_info", "log_warning", "log_error", "log_verbose_level", "log_format"})
_COUNTS_DOWN: Final = frozenset({"trace_count"})
"""What is left of it, so it differs between servers that trace."""


def settings_from_json(body: bytes) -> Settings:
    """Read the answer to `GET v2/trace/setting` or `GET v2/logging`.

    Raises:
        ValueError: it is neither.
    """
    try:
        content = json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(content, dict):
        raise ValueError("expected an object")
    return {name: _value(value) for name, value in content.items() if name in _TRACE | _LOG}


def _value(value: Any) -> Value:
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    return value if isinstance(value, bool | int | str) else str(value)


def trace_from_message(message: bytes) -> Settings:
    """Read a `TraceSettingResponse`.

    Raises:
        ValueError: it is none.
    """
    try:
        settings = pb.TraceSettingResponse.FromString(message).settings
    except DecodeError as error:
        raise ValueError("not trace settings") from error
    return {
        name: tuple(setting.value) if name in _LISTS else "".join(setting.value[:1])
        for name, setting in settings.items()
        if name in _TRACE
    }


def log_from_message(message: bytes) -> Settings:
    """Read a `LogSettingsResponse`.

    Raises:
        ValueError: it is none.
    """
    try:
        settings = pb.LogSettingsResponse.FromString(message).settings
    except DecodeError as error:
        raise ValueError("not log settings") from error
    found: Settings = {}
    for name, setting in settings.items():
        choice = setting.WhichOneof("parameter_choice")
        if name in _LOG and choice is not None:
            found[name] = getattr(setting, choice)
    return found


def settings_to_json(settings: Settings) -> bytes:
    """The body of a `POST` that makes them so."""
    return json.dumps(settings).encode()


def trace_to_message(settings: Settings) -> pb.TraceSettingRequest:
    """The request that makes them so."""
    request = pb.TraceSettingRequest()
    for name, value in settings.items():
        request.settings[name].value.extend(value if isinstance(value, tuple) else (str(value),))
    return request


def log_to_message(settings: Settings) -> pb.LogSettingsRequest:
    """The request that makes them so."""
    request = pb.LogSettingsRequest()
    for name, value in settings.items():
        setting = request.settings[name]
        if isinstance(value, bool):
            setting.bool_param = value
        elif isinstance(value, int):
            setting.uint32_param = value
        else:
            setting.string_param = str(value)
    return request


def to_copy(mine: Settings, others: Sequence[Settings]) -> Settings:
    """What all others have alike, and one differs in; nothing without others."""
    if not others:
        return {}
    first = others[0]
    return {
        name: value
        for name, value in first.items()
        if name in mine and mine[name] != value and all(o.get(name) == value for o in others)
    }


def differing(settings: Sequence[Settings]) -> tuple[str, ...]:
    """Names of the settings that servers do not have alike."""
    names = {name for each in settings for name in each} - _COUNTS_DOWN
    return tuple(
        sorted(name for name in names if len({each[name] for each in settings if name in each}) > 1)
    )
