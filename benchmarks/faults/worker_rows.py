"""Rows of triton-lb with two workers: what dies here are processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import psutil

from benchmarks.faults import steps
from benchmarks.faults.contestants import TritonLb
from benchmarks.faults.ledger import Joined
from benchmarks.faults.rules import Evidence, Rule, failed, failed_after, failed_share, note
from benchmarks.faults.scenarios import Scenario, scenarios
from benchmarks.faults.steps import Stage, Step
from benchmarks.load.proxies import TRITON_LB
from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer

WORKERS: Final[Mapping[str, Any]] = {"workers": 2, "sequences": {"affinity": "rendezvous"}}
"""Steps of a sequence come over several connections, which docs/workers.md has a setting for."""
CONTROL: Final = -1
SUPERVISOR: Final = -2
"""Stand for processes beside the numbers of workers."""
_BACK_S: Final = 60.0
_AT_ONCE_S: Final = 0.2
"""So soon after the end of a process its clients may not have heard of it."""


def _rows(balancer: RunningBalancer) -> list[dict[str, Any]]:
    """The workers as the admin API tells of them; none while it is away."""
    try:
        with urllib.request.urlopen(f"http://{balancer.admin}/api/v1/live", timeout=2.0) as answer:
            rows: list[dict[str, Any]] = json.load(answer)["workers"]
    except (OSError, ValueError):
        return []
    return rows


def _pid(stage: Stage, number: int) -> int:
    assert isinstance(stage.contestant, TritonLb)
    supervisor = stage.contestant.process()
    if number == SUPERVISOR:
        return supervisor.pid
    pids = {row["index"]: row["pid"] for row in _rows(stage.contestant.balancer)}
    if number != CONTROL:
        return int(pids[number])
    (control,) = [each.pid for each in supervisor.children() if each.pid not in pids.values()]
    return control


def send(number: int, what: signal.Signals, mark: str) -> Step:
    """Send a signal to a worker, CONTROL or SUPERVISOR; marks that."""

    async def step(stage: Stage) -> None:
        pid = await asyncio.to_thread(_pid, stage, number)
        stage.mark(mark)
        os.kill(pid, what)

    return step


def thaw_control() -> Step:
    """SIGCONT to the control process, which does not answer until then; marks `thaw`."""

    async def step(stage: Stage) -> None:
        assert isinstance(stage.contestant, TritonLb)
        for each in stage.contestant.process().children():
            if each.status() == psutil.STATUS_STOPPED:
                each.send_signal(signal.SIGCONT)
        stage.mark("thaw")

    return step


def all_serve() -> Step:
    """Wait until all processes serve; marks `ready`."""

    async def step(stage: Stage) -> None:
        assert isinstance(stage.contestant, TritonLb)
        ready = partial(_serves, stage.contestant.balancer)
        await asyncio.to_thread(wait_until, ready, timeout_s=_BACK_S, what="all workers serve")
        stage.mark("ready")

    return step


def _serves(balancer: RunningBalancer) -> bool:
    rows = _rows(balancer)
    return bool(rows) and all(
        row["state"] == "serving" and psutil.pid_exists(row["pid"]) for row in rows
    )


def start_again() -> Step:
    """Start the service as a service manager would, once its workers have left the addresses."""

    async def step(stage: Stage) -> None:
        assert isinstance(stage.contestant, TritonLb)
        balancer = stage.contestant.balancer
        balancer.restart()
        await asyncio.to_thread(balancer.wait_ready)
        stage.mark("ready")

    return step


def failed_beside(mark: str, within_s: float = _AT_ONCE_S) -> Rule:
    """Failed requests, but for those that were under way at a moment or began soon after it."""

    def is_beside(joined: Joined, began: float, ended: float) -> bool:
        return not any(began <= at + within_s and ended >= at for at in joined.times(mark))

    def figure(evidence: Evidence, name: str) -> float:
        joined = evidence[name]
        return sum(
            bool(each.error) and is_beside(joined, each.began, each.ended)
            for each in joined.counted()
        )

    return Rule(f"failed requests, but those under way at the {mark}", 0, figure)


def failed_under_way(mark: str) -> Rule:
    """Failed requests that were under way at a moment."""

    def figure(evidence: Evidence, name: str) -> float:
        joined = evidence[name]
        return sum(
            bool(each.error) and any(each.began < at <= each.ended for at in joined.times(mark))
            for each in joined.counted()
        )

    return Rule(f"failed requests that were under way at the {mark}", 0, figure)


def _row(name: str, title: str, *script: Step, rules: tuple[Rule, ...]) -> Scenario:
    return Scenario(
        f"workers-{name}",
        f"two workers: {title}",
        (steps.rest(2.0), *script, steps.rest(2.0)),
        rules,
        sections=WORKERS,
        only=(TRITON_LB,),
    )


def _repeated(count: int, *script: Step) -> tuple[Step, ...]:
    return script * count


def worker_rows(*, quick: bool) -> tuple[Scenario, ...]:
    """All of them; with `quick` fewer repetitions."""
    kills, reloads, upgrades = (2, 5, 3) if quick else (6, 20, 20)
    kill_worker = send(0, signal.SIGKILL, "kill")
    return (
        _row(
            "kill-one",
            f"one is killed, {kills} times",
            *_repeated(kills, kill_worker, steps.rest(1.0), all_serve(), steps.rest(1.0)),
            rules=(failed_beside("kill"),),
        ),
        _row(
            "freeze",
            "one is stopped until the supervisor kills it",
            *(send(0, signal.SIGSTOP, "freeze"), steps.rest(9.0)),
            *(all_serve(), steps.rest(8.0)),
            # Whose connections it has waits for it.
            rules=(failed_share("freeze", "ready", 70.0), failed_after("ready", 1.0, 5.0)),
        ),
        _row(
            "kill-control",
            f"the control process is killed, {kills} times",
            *_repeated(
                kills,
                send(CONTROL, signal.SIGKILL, "kill"),
                steps.rest(1.0),
                all_serve(),
                steps.rest(1.0),
            ),
            rules=(failed(),),
        ),
        _row(
            "freeze-control",
            "the control process is stopped for 5 s",
            *(send(CONTROL, signal.SIGSTOP, "freeze"), steps.rest(5.0), thaw_control()),
            all_serve(),
            rules=(failed(),),
        ),
        _row(
            "kill-supervisor",
            "the supervisor is killed, and started again",
            *(send(SUPERVISOR, signal.SIGKILL, "kill"), steps.rest(2.0), start_again()),
            steps.rest(6.0),
            rules=(failed_under_way("kill"), failed_after("ready", 1.0, 5.0)),
        ),
        _row(
            "reload",
            f"{reloads} reloads, each with other backends",
            steps.reloads(reloads, 0.3),
            rules=(failed(), note("applied", "reloads applied", reloads, at_least=True)),
        ),
        _row(
            "hand-over",
            f"{upgrades} upgrades",
            steps.upgrades(upgrades, 1.0),
            rules=(failed(), note("handed_over", "upgrades done", upgrades, at_least=True)),
        ),
    )


def every_scenario(*, quick: bool) -> tuple[Scenario, ...]:
    """The rows of all proxies, and these."""
    return (*scenarios(quick=quick), *worker_rows(quick=quick))


def with_workers(rows: Sequence[Scenario], count: int) -> list[Scenario]:
    """Rows for a triton-lb with a number of workers."""
    return [replace(row, sections={**row.sections, **WORKERS, "workers": count}) for row in rows]
