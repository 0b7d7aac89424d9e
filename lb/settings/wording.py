"""Pydantic's errors in the words of an operator: what was expected, what was found."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from lb.settings.model import Settings
from lb.settings.problems import MAX_PROBLEMS, Finding, Path, show
from lb.settings.section import Section
from lb.settings.shape import keys_at

_EXPECTED: Final = {
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "string_type": "text (put it in quotes)",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "enum": "{expected}",
}
"""What was expected, by pydantic's error type."""


_OTHER_NAMES: Final = {
    "address": ("http",),
    "ask_pending": ("load_poll_interval",),
    "base": ("base_ejection_time",),
    "concurrency": ("max_requests_per_backend", "max_requests_per_model"),
    "concurrent": ("max_concurrent_requests",),
    "concurrent_streams": ("max_concurrent_streams",),
    "connections": ("max_connections",),
    "connections_per_client": ("max_connections_per_client",),
    "consecutive": ("consecutive_failures",),
    "control": ("fan_out",),
    "endpoint": ("http",),
    "fields": ("max_headers",),
    "max_in_flight": ("max_requests",),
    "outliers": ("outlier_detection",),
    "queue": ("max_queue_size",),
    "servers": ("backends",),
    "settle": ("pre_stop_delay",),
    "share": ("max_ratio",),
    "upstreams": ("backends",),
    "url": ("http",),
}
"""Keys of development versions and of other products, and what they may mean here: they resemble
our keys too little for `get_close_matches`."""
_MOST_LISTED: Final = 12
"""A message does not list more keys than a backend has."""


def describe(error: ValidationError, at: Path = ()) -> list[Finding]:
    """Return the path and the message of what is wrong, as far as it is told.

    Args:
        error: of a validation.
        at: where the value stands that was validated.
    """
    errors = error.errors(include_url=False)
    # Pydantic also calls a list too short whose items were all refused.
    real = (each for each in errors if each["type"] != "too_short" or not each["input"])
    return [_describe(each, at) for each in islice(real, MAX_PROBLEMS + 1)]


def _describe(error: ErrorDetails, at: Path) -> Finding:
    # Pydantic marks an error in a mapping's key, rather than its value, by a last part.
    path = (*at, *(part for part in error["loc"] if part != "[key]"))
    context = error.get("ctx", {})
    found = "" if _may_be_secret(path) else f", got {show(error['input'])}"
    match error["type"]:
        case "missing":
            return path, "is required"
        case "extra_forbidden":
            return path, _unknown_key(path)
        case "model_type":
            first = next(iter(keys_at(path)))
            return path, f"expected a mapping such as {{{first}: ...}}{found}"
        case "too_short":
            return path, "at least one is needed"
        case "string_too_short":
            return path, "must not be empty"
        case "string_too_long":
            return path, f"expected at most {context['max_length']} characters"
        case "rule":
            return path, str(context["message"])
        case "value_error":
            return path, str(context["error"])
    expected = _EXPECTED.get(error["type"])
    if expected is None:
        return path, error["msg"]
    return path, f"expected {expected.format(**context)}{found}"


def _may_be_secret(path: Path) -> bool:
    """Whether what stands there must not be shown: values of headers, and tokens, also where they
    stand in the wrong place."""
    return "headers" in path or path[:2] == ("access", "tokens")


def keys_meant(error: ValidationError, at: Path = ()) -> set[Path]:
    """Return the paths of known keys that stand there under a name that is unknown, as far as the
    unknown ones are told.

    Args:
        error: of a validation.
        at: where the value stands that was validated.
    """
    errors = error.errors(include_url=False)[: MAX_PROBLEMS + 1]
    unknown = ((*at, *each["loc"]) for each in errors if each["type"] == "extra_forbidden")
    return {(*path[:-1], key) for path in unknown if (key := key_meant(path))}


def _unknown_key(path: Path) -> str:
    meant = key_meant(path) or _elsewhere(str(path[-1]))
    if meant:
        return f"unknown key; did you mean {meant}?"
    known = keys_at(path[:-1])
    if len(known) > _MOST_LISTED:
        return "unknown key; docs/configuration.md has all keys"
    *others, last = known
    return f"unknown key; expected {', '.join(others)} or {last}" if others else "unknown key"


def key_meant(path: Path) -> str:
    """Return the known key that the unknown one at a path stands for; empty if there is none."""
    key, known = str(path[-1]), keys_at(path[:-1])
    for name in (*_OTHER_NAMES.get(key, ()), key.lower()):
        if name in known:
            return name
    if _elsewhere(key):
        return ""
    return next(iter(get_close_matches(key, known, n=1)), "")


def _elsewhere(key: str) -> str:
    """The path of the only section, or setting of a section, of that name; empty without one."""
    found = [key] if key in Settings.model_fields else []
    for name, field in Settings.model_fields.items():
        section = field.annotation
        # Not of a list or mapping of sections, whose paths hold an index or a name.
        if isinstance(section, type) and issubclass(section, Section):
            found += [f"{name}.{key}"] if key in section.model_fields else []
    return found[0] if len(found) == 1 else ""
