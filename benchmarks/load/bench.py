"""The run: backends, proxies and load, interleaved and repeated."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from benchmarks.load.backend import start_backends
from benchmarks.load.cells import Cell, Driver, Site
from benchmarks.load.drivers import LoadGenerators
from benchmarks.load.processes import BenchError, Children, Cores, core_busy_s
from benchmarks.load.proxies import COMPILED, DIRECT, ENVOY, TRITON_LB, Proxy, start_all
from benchmarks.load.results import Result, Results, Sample

_BEGUN = time.monotonic()
_WARM_UP_S = 0.3
_PACED_FACTOR = 2.0
"""At half of the rate the rare slow requests are fewer: measure longer."""

_FEWEST_ROUNDS = 2
_REST_S = 1.5
"""How long the proxies are watched without load; probes come every second."""


@dataclass(frozen=True)
class Plan:
    """What to run.

    `rounds` are those of the core cells, `other_rounds` those of the rest; `seconds` is the length
    of one measurement; `cells_s` what all cells may take: on a slow machine rounds beyond the
    second are left out to keep to it; `backends` the number of stand-in Tritons where a cell does
    not say; `against` the builds of another commit, by the name of our build that each is compared
    with.
    """

    cells: Sequence[Cell]
    proxies: Sequence[str]
    rounds: int
    seconds: float
    backends: int
    cores: Cores
    other_rounds: int = 3
    cells_s: float = inf
    quick: bool = False
    against: Mapping[str, str] = field(default_factory=dict)

    @property
    def peers(self) -> list[str]:
        """The proxies that ours is compared with."""
        return [name for name in self.proxies if name not in self.ours]

    @property
    def ours(self) -> list[str]:
        """triton-lb as it is and compiled, as far as they take part."""
        return [name for name in (TRITON_LB, COMPILED) if name in self.proxies]

    def compared_with(self, name: str) -> list[str]:
        """Our builds that a proxy is compared with: of another commit's, the same build only."""
        same = [ours for ours, other in self.against.items() if other == name]
        return same or [TRITON_LB, *(each for each in self.ours if each != TRITON_LB)]

    @property
    def baseline(self) -> str:
        """The proxy whose rate the paced cells go by: Envoy if it takes part."""
        return ENVOY if ENVOY in self.proxies else self.proxies[-1]

    def rounds_of(self, cell: Cell) -> int:
        """How often a cell is measured."""
        return self.rounds if cell.core else self.other_rounds

    def effort(self, cell: Cell) -> float:
        """What a cell takes, in rounds of a usual one; to warm up counts as one more."""
        return (self.rounds_of(cell) + 1) * (_PACED_FACTOR if cell.half_of else 1.0)


class Clock:
    """Tells whether a run is behind: whether more of its time has passed than of its work."""

    def __init__(self, seconds: float, effort: float) -> None:
        self._begun = time.monotonic()
        self._seconds = seconds
        self._effort = effort
        self.done = 0.0

    def is_late(self, more: float) -> bool:
        """Whether what is done, and `more` of the present cell, should have taken less time."""
        share = (self.done + more) / self._effort
        return time.monotonic() - self._begun > share * self._seconds


class Bench:
    """Measures every cell of a plan against every proxy of it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        measured = plan.proxies if plan.quick else (DIRECT, *plan.proxies)
        self.results: Results = {
            cell.name: {name: Result() for name in measured} for cell in plan.cells
        }
        self._clock = Clock(plan.cells_s, sum(map(plan.effort, plan.cells)))
        self.resting: dict[int, dict[str, float]] = {}
        """Number of backends, proxy name: share of a core that it uses without any load."""

    def run(self) -> Results:
        """Run everything; a proxy that fails in a cell is left out of that cell.

        Where backends do not start, all cells of that site fail; where a proxy does not, its own.
        """
        for site in dict.fromkeys(cell.site for cell in self._plan.cells):
            with tempfile.TemporaryDirectory(prefix="triton-lb-bench-") as name:
                try:
                    self._run_site(site, Path(name))
                except BenchError as error:
                    self._fail(site, str(error), [DIRECT, *self._plan.proxies])
        return self.results

    def _fail(self, site: Site, reason: str, names: Sequence[str]) -> None:
        say(f"  {reason}")
        for cell in self._plan.cells:
            for name, result in self.results[cell.name].items() if cell.site == site else ():
                if name in names:
                    result.error = result.error or reason

    def _run_site(self, site: Site, directory: Path) -> None:
        plan, cores = self._plan, self._plan.cores
        load = LoadGenerators(directory, cores.load)
        with Children(directory) as children:
            backends = start_backends(
                children, directory, site, usual=plan.backends, core=cores.backend
            )
            direct = Proxy(DIRECT, backends[0].http, backends[0].grpc, 0, 0, None)
            proxies = start_all(
                plan.proxies,
                children,
                directory,
                backends,
                cores.proxy,
                lambda name, reason: self._fail(site, reason, [name]),
            )
            self.resting.setdefault(len(backends), _resting(proxies))
            for cell in plan.cells:
                if cell.site == site:
                    self._run_cell(cell, load, direct, proxies)
                    self._clock.done += plan.effort(cell)

    def _run_cell(
        self, cell: Cell, load: LoadGenerators, direct: Proxy, proxies: list[Proxy]
    ) -> None:
        say(f"{cell.title}:")
        row = self.results[cell.name]
        rates: dict[str, float] = {}
        if cell.tls and DIRECT in row:
            row[DIRECT].left_out = "backends have no TLS"
        if cell.half_of:
            median = self.results[cell.half_of][self._plan.baseline].median()
            if median is None:
                for result in row.values():
                    result.left_out = f"{self._plan.baseline} failed in {cell.half_of}"
                return
            rates = dict.fromkeys(row, median.rate / 2)
        for number in range(self._plan.rounds_of(cell)):
            if number >= _FEWEST_ROUNDS and self._clock.is_late(number + 1):
                say("  no more rounds of this cell: late")
                break
            # Direct once; the others take turns at being first.
            turn = number % max(1, len(proxies))
            order = [*proxies[turn:], *proxies[:turn]]
            for proxy in [direct, *order] if number == 0 and DIRECT in row else order:
                if not row[proxy.name].error and not row[proxy.name].left_out:
                    self._measure(cell, load, proxy, rates, is_first=number == 0)

    def _measure(
        self,
        cell: Cell,
        load: LoadGenerators,
        proxy: Proxy,
        rates: dict[str, float],
        *,
        is_first: bool,
    ) -> None:
        result = self.results[cell.name][proxy.name]
        try:
            if is_first:
                _warm_up(cell, load, proxy, rates)
            sample = self._sample(cell, load, proxy, rates)
        except BenchError as error:
            result.error = str(error)
            say(f"  {proxy.name}: {error}")
        else:
            result.samples.append(sample)
            say(f"  {proxy.name} {sample.cpu_us:.1f} us, {sample.rate:,.0f}/s")

    def _sample(
        self, cell: Cell, load: LoadGenerators, proxy: Proxy, rates: dict[str, float]
    ) -> Sample:
        cores = self._plan.cores
        is_paced = cell.driver is Driver.PACED
        seconds = self._plan.seconds * (_PACED_FACTOR if is_paced else 1.0)
        child = proxy.child
        if child is not None:
            child.check_alive()
        begun = (child.cpu_s() if child else 0.0, core_busy_s(cores.proxy), core_busy_s(cores.load))
        counted = load.run(cell, proxy, seconds=seconds, rate=rates.get(proxy.name))
        ended = (child.cpu_s() if child else 0.0, core_busy_s(cores.proxy), core_busy_s(cores.load))
        cpu, proxy_core, load_core = (
            after - before for before, after in zip(begun, ended, strict=True)
        )
        if not is_paced:
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


def _resting(proxies: list[Proxy]) -> dict[str, float]:
    children = {proxy.name: proxy.child for proxy in proxies if proxy.child is not None}
    before = {name: child.cpu_s() for name, child in children.items()}
    time.sleep(_REST_S)
    return {name: (child.cpu_s() - before[name]) / _REST_S for name, child in children.items()}


def _warm_up(cell: Cell, load: LoadGenerators, proxy: Proxy, rates: dict[str, float]) -> None:
    """Fill pools and caches, and learn the rate that a measurement is sized by."""
    if cell.driver in {Driver.WRK, Driver.EVENTS, Driver.PACED}:
        load.run(cell, proxy, seconds=_WARM_UP_S, rate=rates.get(proxy.name))
        return
    for _ in range(2):
        counted = load.run(cell, proxy, seconds=_WARM_UP_S, rate=rates.get(proxy.name))
        rates[proxy.name] = counted.rate


def say(text: str) -> None:
    """Progress goes to standard error, with the time passed; standard output has the tables."""
    print(f"{passed()} {text}", file=sys.stderr, flush=True)


def passed_s() -> float:
    """Seconds since the start."""
    return time.monotonic() - _BEGUN


def passed() -> str:
    """Time since the start, in minutes and seconds."""
    minutes, seconds = divmod(int(passed_s()), 60)
    return f"{minutes}:{seconds:02}"
