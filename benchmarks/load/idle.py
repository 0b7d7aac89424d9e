"""Idle connections: the memory that each takes, and what many of them cost the few that work.

Every proxy holds the same number of connections that have made one call and keep quiet, while 64
others work. Also runs alone: `python -m benchmarks.load --cells idle`.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.load.backend import start_backends
from benchmarks.load.bench import Plan, say
from benchmarks.load.cells import CELLS, USUAL, Cell
from benchmarks.load.drivers import LoadGenerators
from benchmarks.load.processes import REPOSITORY, BenchError, Child, Children
from benchmarks.load.proxies import COMPILED, ENVOY, TRITON_LB, Proxy, start_all
from benchmarks.load.sections import Section, Verdict

COUNTS = (1000, 10_000)
ACTIVE = 64
LIMIT = 1.0
"""Of the memory per connection, to Envoy."""

_HOLD_LIMIT_S = 120.0
_SPARE_FILES = 1000
"""Descriptors of a proxy beside its connections: ours keeps one to a backend for each client in
reserve, and nginx closes idle ones when a sixteenth of all connections is left."""
_ROUNDS = 2
_NOTES = f"""\
`KiB each`: what the proxy's resident memory grew by when that many connections were opened and
kept idle, divided by their number; each has made one call. `CPU`: microseconds per request of
{ACTIVE} connections that work meanwhile; `to none`: the same in proportion to that without idle
ones. Memory of the kernel is not in it."""


@dataclass
class Held:
    """What one proxy took with so many idle connections."""

    each_bytes: float = 0.0
    cpu_us: list[float] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        """CPU per request of the connections that work."""
        return statistics.median(self.cpu_us)


Key = tuple[str, int, str]
"""Protocol, number of idle connections, proxy."""


def run(plan: Plan, counts: Sequence[int] = COUNTS) -> Section:
    """Measure both protocols on proxies of their own, so that none has seen the other's load.

    Raises:
        BenchError: something did not start, or a proxy closed an idle connection.
    """
    most = _allow_files(2 * (max(counts) + _SPARE_FILES)) // 2 - _SPARE_FILES
    counts = sorted({min(count, most) for count in counts})
    found: dict[Key, Held] = {}
    failures: list[str] = []
    for cell in (_active("http-small-64"), _active("grpc-small-64x4")):
        with tempfile.TemporaryDirectory(prefix="triton-lb-idle-") as name:
            directory = Path(name)
            with Children(directory) as children:
                found |= _Stage(plan, children, directory, cell, failures).measure(counts)
    return replace(make_section(found, list(plan.proxies), counts), failures=failures)


def make_section(found: dict[Key, Held], proxies: Sequence[str], counts: Sequence[int]) -> Section:
    """The table, and the verdict on the largest number of connections."""
    rows = [("protocol", "idle", "proxy", "KiB each", "CPU us", "to none")]
    for protocol, count, proxy in sorted(found, key=lambda key: (key[0], key[1])):
        held = found[protocol, count, proxy]
        none = found[protocol, 0, proxy].median_us
        each = f"{held.each_bytes / 1024:.2f}" if count else ""
        ratio = f"{held.median_us / none:.2f}" if count else ""
        row = (protocol, f"{count:,}", proxy, each, f"{held.median_us:.1f}", ratio)
        rows.append(row)
    verdicts = [
        Verdict(
            f"{max(counts):,} idle connections: resident memory per connection",
            f"idle-{protocol}",
            ENVOY,
            _ratio(found, protocol, max(counts), ours),
            LIMIT,
            ours,
        )
        for protocol in ("http", "grpc")
        for ours in (TRITON_LB, COMPILED)
        if {ours, ENVOY} <= set(proxies)
    ]
    return Section(
        name="idle",
        title="Idle connections",
        rows=rows,
        notes=_NOTES,
        data=[_as_json(key, held) for key, held in found.items()],
        verdicts=verdicts,
    )


def _ratio(found: dict[Key, Held], protocol: str, count: int, name: str) -> float | None:
    ours, theirs = (found.get((protocol, count, each)) for each in (name, ENVOY))
    if ours is None or theirs is None or not theirs.each_bytes:
        return None
    return ours.each_bytes / theirs.each_bytes


def _as_json(key: Key, held: Held) -> dict[str, Any]:
    protocol, count, proxy = key
    return {
        "protocol": protocol,
        "idle": count,
        "proxy": proxy,
        "bytes_each": held.each_bytes,
        "cpu_us": held.cpu_us,
    }


def bytes_each(data: object, protocol: str, proxy: str) -> float | None:
    """From what `run` gave as data: memory per connection where there were most of them."""
    found = [
        each
        for each in (data if isinstance(data, list) else [])
        if (each["protocol"], each["proxy"]) == (protocol, proxy) and each["idle"]
    ]
    return max(found, key=lambda each: each["idle"])["bytes_each"] if found else None


class _Stage:
    """Backends and proxies of one protocol."""

    def __init__(
        self, plan: Plan, children: Children, directory: Path, cell: Cell, failures: list[str]
    ) -> None:
        cores = plan.cores
        self._plan = plan
        self._children = children
        self._cell = cell
        self._protocol = "grpc" if cell.is_grpc else "http"
        self._load = LoadGenerators(directory, cores.load)
        backends = start_backends(
            children, directory, USUAL, usual=plan.backends, core=cores.backend
        )
        self._proxies = start_all(
            plan.proxies,
            children,
            directory,
            backends,
            cores.proxy,
            lambda name, reason: failures.append(f"idle, {name}: {reason}"),
        )
        self._rates: dict[str, float] = {}

    def measure(self, counts: Iterable[int]) -> dict[Key, Held]:
        """With none, and with each number of idle connections at every proxy."""
        for proxy in self._proxies:
            self._cpu_us(proxy)  # fills pools and caches
        found: dict[Key, Held] = {}
        for count in (0, *counts):
            holders: list[Child] = []
            held = {proxy.name: Held() for proxy in self._proxies}
            for proxy in self._proxies if count else ():
                before = _rss(proxy)
                holders.append(self._hold(proxy, count))
                held[proxy.name].each_bytes = (_rss(proxy) - before) / count
            for _ in range(_ROUNDS):
                for proxy in self._proxies:
                    held[proxy.name].cpu_us.append(self._cpu_us(proxy))
            for holder in holders:
                holder.check_alive()
                holder.stop()
            for name, each in held.items():
                found[self._protocol, count, name] = each
                say(
                    f"  {self._protocol}, {count} idle, {name}: {each.each_bytes / 1024:.2f} KiB,"
                    f" {each.median_us:.1f} us"
                )
        return found

    def _hold(self, proxy: Proxy, count: int) -> Child:
        port = proxy.grpc if self._cell.is_grpc else proxy.http
        holder = self._children.start(
            f"idle-{proxy.name}-{self._protocol}-{count}",
            [
                *(sys.executable, "-m", "benchmarks.load.idle_client"),
                *(self._protocol, str(port), str(count)),
            ],
            core=self._plan.cores.load,
            cwd=REPOSITORY,
        )
        holder.wait_until(lambda: b"holding" in holder.log.read_bytes(), timeout_s=_HOLD_LIMIT_S)
        return holder

    def _cpu_us(self, proxy: Proxy) -> float:
        child = proxy.child
        if child is None:
            raise BenchError(f"{proxy.name} is no process")
        child.check_alive()
        before = child.cpu_s()
        rate = self._rates.get(proxy.name)
        counted = self._load.run(self._cell, proxy, seconds=self._plan.seconds, rate=rate)
        self._rates[proxy.name] = counted.rate
        return (child.cpu_s() - before) / counted.requests * 1e6


def _active(name: str) -> Cell:
    cell = next(each for each in CELLS if each.name == name)
    return replace(cell, connections=ACTIVE, streams=1)


def _rss(proxy: Proxy) -> int:
    return proxy.child.rss_bytes() if proxy.child is not None else 0


def _allow_files(wanted: int) -> int:
    """Let this process and its children open `wanted` files, or as many as they may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    for allowed in (max(wanted, most), most):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
        except (ValueError, OSError):
            continue
        return allowed
    return most
