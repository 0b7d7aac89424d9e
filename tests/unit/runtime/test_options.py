"""Options of the data plane, from settings."""

from __future__ import annotations

from typing import Any

from lb.runtime.options import (
    attempt_times,
    dispatch_options,
    fan_out_options,
    http1_options,
    http2_options,
)
from lb.settings.model import Settings


def settings(**more: Any) -> Settings:
    usual = {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "a:1"}]}
    return Settings.model_validate(usual | more)


def test_options_hold_what_the_settings_say() -> None:
    given = settings(
        limits={"head_bytes": "16KiB", "body_bytes": "3MiB", "max_concurrent_streams": 7},
        timeouts={"request": "4s", "connect": "2s"},
        fan_out={"deadline": "5s"},
    )
    http1, http2 = http1_options(given), http2_options(given)
    assert (http1.head.head_bytes, http2.head_size) == (16 << 10, 16 << 10)
    assert (http1.body_size, http2.message_size) == (3 << 20, 3 << 20)
    assert (http1.request_timeout_s, http2.request_timeout_s) == (4.0, 4.0)
    assert (http1.connect_timeout_s, http2.concurrent_streams) == (2.0, 7)
    assert fan_out_options(given).deadline_s == 5.0


def test_forwarding_modes_are_told_apart() -> None:
    modes = {
        mode: (http1_options(settings(forwarded=mode)), http2_options(settings(forwarded=mode)))
        for mode in ("off", "x_forwarded", "forwarded", "both")
    }
    for mode, options in modes.items():
        for each in options:
            assert each.x_forwarded is (mode in ("x_forwarded", "both"))
            assert each.forwarded is (mode in ("forwarded", "both"))


def test_models_that_must_not_run_twice_are_known_by_their_names_on_the_wire() -> None:
    given = settings(models={"grüße": {"retry": "never"}, "b": {"retry": "auto"}, "c": {}})
    assert dispatch_options(given).retry.never == {"grüße".encode()}


def test_without_a_budget_nothing_that_may_have_run_goes_again() -> None:
    assert dispatch_options(settings()).retry.floor > 0
    none = dispatch_options(settings(retry={"budget": 0})).retry
    assert (none.share, none.floor) == (0.0, 0.0)


def test_each_model_has_its_time_for_an_attempt() -> None:
    given = settings(
        timeouts={"attempt": "5s"},
        models={"a": {"attempt_timeout": "1s"}, "b": {"attempt_timeout": 0}, "c": {}},
    )
    times = attempt_times(given)
    assert [times.of(name) for name in (b"a", b"b", b"c", b"d")] == [1.0, 0.0, 5.0, 5.0]
    assert times.shortest == 1.0


def test_equal_settings_make_equal_options() -> None:
    assert http1_options(settings()) == http1_options(settings())
    assert http2_options(settings()) == http2_options(settings())
