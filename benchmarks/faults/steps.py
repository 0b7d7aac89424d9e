"""The words in which fault scripts are written: each makes a step that a stage plays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from benchmarks.faults.between import Fault
from benchmarks.faults.contestants import Contestant, TritonLb
from benchmarks.faults.load import Load
from benchmarks.faults.lost import unserved_behind, unserved_beside
from benchmarks.faults.site import Site
from benchmarks.load.bench import say
from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.explicit import ask

_PATIENCE_S = 180.0
_EXIT_S = 15.0
_RELOAD_S = 2.0
"""In this time a reload must be seen to be applied."""


@dataclass
class Stage:
    """What a script plays on."""

    site: Site
    contestant: Contestant
    load: Load
    rng: Random
    marks: list[tuple[str, float]] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        """Remember this moment."""
        self.marks.append((name, time.monotonic()))


Step = Callable[[Stage], Awaitable[None]]


def rest(seconds: float) -> Step:
    """Let the load run."""

    async def step(_: Stage) -> None:
        await asyncio.sleep(seconds)

    return step


def mark(name: str) -> Step:
    """Name a moment for the rules."""

    async def step(stage: Stage) -> None:
        stage.mark(name)

    return step


def kill(*numbers: int) -> Step:
    """SIGKILL Tritons at once; marks `kill`."""

    async def step(stage: Stage) -> None:
        stage.mark("kill")
        for number in numbers:
            stage.site.tritons[number].kill9()

    return step


def terminate(number: int) -> Step:
    """SIGTERM a Triton, and wait for its end; marks `terminate`."""

    async def step(stage: Stage) -> None:
        triton = stage.site.tritons[number]
        stage.mark("terminate")
        triton.sigterm()
        await _until(lambda: not triton.is_running, _EXIT_S, f"{triton.name} exits")

    return step


def restart(*numbers: int) -> Step:
    """Start Tritons again on their ports; does not wait."""

    async def step(stage: Stage) -> None:
        for number in numbers:
            # Not in another thread: children die with the thread that started them.
            stage.site.tritons[number].restart()

    return step


def back(*numbers: int) -> Step:
    """Wait until Tritons accept on both ports; marks `open`. Then until they say ready: `ready`."""

    async def step(stage: Stage) -> None:
        for number in numbers:
            await _until(lambda n=number: stage.site.opens(n), _PATIENCE_S, "ports open")  # type: ignore[misc]
        stage.mark("open")
        for number in numbers:
            await asyncio.to_thread(stage.site.tritons[number].wait_ready)
        stage.mark("ready")

    return step


def freeze(number: int) -> Step:
    """SIGSTOP; marks `freeze`."""

    async def step(stage: Stage) -> None:
        stage.mark("freeze")
        stage.site.tritons[number].sigstop()

    return step


def thaw(number: int) -> Step:
    """SIGCONT; marks `thaw`."""

    async def step(stage: Stage) -> None:
        stage.mark("thaw")
        stage.site.tritons[number].sigcont()

    return step


def tell(number: int, what: str, value: str) -> Step:
    """Make the model on one Triton misbehave; marks `tell`."""

    async def step(stage: Stage) -> None:
        stage.site.tell(number, what, value)
        stage.mark("tell")

    return step


def heal(number: int) -> Step:
    """End that; marks `heal`."""

    async def step(stage: Stage) -> None:
        stage.site.heal(number)
        stage.mark("heal")

    return step


def bad_requests(rate: float) -> Step:
    """A client that sends only bad requests, so many a second; 0 ends it. Marks `bad`."""

    async def step(stage: Stage) -> None:
        stage.load.bad_rate = rate
        stage.mark("bad" if rate else "good")

    return step


def death() -> Step:
    """Send one request that kills the server that runs it; marks `kill`."""

    async def step(stage: Stage) -> None:
        stage.mark("kill")
        stage.load.send_death()

    return step


def lose(times: int) -> Step:
    """Send requests that Tritons never answer; marks `lose` and `found`. Notes as `unserved` how
    many good ones for the same model are not answered."""

    async def step(stage: Stage) -> None:
        stage.mark("lose")
        stage.notes["unserved"] = await unserved_beside(stage.contestant.target, times)
        stage.mark("found")

    return step


def lose_at_once(times: int) -> Step:
    """Send so many requests at once that Tritons never answer; marks `lose` and `found`. Notes as
    `unserved` how many good ones for the same model that come later are not answered."""

    async def step(stage: Stage) -> None:
        stage.mark("lose")
        stage.notes["unserved"] = await unserved_behind(stage.contestant.target, times)
        stage.mark("found")

    return step


def count_dead() -> Step:
    """Note how many Tritons have died as `died`."""

    async def step(stage: Stage) -> None:
        stage.notes["died"] = sum(not triton.is_running for triton in stage.site.tritons)

    return step


def unload(number: int, model: str = "ledger") -> Step:
    """Unload a model directly at one Triton; marks `unload`."""

    async def step(stage: Stage) -> None:
        await _of_repository(stage, number, model, "unload")
        stage.mark("unload")

    return step


def load(number: int, model: str = "ledger") -> Step:
    """Load it there again."""

    async def step(stage: Stage) -> None:
        await _of_repository(stage, number, model, "load")
        stage.mark("load")

    return step


async def _of_repository(stage: Stage, number: int, model: str, verb: str) -> None:
    target = stage.site.tritons[number].target.http
    await asyncio.to_thread(ask, target, "POST", f"/v2/repository/models/{model}/{verb}", {})


def resets(share: float, seconds: float) -> Step:
    """Every second doom a share of the upstream connections; marks `resets`."""

    async def step(stage: Stage) -> None:
        stage.mark("resets")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for between in stage.site.between:
                between.reset_share(share)
            await asyncio.sleep(1.0)
        stage.notes["resets"] = sum(between.resets for between in stage.site.between)

    return step


def reset_open(number: int) -> Step:
    """Reset all that is open to one Triton, each in the midst of what it sends next."""

    async def step(stage: Stage) -> None:
        for between in stage.site.between[2 * number : 2 * number + 2]:
            between.reset_share(1.0)

    return step


def shut(*numbers: int) -> Step:
    """Close the ports of some Tritons, and reset all that is open to them; marks `disturb`."""

    async def step(stage: Stage) -> None:
        stage.mark("disturb")
        for number in numbers:
            for between in stage.site.between[2 * number : 2 * number + 2]:
                between.shut()

    return step


def listen(*numbers: int) -> Step:
    """Open them again."""

    async def step(stage: Stage) -> None:
        for number in numbers:
            for between in stage.site.between[2 * number : 2 * number + 2]:
                await between.listen()

    return step


def disturb(number: int, fault: Fault) -> Step:
    """Set the fault of both ports of one Triton; marks `disturb`."""

    async def step(stage: Stage) -> None:
        stage.mark("disturb")
        for between in stage.site.between[2 * number : 2 * number + 2]:
            between.set(fault)

    return step


def misbehave(conduct: str) -> Step:
    """Tell the scripted backend what to do; marks `disturb`."""

    async def step(stage: Stage) -> None:
        stage.mark("disturb")
        if stage.site.rogue is not None:
            stage.site.rogue.conduct = conduct

    return step


def drain(number: int) -> Step:
    """Drain a backend and wait until it is empty, where the balancer can."""

    async def step(stage: Stage) -> None:
        contestant = stage.contestant
        if isinstance(contestant, TritonLb):
            name = stage.site.tritons[number].name
            balancer = contestant.balancer
            await asyncio.to_thread(balancer.command, name, "drain")
            await _until(lambda: balancer.backends()[name].empty, _EXIT_S, f"{name} is empty")

    return step


def enable(number: int) -> Step:
    """Undo `drain`."""

    async def step(stage: Stage) -> None:
        contestant = stage.contestant
        if isinstance(contestant, TritonLb):
            name = stage.site.tritons[number].name
            await asyncio.to_thread(contestant.balancer.command, name, "enable")

    return step


def reloads(count: int, pause_s: float) -> Step:
    """Reload again and again, each with other backends, policy and limits; notes as `applied` how
    many were seen in the list of backends."""

    async def step(stage: Stage) -> None:
        contestant = stage.contestant
        if not isinstance(contestant, TritonLb):
            return
        applied = 0
        for number in range(1, count + 1):
            ways = list(contestant.ways)
            if number < count:  # each time another one is missing, in the end none
                del ways[number % len(ways)]
            contestant.reload(ways, **_sections(stage.rng))
            names = {way.name for way in ways}
            balancer = contestant.balancer
            try:
                await _until(lambda b=balancer, n=names: _staying(b) == n, _RELOAD_S, "")  # type: ignore[misc]
                applied += 1
            except (TimeoutError, OSError, RuntimeError):
                pass  # the figure says it
            await asyncio.sleep(pause_s)
        stage.notes["applied"] = applied

    return step


def _staying(balancer: RunningBalancer) -> set[str]:
    """Names of the backends that are not on their way out."""
    return {name for name, view in balancer.backends().items() if not view.is_leaving}


def _sections(rng: Random) -> dict[str, dict[str, Any]]:
    policies = ("least_loaded", "least_requests", "least_latency", "round_robin")
    return {
        "balancing": {"policy": rng.choice(policies)},
        "limits": {"max_concurrent_streams": rng.choice((512, 1024, 2048))},
        "timeouts": {"connect": rng.choice(("1s", "2s"))},
    }


def upgrades(count: int, pause_s: float) -> Step:
    """Start the next process with the sockets of the one that runs; notes `handed_over`."""

    async def step(stage: Stage) -> None:
        contestant = stage.contestant
        if not isinstance(contestant, TritonLb):
            return
        done = 0
        for _ in range(count):
            try:
                await asyncio.to_thread(contestant.upgrade)
                done += 1
            except (TimeoutError, OSError) as error:
                say(f"  not handed over: {error}")
                break
            await asyncio.sleep(pause_s)
        stage.notes["handed_over"] = done

    return step


def until_served(number: int, timeout_s: float) -> Step:
    """Wait until a Triton executes something without failing it; notes the seconds `returned`."""

    async def step(stage: Stage) -> None:
        name, since = stage.site.tritons[number].name, time.monotonic()
        stage.notes["returned"] = timeout_s
        while time.monotonic() < since + timeout_s:
            await asyncio.sleep(0.25)
            if any(
                each.server == name and each.at > since and not each.failed
                for each in stage.site.ledgers.peek(since)
            ):
                stage.notes["returned"] = time.monotonic() - since
                return

    return step


async def _until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    await asyncio.to_thread(wait_until, condition, timeout_s=timeout_s, what=what)
