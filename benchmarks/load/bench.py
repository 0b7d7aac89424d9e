"""The run: backends, proxies and load, interleaved and repeated; medians at the end."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.load.backend import start_backends
from benchmarks.load.cells import Cell, Driver
from benchmarks.load.drivers import LoadGenerators
from benchmarks.load.processes import BenchError, Children, Cores, core_busy_s
from benchmarks.load.proxies import DIRECT, ENVOY, Proxy, start_proxy

_WARM_UP_S = 1.0


@dataclass(frozen=True)
class Plan:
    """What to run.

    `seconds` is the length of one measurement; `backends` the number of stand-in Tritons; the
    ratios are to `baseline`, if that is one of the proxies.
    """

    cells: Sequence[Cell]
    proxies: Sequence[str]
    rounds: int
    seconds: float
    backends: int
    cores: Cores
    baseline: str = ENVOY


@dataclass(frozen=True)
class Sample:
    """One measurement, or the median of several.

    `cpu_us` is the CPU of the proxy's process tree per request; `busy` the share of its core that
    this took; `others` the share of that core that went to somebody else (noise); `load_busy` the
    share of the load core in use: near 1 with `busy` well under 1, the load was the limit.
    """

    cpu_us: float
    rate: float
    p50_us: float
    p99_us: float
    p999_us: float
    rss_bytes: float
    busy: float
    others: float
    load_busy: float


@dataclass
class Result:
    """The samples of one proxy in one cell, or why there are none."""

    samples: list[Sample] = field(default_factory=list)
    error: str = ""

    def median(self) -> Sample | None:
        """Field by field."""
        if not self.samples or self.error:
            return None
        rows = [asdict(sample) for sample in self.samples]
        return Sample(**{key: statistics.median(row[key] for row in rows) for key in rows[0]})


Results = dict[str, dict[str, Result]]
"""Cell name, proxy name."""


class Bench:
    """Measures every cell of a plan against every proxy of it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.results: Results = {
            cell.name: {name: Result() for name in (DIRECT, *plan.proxies)} for cell in plan.cells
        }

    def run(self) -> Results:
        """Run everything; a proxy that fails in a cell is left out of that cell.

        Raises:
            BenchError: backends or a proxy did not start.
        """
        for needs_streams in (False, True):
            cells = [cell for cell in self._plan.cells if cell.needs_streams is needs_streams]
            if cells:
                with tempfile.TemporaryDirectory(prefix="triton-lb-bench-") as name:
                    self._run_cells(cells, Path(name), needs_streams)
        return self.results

    def _run_cells(self, cells: list[Cell], directory: Path, needs_streams: bool) -> None:
        plan, cores = self._plan, self._plan.cores
        load = LoadGenerators(directory, cores.load)
        with Children(directory) as children:
            backends = start_backends(
                children, directory, count=plan.backends, core=cores.backend, streams=needs_streams
            )
            direct = Proxy(DIRECT, backends[0].http, backends[0].grpc, None)
            proxies = [
                start_proxy(name, children, directory, backends, cores.proxy)
                for name in plan.proxies
            ]
            for cell in cells:
                self._run_cell(cell, load, direct, proxies)

    def _run_cell(
        self, cell: Cell, load: LoadGenerators, direct: Proxy, proxies: list[Proxy]
    ) -> None:
        say(f"{cell.title}:")
        rates: dict[str, float] = {}
        for number in range(self._plan.rounds):
            # Direct once; the others take turns at being first.
            turn = number % max(1, len(proxies))
            order = [*proxies[turn:], *proxies[:turn]]
            for proxy in [direct, *order] if number == 0 else order:
                result = self.results[cell.name][proxy.name]
                if result.error:
                    continue
                try:
                    if proxy.name not in rates:
                        rates[proxy.name] = _warm_up(cell, load, proxy)
                    sample = self._measure(cell, load, proxy, rates)
                except BenchError as error:
                    result.error = str(error)
                    say(f"  {proxy.name}: {error}")
                else:
                    result.samples.append(sample)
                    say(f"  {proxy.name} {sample.cpu_us:.1f} us, {sample.rate:,.0f}/s")

    def _measure(
        self, cell: Cell, load: LoadGenerators, proxy: Proxy, rates: dict[str, float]
    ) -> Sample:
        cores = self._plan.cores
        child = proxy.child
        if child is not None:
            child.check_alive()
        begun = (child.cpu_s() if child else 0.0, core_busy_s(cores.proxy), core_busy_s(cores.load))
        counted = load.run(
            cell, _port(cell, proxy), seconds=self._plan.seconds, rate=rates[proxy.name]
        )
        ended = (child.cpu_s() if child else 0.0, core_busy_s(cores.proxy), core_busy_s(cores.load))
        cpu, proxy_core, load_core = (
            after - before for before, after in zip(begun, ended, strict=True)
        )
        rates[proxy.name] = counted.rate
        return Sample(
            cpu_us=cpu / counted.requests * 1e6,
            rate=counted.rate,
            p50_us=counted.p50_us,
            p99_us=counted.p99_us,
            p999_us=counted.p999_us,
            rss_bytes=child.rss_bytes() if child else 0,
            busy=cpu / counted.seconds,
            others=max(0.0, proxy_core - cpu) / counted.seconds,
            load_busy=load_core / counted.seconds,
        )


def _warm_up(cell: Cell, load: LoadGenerators, proxy: Proxy) -> float:
    """Fill pools and caches; returns requests per second, to size the measurement by."""
    port = _port(cell, proxy)
    rate = None
    if cell.driver is not Driver.WRK:
        rate = load.run(cell, port, seconds=_WARM_UP_S, rate=None).rate
    return load.run(cell, port, seconds=_WARM_UP_S, rate=rate).rate


def _port(cell: Cell, proxy: Proxy) -> int:
    return proxy.http if cell.is_http1 else proxy.grpc


def say(text: str) -> None:
    """Progress goes to standard error; standard output carries the tables."""
    print(text, file=sys.stderr, flush=True)
