"""Stalls of the one loop: what small requests suffer while triton-lb does something large.

Small requests of both protocols come at a steady rate, in turn with nothing else to do and beside
one disturbance after another. What counts is the slowest in a thousand: how much slower it gets.
The same requests go to a backend without a proxy at the same time, because the load core is busy
with the disturbance as well: what these lose is not the proxy's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.load.backend import BackendAddress, render
from benchmarks.load.bench import Plan, say
from benchmarks.load.processes import REPOSITORY, BenchError, Child, Children, free_ports, pinned
from benchmarks.load.proxies import make_certificate, serve_argv
from benchmarks.load.sections import Section, Verdict
from benchmarks.load.tally import percentile

LIMIT_MS = 5.0
"""What may be added to the slowest request in a thousand."""
PAGE_LIMIT_MS = 1.0
"""The same, while people look at the page: that is no reason for a delay."""

_RATE = 500.0
_QUIET_S, _DISTURBED_S = 2.0, 5.0
_ROUNDS = 2
_MODELS = 1000
_CALM = 2
"""Backends for the small requests, served by a process that the disturbance does not reach."""
_SHARE = 0.999
_CONFIGURATION = "stalls.yaml"
_BELOW = "5"
"""Niceness of what is not measured: the small requests come first on the load core."""
_NOTES = f"""\
{_RATE:g} small requests a second, half HTTP/1.1 and half gRPC, go through triton-lb: alone, and
beside what the row says. Milliseconds from when a request was due to its answer; `added` is the
99.9th percentile beside the disturbance less that of the same round without it, median of the
rounds; `worst` is the slowest of all. `harness` is what the 99.9th percentile of the same requests
without a proxy has gained at the same time, since the disturbance is made on the core of the load
generator; what is left of `added` without it is held against the limit. `done`: how often it was
done."""


@dataclass(frozen=True)
class Scenario:
    """Something large to do, of a `kind` of `disturb`, before a number of backends."""

    kind: str
    title: str
    backends: int
    fewest: int = 1
    """How often it has to be done in all, for the figures to mean something."""
    limit_ms: float = LIMIT_MS


SCENARIOS = (
    Scenario("numbers", "64 MiB of JSON numbers for a stateful model", 8),
    Scenario("texts", "64 MiB of JSON texts for a stateful model", 8),
    Scenario("compressed", "64 MiB of JSON, compressed, for a stateful model", 8),
    Scenario("messages", "64 MiB gRPC messages with their parameters at the end", 8),
    Scenario("certificates", "certificates reloaded every second", 8),
    Scenario("broadcast", "loads of 16 MiB for 8 backends", 8),
    Scenario("reload", "the configuration of 200 backends changed every second", 200),
    Scenario("scrape", "/metrics with 200 backends' metrics every second", 200),
    Scenario("views", "views of 200 backends and of 1,000 models", 200),
    Scenario("events", "three readers of the page, 200 backends", 200, limit_ms=PAGE_LIMIT_MS),
    Scenario("merged", "lists and statistics of models of 200 backends, merged", 200),
    Scenario("tables", "1,000 models of 200 backends change all the time", 200, fewest=0),
)


@dataclass
class Measured:
    """Latencies in microseconds by protocol, one list per round."""

    quiet: dict[str, list[list[float]]] = field(default_factory=lambda: {"http": [], "grpc": []})
    beside: dict[str, list[list[float]]] = field(default_factory=lambda: {"http": [], "grpc": []})

    def added_ms(self, protocol: str) -> float:
        """What the disturbance adds to the 99.9th percentile, median of the rounds."""
        gains = sorted(
            (_tail_us(during) - _tail_us(before)) / 1000
            for before, during in zip(self.quiet[protocol], self.beside[protocol], strict=True)
        )
        return percentile(gains, 0.5)


def _tail_us(latencies: Sequence[float]) -> float:
    return percentile(sorted(latencies), _SHARE)


@dataclass
class Outcome:
    """Of one scenario: through the proxy, without it, and how often the thing was done."""

    proxied: Measured = field(default_factory=Measured)
    direct: Measured = field(default_factory=Measured)
    done: int = 0
    error: str = ""

    def added_ms(self, protocol: str) -> float:
        """What is added to the 99.9th percentile beyond what the harness loses; 0 if nothing."""
        lost = max(0.0, self.direct.added_ms(protocol))
        return max(0.0, self.proxied.added_ms(protocol) - lost)


@dataclass(frozen=True)
class Ports:
    """Where a running triton-lb, and behind it the stand-ins, listen."""

    http: int
    grpc: int
    metrics: int
    admin: int
    calm: BackendAddress
    """A backend for small requests."""
    fleet: int
    """HTTP port of one of the other backends."""


def run(plan: Plan, scenarios: Sequence[Scenario] = SCENARIOS) -> Section:
    """Measure every scenario; those with as many backends stand together."""
    outcomes: dict[str, Outcome] = {}
    for backends, group in groupby(scenarios, key=lambda each: each.backends):
        some = list(group)
        try:
            outcomes |= _run_site(plan, backends, some)
        except BenchError as error:
            say(f"{backends} backends: {error}")
            outcomes |= {each.kind: Outcome(error=str(error)) for each in some}
    return make_section(outcomes)


def _run_site(plan: Plan, backends: int, scenarios: Sequence[Scenario]) -> dict[str, Outcome]:
    with tempfile.TemporaryDirectory(prefix="triton-lb-stalls-") as name:
        directory = Path(name)
        with Children(directory) as children:
            site = _Site(plan, children, directory, backends)
            return {scenario.kind: site.measure(scenario) for scenario in scenarios}


def make_section(outcomes: dict[str, Outcome]) -> Section:
    """The table and the verdicts of all scenarios that were measured."""
    head = (
        "beside",
        "",
        "p50",
        "p99.9",
        "beside: p50",
        "p99.9",
        "worst",
        "added",
        "harness",
        "done",
    )
    rows: list[Sequence[str]] = [head]
    verdicts = []
    done = [(each, outcomes[each.kind]) for each in SCENARIOS if each.kind in outcomes]
    for scenario, outcome in done:
        added = None if outcome.error else max(map(outcome.added_ms, ("http", "grpc")))
        verdicts.append(
            Verdict(
                "stalls: ms added to p99.9",
                scenario.title,
                "nothing else",
                added,
                scenario.limit_ms,
            )
        )
        if not outcome.error:
            rows += [_row(scenario, outcome, protocol) for protocol in ("http", "grpc")]
    return Section(
        name="stalls",
        title="Stalls of the one loop, milliseconds",
        rows=rows,
        notes=_NOTES,
        data={scenario.kind: _figures(outcome) for scenario, outcome in done},
        verdicts=verdicts,
        failures=[f"{each.title}: {outcome.error}" for each, outcome in done if outcome.error],
    )


def _row(scenario: Scenario, outcome: Outcome, protocol: str) -> Sequence[str]:
    figures = _figures(outcome)[protocol]
    names = ("quiet_p50", "quiet_p999", "p50", "p999", "worst", "added", "harness")
    title = f"{scenario.title}"
    return (title, protocol, *(f"{figures[name]:.2f}" for name in names), str(outcome.done))


def _figures(outcome: Outcome) -> dict[str, Any]:
    if outcome.error:
        return {"error": outcome.error}
    figures: dict[str, Any] = {"done": outcome.done}
    for protocol in ("http", "grpc"):
        quiet, beside = (
            sorted(us / 1000 for latencies in rounds[protocol] for us in latencies)
            for rounds in (outcome.proxied.quiet, outcome.proxied.beside)
        )
        figures[protocol] = {
            "quiet_p50": percentile(quiet, 0.5),
            "quiet_p999": percentile(quiet, _SHARE),
            "p50": percentile(beside, 0.5),
            "p999": percentile(beside, _SHARE),
            "worst": beside[-1],
            "added": outcome.proxied.added_ms(protocol),
            "harness": outcome.direct.added_ms(protocol),
        }
    return figures


class _Site:
    """A triton-lb with stand-ins behind it."""

    def __init__(self, plan: Plan, children: Children, directory: Path, backends: int) -> None:
        self._plan = plan
        self._children = children
        self._directory = directory
        self.ports, self._proxy = _start(plan, children, directory, backends)

    def measure(self, scenario: Scenario) -> Outcome:
        """Measure in turns without and with the disturbance."""
        say(f"{scenario.title}:")
        outcome = Outcome()
        try:
            for _ in range(min(_ROUNDS, self._plan.rounds)):
                self._small(_QUIET_S, outcome.proxied.quiet, outcome.direct.quiet)
                with self._disturbed(scenario) as log:
                    self._small(_DISTURBED_S, outcome.proxied.beside, outcome.direct.beside)
                outcome.done += log.read_text().count("done")
            if outcome.done < scenario.fewest:
                outcome.error = f"done {outcome.done} times only"
        except BenchError as error:
            outcome.error = str(error)
        if outcome.error:
            say(f"  {outcome.error}")
        else:
            figures = [f"{outcome.added_ms(each):.2f} ms" for each in ("http", "grpc")]
            say(f"  added {', '.join(figures)}; done {outcome.done} times")
        return outcome

    @contextmanager
    def _disturbed(self, scenario: Scenario) -> Iterator[Path]:
        """Run the disturbance, below everybody else; gives its log."""
        ports = self.ports
        argv = [*("nice", "-n", _BELOW), sys.executable, "-m", "benchmarks.load.disturb"]
        argv += [scenario.kind, "--http", str(ports.http), "--grpc", str(ports.grpc)]
        argv += ["--metrics", str(ports.metrics), "--admin", str(ports.admin)]
        argv += ["--fleet", str(ports.fleet), "--pid", str(self._proxy.pid)]
        argv += ["--config", str(self._directory / _CONFIGURATION)]
        argv += ["--files", *(str(self._directory / name) for name in ("server.pem", "server.key"))]
        cores = self._plan.cores
        child = self._children.start("disturb", argv, core=cores.load, cwd=REPOSITORY)
        try:
            child.wait_until(lambda: "ready" in child.log.read_text(), timeout_s=60.0)
            yield child.log
            child.check_alive()
        finally:
            child.stop()
            if scenario.kind == "tables":
                _answers(f"http://127.0.0.1:{ports.fleet}/churn/off")

    def _small(
        self, seconds: float, proxied: dict[str, list[list[float]]], direct: dict[str, list[Any]]
    ) -> None:
        """Send small requests through the proxy and past it, for some seconds."""
        self._proxy.check_alive()
        ports, core = self.ports, self._plan.cores.load
        running = [
            subprocess.Popen(
                pinned(
                    [
                        *(sys.executable, "-m", "benchmarks.load.bystander"),
                        *("--http", str(http), "--grpc", str(grpc)),
                        *("--rate", str(_RATE), "--requests", str(int(seconds * _RATE))),
                    ],
                    core,
                ),
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for http, grpc in ((ports.http, ports.grpc), (ports.calm.http, ports.calm.grpc))
        ]
        ended = [process.communicate() for process in running]
        for process, (output, errors), into in zip(running, ended, (proxied, direct), strict=True):
            result = {} if process.returncode else json.loads(output)
            if not result or result["errors"]:
                raise BenchError(f"small requests failed: {errors.decode()[-500:]}")
            for protocol in ("http", "grpc"):
                into[protocol].append(result[protocol])


def _start(plan: Plan, children: Children, directory: Path, backends: int) -> tuple[Ports, Child]:
    cores = plan.cores
    make_certificate(directory)
    ports = free_ports(2 * backends)
    addresses = [BackendAddress(*ports[at : at + 2]) for at in range(0, len(ports), 2)]
    stand_in = [sys.executable, "-m", "benchmarks.load.fleet_backend"]
    groups = (
        ("backend-calm", addresses[:_CALM], stand_in),
        (
            "backend-fleet",
            addresses[_CALM:],
            ["nice", "-n", _BELOW, *stand_in, "--models", str(_MODELS - 1)],
        ),
    )
    for name, some, argv in groups:
        words = [f"{each.http},{each.grpc}" for each in some]
        child = children.start(name, [*argv, *words], core=cores.backend, cwd=REPOSITORY)
        child.wait_until_listening(*(port for each in some for port in (each.http, each.grpc)))
    http, grpc, https, metrics, admin = free_ports(5)
    listed = [
        f"  - {{name: gpu-{number}, http: '127.0.0.1:{each.http}', grpc: '127.0.0.1:{each.grpc}',"
        f" metrics: '127.0.0.1:{each.http}'}}"
        for number, each in enumerate(addresses)
    ]
    config = render(
        "stalls.yaml",
        directory,
        _CONFIGURATION,
        **dict(zip(("http", "grpc", "https"), (http, grpc, https), strict=True)),
        metrics=metrics,
        admin=admin,
        certificate=directory / "server.pem",
        key=directory / "server.key",
        backends="\n".join(listed),
    )
    proxy = children.start("triton-lb", serve_argv(config), core=cores.proxy, cwd=REPOSITORY)
    proxy.wait_until(lambda: _answers(f"http://127.0.0.1:{metrics}/readyz"), timeout_s=30.0)
    last = f"http://127.0.0.1:{http}/v2/models/model_{_MODELS - 2:04}/config"
    proxy.wait_until(lambda: _answers(last), timeout_s=30.0)
    _wait_until_calm(proxy)
    return Ports(http, grpc, metrics, admin, addresses[0], addresses[_CALM].http), proxy


def _wait_until_calm(proxy: Child) -> None:
    """Wait until it has read the configurations of all models: until it works little."""
    spent = [proxy.cpu_s()]

    def is_calm() -> bool:
        spent.append(proxy.cpu_s())
        latest = spent[-20:]
        return len(latest) == 20 and latest[-1] - latest[0] < 0.5

    proxy.wait_until(is_calm, timeout_s=60.0)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
