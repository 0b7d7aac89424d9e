"""Trace and log settings of several servers, which are the same, or else an error.

Two kinds of settings may differ. Files are named when a server starts, and servers on one machine
each need their own: the first one's name is shown. `trace_count` is what is left of it, and falls
while a server traces: the most that is left anywhere is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from lb.kserve import inference_pb2 as pb
from lb.kserve.merge.form import (
    MAX_SHORT_BYTES,
    Disagreement,
    Json,
    read_message,
    read_object,
    write_json,
)
from lb.kserve.merge.steps import Steps

_FILES: Final = frozenset({"trace_file", "log_file"})
_COUNT: Final = "trace_count"
_UNLIMITED: Final = -1
_SHOWN: Final = 4
"""Settings that an error shows, and values of each: it has to fit into trailers."""
_SHOWN_BACKENDS: Final = 8
_SHOWN_CHARACTERS: Final = 100

_Trace = pb.TraceSettingResponse
_Log = pb.LogSettingsResponse
SettingsT = TypeVar("SettingsT", _Trace, _Log)


class HttpSettings:
    """Trace settings and log settings. See `lb.kserve.merge.form.Merge`."""

    max_bytes = MAX_SHORT_BYTES

    def read(self, body: bytes) -> Steps[Json]:
        """One server's settings."""
        yield
        return read_object(body)

    def combine(self, answers: Sequence[tuple[str, Json]]) -> Steps[bytes]:
        """The settings that all have."""
        yield
        _require_agreement(answers)
        whole = dict(answers[0][1])
        if _COUNT in whole:
            whole[_COUNT] = max((each.get(_COUNT) for _, each in answers), key=_left)
        return write_json(whole)


class GrpcTraceSettings:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = MAX_SHORT_BYTES

    def read(self, body: bytes) -> Steps[_Trace]:
        """One server's settings."""
        yield
        return read_message(_Trace, body)

    def combine(self, answers: Sequence[tuple[str, _Trace]]) -> Steps[bytes]:
        """The settings that all have."""
        yield
        _require_agreement(
            [
                (name, {key: _values(v) for key, v in each.settings.items()})
                for name, each in answers
            ]
        )
        whole = _Trace()
        whole.CopyFrom(answers[0][1])
        if _COUNT in whole.settings:
            most = max((each.settings[_COUNT] for _, each in answers), key=_count_left)
            whole.settings[_COUNT].CopyFrom(most)
        return whole.SerializeToString(deterministic=True)


class GrpcLogSettings:
    """See `lb.kserve.merge.form.Merge`."""

    max_bytes = MAX_SHORT_BYTES

    def read(self, body: bytes) -> Steps[_Log]:
        """One server's settings."""
        yield
        return read_message(_Log, body)

    def combine(self, answers: Sequence[tuple[str, _Log]]) -> Steps[bytes]:
        """The settings that all have."""
        yield
        _require_agreement(
            [
                (name, {key: _choice(v) for key, v in each.settings.items()})
                for name, each in answers
            ]
        )
        return answers[0][1].SerializeToString(deterministic=True)


def _values(setting: _Trace.SettingValue) -> list[str]:
    return list(setting.value)


def _choice(setting: _Log.SettingValue) -> object:
    chosen = setting.WhichOneof("parameter_choice")
    return getattr(setting, chosen) if chosen else None


def _count_left(setting: _Trace.SettingValue) -> tuple[bool, int]:
    return _left(setting.value[0] if setting.value else None)


def _left(value: Any) -> tuple[bool, int]:
    """How many traces a `trace_count` leaves, as something to compare."""
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        return False, _UNLIMITED
    return count == _UNLIMITED, count


def _require_agreement(answers: Sequence[tuple[str, Mapping[str, object]]]) -> None:
    first = answers[0][1]
    names = dict.fromkeys(key for _, settings in answers for key in settings)
    differing = [
        name
        for name in names
        if name not in _FILES
        and name != _COUNT
        and any(settings.get(name) != first.get(name) for _, settings in answers)
    ]
    if not differing:
        return
    shown = "; ".join(_difference(name, answers) for name in differing[:_SHOWN])
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    raise Disagreement(f"settings differ between backends: {shown}{more}")


def _difference(name: str, answers: Sequence[tuple[str, Mapping[str, object]]]) -> str:
    holders: dict[str, list[str]] = {}
    for backend, settings in answers:
        value = "missing"
        if name in settings:
            value = write_json(settings[name]).decode(errors="replace")
        holders.setdefault(value, []).append(backend)
    values = [f"{_short(value)} on {_listed(who)}" for value, who in holders.items()]
    if len(values) > _SHOWN:
        values[_SHOWN:] = [f"{len(values) - _SHOWN} other values"]
    return f"{_short(name)} is {' and '.join(values)}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _listed(backends: Sequence[str]) -> str:
    more = len(backends) - _SHOWN_BACKENDS
    return ", ".join(backends[:_SHOWN_BACKENDS]) + (f" and {more} more" if more > 0 else "")
