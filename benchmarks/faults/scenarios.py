"""Every scenario: its fault script, and what it allows.

Three Tritons run at about half of what they can. "Failed" counts requests that may run twice and
whose response had not begun; their clients wait five seconds at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults import steps
from benchmarks.faults.between import NO_FAULT, Fault
from benchmarks.faults.contestants import TUNED
from benchmarks.faults.rogue import BREAKS, CHURNS
from benchmarks.faults.rules import (
    Rule,
    answered_within,
    failed,
    failed_after,
    failed_share,
    failed_steps,
    idle_servers,
    late_at,
    note,
    p99_factor,
    poisoned,
    slow_after_kill,
)
from benchmarks.faults.steps import Step
from benchmarks.load.proxies import TRITON_LB

_DOWN_S = 5.0


@dataclass(frozen=True)
class Scenario:
    """One row of the table."""

    name: str
    title: str
    script: tuple[Step, ...]
    rules: tuple[Rule, ...]
    disturbed: bool = False
    """Whether something stands between the balancer and the Tritons that can disturb."""
    rogue: bool = False
    """Whether a scripted backend stands beside the Tritons. It has one model, and no streams."""
    sections: Mapping[str, Any] = field(default_factory=dict)
    """Of triton-lb's configuration, where the row is about what is off by default."""
    only: tuple[str, ...] = field(default=())
    """Who can take part, if not everybody."""


def _kills(count: int) -> tuple[Step, ...]:
    script: list[Step] = [steps.rest(3.0)]
    for at in range(count):
        victim = at % 3
        script += [
            *(steps.kill(victim), steps.rest(_DOWN_S)),
            *(steps.restart(victim), steps.back(victim), steps.rest(1.0)),
        ]
    return tuple(script)


def _rolling(*, drained: bool) -> tuple[Step, ...]:
    script: list[Step] = [steps.rest(2.0)]
    for victim in range(3):
        script += [steps.drain(victim)] if drained else []
        script += [steps.terminate(victim), steps.restart(victim), steps.back(victim)]
        script += [steps.enable(victim)] if drained else []
        script += [steps.rest(3.0)]
    return tuple(script)


def _poison(code: str, shown: str) -> Scenario:
    return Scenario(
        f"poison-{code.lower().replace('_', '-')}",
        f"one answers every inference with an error at once: {shown}",
        (
            *(steps.rest(3.0), steps.tell(1, "poison", code), steps.rest(10.0), steps.heal(1)),
            *(steps.until_served(1, 40.0), steps.rest(1.0)),
        ),
        (
            failed_share("tell", "heal", 1.0),
            poisoned(5.0, 10),
            note("returned", "seconds from its healing to its first request", 30.0, unit="s"),
        ),
    )


def scenarios(*, quick: bool = False) -> tuple[Scenario, ...]:
    """All of them; `quick` repeats less often."""
    kills, reloads, upgrades = (3, 20, 3) if quick else (10, 100, 20)
    return (
        Scenario("calm", "no fault", (steps.rest(8.0),), (failed(), failed_steps())),
        Scenario(
            "kill-one",
            f"kill -9 of one, restarted after {_DOWN_S:g} s, {kills} times in turn",
            _kills(kills),
            (failed(), slow_after_kill(5.0, 1.5, TUNED)),
        ),
        Scenario(
            "kill-two",
            f"kill -9 of two of three at once, restarted after {_DOWN_S:g} s",
            (
                *(steps.rest(3.0), steps.kill(0, 1), steps.rest(_DOWN_S)),
                *(steps.restart(0, 1), steps.back(0, 1), steps.rest(4.0)),
            ),
            (failed(),),
        ),
        Scenario(
            "rolling",
            "SIGTERM and restart of each in turn",
            _rolling(drained=False),
            (failed(),),
        ),
        Scenario(
            "rolling-drained",
            "the same, each drained first",
            _rolling(drained=True),
            (failed(), failed_steps()),
            only=(TRITON_LB,),
        ),
        Scenario(
            "freeze",
            "SIGSTOP of one for 20 s",
            (
                *(steps.rest(3.0), steps.freeze(1), steps.rest(20.0), steps.thaw(1)),
                steps.rest(3.0),
            ),
            (failed(), late_at(1, "freeze", 2.5, "thaw", 1.5)),
        ),
        _poison("UNKNOWN", "HTTP 400, gRPC UNKNOWN"),
        _poison("INTERNAL", "HTTP 500, gRPC INTERNAL"),
        Scenario(
            "bad-client",
            "a client that sends only bad requests, 60 a second, beside good ones",
            (
                *(steps.rest(2.0), steps.bad_requests(60.0), steps.rest(12.0)),
                *(steps.bad_requests(0.0), steps.rest(2.0)),
            ),
            (failed(), idle_servers("bad", "good", 2.0)),
        ),
        Scenario(
            "death",
            "a request that kills the server that runs it",
            (
                *(steps.rest(3.0), steps.death(), steps.rest(8.0), steps.count_dead()),
                steps.rest(1.0),
            ),
            (note("died", "Tritons that died", 2), failed()),
        ),
        Scenario(
            "lost",
            "requests that Tritons never answer, for one model; half of their clients leave",
            # Tritons do not exit while they have such requests.
            (steps.rest(3.0), steps.lose(12), steps.rest(3.0), steps.kill(0, 1, 2)),
            (
                note("unserved", "requests for that model without an answer", 0),
                failed_share("lose", "found", 0.0),
            ),
        ),
        Scenario(
            "lost-many",
            "400 requests at once that Tritons never answer, for one model; their clients stay",
            (steps.rest(3.0), steps.lose_at_once(400), steps.rest(3.0), steps.kill(0, 1, 2)),
            (
                note("unserved", "later requests for that model without an answer", 0),
                failed_share("lose", "found", 0.0),
            ),
        ),
        Scenario(
            "slow",
            "one becomes 20 times slower",
            (
                *(steps.rest(8.0), steps.tell(1, "slow", "20"), steps.rest(15.0)),
                *(steps.heal(1), steps.rest(2.0)),
            ),
            (failed(), p99_factor("tell", 5.0, "heal", 3.0)),
        ),
        Scenario(
            "resets",
            "every second 5 % of the upstream connections are reset in mid-request",
            (steps.rest(2.0), steps.resets(0.05, 15.0), steps.rest(2.0)),
            (failed(),),
            disturbed=True,
        ),
        Scenario(
            "all-down",
            "all down for 10 s, then up",
            (
                *(steps.rest(3.0), steps.kill(0, 1, 2), steps.rest(10.0), steps.mark("up")),
                *(steps.restart(0, 1, 2), steps.back(0, 1, 2), steps.rest(7.0)),
            ),
            (answered_within("kill", 0.5, "up", 0.05), failed_after("open", 3.0, 3.0)),
        ),
        Scenario(
            "all-down-held",
            "all ports closed and connections reset for 2 s, with `wait_for_backend`",
            (
                *(steps.rest(3.0), steps.shut(0, 1, 2), steps.rest(2.0), steps.listen(0, 1, 2)),
                steps.rest(6.0),
            ),
            (failed(),),
            disturbed=True,
            sections={"scheduling": {"wait_for_backend": "10s"}},
            only=(TRITON_LB,),
        ),
        Scenario(
            "reload",
            f"{reloads} reloads: backends, policy and limits change",
            (steps.rest(2.0), steps.reloads(reloads, 0.3), steps.rest(2.0)),
            (note("applied", "reloads applied", reloads, at_least=True), failed(), failed_steps()),
            only=(TRITON_LB,),
        ),
        Scenario(
            "hand-over",
            f"{upgrades} restarts with socket hand-over",
            (steps.rest(2.0), steps.upgrades(upgrades, 1.0), steps.rest(2.0)),
            (note("handed_over", "restarts done", upgrades, at_least=True), failed()),
            only=(TRITON_LB,),
        ),
        Scenario(
            "unload",
            "unload of a model on one while the others serve it",
            (
                *(steps.rest(3.0), steps.unload(1), steps.rest(5.0), steps.load(1)),
                steps.rest(3.0),
            ),
            (failed(),),
        ),
        # Beyond the Tritons: what networks do. No limits were set for these; the same count.
        Scenario(
            "black-hole",
            "bytes to and from one go nowhere for 10 s",
            (
                *(steps.rest(3.0), steps.disturb(1, Fault(black_hole=True)), steps.rest(10.0)),
                *(steps.disturb(1, NO_FAULT), steps.rest(3.0)),
            ),
            (failed(), late_at(1, "disturb", 2.5, "disturb", 1.5)),
            disturbed=True,
        ),
        Scenario(
            "stop-reading",
            "nothing reads from one or from us before it for 10 s",
            (
                *(steps.rest(3.0), steps.disturb(1, Fault(stop_reading=True)), steps.rest(10.0)),
                *(steps.disturb(1, NO_FAULT), steps.rest(3.0)),
            ),
            (failed(),),
            disturbed=True,
        ),
        Scenario(
            "cut-requests",
            "new connections to one are reset after 300 kB for 10 s",
            (
                *(steps.rest(3.0), steps.disturb(1, Fault(reset_after=300_000)), steps.rest(10.0)),
                *(steps.disturb(1, NO_FAULT), steps.rest(3.0)),
            ),
            (failed(),),
            disturbed=True,
        ),
        Scenario(
            "cut-answers",
            "answers of one seem to end in their midst for 10 s",
            (
                *(steps.rest(3.0), steps.disturb(1, Fault(half_close_after=400)), steps.rest(10.0)),
                *(steps.disturb(1, NO_FAULT), steps.rest(3.0)),
            ),
            (failed(),),
            disturbed=True,
        ),
        Scenario(
            "refuse",
            "one resets new connections every other second for 10 s",
            (
                steps.rest(3.0),
                *(
                    step
                    for _ in range(5)
                    for step in (
                        *(steps.disturb(1, Fault(refuse=True)), steps.rest(1.0)),
                        *(steps.disturb(1, NO_FAULT), steps.rest(1.0)),
                    )
                ),
                steps.rest(2.0),
            ),
            (failed(),),
            disturbed=True,
        ),
        Scenario(
            "rate",
            "2 MB a second and connection to and from one for 10 s",
            (
                *(steps.rest(3.0), steps.disturb(1, Fault(bytes_per_s=2e6)), steps.rest(10.0)),
                *(steps.disturb(1, NO_FAULT), steps.rest(3.0)),
            ),
            (failed(),),
            disturbed=True,
        ),
        Scenario(
            "corrupt",
            "open connections to one are reset, answers on new ones corrupt for 10 s",
            (
                *(steps.rest(3.0), steps.disturb(1, Fault(corrupt_after=1)), steps.reset_open(1)),
                *(steps.rest(10.0), steps.disturb(1, NO_FAULT), steps.rest(3.0)),
            ),
            (failed(),),
            disturbed=True,
        ),
        Scenario(
            "breaks",
            "a scripted one breaks HTTP and HTTP/2 on a third of its requests for 10 s",
            (
                *(steps.rest(3.0), steps.misbehave(BREAKS), steps.rest(10.0)),
                *(steps.misbehave(""), steps.rest(3.0)),
            ),
            (failed(),),
            rogue=True,
        ),
        Scenario(
            "churns",
            "a scripted one ends its connections all the time for 10 s, as it may",
            (
                *(steps.rest(3.0), steps.misbehave(CHURNS), steps.rest(10.0)),
                *(steps.misbehave(""), steps.rest(3.0)),
            ),
            (failed(),),
            rogue=True,
        ),
        Scenario(
            "late",
            "everything to and from one comes 300 ms late for 10 s",
            (
                *(steps.rest(8.0), steps.disturb(1, Fault(latency_s=0.3)), steps.rest(10.0)),
                *(steps.disturb(1, NO_FAULT), steps.mark("heal"), steps.rest(2.0)),
            ),
            (failed(), p99_factor("disturb", 5.0, "heal", 3.0)),
            disturbed=True,
        ),
    )
