"""Times and limits: their defaults are those of the design."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lb.settings.limits import LimitSettings, TimeoutSettings


def test_defaults_are_those_of_the_design() -> None:
    assert TimeoutSettings().model_dump() == DEFAULTS["timeouts"]
    assert LimitSettings().model_dump() == DEFAULTS["limits"]


@pytest.mark.parametrize("name", sorted(TimeoutSettings.model_fields))
def test_times_are_not_negative(name: str) -> None:
    with pytest.raises(ValidationError):
        TimeoutSettings.model_validate({name: "-1s"})


DEFAULTS: dict[str, dict[str, Any]] = {
    "timeouts": {
        "connect": 1.0,
        "head": 10.0,
        "body_progress": 30.0,
        "stream_stalled": 300.0,
        "client_idle": 620.0,
        "upstream_idle": 30.0,
        "request": 0.0,
        "attempt": 0.0,
        "handshake": 10.0,
    },
    "limits": {
        "connections": 0,
        "connections_per_client": 0,
        "head_bytes": 32 * 1024,
        "request_line_bytes": 8 * 1024,
        "fields": 100,
        "body_bytes": 0,
        "retained_body_bytes": 8 * 2**20,
        "memory_bytes": 0,
        "concurrent_streams": 1024,
        "stream_window_bytes": 1024 * 1024,
        "stream_window_max_bytes": 4 * 1024 * 1024,
        "frame_bytes": 1024 * 1024,
        "http_buffer_bytes": 64 * 1024,
    },
}
