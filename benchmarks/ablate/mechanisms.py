"""The mechanisms of the scheduler, each with how it is switched off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from math import inf
from typing import Any, Final

BY_CONSTANTS: Final[Mapping[str, Mapping[str, float]]] = {
    "own execution counts less than its wait": {"model_backend.OWN_EXECUTION_WEIGHT": 1.0},
    "own execution counts little in time": {"selection._BUSY_EXECUTION_WEIGHT": 0.75},
    "newest first": {"eligible_set._MAX_OVERTAKEN": -1e9},
    "late lead": {"selection.LATE_LEAD_S": 0.05},
    "wait for a faster one is bounded": {"model_queue._MAX_WAIT_RATIO": inf},
    "idle ones that are nearly alike take turns": {
        "model_stats.IDLE_TIE_TOLERANCE": 0.0,
        "model_stats._PER_VARIED": 0.0,
    },
    "tie tolerance follows variance": {"model_stats._PER_VARIED": 0.0},
    "ties within 5 %": {"selection.TIE_TOLERANCE": 0.0},
    "doubt": {"model_backend._EXPLORE_S": 1e9, "model_backend._MAX_EXPLORE_S": 1e9},
    "doubt grows rarer": {"model_backend._MAX_EXPLORE_S": 1.0},
    "no doubt before some executions": {"model_backend._EXECUTIONS": 0.0},
    "instances slow each other down": {"model_backend.SIDE_BY_SIDE": 0.0},
    "failures count as slowness": {"backend_penalty._MAX_FACTOR": 1.0},
    "success takes off the penalty": {"backend_penalty._LEFT_AFTER_SUCCESS": 1.0},
    "lateness margin": {"model_backend.LATENESSES": 0.0},
    "network margin": {"selection.NETWORK_S": 0.0},
    "overdue requests are lost": {"unanswered.LOST_S": 1e9},
    "further tries are rarer": {"unanswered._MAX_BACKOFF": 1},
    "nothing goes ahead under pressure": {"selection.NO_LEAD_S": 0.002},
    "others go ahead less where slots are reserved": {"selection.YIELDING_LEAD_S": 0.05},
    "work under way beyond one": {"model_backend.MARGIN_S": 0.0},
    "ways count for what is under way": {"model_backend._NETWORK_ROUNDS": 0.0},
    "very random executions tell nothing of the ways": {"model_backend._ANY": inf},
    "no request goes far ahead": {"model_backend.LEAD_S": 1e6},
    "quick executions are sampled": {"model_backend._QUICK_S": 0.0},
    "settled costs are sampled": {"model_backend._SETTLED": 0.0},
    "median of the first samples": {"cost._FIRST": 1},
    "surprises in a row are a change": {"cost._SURPRISES": 1000000},
    "outliers are clipped": {"cost._CLIP_DEVIATIONS": 1e9, "cost._CLIP_SHARE": 1e9},
    "old estimates count little": {"cost._STALE_S": 1e9},
    "extrapolation is bounded": {"cost.MAX_EXTRAPOLATION": 1e9},
    "joining a batch counts less": {"batching._JOINED": 1.0},
    "shorter ones pass": {"waiting._OVERTAKEN_RATIO": 0.0},
    "no deadline is one after 5 s": {"waiting._DEFAULT_DUE_S": 1e6},
    "passing is bounded": {"waiting._MAX_OVERTAKEN_S": 1e6},
    "index of many": {"model_backend_index.LARGE": 1000000},
    "streams stay at home": {"scheduler._AFFINITY_SLACK": 0.0},
    "tail is forgotten in pauses": {"model_stats._TAIL_FOR_S": 1e9},
    "every end adjusts the limit": {"model_backend._ADJUST_EVERY": 0},
    "what is usual is sampled": {"model_backend._USUAL_EVERY": 0},
    "arrivals are sampled": {"scheduler._ARRIVALS_SKIPPED": 0},
    "rate is kept for a while": {"eligible_set._RATE_FOR_S": -1.0},
}
"""Off with other constants."""

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
    _class("eligible_set", "EligibleSet").is_lost = lambda self, ticket, now, ahead=0.0: (
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
