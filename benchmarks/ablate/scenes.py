"""The scenes that every variant of the scheduler plays: loads, backends and hazards.

A scene is a function from a seed to figures. The seed decides on the arrivals, so all variants get
the same requests. Figures called p50, p99, mean, refused (seconds until then), moved and
instructions are the better the lower they are; all others are the better the higher they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import log
from random import Random
from typing import Final

from benchmarks.ablate.balancers import (
    Bypassed,
    Counting,
    Grown,
    Pausing,
    Placed,
    Streamed,
    StreamedCounting,
    known_speeds,
)
from benchmarks.study import simulate_load, simulate_policies, simulate_sequences
from benchmarks.study.simulate import TURNAROUND_S, Gpu, Request, World, poisson, quantile
from benchmarks.study.simulate_goals import (
    BATCHED,
    EQUAL,
    MIXED_ROWS,
    ROWS,
    UNEQUAL,
    capacity,
    mixed,
    with_deadline,
    with_priorities,
    with_tenants,
)
from benchmarks.study.simulate_policies import make_backends
from benchmarks.study.simulated_balancers import Scheduled, auto_limit, auto_plan
from lb.balancing.policies import make_policy
from lb.domain.schedule import Capacity, Order, QueuePlan, QueueRules
from tests.fakes.work import instructions as counted

Figures = dict[str, float]
Make = Callable[[float, Random], Request]

REQUESTS: Final = 3000
"""The approximate duration of a scene with one seed."""
RESERVED: Final = QueueRules(max_waiting=200, reserved=0.34)
FOUR: Final = (Gpu(0.002), Gpu(0.005), Gpu(0.010), Gpu(0.040))
NEARLY_EQUAL: Final = (Gpu(0.010), Gpu(0.010), Gpu(0.011))
SLICES: Final = (Gpu(0.020),) * 7
LARGE_BATCHES: Final = (Gpu(0.004, 0.0005, max_batch=64),) * 2 + (Gpu(0.008, 0.001, max_batch=64),)
UNEQUAL_BATCHES: Final = (
    Gpu(0.008, 0.001, max_batch=16),
    Gpu(0.008, 0.001, max_batch=16),
    Gpu(0.024, 0.003, max_batch=16),
)
BY_SIZE: Final = (Gpu(0.0, byte_s=1e-5),) * 4
BY_SIZE_UNEQUAL: Final = (Gpu(0.0, byte_s=5e-6), Gpu(0.0, byte_s=1e-5), Gpu(0.0, byte_s=4e-5))
BY_ROWS: Final = (Gpu(0.004, 0.0005),) * 2 + (Gpu(0.008, 0.001),)
PARALLEL: Final = (Gpu(0.02, instances=4, contention=0.15),) * 2 + (
    Gpu(0.06, instances=4, contention=0.15),
)
MANY: Final = tuple(Gpu(0.010 * (1 + number % 4)) for number in range(30))
QUICK: Final = (Gpu(0.001), Gpu(0.001), Gpu(0.002))


@dataclass(frozen=True)
class Scene:
    """One scene."""

    name: str
    play: Callable[[int], tuple[Figures, str]]
    """Gives the figures of a seed, and a fingerprint of all that happened."""


def figures(
    load: Iterable[Request],
    *,
    kinds: Sequence[str] = (),
    is_due: bool = False,
    network_s: float = 0.0,
) -> tuple[Figures, str]:
    """What came of a load.

    Args:
        load: what is measured, answered or not.
        kinds: those whose p99 is a goal of its own.
        is_due: answers in time are the only goal.
        network_s: to clients and back: their deadlines are sooner than they say.
    """
    load = list(load)
    answered = sorted(each.latency_s for each in load if each.ended_at >= 0)
    good = sum(0 <= each.ended_at <= each.deadline - network_s for each in load)
    found: Figures = {}
    if is_due:
        found["in time"] = good / len(load)
        refused = [each.refused_at - each.at for each in load if each.is_refused]
        if refused:
            found["refused"] = sum(refused) / len(refused)
    else:
        found["p50"] = quantile(answered, 0.5)
        found["p99"] = quantile(answered, 0.99)
        found["mean"] = sum(answered) / len(answered)
        found["answered"] = len(answered) / len(load)
    for kind in kinds:
        some = [each for each in load if each.kind == kind]
        if is_due:
            found[f"in time {kind}"] = sum(each.is_good for each in some) / len(some)
        else:
            took = [each.latency_s for each in some if each.ended_at >= 0]
            found[f"p99 {kind}"] = quantile(took, 0.99)
    return found, fingerprint(load)


def fingerprint(load: Iterable[Request]) -> str:
    """Tells whether two plays of a load were the same."""
    told = ";".join(f"{each.backend} {each.ended_at:.9f}" for each in load)
    return blake2b(told.encode(), digest_size=8).hexdigest()


def mark_of(values: Iterable[float]) -> str:
    """Tells whether two plays that gave some figures were the same."""
    return blake2b(repr(list(values)).encode(), digest_size=8).hexdigest()


def at_load(
    name: str,
    gpus: Sequence[Gpu],
    rate: float,
    *,
    make: Make | None = None,
    kinds: Sequence[str] = (),
    is_due: bool = False,
    network_s: float = 0.0,
    turnaround_s: float = TURNAROUND_S,
    late_s: float = 0.0,
    seconds: float = 0.0,
    limit: Callable[[Gpu], Capacity] = auto_limit,
) -> Scene:
    """Independent clients that send so many requests per second."""

    def play(seed: int) -> tuple[Figures, str]:
        world = World(gpus, seed, turnaround_s, late_s)
        load = poisson(rate, seconds or REQUESTS / rate, seed, make)
        world.run(load, Scheduled(world, plan_of(world, limit)))
        return figures(load, kinds=kinds, is_due=is_due, network_s=network_s)

    return Scene(name, play)


def plan_of(world: World, limit: Callable[[Gpu], Capacity]) -> QueuePlan:
    """A plan with such limits."""
    return QueuePlan(
        limits={server.backend: limit(server.gpu) for server in world.servers},
        rules=QueueRules(max_waiting=100_000),
    )


def closed(
    name: str,
    gpus: Sequence[Gpu],
    clients: int,
    seconds: float,
    limit: Callable[[Gpu], Capacity] = auto_limit,
) -> Scene:
    """The number of clients that send their next request when the last one is answered."""

    def play(seed: int) -> tuple[Figures, str]:
        world = World(gpus, seed)
        rng = Random(seed)
        load = []
        for client in range(clients):
            request = Request(rng.random() * 0.01)
            request.client = client
            load.append(request)
        world.again = _again_after(lambda: 0.0003)
        load.sort(key=_at)
        world.run(load, Scheduled(world, plan_of(world, limit)), until=seconds)
        latencies = [each.latency_s for each in world.done]
        found = {"throughput": len(latencies) / seconds, "p99": quantile(latencies, 0.99)}
        return found, fingerprint(world.done)

    return Scene(name, play)


def _again_after(pause_s: Callable[[], float]) -> Callable[[Request, float], Request | None]:
    """What a client sends after an answer: one request more, after a pause."""

    def again(last: Request, now: float) -> Request | None:
        request = Request(now + pause_s())
        request.client = last.client
        return request

    return again


def _at(request: Request) -> float:
    return request.at


# Requests that are not all alike


def bimodal(at: float, rng: Random) -> Request:
    """One of ten takes ten times as long, and nobody can see which."""
    request = Request(at)
    request.work = 10.0 if rng.random() < 0.1 else 1.0
    return request


def exponential(at: float, rng: Random) -> Request:
    """Executions may take any time."""
    request = Request(at)
    request.work = rng.expovariate(1.0)
    return request


def rare_giants(at: float, rng: Random) -> Request:
    """One of 200 requests has 200 rows, the others have one or two."""
    giant = rng.random() < 0.005
    return Request(at, 200 if giant else rng.choice((1, 2)), "giant" if giant else "small")


def rare_files(at: float, rng: Random) -> Request:
    """One of 200 requests has a megabyte, the others have some kilobytes."""
    request = Request(at, 1, "small")
    request.size = rng.choice((1000, 2000, 4000))
    if rng.random() < 0.005:
        request.size, request.kind = 1_000_000, "giant"
    return request


def quick_files(at: float, rng: Random) -> Request:
    """One of 200 requests has a megabyte, which hardly takes longer than the others' kilobytes;
    all are due in 100 ms."""
    request = Request(at, 1, "small")
    request.deadline = at + 0.1
    request.size = rng.choice((1000, 2000, 4000))
    if rng.random() < 0.005:
        request.size, request.kind, request.work = 1_000_000, "giant", 0.01
    return request


def very_long(at: float, rng: Random) -> Request:
    """One of 500 requests takes a second, the others take five milliseconds and more."""
    giant = rng.random() < 0.002
    return Request(at, 200 if giant else 1, "giant" if giant else "small")


def sized(at: float, rng: Random) -> Request:
    """A request of 100 bytes to 5 KB."""
    request = Request(at)
    request.size = int(100 * 50 ** rng.random())
    request.kind = "small" if request.size < 500 else "large"
    return request


MEAN_SIZE: Final = 4900 / log(50)
"""Bytes of such a request."""


def due_in(*deadlines_s: float, make: Make | None = None) -> Make:
    """Requests with one of some deadlines, 0 being none."""

    def due(at: float, rng: Random) -> Request:
        request = Request(at) if make is None else make(at, rng)
        deadline_s = rng.choice(deadlines_s)
        if deadline_s:
            request.deadline = at + deadline_s
            request.kind = "due"
        else:
            request.kind = "patient"
        return request

    return due


# Scenes that need more than a load


def pauses(seed: int) -> tuple[Figures, str]:
    """Bursts of half a second at one and a half times what the backends can do, and pauses."""
    rate = 1.5 * capacity(UNEQUAL)
    load = []
    for burst in range(12):
        for request in poisson(rate, 0.5, 100 * seed + burst):
            request.at += 3.0 * burst
            load.append(request)
    world = World(UNEQUAL, seed)
    world.run(load, Scheduled(world, auto_plan(world)))
    return figures(load)


def load_in_steps(seed: int) -> tuple[Figures, str]:
    """Half of the load, then nearly all of it, and half again."""
    whole = capacity(UNEQUAL)
    load = []
    for number, part in enumerate((0.5, 0.97, 0.5)):
        for request in poisson(part * whole, 5.0, 10 * seed + number):
            request.at += 5.0 * number
            load.append(request)
    world = World(UNEQUAL, seed)
    world.run(load, Scheduled(world, auto_plan(world)))
    return figures(load)


def _two_models(device: float) -> dict[str, Gpu]:
    return {
        "cheap": Gpu(0.004 * device, contention=0.5),
        "costly": Gpu(0.040 * device, contention=0.5),
    }


def swapped(due_s: float) -> Callable[[int], tuple[Figures, str]]:
    """The fast backend and the slow one change places while nobody asks for anything."""

    def play(seed: int) -> tuple[Figures, str]:
        gpus = (
            Gpu(0.005, slow=((5.5, 99.0, 8.0),)),
            Gpu(0.010),
            Gpu(0.040, slow=((5.5, 99.0, 0.125),)),
        )
        world = World(gpus, seed)
        load = []
        for number, begin in enumerate((0.0, 21.0)):
            for request in poisson(0.6 * capacity(UNEQUAL), 5.0, 10 * seed + number):
                request.at += begin
                if due_s:
                    request.deadline = request.at + due_s
                load.append(request)
        world.run(load, Scheduled(world, auto_plan(world)))
        return figures(load, is_due=due_s > 0)

    return play


def two_models(seed: int) -> tuple[Figures, str]:
    """Two models that slow each other down, on two backends and one of half their speed."""
    world = World([_two_models(device) for device in (1.0, 1.0, 2.0)], seed)
    load = []
    for number, (model, rate) in enumerate((("cheap", 300.0), ("costly", 25.0))):
        for request in poisson(rate, 10.0, 10 * seed + number):
            request.model = request.kind = model
            load.append(request)
    load.sort(key=_at)
    plans = {model: auto_plan(world, model=model) for model in ("cheap", "costly")}
    world.run(load, Scheduled(world, plans))
    return figures(load, kinds=("cheap", "costly"))


def many_models(seed: int) -> tuple[Figures, str]:
    """24 models, each on four of eight backends of three speeds; some are asked for rarely."""
    devices: list[dict[str, Gpu]] = [{} for _ in range(8)]
    rates: dict[str, float] = {}
    for number in range(24):
        model = f"m{number}"
        base_s = 0.004 * (1 + number % 5)
        for place in range(4):
            device = (number * 3 + place * (1 + number // 12)) % 8
            speed = (1.0, 2.0, 4.0)[device % 3]
            devices[device][model] = Gpu(base_s * speed, contention=0.3)
        rates[model] = 0.25 / base_s / (1 + number % 7)
    world = World(devices, seed)
    load = []
    for number, (model, rate) in enumerate(rates.items()):
        for request in poisson(rate, 8.0, 100 * seed + number):
            request.model = model
            load.append(request)
    load.sort(key=_at)
    world.run(load, Scheduled(world, {model: auto_plan(world, model=model) for model in rates}))
    return figures(load)


def priorities(
    gpus: Sequence[Gpu], rules: QueueRules = RESERVED
) -> Callable[[int], tuple[Figures, str]]:
    """Few urgent requests among others of twice what can be done; a third is reserved."""

    def play(seed: int) -> tuple[Figures, str]:
        whole = capacity(gpus)
        load = with_priorities(2 * whole, 0.1 * whole, 8.0, seed)
        world = World(gpus, seed)
        world.run(load, Scheduled(world, auto_plan(world, rules)))
        found, mark = figures(load, kinds=("high", "low"))
        return {name: found[name] for name in ("p99 high", "p99 low", "answered")}, mark

    return play


def weighted(seed: int) -> tuple[Figures, str]:
    """Two priorities that share by weight, and one that starves behind strict ones."""
    rules = QueueRules(max_waiting=100_000, order=Order.WEIGHTED, weights={0: 4.0, 1: 1.0})
    load = with_priorities(1.0 * capacity(UNEQUAL), 0.3 * capacity(UNEQUAL), 8.0, seed)
    world = World(UNEQUAL, seed)
    world.run(load, Scheduled(world, auto_plan(world, rules)))
    return figures(load, kinds=("high", "low"))


def tenants(seed: int) -> tuple[Figures, str]:
    """A greedy tenant beside two that ask for about their shares, with deadlines."""
    whole = capacity(UNEQUAL)
    rates = {"greedy": 4 * whole, "a": 0.3 * whole, "b": 0.3 * whole}
    load = with_tenants(rates, 3.0, seed)
    world = World(UNEQUAL, seed)
    world.run(load, Scheduled(world, auto_plan(world, QueueRules(max_waiting=1000))))
    found, mark = figures(load, is_due=True)
    modest = [each for each in load if each.tenant != "greedy"]
    found["in time of modest"] = sum(each.is_good for each in modest) / len(modest)
    return found, mark


def full_queue(seed: int) -> tuple[Figures, str]:
    """Twice what can be done, and room for 100 that wait."""
    load = poisson(2 * capacity(UNEQUAL), 5.0, seed)
    world = World(UNEQUAL, seed)
    world.run(load, Scheduled(world, auto_plan(world, QueueRules(max_waiting=100))))
    return figures(load)


def external(scene: simulate_load.Scene, rate: float) -> Callable[[int], tuple[Figures, str]]:
    """Others use the same backends, which are asked for their load every two seconds."""

    def play(seed: int) -> tuple[Figures, str]:
        found: list[float] = []
        for part in range(3):
            found += simulate_load.play(scene, rate, 2.0, 10 * seed + part, 65.0)
        found_s = [each / 1000.0 for each in found]
        told: Figures = {
            "p50": quantile(found_s, 0.5),
            "p99": quantile(found_s, 0.99),
            "mean": sum(found_s) / len(found_s),
        }
        return told, mark_of(found)

    return play


def newcomer(seed: int) -> tuple[Figures, str]:
    """A backend joins that starts slowly: its share grows for ten seconds, and its first
    executions take long."""
    gpus = (*EQUAL[:2], Gpu(0.010, slow=((0.0, 6.0, 6.0), (6.0, 9.0, 3.0))))
    world = World(gpus, seed)
    load = poisson(0.75 * capacity(EQUAL[:2]), 18.0, seed)
    world.run(load, Grown(world, auto_plan(world), 4.0, 10.0))
    return figures(load)


def told_speeds(seed: int) -> tuple[Figures, str]:
    """Twenty starts before backends that say how fast they are, thirty requests each."""
    load: list[Request] = []
    for start in range(20):
        world = World(UNEQUAL, 100 * seed + start)
        some = poisson(150.0, 1.0, 100 * seed + start)[:30]
        world.run(some, known_speeds(world, 1.2))
        load += some
    return figures(load)


def starts(
    gpus: Sequence[Gpu], count: int, requests: int, rate: float
) -> Callable[[int], tuple[Figures, str]]:
    """A count of starts before backends of which nothing is known."""

    def play(seed: int) -> tuple[Figures, str]:
        load: list[Request] = []
        for start in range(count):
            world = World(gpus, 100 * seed + start)
            some = poisson(rate, 2.0 * requests / rate, 100 * seed + start)[:requests]
            world.run(some, Scheduled(world, auto_plan(world)))
            load += some
        return figures(load)

    return play


def never_answered(seed: int) -> tuple[Figures, str]:
    """One of 200 requests is lost by whichever backend it reaches; its client leaves after 15 s."""
    rng = Random(seed)
    world = World(UNEQUAL, seed)
    balancer = Scheduled(world, auto_plan(world))
    load = poisson(150.0, 20.0, seed)
    for request in load:
        if rng.random() < 0.005:
            request.is_never_answered = True
            at = request.at + 15.0
            world.at(at, lambda request=request, at=at: balancer.leave(request, at))  # type: ignore[misc]
    world.run(load, balancer)
    return figures([each for each in load if not each.is_never_answered])


def streams(gpus: Sequence[Gpu]) -> Callable[[int], tuple[Figures, str]]:
    """Twelve streams that send their next request when the last one is answered."""

    def play(seed: int) -> tuple[Figures, str]:
        world = World(gpus, seed)
        balancer = Streamed(world, auto_plan(world))
        rng = Random(seed)
        load = []
        for client in range(12):
            request = Request(rng.random() * 0.05)
            request.client = client
            load.append(request)
        load.sort(key=_at)

        world.again = _again_after(lambda: rng.expovariate(50.0))
        world.run(load, balancer, until=10.0)
        found, mark = figures(world.done)
        del found["answered"]
        found["throughput"] = len(world.done) / 10.0
        found["moved"] = (1 + balancer.moved) / len(world.done)
        return found, mark

    return play


def sequences(
    scene: simulate_sequences.Scene, seconds: float
) -> Callable[[int], tuple[Figures, str]]:
    """Steps of sequences beside requests of another model."""

    def play(seed: int) -> tuple[Figures, str]:
        found = simulate_sequences.play(scene, "triton-lb", seed, seconds)
        told: Figures = {
            "p50 of steps": found.step_p50,
            "p99 of steps": found.step_p99,
            "mean of steps": found.step_mean,
            "p99 of others": found.other_p99,
            "mean of others": found.other_mean,
        }
        return told, mark_of(told.values())

    return play


def bypassed(seed: int) -> tuple[Figures, str]:
    """Backends with a limit for all their requests, of which some are not scheduled."""
    world = World(UNEQUAL, seed)
    balancer = Bypassed(world, auto_plan(world), 2)
    load = poisson(200.0, 12.0, seed)
    for request in poisson(40.0, 12.0, 9000 + seed):
        request.kind = "other"
        load.append(request)
    load.sort(key=_at)
    world.run(load, balancer)
    return figures([each for each in load if each.kind != "other"])


def placed(
    scene: simulate_policies.Scene, policy: str, seconds: float
) -> Callable[[int], tuple[Figures, str]]:
    """A policy places, and nothing is scheduled."""

    def play(seed: int) -> tuple[Figures, str]:
        world = World(scene.gpus, seed)
        rate = scene.load * sum(gpu.rate() for gpu in scene.gpus)
        load = poisson(rate, seconds, seed)
        world.run(load, Placed(world, scene, policy, seed))
        return figures([each for each in load if each.at > 0.2 * seconds])

    return play


def picks(policy: str) -> Callable[[int], tuple[Figures, str]]:
    """Instructions of the interpreter for a pick among 200 backends, most of them busy."""

    def play(seed: int) -> tuple[Figures, str]:
        rng = Random(seed)
        backends = make_backends((1.0,) * 200)
        for backend in backends:
            backend.in_flight = rng.choice((0, 1, 1, 1, 2))
        picker = make_policy(policy, rng).build(backends)

        def pick() -> None:
            for _ in range(300):
                chosen = picker.pick()
                assert chosen is not None
                chosen.in_flight += 1
                backends[rng.randrange(200)].in_flight = 0

        return {"instructions": counted(pick) / 300}, ""

    return play


def instructions(
    gpus: Sequence[Gpu], part: float, count: int
) -> Callable[[int], tuple[Figures, str]]:
    """Instructions of the interpreter that the scheduler takes for a request."""

    def play(seed: int) -> tuple[Figures, str]:
        world = World(gpus, seed)
        balancer = Counting(world, auto_plan(world))
        rate = part * capacity(gpus)
        load = poisson(rate, 2.0 * count / rate, seed)
        balancer.begin_at = len(load) - count
        world.run(load, balancer)
        return {"instructions": balancer.instructions / count}, fingerprint(load)

    return play


def stream_instructions(seed: int) -> tuple[Figures, str]:
    """Instructions that the scheduler takes for a message of a stream."""
    world = World(EQUAL, seed)
    balancer = StreamedCounting(world, auto_plan(world))
    balancer.begin_at = 300
    rng = Random(seed)
    load = [Request(0.01 * client) for client in range(6)]
    for client, request in enumerate(load):
        request.client = client

    world.again = _again_after(lambda: rng.expovariate(50.0))
    world.run(load, balancer, until=4.0)
    return {"instructions": balancer.instructions / (len(world.done) - 300)}, fingerprint(
        world.done
    )


def balancer_pauses(seed: int) -> tuple[Figures, str]:
    """The balancer itself stands still for 30 ms of each 300, before quick backends."""
    world = World(QUICK, seed)
    rate = 0.85 * capacity(QUICK)
    load = poisson(rate, REQUESTS / rate, seed)
    world.run(load, Pausing(world, auto_plan(world), 0.3, 0.03))
    return figures(load)


def with_slow(gpus: Sequence[Gpu], number: int, *slow: tuple[float, float, float]) -> list[Gpu]:
    """Backends of which one is slower at times."""
    found = list(gpus)
    found[number] = replace(found[number], slow=slow)
    return found


def _ensemble(gpu: Gpu) -> Capacity:
    return Capacity(is_shared=True, instances=gpu.instances)


def _adaptive(gpu: Gpu) -> Capacity:
    return Capacity(1, is_adaptive=True, instances=gpu.instances)


def with_stalls(gpus: Sequence[Gpu], at_s: float, pause_s: float) -> list[Gpu]:
    """Backends on which nothing ends for a while."""
    return [replace(gpu, stalls=((at_s, pause_s),)) for gpu in gpus]


def with_pauses(gpus: Sequence[Gpu], every_s: float, pause_s: float) -> list[Gpu]:
    """Backends on which nothing ends for a moment now and then, on one after the other."""
    return [
        replace(
            gpu,
            stalls=tuple((every_s * (turn + number / len(gpus)), pause_s) for turn in range(1, 6)),
        )
        for number, gpu in enumerate(gpus)
    ]


def with_failures(gpus: Sequence[Gpu], count: int, part: float) -> list[Gpu]:
    """Backends of which the first ones fail a part of their requests, at once, from 3 s on."""
    failing = [replace(gpu, failures=((3.0, 15.0, part),)) for gpu in gpus[:count]]
    return [*failing, *gpus[count:]]


def _ordinary() -> Iterable[Scene]:
    """Loads of backends that behave."""
    for part in (0.3, 0.6, 0.82, 0.95, 1.5):
        yield at_load(f"5/10/40 at {part:.0%}", UNEQUAL, part * capacity(UNEQUAL))
    for part in (0.5, 0.9):
        yield at_load(f"2/5/10/40 at {part:.0%}", FOUR, part * capacity(FOUR))
        yield at_load(f"10/10/11 at {part:.0%}", NEARLY_EQUAL, part * capacity(NEARLY_EQUAL))
    for part in (0.5, 0.8, 0.95):
        yield at_load(f"equal at {part:.0%}", EQUAL, part * capacity(EQUAL))
    yield closed("MIG seven, 100 clients", SLICES, 100, 8.0)
    yield closed("MIG seven, 9 clients", SLICES, 9, 8.0)
    yield at_load("MIG seven at 85%", SLICES, 0.85 * capacity(SLICES))
    for part in (0.5, 0.85):
        rate = part * capacity(ROWS, MIXED_ROWS)
        yield at_load(f"rows at {part:.0%}", ROWS, rate, make=mixed, kinds=("small",))
    rate = 0.6 * capacity(LARGE_BATCHES, MIXED_ROWS)
    yield at_load("rows, batched, at 60%", LARGE_BATCHES, rate, make=mixed, kinds=("small",))
    for part in (0.1, 0.3, 0.7, 0.95):
        yield at_load(f"batched at {part:.0%}", BATCHED, part * capacity(BATCHED))
    rate = 0.8 * capacity(UNEQUAL_BATCHES)
    yield at_load("batched, unequal, at 80%", UNEQUAL_BATCHES, rate)
    yield closed("batched, 40 clients", BATCHED, 40, 3.0)
    for gpus, label in ((EQUAL, "equal"), (UNEQUAL, "5/10/40")):
        rate = 0.7 * capacity(gpus) / 1.9
        yield at_load(f"bimodal, {label}, at 70%", gpus, rate, make=bimodal)
        rate = 0.8 * capacity(gpus)
        yield at_load(f"exponential, {label}, at 80%", gpus, rate, make=exponential)
    for gpus, label in ((BY_SIZE, "equal"), (BY_SIZE_UNEQUAL, "unequal")):
        rate = 0.8 * sum(1.0 / (MEAN_SIZE * gpu.byte_s) for gpu in gpus)
        yield at_load(f"sizes, {label}, at 80%", gpus, rate, make=sized, kinds=("small",))
    yield Scene("two models", two_models)
    yield Scene("24 models on 8 backends", many_models)
    for number in (3, 14):
        sequence_scene = simulate_sequences.SCENES[number]
        seconds = 100.0 if sequence_scene.slow else 50.0
        yield Scene(f"sequences: {sequence_scene.name}", sequences(sequence_scene, seconds))
    yield Scene("streams", streams(UNEQUAL))
    yield Scene("priorities, equal", priorities(EQUAL))
    yield Scene("priorities, 5/10/40", priorities(UNEQUAL))
    starving = replace(RESERVED, max_starve_s=0.5)
    yield Scene("priorities, equal, starving", priorities(EQUAL, starving))
    yield Scene("weighted priorities", weighted)
    yield Scene("tenants", tenants)
    for part in (0.45, 0.6):
        yield at_load(f"instances at {part:.0%}", PARALLEL, part * capacity(PARALLEL))
    for part in (0.5, 0.8):
        rate = part * capacity(UNEQUAL)
        yield at_load(f"ensemble, 5/10/40, at {part:.0%}", UNEQUAL, rate, limit=_ensemble)
    rate = 0.5 * capacity(PARALLEL[:2])
    yield at_load("adaptive, 4 instances, at 50%", PARALLEL[:2], rate, limit=_adaptive)
    yield closed("adaptive, 4 instances, 24 clients", PARALLEL[:2], 24, 20.0, _adaptive)
    yield closed("adaptive, batched, 60 clients", BATCHED, 60, 8.0, _adaptive)
    for part in (0.6, 0.95):
        yield at_load(f"30 backends at {part:.0%}", MANY, part * capacity(MANY))
    yield at_load("quick at 70%", QUICK, 0.7 * capacity(QUICK))
    yield at_load("batched, late loops, at 50%", BATCHED, 0.5 * capacity(BATCHED), late_s=0.002)
    rate = 0.7 * capacity(BY_ROWS) / (1.0 + 0.005 * 24.0)
    yield at_load("rare giants", BY_ROWS, rate, make=rare_giants, kinds=("small",))
    gpus = (Gpu(0.004, byte_s=1e-7),) * 2 + (Gpu(0.008, byte_s=2e-7),)
    yield at_load("rare files", gpus, 350.0, make=rare_files, kinds=("small",))
    gpus = (Gpu(0.002, byte_s=1e-6),) * 3
    kinds = ("giant",)
    yield at_load("quick files", gpus, 600.0, make=quick_files, kinds=kinds, is_due=True)
    gpus = (Gpu(0.0, 0.005),) * 3
    kinds = ("small", "giant")
    yield at_load("very long ones", gpus, 340.0, make=very_long, kinds=kinds, seconds=20.0)
    yield at_load("far at 80%", SLICES[:4], 0.8 * capacity(SLICES[:4]), turnaround_s=0.05)
    yield at_load("late loops at 80%", UNEQUAL, 0.8 * capacity(UNEQUAL), late_s=0.002)
    gpus = [Gpu(1000.0 * gpu.base_s) for gpu in UNEQUAL]
    yield at_load("5/10/40 seconds at 60%", gpus, 0.6 * capacity(gpus), seconds=3000.0)
    yield Scene("bursts and pauses", pauses)
    yield Scene("load in steps", load_in_steps)
    yield Scene("starts", starts(UNEQUAL, 20, 60, 200.0))
    yield Scene("full queue", full_queue)


def _hazards() -> Iterable[Scene]:
    """What safeguards are for."""
    gpus = with_slow((Gpu(0.005), *EQUAL[:2]), 0, (6.0, 12.0, 10.0))
    yield at_load("ten times slower and back", gpus, 150.0, seconds=24.0)
    gpus = with_slow(BATCHED, 0, (1.5, 3.0, 10.0))
    yield at_load("ten times slower and back, batched", gpus, 0.4 * capacity(BATCHED), seconds=5.0)
    gpus = with_slow((Gpu(0.005), *EQUAL[:2]), 0, (0.0, 8.0, 10.0))
    yield at_load("slow one becomes fast", gpus, 150.0, seconds=20.0)
    yield at_load("slow one becomes fast, few requests", gpus, 40.0, seconds=60.0)
    gpus = [replace(gpu, slow=((0.0, 3.0, 8.0),)) for gpu in MANY[::2]] + list(MANY[1::2])
    yield at_load("half of 30 become fast", gpus, 0.3 * capacity(MANY), seconds=9.0)
    gpus = [Gpu(0.005), Gpu(0.005), Gpu(0.2)]
    yield at_load("a slow one, few requests", gpus, 4.0, seconds=400.0)
    make = due_in(0.05)
    yield at_load(
        "a slow one, few requests, due in 50 ms", gpus, 4.0, make=make, is_due=True, seconds=400.0
    )
    gpus = [*EQUAL[:2], replace(EQUAL[2], first_s=10.0)]
    yield at_load("first execution of 10 s", gpus, 120.0, seconds=25.0)
    gpus = [replace(gpu, first_s=1.0) for gpu in UNEQUAL]
    yield Scene("starts, first executions of 1 s", starts(gpus, 10, 600, 60.0))
    yield at_load("first executions of 1 s", gpus, 160.0, seconds=15.0)
    yield Scene("swapped in a pause", swapped(0.0))
    yield Scene("swapped in a pause, due in 60 ms", swapped(0.06))
    gpus = with_slow((Gpu(0.005), *EQUAL[:2]), 0, (4.0, 8.0, 10.0), (12.0, 16.0, 10.0))
    make = due_in(0.05)
    yield at_load("ten times slower, due in 50 ms", gpus, 280.0, make=make, is_due=True, seconds=18)
    yield at_load("due in 50 ms, late loops", EQUAL, 250.0, make=make, is_due=True, late_s=0.002)
    yield Scene("starts, told", told_speeds)
    yield Scene("max_in_flight", bypassed)
    for part in (0.8, 1.2, 3.0, 10.0):
        yield at_load(
            f"due in 200 ms, 5/10/40, at {part:.0%}",
            UNEQUAL,
            part * capacity(UNEQUAL),
            make=with_deadline(0.2),
            is_due=True,
        )
    yield at_load(
        "due in 50 ms, exponential, at 120%",
        EQUAL,
        1.2 * capacity(EQUAL),
        make=due_in(0.05, make=exponential),
        is_due=True,
    )
    make = due_in(0.05)
    yield at_load(
        "due in 50 ms, clients 2 ms away", EQUAL, 280.0, make=make, is_due=True, network_s=0.002
    )
    gpus = [Gpu(0.02, instances=4)] * 2
    rate = 1.2 * capacity(gpus)
    make = due_in(0.025, 0.2)
    yield at_load("due in 25 or 200 ms, at 120%", gpus, rate, make=make, is_due=True)
    rate = 0.8 * capacity(BATCHED)
    yield at_load("due in 25 ms, batched, at 80%", BATCHED, rate, make=due_in(0.025), is_due=True)
    gpus = with_slow(EQUAL, 0, (3.0, 7.0, 4.0))
    yield Scene("streams, one of three slows down", streams(gpus))
    gpus = with_pauses(EQUAL, 4.0, 0.8)
    yield at_load("pauses of 0.8 s", gpus, 0.6 * capacity(EQUAL), seconds=24.0)
    yield Scene("pauses of the balancer", balancer_pauses)
    gpus = [EQUAL[0], *with_stalls(EQUAL[1:], 3.0, 6.0)]
    make = due_in(5.0, 0.0)
    kinds = ("due", "patient")
    yield at_load("two of three stop", gpus, 180.0, make=make, kinds=kinds, seconds=15.0)
    gpus = [*EQUAL[:2], *with_stalls(EQUAL[2:], 4.0, 8.0)]
    yield at_load("one stops for 8 s", gpus, 150.0, seconds=20.0)
    yield at_load("one of three fails half", with_failures(EQUAL, 1, 0.5), 150.0)
    yield at_load("one of three fails all", with_failures(EQUAL, 1, 1.0), 150.0)
    gpus = [replace(gpu, failure_s=0.1) for gpu in with_failures(EQUAL, 1, 1.0)]
    yield at_load("one of three fails all, slowly", gpus, 100.0)
    yield at_load("all fail half", with_failures(EQUAL, 3, 0.5), 100.0)
    yield Scene("never answered", never_answered)
    for number, rate in ((3, 4.0), (3, 10.0), (2, 10.0)):
        load_scene = simulate_load.SCENES[number]
        yield Scene(f"others: {load_scene.name}, {rate:.0f}/s", external(load_scene, rate))
    yield Scene("newcomer that starts slowly", newcomer)


def _policies() -> Iterable[Scene]:
    """Policies that place where nothing is scheduled."""
    slowed = replace(simulate_policies.SLOWED[0], slow=((6.0, 12.0, 5.0),))
    failing = replace(slowed, slow=(), failures=((6.0, 12.0, 1.0),), failure_s=0.001)
    equal = simulate_policies.SLOWED[1:]
    for scene in (
        simulate_policies.Scene("unequal, 46 %", simulate_policies.UNEQUAL, 0.46),
        simulate_policies.Scene("unequal, 74 %", simulate_policies.UNEQUAL, 0.74),
        simulate_policies.Scene("one of four slows down, 60 %", (slowed, *equal), 0.6),
        simulate_policies.Scene("one of four fails all, 60 %", (failing, *equal), 0.6),
    ):
        yield Scene(f"least_latency: {scene.name}", placed(scene, "least_latency", 20.0))
    many = simulate_policies.Scene("", (Gpu(0.05),) * 100, 0.85)
    yield Scene("least_requests: 100 equal, 85 %", placed(many, "least_requests", 2.5))


def _work() -> Iterable[Scene]:
    """What the scheduler itself costs."""
    yield Scene("work, nobody waits", instructions(UNEQUAL, 0.3, 300))
    yield Scene("work, some wait", instructions(UNEQUAL, 0.95, 300))
    yield Scene("work, quick", instructions(QUICK, 0.3, 300))
    yield Scene("work, 30 backends", instructions(MANY, 0.6, 200))
    yield Scene("work, streams", stream_instructions)
    yield Scene("work, pick of 200", picks("least_requests"))
    yield Scene("work, batched", instructions(BATCHED, 0.5, 300))


SCENES: Final[Mapping[str, Scene]] = {
    scene.name: scene for scene in (*_ordinary(), *_hazards(), *_policies(), *_work())
}
