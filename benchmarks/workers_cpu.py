"""CPU per request of a service with several workers, beside one process and beside peers.

    python -m benchmarks.workers_cpu [--rounds N] [--workers N] [--pure] [CELL...]

A core has all processes of the proxy, the other one has load generator and backends. So workers
take turns on their core as each would have it alone: what a request costs does not depend on cores
that are free. Each worker gets as many connections as the one process. All services run all the
time and are measured in turns.

Printed are microseconds of CPU per request of all processes, that of the control process included,
and what they take without requests. "Unevenness" is the part of the busiest worker times their
number. "Scaling" is N times the CPU of one process, divided by the CPU with N workers and by
unevenness: what N cores would achieve. Wall-clock throughput is not measured.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import ArgumentParser
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.load.backend import TEMPLATES, start_backends
from benchmarks.load.bench import say
from benchmarks.load.cells import CELLS, Cell, Driver
from benchmarks.load.drivers import LoadGenerators
from benchmarks.load.processes import BenchError, Child, Children, Cores
from benchmarks.load.proxies import COMPILED, ENVOY, HAPROXY, RECIPES, TRITON_LB, Proxy, start_all

_QUEUED: Final = "http-queued-32"
"""A cell whose requests queue: there are more of them than slots of all backends. Slots grow with
the workers, as everything else does."""
_QUEUED_FOR_SIX: Final = "http-queued-32-for-6-slots"
"""The same with six slots for any number of workers, so that a worker has few of its own."""
_NAMES: Final = (
    "http-small-16", "http-unscheduled-16", _QUEUED, _QUEUED_FOR_SIX, "http-backends-200",
    "grpc-small-8x1", "grpc-small-8x8", "grpc-image-4x4",
)  # fmt: skip
_LIMIT: Final = "  simple:\n    max_requests_per_backend: {}\n"
"""Makes requests of the usual model queue."""
_SLOTS: Final = 2
"""Of each of the three backends, for one worker."""
_SECONDS: Final = 2.0
_TASKS: Final = "/proc/{}/task"


def cells() -> dict[str, Cell]:
    """What is measured, by name. Connections are those of one worker."""
    known = {cell.name: cell for cell in CELLS}
    for name in (_QUEUED, _QUEUED_FOR_SIX):
        known[name] = replace(known["http-small-16"], name=name, connections=32)
    return {name: known[name] for name in _NAMES}


def limit_of(cell: Cell, count: int) -> str:
    """The lines below `models` of triton-lb's configuration, for a number of workers."""
    if cell.name == _QUEUED:
        return _LIMIT.format(_SLOTS * count)
    return _LIMIT.format(_SLOTS) if cell.name == _QUEUED_FOR_SIX else ""


def several(cell: Cell, count: int) -> Cell:
    """The cell for a number of workers."""
    return replace(cell, connections=cell.connections * count)


class Service:
    """A running proxy."""

    def __init__(self, proxy: Proxy, count: int) -> None:
        """
        Args:
            proxy: as it was started.
            count: of its workers, be they processes or threads.
        """
        assert proxy.child is not None
        self.proxy = proxy
        self.count = count
        self.child: Child = proxy.child
        self.cpu_us: list[float] = []
        """Per request, of each measurement."""
        self.unevenness: list[float] = []
        self.rate: float | None = None
        """Requests per second of the last measurement."""

    def measure(self, cell: Cell, load: LoadGenerators, seconds: float) -> None:
        """Send requests and note what they cost."""
        begun, before = self.child.cpu_s(), self._tasks()
        counted = load.run(several(cell, self.count), self.proxy, seconds=seconds, rate=self.rate)
        spent, after = self.child.cpu_s() - begun, self._tasks()
        self.rate = counted.rate
        self.cpu_us.append(spent / counted.requests * 1e6)
        grown = sorted([used - before.get(task, 0.0) for task, used in after.items()])
        busiest = grown[-self.count :]
        self.unevenness.append(busiest[-1] * self.count / sum(busiest))

    def idle(self, seconds: float) -> float:
        """Milliseconds of CPU per second without requests."""
        before = self.child.cpu_s()
        time.sleep(seconds)
        return (self.child.cpu_s() - before) / seconds * 1e3

    def _tasks(self) -> dict[int, float]:
        """Seconds of CPU that each thread has used."""
        found = {}
        for pid in self.child.pids():
            for task in os.listdir(_TASKS.format(pid)):
                text = Path(_TASKS.format(pid), task, "schedstat").read_text()
                found[int(task)] = int(text.split()[0]) / 1e9
        return found


def name_of(proxy: str, count: int) -> str:
    """What the table calls a proxy with a number of workers."""
    return f"{proxy}, {count} workers" if count > 1 else proxy


def add_recipes(directory: Path, count: int, cell: Cell) -> None:
    """Add the proxies with several workers.

    Args:
        directory: where their templates are written.
        count: of workers.
        cell: for which they are.
    """
    for name in (TRITON_LB, COMPILED):
        text = (TEMPLATES / "triton-lb.yaml").read_text()
        for number in (1, count):
            template = directory / f"triton-lb-{number}.yaml"
            template.write_text(f"workers: {number}\n{text}{limit_of(cell, number)}")
            RECIPES[name_of(name, number)] = replace(RECIPES[name], template=str(template))
    threads = directory / "haproxy-threads.cfg"
    text = (TEMPLATES / RECIPES[HAPROXY].template).read_text()
    threads.write_text(text.replace("nbthread 1", f"nbthread {count}"))
    RECIPES[name_of(HAPROXY, count)] = replace(RECIPES[HAPROXY], template=str(threads))
    envoy = RECIPES[ENVOY]

    def argv(config: Path) -> list[str]:
        words = envoy.argv(config)
        words[words.index("--concurrency") + 1] = str(count)
        return words

    RECIPES[name_of(ENVOY, count)] = replace(envoy, argv=argv)


def measure(cell: Cell, names: list[str], count: int, rounds: int) -> None:
    """Print the rows of one cell."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton-lb-")))
        add_recipes(directory, count, cell)
        cores = Cores.choose()
        children = stack.enter_context(Children(directory))
        backends = start_backends(children, directory, cell.site, usual=3, core=cores.backend)
        load = LoadGenerators(directory, cores.load)
        services: list[Service] = []
        for name in names:
            for number in (1, count):
                proxies = start_all(
                    [name_of(name, number)],
                    children,
                    directory,
                    backends,
                    cores.proxy,
                    lambda failed, why: say(f"{failed}: {why}"),
                )
                services += [Service(proxy, number) for proxy in proxies]
        for service in services:
            for _ in range(1 if cell.driver is Driver.WRK else 2):
                service.measure(cell, load, 0.5)
            service.cpu_us, service.unevenness = [], []
        for _ in range(rounds):
            for service in services:
                service.measure(cell, load, _SECONDS)
        one = 0.0
        for service in services:
            cpu = median(service.cpu_us)
            row = [cell.name, service.proxy.name, f"{service.rate:.0f}", f"{cpu:.1f}"]
            if service.count == 1:
                one = cpu
                row += ["", ""]
            else:
                uneven = median(service.unevenness)
                row += [f"{uneven:.2f}", f"{count * one / cpu / uneven:.2f}"]
            print(f"| {' | '.join(row)} | {service.idle(_SECONDS):.1f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pure", action="store_true", help="triton-lb without compiled modules")
    parser.add_argument("--alone", action="store_true", help="without Envoy and HAProxy")
    parser.add_argument("cells", nargs="*", default=["*"], help=", ".join(_NAMES))
    options = parser.parse_args()
    names = [TRITON_LB if options.pure else COMPILED]
    if not options.alone:
        names += [ENVOY, HAPROXY]
    chosen = [
        cell
        for name, cell in cells().items()
        if any(fnmatchcase(name, pattern) for pattern in options.cells)
    ]
    print("| cell | proxy | requests/s | CPU per request, us | unevenness | scaling | idle, ms/s |")
    print("|---|---|---:|---:|---:|---:|---:|", flush=True)
    for cell in chosen:
        try:
            measure(cell, names, options.workers, options.rounds)
        except BenchError as error:
            say(f"{cell.name}: {error}")


if __name__ == "__main__":
    main()
