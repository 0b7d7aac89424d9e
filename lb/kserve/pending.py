"""How many requests a Triton has, by its own metrics (`nv_inference_pending_request_count`)."""

from __future__ import annotations

import re
from typing import Final

_COUNT: Final = re.compile(
    rb'^nv_inference_pending_request_count\{[^}]*?\bmodel="([^"]*)"[^}]*\} ([0-9]+(?:\.[0-9]+)?)',
    re.MULTILINE,
)


def pending_counts(page: bytes) -> dict[bytes, float]:
    """Requests that wait there, by model; all versions together."""
    found: dict[bytes, float] = {}
    for model, count in _COUNT.findall(page):
        found[model] = found.get(model, 0.0) + float(count)
    return found
