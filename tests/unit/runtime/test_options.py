"""What settings mean for the options of parts."""

from __future__ import annotations

from math import inf
from typing import Any

from lb.control.plans import LimitBy, LineRule, PlanRules, plan_rules
from lb.domain.schedule import Order, QueueRules
from lb.health.outliers import OutlierRules, outlier_rules
from lb.health.ramp import RampRules, ramp_rules
from lb.proxy.attempt_timeout import attempt_times
from lb.proxy.dispatch import dispatch_options
from lb.proxy.fan_out.options import fan_out_options
from lb.proxy.http1.options import http1_options
from lb.proxy.http2.options import http2_options
from lb.proxy.queue import QueueOptions, queue_options
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


def test_auto_goes_by_the_configuration_of_models_and_refuses_nothing() -> None:
    rules = plan_rules(settings())
    assert plan_rules(settings(scheduling={"max_requests_per_backend": "auto"})) == rules
    assert rules == PlanRules(
        usual=LineRule(by=LimitBy.CONFIGURATION, queue=QueueRules(max_waiting=100_000))
    )
    assert rules.usual.queue.max_wait_s == inf
    assert queue_options(settings()) == QueueOptions()


def test_with_another_policy_nothing_is_scheduled_unless_it_is_asked_for() -> None:
    other = {"policy": "round_robin"}
    assert plan_rules(settings(balancing=other)).usual.by is LimitBy.NOTHING
    asked_for = plan_rules(
        settings(balancing=other, scheduling={"max_requests_per_backend": "auto"})
    )
    assert asked_for.usual.by is LimitBy.CONFIGURATION
    model = plan_rules(
        settings(balancing=other, models={"m": {"max_requests_per_backend": 3}})
    ).models[b"m"]
    assert (model.by, model.concurrency) == (LimitBy.NUMBER, 3)


def test_a_model_has_what_it_says_and_the_rest_of_the_common_section() -> None:
    rules = plan_rules(
        settings(
            scheduling={"max_requests_per_backend": "off", "max_queue_size": 7, "max_wait": "2s"},
            models={
                "m": {"max_requests_per_backend": 3},
                "n": {"max_queue_size": 0},
                "o": {"priority": 1},
            },
        )
    )
    assert rules.usual.by is LimitBy.NOTHING
    assert set(rules.models) == {b"m", b"n"}
    m, n = rules.models[b"m"], rules.models[b"n"]
    assert (m.by, m.concurrency, m.queue.max_waiting, m.queue.max_wait_s) == (
        LimitBy.NUMBER, 3, 7, 2.0,
    )  # fmt: skip
    assert (n.by, n.queue.max_waiting) == (LimitBy.NOTHING, 0)


def test_priorities_count_from_the_highest() -> None:
    rules = plan_rules(settings(scheduling={"priorities": "weighted", "weights": [4, 1]}))
    assert rules.usual.queue.order is Order.WEIGHTED
    assert rules.usual.queue.weights == {0: 4.0, 1: 1.0}


def test_headers_are_compared_in_lower_case_and_noted() -> None:
    options = queue_options(
        settings(
            scheduling={
                "priority_header": "X-Priority",
                "tenants": "header",
                "tenant_header": "X-Team",
                "overload_status": 429,
                "wait_for_backend": "3s",
            },
            models={"m": {"priority": 1}},
        )
    )
    assert options == QueueOptions(
        priority_header=b"x-priority",
        tenant_header=b"x-team",
        overload_status=429,
        wait_for_backend_s=3.0,
        priorities={b"m": 1},
    )
    assert options.noted == {b"x-priority", b"x-team"}
    assert queue_options(settings(scheduling={"tenants": "token"})).by_token


def test_defaults_are_those_of_the_rules() -> None:
    assert outlier_rules(settings()) == OutlierRules()
    assert ramp_rules(settings()) == RampRules()


def test_each_setting_has_its_rule() -> None:
    outliers = {
        "consecutive_failures": 7, "latency_factor": 9, "base_ejection_time": "1s",
    }  # fmt: skip
    assert outlier_rules(settings(outlier_detection=outliers)) == OutlierRules(
        consecutive=7, latency_factor=9.0, base_s=1.0
    )
    assert ramp_rules(settings(slow_start={"window": "3s"})) == RampRules(window_s=3.0)


def test_an_ejection_may_begin_longer_than_the_usual_maximum() -> None:
    rules = outlier_rules(settings(outlier_detection={"base_ejection_time": "10m"}))
    assert rules is not None
    assert (rules.base_s, rules.max_s) == (600.0, 600.0)
