"""What shadow traffic does to requests: latency, CPU of the proxy and errors without a shadow, and
with one whose Triton is fine, ten times slower, hung or dead.

    python -m benchmarks.bench_shadow

Run it on a machine without other work. With the defaults it takes 13 minutes.

**Load.** Two simulated Tritons have the model in service. Executions run one at a time and sleep
for 10 ms. A Triton takes somewhat longer per execution, so this is measured first: from one answer
to the next while requests wait. Requests come at 70 % of the rate that both can execute. Intervals
are within a third of their mean, so that hardly any request waits for a Triton: else the p99 would
be that wait, and would not show delays in the load balancer. With `--poisson` intervals are
exponential. All inferences are to be copied, some to the model in service too, and answers are
compared. The shadow's Triton hangs or dies when the measured part of a slice begins, with copies
under way.

**Comparison.** Every state has a load balancer of its own. A round has a slice of load for each
state, in random order. Requests come at the same moments in all slices of a round. The first round
is not counted, since the process that compares starts in it. The latencies of all other slices of a
state are pooled. Figures are followed by their ratio to those without a shadow,
with an interval of 99 % from a bootstrap over rounds. `none` and `none, again` have no shadow. The
ratio of these is the noise; other ratios are to both of them together.

**Pauses of the host.** A virtual machine's processors may be slow for tens of milliseconds
(`host_pauses.py`). Requests are late then in every state. A state with copies needs more CPU, so it
takes longer to catch up. That decides the p99, and is not what a shadow does to requests. So
requests sent from 50 ms before a pause to 300 ms after it are left out, by the same rule in every
state. "Left out" is their share, and "p99 of the others" is without them. All other figures are of
all requests. A share in bold says that a state had other pauses than those without a shadow. The
second table has mean latencies by the time since a pause: once they are usual again, the queue that
the pause had made is drained.

`twice` shows what a copy itself may cost: there is no shadow, and clients send each request to the
shadow's model too. "CPU per copy" is what a copy, or such a second request, takes beyond what a
request takes without a shadow, as a part of the latter.

"Cores busy" is the mean share of all cores that was used, and the part of it that processes outside
of this benchmark had. All processes here share the machine: a state in which it is nearly busy is
slower through no fault of the load balancer. With `--apart` the shadow's Triton and the process
that compares have the last processor to themselves, as if they were on another machine. All others
share the rest. So that these are not busy, executions take twice as long.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final, cast
from urllib.request import urlopen

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.host_pauses import Floats, near, pauses, summary, watching
from lb.kserve import inference_pb2 as pb
from lb.simulator import __main__ as simulator
from lb.simulator import models
from lb.simulator.models import InferRequest, Model, Respond, TensorSpec
from lb.simulator.process import Ports
from lb.simulator.tensors import Tensor
from lb.testing import running
from lb.testing.balancer import Balancer
from lb.testing.processes import Child
from lb.testing.tritons import Triton

_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
_NUMBERS: Final = 1000
_EXECUTION_S: Final = 0.01
_SPEED_APART: Final = 0.5
_TRITONS: Final = 2
_UTILIZATION: Final = 0.7
_CALIBRATION_S: Final = 2.0
_IN_FLIGHT: Final = 4
"""Requests at each Triton during the calibration, so that executions follow one another."""
_SHADOW_INSTANCES: Final = 8
"""The shadow's Triton can execute all copies, unless it is slow."""
_LEAD_S: Final = 0.5
"""Load before each measured slice: what is left of the last slice ends meanwhile."""
_LIMIT_S: Final = 60.0
_BEFORE_S: Final = 0.05
"""Requests sent this shortly before a pause may be in flight when it begins."""
_AFTER_S: Final = 0.3
"""Requests sent this shortly after a pause may queue because of it.

Simulated with pauses of up to 100 ms, the queue is drained after 200 ms.
"""
_AFTER_EDGES_S: Final = (0, 0.05, 0.1, 0.2, 0.3, 0.5, np.inf)
"""Times since the last pause between which latencies are printed."""
_WITHOUT: Final = ("none", "again")
_STATES: Final = ("twice", "fine", "slow", "hung", "dead")
_LABELS: Final = {
    "again": "none, again",
    "twice": "none, each request sent twice",
    "slow": "ten times slower",
}
"""How the tables call states whose name says too little."""
_MADE: Final = frozenset({"answered", "error", "failed", "timeout"})
"""What becomes of copies that were sent."""
_RESAMPLES: Final = 2000
_TAIL_PERCENT: Final = 0.5
"""On either side of an interval."""

_KINDS: Final = ("p50_s", "p99_s", "left_out", "calm_p99_s", "cpu_s")
"""The kinds of figures that `_Resampled` has."""


# The Tritons


async def _echo(request: InferRequest, respond: Respond) -> None:
    tensor = request.inputs["INPUT0"]
    await respond((Tensor("OUTPUT0", "FP32", tensor.shape, tensor.data),))


def _serve(name: str, speed: str, ports: str, processors: str) -> None:
    """Be a simulated Triton with one model."""
    os.sched_setaffinity(0, map(int, processors.split(",")))
    cast("dict[str, Model]", models.MODELS)[name] = Model(
        name=name,
        inputs=(TensorSpec("INPUT0", "FP32", (-1,)),),
        outputs=(TensorSpec("OUTPUT0", "FP32", (-1,)),),
        run=_echo,
        instances=1 if name == "stable" else _SHADOW_INSTANCES,
        compute_s=_EXECUTION_S,
    )
    arguments = ["--models", name, "--speed", speed]
    kinds = ("--http-port", "--grpc-port", "--metrics-port")
    for kind, port in zip(kinds, ports.split(","), strict=True):
        arguments += [kind, port]
    simulator.main(arguments)


class _Triton:
    """A simulated Triton as a process, which can be started again at its ports. It has what
    `running` asks of a Triton."""

    def __init__(
        self,
        stack: ExitStack,
        name: str,
        model: str,
        speed: float = 1.0,
        processors: Collection[int] = (),
    ) -> None:
        """
        Args:
            stack: ends it.
            name: to tell it from others.
            model: that it has.
            speed: 0.5 has executions take twice as long.
            processors: that it may use; none are those of this process.
        """
        self.name = name
        self._stack = stack
        self._model = model
        self._speed = speed
        self._processors = ",".join(map(str, processors or os.sched_getaffinity(0)))
        self._start("0,0,0")
        ports = Ports.from_json(self._child.output.splitlines()[0])
        numbers = [ports.http_port, ports.grpc_port, ports.metrics_port]
        self.http, self.grpc, self.metrics = map(ports.address, numbers)
        self._ports = ",".join(map(str, numbers))

    def _start(self, ports: str) -> None:
        serve = ["--serve", self._model, str(self._speed), ports, self._processors]
        command = [sys.executable, "-m", "benchmarks.bench_shadow", *serve]
        self._child = Child(self.name, command)
        self._stack.callback(self._child.close)
        self._child.wait_until(lambda: "\n" in self._child.output)

    def ensure_running(self) -> None:
        """Start it again if it was killed."""
        if not self._child.is_running:
            self._start(self._ports)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._child.signal(number)


# The load


@dataclass
class _Slice:
    """What was measured of one state in one round."""

    sent: Floats
    """When each request was sent (`time.monotonic`)."""
    latencies: Floats
    near_pause: npt.NDArray[np.bool_] = field(init=False)
    """Which of these requests a pause may have lengthened, once the pauses are known."""
    requests: int
    """Those before the measured part, too."""
    more: int
    """Second requests, for the shadow's model."""
    errors: int
    cpu_s: float
    """Of the load balancer for `requests`."""
    busy: float
    """Share of all cores."""
    others: float
    """Share of all cores that other processes had."""


@dataclass
class _State:
    """One state, and the processes that it has."""

    name: str
    shadow: _Triton
    balancer: Balancer
    channel: grpc.aio.Channel
    slices: list[_Slice] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Its name in tables."""
        return _LABELS.get(self.name, self.name)

    async def prepare(self) -> None:
        """Have the shadow as it is before each slice."""
        await asyncio.to_thread(self.shadow.ensure_running)
        await asyncio.to_thread(self.balancer.wait_ready)

    def compare_on(self, processors: Collection[int]) -> None:
        """Have the process that compares, where there is one, use these processors."""
        for each in psutil.Process(self.balancer.pid).children():
            each.cpu_affinity(list(processors))

    def break_shadow(self) -> None:
        """Let the shadow's Triton hang or die, if it does so in this state."""
        if self.name == "hung":
            self.shadow.signal(signal.SIGSTOP)
        elif self.name == "dead":
            self.shadow.signal(signal.SIGKILL)

    def mend_shadow(self) -> None:
        """Let a shadow's Triton that hangs go on."""
        if self.name == "hung":
            self.shadow.signal(signal.SIGCONT)


def _settings(state: str) -> dict[str, Any]:
    name: dict[str, Any] = {"variants": [{"name": "stable", "model": "stable", "weight": 1}]}
    if state not in (*_WITHOUT, "twice"):
        name["shadow"] = {
            "model": "shadow",
            "percent": 100,
            "p99": 1000,  # it never pauses
            "max_concurrent": 32,
            "timeout": 1.0,  # shorter than a slice
        }
    return {"models": {"name": name}}


def _message(model: str) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[_NUMBERS])
    request.raw_input_contents.append(bytes(4 * _NUMBERS))
    return request.SerializeToString()


async def _execution_s(triton: _Triton) -> float:
    """Return how long an execution takes beside others, with all that a Triton does for it.

    It is the median of the time from one answer to the next one, so that pauses do not count.
    """
    message = _message("stable")
    answered = []
    async with grpc.aio.insecure_channel(triton.grpc) as channel:
        infer = channel.unary_unary(_INFER)
        end = time.monotonic() + _CALIBRATION_S

        async def ask() -> None:
            while time.monotonic() < end:
                await infer(message, timeout=_LIMIT_S)
                answered.append(time.monotonic())

        await asyncio.gather(*(ask() for _ in range(_IN_FLIGHT)))
    return float(np.median(np.diff(answered)))


def _arrivals(rng: Random, rate: float, seconds: float, *, is_poisson: bool) -> list[float]:
    """Return when requests are sent in the slices of a round, in seconds from the beginning."""
    moments, now = [], 0.0
    while now < _LEAD_S + seconds:
        moments.append(now)
        now += (rng.expovariate(1) if is_poisson else rng.uniform(2 / 3, 4 / 3)) / rate
    return moments


class _Clocks:
    """CPU time so far: of a load balancer, of this benchmark, and of the machine."""

    def __init__(self, pid: int) -> None:
        ours = psutil.Process()
        self.balancer_s = _cpu_s(psutil.Process(pid))
        self.ours_s = sum(map(_cpu_s, [ours, *ours.children(recursive=True)]))
        machine = psutil.cpu_times()
        self.all_s = sum(machine[:8])  # those after them are counted in them
        self.idle_s = machine.idle + machine.iowait


def _cpu_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        used = process.cpu_times()
        return float(used.user + used.system)
    return 0.0


async def _load(state: _State, arrivals: Sequence[float], at_window: Callable[[], None]) -> _Slice:
    """Send requests at these moments, and wait for the answers.

    Args:
        state: whose load balancer gets them.
        arrivals: seconds from the beginning.
        at_window: called when the measured part begins.
    """
    message, another = _message("name"), _message("shadow")
    infer = state.channel.unary_unary(_INFER)
    sent: list[float] = []
    latencies: list[float] = []
    errors = more = 0

    async def ask(*, is_measured: bool) -> None:
        nonlocal errors, more
        began = time.monotonic()
        try:
            await infer(message, timeout=_LIMIT_S)
        except grpc.aio.AioRpcError:
            errors += 1
        if is_measured:
            sent.append(began)
            latencies.append(time.monotonic() - began)
        if state.name == "twice":
            more += 1
            await infer(another, timeout=_LIMIT_S)

    asked = []
    is_measured = False
    before = _Clocks(state.balancer.pid)
    began = time.monotonic()
    for moment in arrivals:
        await asyncio.sleep(max(0.0, began + moment - time.monotonic()))
        if not is_measured and moment >= _LEAD_S:
            is_measured = True
            at_window()
        asked.append(asyncio.ensure_future(ask(is_measured=is_measured)))
    await asyncio.gather(*asked)
    after = _Clocks(state.balancer.pid)
    passed_s = after.all_s - before.all_s
    busy_s = passed_s - (after.idle_s - before.idle_s)
    return _Slice(
        sent=np.array(sent),
        latencies=np.array(latencies),
        requests=len(arrivals),
        more=more,
        errors=errors,
        cpu_s=after.balancer_s - before.balancer_s,
        busy=busy_s / passed_s,
        others=max(0.0, busy_s - (after.ours_s - before.ours_s)) / passed_s,
    )


async def _play(states: list[_State], rate: float, apart: Collection[int], given: Any) -> None:
    """Play all rounds. Answers are compared on processors that are apart, if there are any."""
    rng = Random(1)
    for number in range(given.rounds + 1):
        arrivals = _arrivals(rng, rate, given.seconds, is_poisson=given.poisson)
        for state in rng.sample(states, len(states)):
            await state.prepare()
            if apart:
                state.compare_on(apart)
            gc.collect()
            gc.disable()  # its pauses would be counted as latency
            try:
                played = await _load(state, arrivals, state.break_shadow)
            finally:
                gc.enable()
                state.mend_shadow()
            if number:
                state.slices.append(played)


async def _run(stack: ExitStack, names: Sequence[str], given: Any) -> list[_State]:
    """Start everything and measure."""
    apart = sorted(os.sched_getaffinity(0))[-1:] if given.apart else []
    speed = _SPEED_APART if given.apart else 1.0
    if apart:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - set(apart))
    tritons = [_Triton(stack, f"triton-{each}", "stable", speed) for each in range(_TRITONS)]
    executions_s = await asyncio.gather(*map(_execution_s, tritons))
    rate = _UTILIZATION * sum(1 / each for each in executions_s)
    takes = " and ".join(f"{1000 * each:.1f} ms" for each in executions_s)
    print(f"Executions take {takes}; {rate:.0f} requests per second are {_UTILIZATION:.0%} load.\n")
    idle = _Triton(stack, "shadow", "shadow", speed, apart)
    async with AsyncExitStack() as channels:
        states = []
        for name in names:
            shadow = idle
            if name in _STATES and name != "twice":
                slower = 0.1 if name == "slow" else 1.0
                shadow = _Triton(stack, "shadow", "shadow", slower * speed, apart)
            backends = cast("list[Triton]", [*tritons, shadow])
            balancer = stack.enter_context(running(backends, _settings(name)))
            channel = grpc.aio.insecure_channel(balancer.grpc)
            await channels.enter_async_context(channel)
            states.append(_State(name, shadow, balancer, channel))
        await _play(states, rate, apart, given)
    return states


# The table


class _Resampled:
    """Figures of one state, or of two together, of all rounds and of resampled ones."""

    def __init__(self, picks: npt.NDArray[np.int64], *states: _State) -> None:
        """
        Args:
            picks: the rounds of each resample; the first row has every round once.
            states: whose slices are pooled.
        """
        p50, p99, left_out, calm_p99, cpu = [], [], [], [], []
        for pick in picks:
            slices = [state.slices[number] for state in states for number in pick]
            pooled = np.concatenate([each.latencies for each in slices])
            near_pause = np.concatenate([each.near_pause for each in slices])
            low, high = np.percentile(pooled, (50, 99))
            p50.append(low)
            p99.append(high)
            left_out.append(near_pause.mean())
            calm_p99.append(np.percentile(pooled[~near_pause], 99))
            cpu.append(sum(each.cpu_s for each in slices) / sum(each.requests for each in slices))
        self.p50_s, self.p99_s = np.array(p50), np.array(p99)
        self.left_out = np.array(left_out)
        """Share of the requests that a pause of the host may have lengthened."""
        self.calm_p99_s = np.array(calm_p99)
        """That of the other requests."""
        self.cpu_s = np.array(cpu)
        """That of the load balancer per request."""


def _ratio(mine: _Resampled, theirs: _Resampled, kind: str) -> tuple[float, float, float]:
    """Return the ratio of a kind of figures, and its interval."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = getattr(mine, kind) / getattr(theirs, kind)
    low, high = np.percentile(ratios[1:], (_TAIL_PERCENT, 100 - _TAIL_PERCENT))
    return float(ratios[0]), float(low), float(high)


def _copies(balancer: Balancer) -> tuple[dict[str, int], int]:
    """What became of copies for the shadow, and how many calls were made for it in all."""
    with urlopen(f"http://{balancer.admin}/api/v1/compare", timeout=_LIMIT_S) as answer:
        listed = json.load(answer)["models"]
    if not listed:
        return {}, 0
    made = [listed[0][kind].get(fate, 0) for kind in ("copies", "noise_copies") for fate in _MADE]
    return dict(listed[0]["copies"]), sum(made)


def _print(states: list[_State]) -> None:
    """Print what was measured, as a table in Markdown."""
    rounds = len(states[0].slices)
    drawn = np.random.default_rng(1).integers(rounds, size=(_RESAMPLES, rounds))
    picks = np.vstack([np.arange(rounds), drawn])
    none, again = (next(each for each in states if each.name == name) for name in _WITHOUT)
    without = _Resampled(picks, none, again)
    first, second = _Resampled(picks, none), _Resampled(picks, again)
    noise = {kind: _ratio(second, first, kind) for kind in _KINDS}
    bases = {"none": None, "again": first}
    request_s = without.cpu_s[0]
    columns = ["shadow", "requests", "errors", "p50", "p99", "left out", "p99 of the others"]
    columns += ["CPU", "CPU per copy", "cores busy", "copies"]
    print(f"| {' | '.join(columns)} |\n|{len(columns) * '---|'}")
    for state in states:
        own, slices = _Resampled(picks, state), state.slices
        fates, made = _copies(state.balancer)
        made += sum(each.more for each in slices)
        extra_s = sum(each.cpu_s - request_s * each.requests for each in slices)
        columns = [
            state.label,
            f"{sum(each.latencies.size for each in slices)}",
            f"{sum(each.errors for each in slices)}",
            *(_figure(own, kind, bases.get(state.name, without), noise) for kind in _KINDS),
            f"{extra_s / made / request_s:.2f}" if made else "",
            f"{np.mean([each.busy for each in slices]):.0%}, "
            f"others {np.mean([each.others for each in slices]):.0%}",
            ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items())),
        ]
        print(f"| {' | '.join(columns)} |")
    print("\n**Bold**: the interval excludes 1, and the ratio is outside of that of `none, again`.")


def _figure(
    own: _Resampled,
    kind: str,
    without: _Resampled | None,
    noise: dict[str, tuple[float, float, float]],
) -> str:
    """Return a figure of a state, and how many times that without a shadow it is."""
    value = getattr(own, kind)[0]
    texts = {"cpu_s": f"{1e6 * value:.0f} us", "left_out": f"{value:.1%}"}
    text = texts.get(kind, f"{1000 * value:.1f} ms")
    if without is None or not getattr(without, kind).all():  # a machine may have no pauses
        return text
    ratio, low, high = _ratio(own, without, kind)
    is_noise = low <= 1 <= high or noise[kind][1] <= ratio <= noise[kind][2]
    shown = f"{ratio:.2f}" if is_noise else f"**{ratio:.2f}**"
    return f"{text}, {shown} ({low:.2f} to {high:.2f})"


def _print_pauses(states: list[_State], found: Sequence[tuple[float, float]]) -> None:
    """Print how long requests took by the time since the last pause, as a table in Markdown.

    It shows whether `_AFTER_S` suffices.
    """
    ends = np.array([0.0, *(end for _, end in found)])  # as if a pause had ended at boot
    print(f"| mean latency of requests sent | {' | '.join(each.label for each in states)} |")
    print(f"|{(1 + len(states)) * '---|'}")
    *edges, (last, _) = pairwise(_AFTER_EDGES_S)
    labels = ["shortly before a pause, or in it"]
    labels += [f"{1000 * low:g} to {1000 * high:g} ms after one" for low, high in edges]
    labels += [f"more than {1000 * last:g} ms after one"]
    rows = np.array([_means(state, found, ends) for state in states]).T
    for label, row in zip(labels, rows, strict=True):
        print(f"| {label} | {' | '.join(f'{1000 * each:.1f} ms' for each in row)} |")


def _means(state: _State, found: Sequence[tuple[float, float]], ends: Floats) -> Floats:
    """Return the mean latency of requests before or in a pause, and by time since the last one."""
    sent = np.concatenate([each.sent for each in state.slices])
    latencies = np.concatenate([each.latencies for each in state.slices])
    since_s = sent - ends[np.searchsorted(ends, sent, side="right") - 1]
    phases = np.digitize(since_s, _AFTER_EDGES_S)
    phases[near(sent, found, before_s=_BEFORE_S, after_s=0)] = 0
    groups = [latencies[phases == each] for each in range(len(_AFTER_EDGES_S))]
    return np.array([each.mean() if each.size else np.nan for each in groups])


def main() -> None:
    """Measure, and print a table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=26)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a slice, measured")
    parser.add_argument("--states", nargs="+", choices=_STATES, default=list(_STATES))
    parser.add_argument("--apart", action="store_true", help="a processor for the shadow alone")
    parser.add_argument("--poisson", action="store_true", help="requests come in bursts, too")
    parser.add_argument(
        "--serve", nargs=4, metavar=("MODEL", "SPEED", "PORTS", "PROCESSORS"), help="be a Triton"
    )
    given = parser.parse_args()
    if given.serve:
        _serve(*given.serve)
        return
    with ExitStack() as stack:
        with watching() as watched:
            states = asyncio.run(_run(stack, [*_WITHOUT, *given.states], given))
        found = pauses(watched)
        for each in [each for state in states for each in state.slices]:
            each.near_pause = near(each.sent, found, before_s=_BEFORE_S, after_s=_AFTER_S)
        _print(states)
        print(f"\n{summary(watched)}\n")
        if found:
            _print_pauses(states, found)


if __name__ == "__main__":
    main()
