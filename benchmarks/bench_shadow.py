"""What shadow traffic does to requests: latency, CPU of the proxy and errors without a shadow, and
with one whose Triton is fine, ten times slower, hung or dead.

    python -m benchmarks.bench_shadow

Every state has a load balancer of its own. They take turns in many short rounds, so that other load
on the machine matters little; figures are ratios to the state without a shadow. Both Tritons of the
model in service are simulated, with executions of 10 ms, one at a time. The load is open: 70 % of
what they can execute. Every inference may be copied (`percent: 100`), some to the model in service
too, and answers are compared, as by default.

What a copy itself may cost is shown by the state `twice`: there is no shadow, and clients send each
request to the shadow's model too. `EXTRA` is the CPU that a copy, or such a second request, takes
beyond `none`; 1 is that of a request there.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.request import urlopen

import grpc
import grpc.aio
import psutil

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
_TRITONS: Final = 2
_RATE: Final = 0.7 * _TRITONS / _EXECUTION_S
_LIMIT_S: Final = 60.0
_STATES: Final = ("none", "twice", "fine", "slow", "hung", "dead")
_MADE: Final = frozenset({"answered", "error", "failed", "timeout"})
"""What becomes of copies that were sent."""


@dataclass
class _Address:
    """What `running` asks of a Triton."""

    name: str
    http: str
    grpc: str
    metrics: str
    child: Child


@dataclass
class _Figures:
    """What was measured of one state."""

    latencies: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    errors: int = 0
    more: int = 0
    """Second requests, for the shadow's model."""
    p50_s: list[float] = field(default_factory=list)
    """Of each round."""
    p99_s: list[float] = field(default_factory=list)


async def _echo(request: InferRequest, respond: Respond) -> None:
    tensor = request.inputs["INPUT0"]
    await respond((Tensor("OUTPUT0", "FP32", tensor.shape, tensor.data),))


def _serve(name: str, speed: str) -> None:
    """Be a simulated Triton with one model."""
    cast("dict[str, Model]", models.MODELS)[name] = Model(
        name=name,
        inputs=(TensorSpec("INPUT0", "FP32", (-1,)),),
        outputs=(TensorSpec("OUTPUT0", "FP32", (-1,)),),
        run=_echo,
        instances=1,
        compute_s=_EXECUTION_S,
    )
    simulator.main(["--models", name, "--speed", speed])


def _start(stack: ExitStack, name: str, model: str, speed: float = 1.0) -> _Address:
    command = [sys.executable, "-m", "benchmarks.bench_shadow", "--serve", model, str(speed)]
    child = Child(name, command)
    stack.callback(child.close)
    child.wait_until(lambda: "\n" in child.output)
    ports = Ports.from_json(child.output.splitlines()[0])
    addresses = [ports.http_port, ports.grpc_port, ports.metrics_port]
    return _Address(name, *(ports.address(port) for port in addresses), child)


def _settings(state: str) -> dict[str, Any]:
    name: dict[str, Any] = {"variants": [{"name": "stable", "model": "stable", "weight": 1}]}
    if state not in ("none", "twice"):
        shadow = {"model": "shadow", "percent": 100, "p99": 1000, "max_concurrent": 64}
        name["shadow"] = shadow
    return {"models": {"name": name}}


@contextmanager
def _stopped(child: Child, state: str) -> Iterator[None]:
    """A hung shadow stands still for the round."""
    if state == "hung":
        child.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        if state == "hung":
            child.signal(signal.SIGCONT)


def _message(model: str) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[_NUMBERS])
    request.raw_input_contents.append(bytes(4 * _NUMBERS))
    return request.SerializeToString()


async def _load(balancer: Balancer, seconds: float, state: str, figures: _Figures) -> None:
    """Send requests at the rate for so long, and wait for the answers."""
    message, another = _message("name"), _message("shadow")
    latencies: list[float] = []
    process = psutil.Process(balancer.pid)
    async with grpc.aio.insecure_channel(balancer.grpc) as channel:
        infer = channel.unary_unary(_INFER)

        async def ask() -> None:
            began = time.perf_counter()
            try:
                await infer(message, timeout=_LIMIT_S)
            except grpc.aio.AioRpcError:
                figures.errors += 1
            latencies.append(time.perf_counter() - began)
            if state == "twice":
                figures.more += 1
                await infer(another, timeout=_LIMIT_S)

        await ask()  # the connection stands
        latencies.clear()
        before = process.cpu_times()
        asked = []
        began = time.perf_counter()
        for number in range(int(seconds * _RATE)):
            await asyncio.sleep(began + number / _RATE - time.perf_counter())
            asked.append(asyncio.ensure_future(ask()))
        await asyncio.gather(*asked)
        after = process.cpu_times()
    figures.cpu_s += after.user + after.system - before.user - before.system
    figures.latencies += latencies
    latencies.sort()
    figures.p50_s.append(latencies[len(latencies) // 2])
    figures.p99_s.append(latencies[len(latencies) * 99 // 100])


def _copies(balancer: Balancer) -> dict[str, int]:
    with urlopen(f"http://{balancer.admin}/api/v1/compare", timeout=_LIMIT_S) as answer:
        listed = json.load(answer)["models"]
    return dict(listed[0]["copies"]) if listed else {}


def main() -> None:
    """Measure, and print a table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round of one state")
    parser.add_argument("--states", nargs="+", choices=_STATES, default=list(_STATES))
    parser.add_argument("--serve", nargs=2, metavar=("MODEL", "SPEED"), help="be a Triton of it")
    given = parser.parse_args()
    if given.serve:
        _serve(*given.serve)
        return
    with ExitStack() as stack:
        tritons = [_start(stack, f"triton-{number}", "stable") for number in range(_TRITONS)]
        shadows, balancers = {}, {}
        states = list(dict.fromkeys(("none", *given.states)))
        for state in states:
            shadow = _start(stack, "shadow", "shadow", 0.1 if state == "slow" else 1.0)
            shadows[state] = shadow.child
            all_of_them = cast("list[Triton]", [*tritons, shadow])
            balancers[state] = stack.enter_context(running(all_of_them, _settings(state)))
        if "dead" in shadows:
            shadows["dead"].signal(signal.SIGKILL)
        figures = {state: _Figures() for state in states}
        for round_number in range(given.rounds):
            turn = round_number % len(states)
            for state in (*states[turn:], *states[:turn]):
                with _stopped(shadows[state], state):
                    asyncio.run(_load(balancers[state], given.seconds, state, figures[state]))
        _print(figures, {state: _copies(balancers[state]) for state in states})


def _print(figures: dict[str, _Figures], copies: dict[str, dict[str, int]]) -> None:
    least = figures["none"]
    request_s = least.cpu_s / len(least.latencies)
    head = (
        f"{'SHADOW':8} {'REQUESTS':>8} {'ERRORS':>6} {'P50':>6} {'P99':>6} {'CPU':>6} {'EXTRA':>6}"
    )
    print(f"{head}  COPIES")
    for state, each in figures.items():
        p50, p99 = (
            statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
            for mine, theirs in ((each.p50_s, least.p50_s), (each.p99_s, least.p99_s))
        )
        more = each.more + sum(copies[state].get(fate, 0) for fate in _MADE)
        extra_s = each.cpu_s - request_s * len(each.latencies)
        extra = f"{extra_s / more / request_s:6.2f}" if more else " " * 6
        fates = ", ".join(f"{count} {fate}" for fate, count in sorted(copies[state].items()))
        print(
            f"{state:8} {len(each.latencies):8} {each.errors:6} {p50:6.2f} {p99:6.2f} "
            f"{each.cpu_s / least.cpu_s:6.2f} {extra}  {fates}"
        )
    print(f"without a shadow: p50 {1000 * statistics.median(least.p50_s):.1f} ms, ", end="")
    print(f"p99 {1000 * statistics.median(least.p99_s):.1f} ms, {1e6 * request_s:.0f} us of CPU")


if __name__ == "__main__":
    main()
