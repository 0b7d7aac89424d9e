"""Defaults of the relay are the documented ones."""

from __future__ import annotations

from lb.proxy.http1.options import Http1Options
from lb.settings.limits import LimitSettings, TimeoutSettings


def test_defaults_are_those_of_the_settings() -> None:
    options, limits, timeouts = Http1Options(), LimitSettings(), TimeoutSettings()
    assert options.head.head_bytes == limits.head_bytes
    assert options.head.line_bytes == limits.request_line_bytes
    assert options.head.fields == limits.max_headers
    assert options.body_size == limits.body_bytes
    assert options.retained_size == limits.retained_body_bytes
    assert options.connect_timeout_s == timeouts.connect
    assert options.head_timeout_s == timeouts.head
    assert options.body_timeout_s == timeouts.body_progress
    assert options.client_idle_s == timeouts.client_idle
    assert options.upstream_idle_s == timeouts.upstream_idle
    assert options.request_timeout_s == timeouts.request
