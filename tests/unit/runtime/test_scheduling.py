from __future__ import annotations

from math import inf

from lb.control.plans import LimitBy, LineRule, PlanRules
from lb.domain.schedule import Order, QueueRules
from lb.proxy.queue import QueueOptions
from lb.runtime.scheduling import plan_rules, queue_options
from lb.settings.model import Settings


def settings(**sections: object) -> Settings:
    return Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "127.0.0.1:1"}], **sections}
    )


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
