"""Pydantic's errors in the words of an operator: what was expected, what was found."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from lb.settings.problems import Path, show
from lb.settings.shape import keys_at

_EXPECTED: Final = {
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "string_type": "text (put it in quotes)",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
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


_FORMER: Final = {
    "base_ejection_time": "base",
    "consecutive_failures": "consecutive",
    "fan_out": "control",
    "load_poll_interval": "ask_pending",
    "max_concurrent_requests": "concurrent",
    "max_concurrent_streams": "concurrent_streams",
    "max_connections": "connections",
    "max_connections_per_client": "connections_per_client",
    "max_headers": "fields",
    "max_queue_size": "queue",
    "max_ratio": "share",
    "max_requests": "max_in_flight",
    "max_requests_per_backend": "concurrency",
    "max_requests_per_model": "concurrency",
    "outlier_detection": "outliers",
    "pre_stop_delay": "settle",
}
"""Names that keys had in development versions: they resemble the new ones too little for
`get_close_matches`."""


def describe(error: ValidationError) -> list[tuple[Path, str]]:
    """Return the path and the message of everything that is wrong."""
    return [
        _describe(details)
        for details in error.errors(include_url=False)
        # Pydantic also calls a list too short whose items were all refused.
        if details["type"] != "too_short" or not details["input"]
    ]


def _describe(error: ErrorDetails) -> tuple[Path, str]:
    # Pydantic marks an error in a mapping's key, rather than its value, by a last part.
    path = tuple(part for part in error["loc"] if part != "[key]")
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return path, "is required"
        case "extra_forbidden":
            return path, _unknown_key(path)
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
    found = "" if _may_be_secret(path) else f", got {show(error['input'])}"
    return path, f"expected {expected.format(**context)}{found}"


def _may_be_secret(path: Path) -> bool:
    """Whether what stands there must not be shown: values of headers, and tokens, also where they
    stand in the wrong place."""
    return "headers" in path or path[:2] == ("access", "tokens")


def _unknown_key(path: Path) -> str:
    key, known = str(path[-1]), keys_at(path[:-1])
    close = [name for name in known if _FORMER.get(name) == key]
    close = close or get_close_matches(key, known, n=1)
    return f"unknown key; did you mean {close[0]}?" if close else "unknown key"
