"""Which series a PromQL expression asks for, and whether our catalogue has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from lb.domain.backend import BackendState
from lb.domain.operation import OperationKind
from lb.domain.outcome import Reason
from lb.telemetry.catalogue import COLLECTED, SCRAPE_FAILURES, MetricType

_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE: Final = re.compile(r"\[[^\]]*\]")
_SELECTOR: Final = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)\s*(\{[^}]*\})?(?!\s*\(|[A-Za-z0-9_:])")
_MATCHER: Final = re.compile(r'([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_WORDS: Final = frozenset({"and", "or", "unless", "bool", "offset", "inf", "nan"})
_TARGET: Final = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""
_OF_OTHERS: Final = {
    "up": frozenset[str](),
    "process_cpu_seconds_total": frozenset[str](),
    "process_resident_memory_bytes": frozenset[str](),
    "nv_inference_queue_duration_us": frozenset({"backend", "model", "version"}),
    "nv_inference_request_success": frozenset({"backend", "model", "version"}),
    "nv_inference_pending_request_count": frozenset({"backend", "model", "version"}),
    "nv_gpu_utilization": frozenset({"backend", "gpu_uuid"}),
    "nv_gpu_memory_used_bytes": frozenset({"backend", "gpu_uuid"}),
    "nv_gpu_memory_total_bytes": frozenset({"backend", "gpu_uuid"}),
}
"""Series that are not in our catalogue: of Prometheus, of `prometheus-client` and of Triton."""
_VALUES: Final = {
    "state": {state.value for state in BackendState},
    "reason": {reason.value for reason in Reason},
    "kind": {kind.value for kind in OperationKind},
    "why": {"lost", "expired", "dropped"},
    "result": {"restored", "failed"},
}


class Selector(NamedTuple):
    """A series that an expression asks for."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    """Label, operator, value."""


def series_of_ours() -> dict[str, frozenset[str]]:
    """All series that a scrape may find, with their labels."""
    found = dict(_OF_OTHERS)
    for spec in (*COLLECTED, SCRAPE_FAILURES):
        labels = frozenset(spec.labels)
        if spec.type is MetricType.HISTOGRAM:
            found[f"{spec.name}_bucket"] = labels | {"le"}
            found[f"{spec.name}_sum"] = found[f"{spec.name}_count"] = labels
        else:
            found[spec.name] = labels
    return found


def selectors(expression: str) -> Iterator[Selector]:
    """What an expression asks for."""
    plain = _RANGE.sub("", _GROUPING.sub("", expression))
    for name, braces in _SELECTOR.findall(plain):
        if name not in _WORDS and not name.replace("e", "").isdigit():
            yield Selector(name, tuple(_MATCHER.findall(braces)))


def faults(expression: str, known: dict[str, frozenset[str]]) -> list[str]:
    """What an expression names that there is not: series, labels, values of labels."""
    found = []
    asked = list(selectors(expression))
    if not asked:
        found.append("asks for nothing")
    labels = set(_TARGET)
    for name, matchers in asked:
        if name not in known:
            found.append(f"no series {name}")
            continue
        labels |= known[name]
        for label, operator, value in matchers:
            if label not in known[name] | _TARGET:
                found.append(f"{name} has no label {label}")
            elif label in _VALUES and "$" not in value:
                found += _strange(label, value.split("|") if "~" in operator else [value])
    for group in _GROUPING.findall(expression):
        grouped = {label.strip() for label in group.split(",") if label.strip()}
        found += [f"nothing here has a label {label}" for label in sorted(grouped - labels)]
    return found


def _strange(label: str, patterns: list[str]) -> list[str]:
    return [
        f"no {label} is {pattern}"
        for pattern in patterns
        if not any(re.fullmatch(pattern, value) for value in _VALUES[label])
    ]
