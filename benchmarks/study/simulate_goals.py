"""What the scheduler reaches in the simulation, beside other policies and a perfect dispatcher.

    python -m benchmarks.study.simulate_goals [--seconds 60]

Prints one table per goal. tests/study/test_simulate.py asserts on the same functions, for a shorter
time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.study.simulate import (
    TURNAROUND_S,
    Balancer,
    Gpu,
    Request,
    World,
    bound_of,
    poisson,
    quantile,
)
from benchmarks.study.simulated_balancers import AtOnce, Scheduled, auto_plan
from benchmarks.two_choices import TwoChoices
from lb.balancing.policies import make_policy
from lb.domain.schedule import QueueRules

Build = Callable[[World], Balancer]

UNEQUAL = (Gpu(0.005), Gpu(0.010), Gpu(0.040))
EQUAL = (Gpu(0.010),) * 3
BATCHED = (Gpu(0.008, 0.001, max_batch=16),) * 3
MIXED_ROWS = (1, 1, 1, 1, 1, 1, 8, 64)
"""Six of eight requests are small."""
OURS = "triton-lb"


def ours(rules: QueueRules | None = None) -> Build:
    """The scheduler, with limits from the model configurations."""
    return lambda world: Scheduled(world, auto_plan(world, rules))


def at_once(name: str) -> Build:
    """A policy that places each request when it comes."""
    return lambda world: AtOnce(world, make_policy(name, Random(1)))


CONTESTANTS: dict[str, Build] = {
    OURS: ours(),
    "least_requests": at_once("least_loaded"),
    "the same of two": lambda world: AtOnce(world, TwoChoices(Random(1))),
    "round_robin": at_once("round_robin"),
}


@dataclass(frozen=True)
class Figures:
    """What came of one run."""

    world: World
    seconds: float
    offered: int

    def latencies_ms(self, kind: str = "") -> list[float]:
        """Of those that were answered."""
        return [
            1000.0 * each.latency_s
            for each in self.world.done
            if each.ended_at >= 0 and (not kind or each.kind == kind)
        ]

    def p(self, part: float, kind: str = "") -> float:
        """A quantile of the latencies in ms."""
        return quantile(self.latencies_ms(kind), part)

    @property
    def goodput(self) -> float:
        """Answers in time per second."""
        return sum(each.is_good for each in self.world.done) / self.seconds

    @property
    def mean_batch(self) -> float:
        """Requests per execution."""
        executed = sum(server.executed for server in self.world.servers)
        return executed / sum(server.executions for server in self.world.servers)


def play(
    gpus: Sequence[Gpu],
    build: Build,
    load: Sequence[Request],
    seconds: float,
    turnaround_s: float = TURNAROUND_S,
) -> Figures:
    """Have a balancer take a load."""
    world = World(gpus, turnaround_s=turnaround_s)
    world.run(load, build(world))
    return Figures(world, seconds, len(load))


def closed_loop(
    gpus: Sequence[Gpu], build: Build, clients: int, seconds: float, *, rows: int = 1
) -> Figures:
    """Have so many clients send their next request when the last one is answered."""
    world = World(gpus)
    rng = Random(1)

    def first(client: int) -> Request:
        request = Request(rng.random() * 0.01, rows)
        request.client = client
        return request

    def again(last: Request, now: float) -> Request | None:
        if now >= seconds:
            return None
        request = Request(now + 0.0003, last.rows)
        request.client = last.client
        return request

    world.again = again
    load = sorted((first(client) for client in range(clients)), key=lambda each: each.at)
    world.run(load, build(world), until=seconds)
    return Figures(world, seconds, clients)


# The loads


def mixed(at: float, rng: Random) -> Request:
    """A request of 1 to 64 rows."""
    rows = rng.choice(MIXED_ROWS)
    return Request(at, rows, "small" if rows == 1 else "large")


def with_deadline(deadline_s: float) -> Callable[[float, Random], Request]:
    """Requests that are worth nothing later than that."""

    def make(at: float, _rng: Random) -> Request:
        request = Request(at)
        request.deadline = at + deadline_s
        return request

    return make


def with_priorities(
    low_rate: float, high_rate: float, seconds: float, seed: int = 1
) -> list[Request]:
    """Few urgent requests among very many that are not."""
    high = poisson(high_rate, seconds, 10 * seed + 1, lambda at, _: Request(at, 1, "high"))
    low = poisson(low_rate, seconds, 10 * seed + 2, lambda at, _: Request(at, 1, "low"))
    for request in low:
        request.priority = 1
    return sorted(high + low, key=lambda each: each.at)


def with_tenants(rates: dict[str, float], seconds: float, seed: int = 1) -> list[Request]:
    """Every tenant sends at a rate of its own."""
    load = []
    for number, (tenant, rate) in enumerate(rates.items()):
        requests = poisson(rate, seconds, 20 * seed + number, lambda at, _: Request(at))
        for request in requests:
            request.tenant = request.kind = tenant
            request.deadline = request.at + 0.5
        load += requests
    return sorted(load, key=lambda each: each.at)


def capacity(gpus: Sequence[Gpu], rows: Sequence[int] = (1,)) -> float:
    """Requests per second that backends can do, of a mixture of sizes."""
    return sum(len(rows) / sum(1.0 / gpu.rate(each) for each in rows) for gpu in gpus)


# The tables


def unequal(seconds: float) -> None:
    """Goal 1: 5, 10 and 40 ms."""
    print("\n1. Unequal backends, 5/10/40 ms, Poisson: p50 / p99 in ms")
    for rate in (150.0, 240.0, 280.0):
        cells = [f"{rate:.0f}/s"]
        ideal = [1000.0 * took for took in bound_of(poisson(rate, seconds, 1), UNEQUAL)]
        cells.append(f"bound {quantile(ideal, 0.5):.1f}/{quantile(ideal, 0.99):.1f}")
        for name, build in CONTESTANTS.items():
            found = play(UNEQUAL, build, poisson(rate, seconds, 1), seconds)
            cells.append(f"{name} {found.p(0.5):.1f}/{found.p(0.99):.1f}")
        print("   ".join(cells))


def equal(seconds: float) -> None:
    """Goal 2: three of 10 ms."""
    print("\n2. Equal backends, 10 ms, Poisson: p50 / p99 in ms")
    for part in (0.5, 0.8, 0.95):
        rate = part * capacity(EQUAL)
        ideal = [1000.0 * took for took in bound_of(poisson(rate, seconds, 1), EQUAL)]
        cells = [f"{part:.0%}", f"bound {quantile(ideal, 0.5):.1f}/{quantile(ideal, 0.99):.1f}"]
        for name, build in CONTESTANTS.items():
            found = play(EQUAL, build, poisson(rate, seconds, 1), seconds)
            cells.append(f"{name} {found.p(0.5):.1f}/{found.p(0.99):.1f}")
        print("   ".join(cells))


URGENT = 0.03
"""Part of the capacity that the urgent ones of goal 7 need."""
ROWS = (Gpu(0.002, 0.0005), Gpu(0.002, 0.0005), Gpu(0.004, 0.001))


def batches_of_all_sizes(seconds: float) -> None:
    """Goal 3: 1 to 64 rows."""
    print("\n3. Mixed batches of 1 to 64 rows: p99 of small / of all in ms")
    for part in (0.5, 0.7, 0.85):
        rate = part * capacity(ROWS, MIXED_ROWS)
        cells = [f"{part:.0%}"]
        for name, build in CONTESTANTS.items():
            found = play(ROWS, build, poisson(rate, seconds, 1, mixed), seconds)
            cells.append(f"{name} {found.p(0.99, 'small'):.1f}/{found.p(0.99):.1f}")
        print("   ".join(cells))


def overload(seconds: float) -> None:
    """Goal 4: more than can be done, with a deadline of 200 ms."""
    print("\n4. Overload, deadline 200 ms: goodput as a part of capacity")
    for gpus, label in ((EQUAL, "10/10/10 ms"), (UNEQUAL, "5/10/40 ms")):
        for factor in (2.0, 10.0):
            rate = factor * capacity(gpus)
            cells = [label, f"{factor:.0f} x"]
            for name, build in CONTESTANTS.items():
                load = poisson(rate, seconds, 1, with_deadline(0.2))
                found = play(gpus, build, load, seconds)
                cells.append(f"{name} {found.goodput / capacity(gpus):.3f}")
            print("   ".join(cells))


def dynamic_batches(seconds: float) -> None:
    """Goal 5: the mean batch, beside that of one backend at the same rate per backend."""
    print("\n5. Dynamic batching, 8 ms + 1 ms per row, up to 16: mean batch (p99 in ms)")
    for rate in (60.0, 120.0, 240.0, 400.0, 560.0):
        one = play(BATCHED[:1], at_once("round_robin"), poisson(rate, seconds, 1), seconds)
        cells = [f"{rate:.0f}/s each", f"one alone {one.mean_batch:.2f} ({one.p(0.99):.0f})"]
        for name, build in CONTESTANTS.items():
            found = play(BATCHED, build, poisson(rate * len(BATCHED), seconds, 1), seconds)
            cells.append(f"{name} {found.mean_batch:.2f} ({found.p(0.99):.0f})")
        print("   ".join(cells))
    for clients in (8, 32):
        one = closed_loop(BATCHED[:1], at_once("round_robin"), clients, seconds)
        cells = [f"closed, {clients} each", f"one {one.mean_batch:.2f} ({one.goodput:.0f}/s)"]
        for name, build in CONTESTANTS.items():
            found = closed_loop(BATCHED, build, clients * len(BATCHED), seconds)
            cells.append(f"{name} {found.mean_batch:.2f} ({found.goodput:.0f}/s)")
        print("   ".join(cells))


def slices(seconds: float) -> None:
    """Goal 6: seven of 20 ms, 100 clients."""
    print("\n6. Seven of 20 ms beside one, closed loop of 100: throughput")
    for name, build in CONTESTANTS.items():
        one = closed_loop([Gpu(0.02)], build, 100, seconds)
        seven = closed_loop([Gpu(0.02)] * 7, build, 100, seconds)
        print(f"{name}: {seven.goodput:.0f}/s = {seven.goodput / one.goodput:.2f} x")


def priorities(seconds: float) -> None:
    """Goal 7: urgent ones among very many others, and tenants."""
    print("\n7. Few urgent requests, others at twice the capacity: p99 of urgent ones in ms")
    rules = QueueRules(max_waiting=200, reserved=0.34)
    for gpus, label in ((EQUAL, "10/10/10 ms"), (UNEQUAL, "5/10/40 ms")):
        high = URGENT * capacity(gpus)
        alone = play(gpus, ours(rules), with_priorities(0.001, high, seconds), seconds)
        among = play(gpus, ours(rules), with_priorities(2 * capacity(gpus), high, seconds), seconds)
        low = sum(each.kind == "low" and each.ended_at >= 0 for each in among.world.done)
        print(
            f"{label}: alone {alone.p(0.99, 'high'):.1f}, among others "
            f"{among.p(0.99, 'high'):.1f}; others had {low / seconds:.0f}/s"
        )
    rates = {"greedy": 4 * capacity(EQUAL), "a": 0.5 * capacity(EQUAL), "b": 0.4 * capacity(EQUAL)}
    found = play(EQUAL, ours(), with_tenants(rates, seconds), seconds)
    good = {
        tenant: sum(each.kind == tenant and each.is_good for each in found.world.done)
        for tenant in rates
    }
    fair = capacity(EQUAL) * seconds / len(rates)
    print("tenants' part of a fair share: " + str({k: round(v / fair, 3) for k, v in good.items()}))


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated, of each run")
    seconds: float = parser.parse_args().seconds
    for table in (
        unequal, equal, batches_of_all_sizes, overload, dynamic_batches, slices, priorities,
    ):  # fmt: skip
        table(seconds)


if __name__ == "__main__":
    main()
