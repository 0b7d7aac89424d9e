"""Real clients before a real Triton: how much latency each proxy adds.

`tritonclient` and `perf_analyzer`, both protocols, ask a Triton directly and through each proxy,
in turns: one request at a time, and at half of the rate that the client reaches every way.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.load.backend import BackendAddress
from benchmarks.load.bench import Plan, passed_s, say
from benchmarks.load.drivers import Load, load_of
from benchmarks.load.processes import REPOSITORY, BenchError, Children, run_pinned
from benchmarks.load.proxies import DIRECT, TRITON_LB, Proxy, start_all
from benchmarks.load.sections import Section

_ROUNDS = 2
_SATURATING = 16
"""Requests of perf_analyzer at once that keep a Triton busy."""
_LATE_S = 24.5 * 60
"""Into the run: then one round must do, for all to be done within half an hour."""
_SHARE = 0.7
"""Of the seconds of a cell: many programs are to be started here."""
_WINDOW_MS = 300
"""Of perf_analyzer, which measures three of them at least."""
_TIMEOUT_S = 60.0
_NOTES = f"""\
One Triton with a model in Python behind every proxy; it and the clients share the load core, so
what the table is about is what a proxy adds to the same request of the same client. `half`: half
of the rate that this client reaches where it reaches least ({_SATURATING} at once with
perf_analyzer, one at a time with tritonclient), at even distances in time. Milliseconds, medians of
the rounds."""

Environment = dict[str, str]


@dataclass(frozen=True)
class Client:
    """A program and a protocol; `measure` gives what it counted through a proxy.

    The arguments of `measure`: the proxy, requests at once, requests a second (0: as they come),
    seconds, core.
    """

    name: str
    protocol: str
    at_once: int
    """Requests at once that give the rate of which half is offered."""
    measure: Callable[[Proxy, int, float, float, int], Load]


@dataclass
class Outcome:
    """Of one client in one kind of load: what each way gave, round by round, or why not."""

    client: Client
    load: str
    rate: float
    samples: dict[str, list[Load]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def figure_ms(self, way: str, name: str) -> float | None:
        """Median of a figure of `Load` in milliseconds; None where it failed."""
        if way in self.errors or not self.samples.get(way):
            return None
        values: list[float] = [getattr(each, name) for each in self.samples[way]]
        return statistics.median(values) / 1000


def run(plan: Plan) -> Section:
    """Measure every client, way and load; without a Triton the section says so."""
    outcomes: list[Outcome] = []
    failures: list[str] = []
    try:
        _run(plan, outcomes, failures)
    except BenchError as error:
        say(f"real clients: {error}")
        failures.append(str(error))
    section = make_section(outcomes)
    return replace(section, failures=[*section.failures, *failures])


def _run(plan: Plan, outcomes: list[Outcome], failures: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="triton-lb-clients-") as name, _triton(name) as triton:
        directory = Path(name)
        with Children(directory) as children:
            direct = Proxy(DIRECT, triton.http, triton.grpc, 0, 0, None)
            proxies = start_all(
                plan.proxies,
                children,
                directory,
                [triton],
                plan.cores.proxy,
                lambda name, reason: failures.append(f"real clients, {name}: {reason}"),
            )
            for client in _clients():
                outcomes += _measure(plan, client, [direct, *proxies])


def make_section(outcomes: Sequence[Outcome]) -> Section:
    """The table of everything that was measured."""
    head = ("client", "load", "way", "req/s", "p50", "added", "p99", "added")
    rows: list[Sequence[str]] = [head]
    failures = []
    for outcome in outcomes:
        for way in (
            *outcome.samples,
            *(each for each in outcome.errors if each not in outcome.samples),
        ):
            rows.append(_row(outcome, way))
            if way in outcome.errors and way in {DIRECT, TRITON_LB}:
                failures.append(f"{outcome.client.name}, {way}: {outcome.errors[way]}")
    return Section(
        name="real-clients",
        title="Real clients, a real Triton: latency in milliseconds",
        rows=rows,
        notes=_NOTES,
        data=[_data(outcome) for outcome in outcomes],
        failures=failures,
    )


def _row(outcome: Outcome, way: str) -> Sequence[str]:
    load = f"half: {outcome.rate:.0f}/s" if outcome.rate else "1 at once"
    label = (outcome.client.name, load, way)
    if way in outcome.errors:
        return (*label, "failed", "", "", "", "")
    cells = [f"{statistics.median(each.rate for each in outcome.samples[way]):,.0f}"]
    for name in ("p50_us", "p99_us"):
        figure, base = outcome.figure_ms(way, name), outcome.figure_ms(DIRECT, name)
        cells.append("" if figure is None else f"{figure:.2f}")
        is_added = figure is not None and base is not None and way != DIRECT
        cells.append(f"{figure - base:+.2f}" if is_added else "")  # type: ignore[operator]
    return (*label, *cells)


def _data(outcome: Outcome) -> dict[str, Any]:
    return {
        "client": outcome.client.name,
        "load": outcome.load,
        "rate": outcome.rate,
        "errors": outcome.errors,
        "ways": {
            way: {name: outcome.figure_ms(way, name) for name in ("p50_us", "p99_us")}
            for way in outcome.samples
        },
    }


def _measure(plan: Plan, client: Client, ways: Sequence[Proxy]) -> Iterator[Outcome]:
    say(f"{client.name}:")
    core = plan.cores.load
    seconds = _SHARE * plan.seconds
    most = _common_rate(client, ways, seconds / 2, core)
    for load, rate in (("single", 0.0), ("half", most / 2)):
        outcome = Outcome(client, load, rate)
        for number in range(min(_ROUNDS, plan.rounds)):
            if number and passed_s() > _LATE_S:
                break
            turn = number % len(ways)
            for way in [*ways[turn:], *ways[:turn]]:
                if way.name in outcome.errors:
                    continue
                try:
                    found = client.measure(way, 1, rate, seconds, core)
                except BenchError as error:
                    outcome.errors[way.name] = str(error)
                    say(f"  {way.name}: {error}")
                else:
                    outcome.samples.setdefault(way.name, []).append(found)
        figures = [f"{way} {outcome.figure_ms(way, 'p50_us') or 0:.2f}" for way in outcome.samples]
        say(f"  {load}: p50 {', '.join(figures)} ms")
        yield outcome


def _common_rate(client: Client, ways: Sequence[Proxy], seconds: float, core: int) -> float:
    """What the client reaches the way on which it reaches least.

    Raises:
        BenchError: it fails without a proxy.
    """
    rates = []
    for way in ways:
        try:
            rates.append(client.measure(way, client.at_once, 0.0, seconds, core).rate)
        except BenchError:
            if way.name == DIRECT:
                raise
    return min(rates)


def _clients() -> list[Client]:
    return [
        Client(f"{program} {label}", protocol, at_once, partial(measure, protocol))
        for program, at_once, measure in (
            ("tritonclient", 1, _tritonclient),
            ("perf_analyzer", _SATURATING, _perf_analyzer),
        )
        for protocol, label in (("http", "HTTP"), ("grpc", "gRPC"))
    ]


def _port(protocol: str, way: Proxy) -> int:
    return way.http if protocol == "http" else way.grpc


def _tritonclient(
    protocol: str, way: Proxy, _at_once: int, rate: float, seconds: float, core: int
) -> Load:
    argv = [sys.executable, "-m", "benchmarks.load.real_client", protocol]
    argv += [
        "--port",
        str(_port(protocol, way)),
        "--seconds",
        f"{seconds:g}",
        "--rate",
        f"{rate:g}",
    ]
    return load_of(json.loads(run_pinned(argv, core=core, timeout_s=_TIMEOUT_S, cwd=REPOSITORY)))


def _perf_analyzer(
    protocol: str, way: Proxy, at_once: int, rate: float, _seconds: float, core: int
) -> Load:
    from tests.triton.server import ENVIRONMENT  # a part of the benchmark that few runs have

    argv = [
        *(str(ENVIRONMENT / "bin" / "perf_analyzer"), "-m", "simple", "-b", "1", "-i", protocol),
        *("-u", f"127.0.0.1:{_port(protocol, way)}", "--stability-percentage", "999"),
        *("--measurement-interval", str(_WINDOW_MS)),
        *(
            ("--request-rate-range", f"{rate:.0f}")
            if rate
            else ("--concurrency-range", str(at_once))
        ),
    ]
    environment = {"LD_LIBRARY_PATH": str(ENVIRONMENT / "native")}
    return parse_report(run_pinned(argv, core=core, timeout_s=_TIMEOUT_S, environment=environment))


def parse_report(report: str) -> Load:
    """What perf_analyzer counted, as it prints it.

    Raises:
        BenchError: the figures are not there, or requests failed.
    """
    count = re.search(r"Request count: (\d+)", report)
    rate = re.search(r"Throughput: ([\d.]+) infer/sec", report)
    p50, p99 = (re.search(rf"p{each} latency: (\d+) usec", report) for each in (50, 99))
    if count is None or rate is None or p50 is None or p99 is None or not float(rate[1]):
        raise BenchError(f"perf_analyzer printed no result: {report[-500:]}")
    if "failed" in report.lower():
        raise BenchError(f"requests of perf_analyzer failed: {report[-500:]}")
    return Load(
        requests=int(count[1]),
        seconds=int(count[1]) / float(rate[1]),
        p50_us=float(p50[1]),
        p99_us=float(p99[1]),
        p999_us=float("nan"),
    )


@contextmanager
def _triton(directory: str) -> Iterator[BackendAddress]:
    """A real Triton with the models of the tests, on the cores that this process may use.

    Raises:
        BenchError: its environment is missing, or it did not start.
    """
    from tests.triton.server import ENVIRONMENT, RealTriton

    if not (ENVIRONMENT / "native").is_dir():
        raise BenchError("there is no Triton: run tools/setup_triton.sh")
    records = Path(directory) / "records"
    records.mkdir()
    triton = RealTriton("triton", Path(directory), records)
    try:
        triton.wait_ready()
        yield BackendAddress(triton.http_port, triton.grpc_port)
    except (TimeoutError, RuntimeError) as error:
        raise BenchError(f"Triton did not start: {error}") from error
    finally:
        triton.close()
