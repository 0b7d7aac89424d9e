"""The mechanisms of the scheduler, each with how it is switched off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from math import inf
from typing import Any, Final

BY_TUNING: Final[Mapping[str, Mapping[str, float]]] = {
    "own execution counts less than its wait": {"own_execution_weight": 1.0},
    "own execution counts little in time": {"busy_execution_weight": 0.75},
    "newest first": {"overtaken_share": -1e9},
    "late lead": {"late_lead_s": 0.05},
    "idle ones that are nearly alike take turns": {
        "idle_tie_tolerance": 0.0,
    },
    "ties within 5 %": {"tie_tolerance": 0.0},
    "doubt": {"explore_s": 1e9, "max_explore_s": 1e9},
    "doubt grows rarer": {"max_explore_s": 1.0},
    "failures count as slowness": {"max_penalty": 1.0},
    "success takes off the penalty": {"penalty_after_success": 1.0},
    "lateness margin": {"latenesses": 0.0},
    "network margin": {"network_s": 0.0},
    "overdue requests are lost": {"overdue_s": 1e9},
    "after a loss requests are overdue sooner": {"overdue_again_s": 1.0},
    "further tries are rarer": {"max_overdue_backoff": 1},
    "others go ahead less where slots are reserved": {"yielding_lead_s": 0.05},
    "work under way beyond one": {"margin_s": 0.0},
    "ways count for what is under way": {"network_rounds": 0.0},
    "very random executions tell nothing of the ways": {"random_deviation": inf},
    "no request goes far ahead": {"lead_s": 1e6},
    "quick executions are sampled": {"quick_s": 0.0},
    "settled costs are sampled": {"settled_deviation": 0.0},
    "median of the first samples": {"first_samples": 1},
    "surprises in a row are a change": {"surprises": 1000000},
    "outliers are clipped": {"clip_deviations": 1e9, "clip_share": 1e9},
    "old estimates refuse nothing": {"stale_s": inf},
    "old estimates count little": {"stale_samples": 1000},
    "extrapolation is bounded": {"max_extrapolation": 1e9},
    "shorter ones pass": {"overtaken_executions": 0.0},
    "no deadline is one after 5 s": {"default_due_s": 1e6},
    "index of many": {"index_above": 1000000},
    "streams stay at home": {"affinity_slack": 0.0},
    "tail is forgotten in pauses": {"tail_for_s": 1e9},
    "every end adjusts the limit": {"adjust_every": 1},
    "what is usual is sampled": {"typical_one_in": 1},
    "arrivals are sampled": {"arrivals_one_in": 1},
    "rate is kept for a while": {"rate_for_s": -1.0},
    "only executions as long as before confirm": {"confirm_ratio": inf},
    "averages over requests": {"request_weight": 1.0},
    "all of the first executions teach": {"confident_samples": 0},
    "old samples are renewed": {"learn_after_s": inf},
    "unexpected executions teach": {"expected_deviation": inf},
    "a recheck waits for a part of an execution": {"recheck_share": 0.0},
    "longer requests do not go to slow ones": {"same_work_ratio": inf},
    "late ends count as in time": {"tail_ratio": 1.0},
    "the tail is known after some arrivals": {"tail_samples": 1},
    "the spread is a share at least": {"clip_share": 0.0},
    "the spread is a time at least": {"clip_s": 0.0},
    "requests ahead are rounded down": {"ahead_rounding": 0.0},
    "bad answers add to a penalty by steps": {"penalty_per_failure": 100.0},
    "sizes have to vary": {"min_variation": 0.0},
    "answers of a batch come within a time": {"batch_end_s": inf},
    "rows of a batch are averaged": {"batch_rows_weight": 1.0},
    "requests are overdue by a ratio": {"overdue_ratio": 0.0},
    "penalties fade": {"penalty_half_life_s": inf},
    "small penalties are none": {"negligible_penalty": 1.0001},
    "the index is made anew": {"index_renew_s": inf},
    "a measurement takes some requests": {"adaptive_ends": 1},
    "a found limit is held": {"adaptive_hold": 0},
    "measurements count under pressure only": {"adaptive_pressure": 0.0},
    "reports may be late": {"external_late_intervals": 0.0},
    "little external load is none": {"external_negligible": 0.0},
    "quick steps are forgotten": {"step_drift_per_s": 0.0},
    "backends without steps are tried": {"step_forget_s": inf},
    "steps count after some": {"step_samples": 1},
    "requests in flight count for sequences": {"sequence_in_flight_weight": 0.0},
    "steps that differ little are alike": {"sequence_alike_ratio": 1.0},
    "slow backends are told": {"slow_ratio": 1.0},
    "latencies are averaged": {"latency_weight": 1.0},
    "latencies are forgotten": {"latency_half_life": inf},
    "failures count as latency": {"latency_failure_penalty": 0.0},
    "few failures are none": {"latency_few_failures": 0.0},
    "idle backends are picked from one place": {"pick_stay": 1},
}
"""Off with other values of `Tuning`."""

BY_TEXT: Final[Mapping[str, tuple[str, str, str]]] = {
    "overdue executions take longer": (
        "model_backend",
        "begins_at = now + (now - begins_at)",
        "begins_at = now",
    ),
    "an idle ranking": (
        "eligible_set",
        "return self.ranking.pick(ticket, now)",
        "self.ranking = None\n        return None",
    ),
    "the size of an execution counts in its limit": (
        "model_backend",
        "ahead = (MARGIN_S + _NETWORK_ROUNDS * network_s) * self.instances / cost.mean_s",
        "ahead = 2.0 * self.instances",
    ),
}
"""Off with other code in a module."""

_PATCHES: dict[str, Callable[[], None]] = {}


def _mechanism(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(patch: Callable[[], None]) -> Callable[[], None]:
        _PATCHES[name] = patch
        return patch

    return add


def _class(module: str, name: str) -> Any:
    return getattr(import_module(f"lb.balancing.{module}"), name)


@_mechanism("wait for a faster one")
def _greedy() -> None:
    _class("selection", "Decision").is_best = lambda self, now: True


@_mechanism("nothing goes ahead under pressure")
def _pressure() -> None:
    module = import_module("lb.balancing.model_queue")
    module.NO_LEAD_S = module.YIELDING_LEAD_S  # type: ignore[attr-defined]


@_mechanism("those that wait for a faster one are chosen for slow ones")
def _head_for_slow() -> None:
    _class("model_queue", "ModelQueue")._for_slow = (
        lambda self, head, eligible_set, model_backend, decision, now: (
            head,
            model_backend,
            decision.estimate,
        )
    )


@_mechanism("newest first among unequal ones only")
def _newest_first_always() -> None:
    eligible_set = import_module("lb.balancing.eligible_set")

    def max_overtaken_s(self: Any) -> float:
        return float(eligible_set._MAX_OVERTAKEN * self.stats.tail_s - self.stats.usual.mean_s)

    eligible_set.EligibleSet.max_overtaken_s = max_overtaken_s


@_mechanism("ties by how sure estimates are")
def _sure() -> None:
    cost = import_module("lb.balancing.cost")
    cost._UNSURE = (0.0,) * len(cost._UNSURE)  # type: ignore[attr-defined]
    begin = cost.Cost._begin

    def _begin(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self.unsure_s = 0.0

    cost.Cost._begin = _begin


@_mechanism("requests with deadlines try no doubted ones")
def _avoid_doubted() -> None:
    eligible_set = _class("eligible_set", "EligibleSet")
    eligible_set.without_doubt = lambda self, decision, *_, **__: decision


@_mechanism("refusals by estimate")
def _refusals() -> None:
    _class("eligible_set", "EligibleSet").is_too_late = lambda self, ticket, now, ahead=0.0: (
        ticket.deadline <= now
    )


@_mechanism("requests that seem late hurry")
def _seems_late() -> None:
    _class("eligible_set", "EligibleSet").seems_late = staticmethod(lambda *_: False)


@_mechanism("others pass requests that seem late")
def _in_time() -> None:
    import_module("lb.balancing.model_queue")._in_time = (  # type: ignore[attr-defined]
        lambda *_, **__: None
    )


@_mechanism("idle instances are tried by late ones")
def _idle() -> None:
    _class("eligible_set", "EligibleSet").idle = lambda *_, **__: None


@_mechanism("late ones at the door are refused")
def _is_late() -> None:
    _class("model_queue", "ModelQueue").is_late = lambda *_: False


@_mechanism("rows are learnt")
def _rows() -> None:
    cost = _class("cost", "Cost")
    learn = cost.learn
    cost.learn = lambda self, took_s, rows, size, now: learn(self, took_s, 1, size, now)


@_mechanism("bytes are learnt")
def _bytes() -> None:
    cost = _class("cost", "Cost")
    learn = cost.learn
    cost.learn = lambda self, took_s, rows, size, now: learn(self, took_s, rows, 0, now)


@_mechanism("instances are told apart")
def _expected_ends() -> None:
    def free_at(self: Any, instances: int) -> float:
        count = self.in_flight
        return float(self.busy_since + self.work_s * (count - instances + 1) / (count * instances))

    _class("load_view", "LoadView").free_at = free_at


@_mechanism("underexplored ones get streams")
def _underexplored() -> None:
    _class("eligible_set", "EligibleSet").underexplored = lambda *_: None


@_mechanism("streams stay without asking")
def _stays() -> None:
    scheduler = _class("scheduler", "Scheduler")

    def stays(self: Any, ticket: Any, home: Any, now: float) -> bool:
        return bool(self.best(ticket, now, home) is home)

    scheduler.stays = stays


@_mechanism("slow start")
def _slow_start() -> None:
    import_module("lb.balancing.selection")._instead_of_newcomer = (  # type: ignore[attr-defined]
        lambda *_: None
    )


@_mechanism("external load")
def _external_load() -> None:
    _class("external_load", "ExternalLoad").on_report = lambda *_: None


@_mechanism("external load: what waits")
def _external_wait() -> None:
    _class("backend_external_load", "BackendExternalLoad").wait_s = lambda *_: 0.0


@_mechanism("external load: slower")
def _external_slower() -> None:
    _class("backend_external_load", "BackendExternalLoad").slower = lambda *_: 1.0


@_mechanism("begin with what backends have measured")
def _assume() -> None:
    _class("model_backend", "ModelBackend").assume = lambda *_: None


@_mechanism("sequences are placed by speed")
def _step_latency() -> None:
    _class("step_latency", "StepLatencies").known = lambda self: {}


@_mechanism("those behind go to slower ones")
def _in_order() -> None:

    waiting = _class("waiting", "WaitingQueue")
    waiting.nth = lambda self, place, now: self.level(now).turn().at(0)


PATCHES: Final[Mapping[str, Callable[[], None]]] = _PATCHES
"""Off by functions that take the place of others."""
