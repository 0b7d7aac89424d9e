"""How throughput and latency grow with the number of Tritons: perf_analyzer before one to seven.

Each Triton stands for a slice of a GPU (20 ms, no batching). The load is a closed loop: as many
requests at once as perf_analyzer keeps under way. From the figures one reads how many slices a load
needs within a latency budget.
"""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.bench import say
from benchmarks.load.processes import BenchError, Children, Cores, run_pinned
from benchmarks.load.proxies import TRITON_LB
from benchmarks.load.tables import Rows, number, piped
from benchmarks.study.contestants import CONTESTANTS, Ground
from benchmarks.study.figures import Figures, Run
from benchmarks.study.fleet import Fleet
from benchmarks.study.gpus import MODEL
from benchmarks.study.journal import Journal, Key
from benchmarks.study.parts import SEVEN
from tests.triton.server import ENVIRONMENT

NAME = "scaling"
BUDGET_MS = 50.0
CSV, PICTURE = "scheduling-scaling.csv", "scheduling-scaling.png"
_RANGES = ((1, 20, 1), (25, 100, 5))
"""Requests at once: first, last, step. Fine where few slices are enough."""
_SHORT_RANGES = ((1, 9, 4), (20, 100, 40))
_WINDOW_MS = 500
"""perf_analyzer measures three of them and takes any figures: the machine is shared."""
_LEVEL_S = 6.0
"""More than a level takes."""


@dataclass(frozen=True)
class Level:
    """Some Tritons with some requests at once."""

    tritons: int
    at_once: int


Levels = Mapping[Level, Figures]


def play(journal: Journal, *, commit: str, short: bool) -> Levels:
    """Measure what the journal does not have yet, and give all of it.

    Raises:
        BenchError: there are no Tritons, or perf_analyzer failed.
    """
    ranges = _SHORT_RANGES if short else _RANGES
    counts = range(1, len(SEVEN) + 1)
    todo = [
        count for count in counts if any(_missing(journal, count, each, commit) for each in ranges)
    ]
    if todo:
        with tempfile.TemporaryDirectory(prefix="triton-lb-scaling-") as name:
            fleet = Fleet.start(Path(name), SEVEN)
            try:
                for count in todo:
                    _measure(Path(name), fleet, count, journal, commit=commit, ranges=ranges)
            finally:
                fleet.close()
    return known(journal, commit=commit)


def known(journal: Journal, *, commit: str) -> Levels:
    """What the journal has."""
    found = {}
    for first, last, step in _RANGES:
        for count in range(1, len(SEVEN) + 1):
            for at_once in range(first, last + 1, step):
                level = Level(count, at_once)
                if runs := journal.runs(NAME, _step(level), TRITON_LB, commit):
                    found[level] = runs[-1].figures
    return dict(sorted(found.items(), key=lambda each: (each[0].tritons, each[0].at_once)))


def _step(level: Level) -> str:
    return f"{level.tritons} of {level.at_once}"


def _missing(journal: Journal, count: int, levels: tuple[int, int, int], commit: str) -> bool:
    first, last, step = levels
    return any(
        Key(NAME, _step(Level(count, at_once)), TRITON_LB, 0, commit) not in journal
        for at_once in range(first, last + 1, step)
    )


def _measure(
    directory: Path,
    fleet: Fleet,
    count: int,
    journal: Journal,
    *,
    commit: str,
    ranges: Sequence[tuple[int, int, int]],
) -> None:
    """All levels before so many Tritons."""
    own = directory / f"{count}"
    own.mkdir()
    cores = Cores.choose()
    with Children(own) as children:
        ground = Ground(own, fleet.addresses[:count], fleet.models[:count], cores.proxy)
        running = CONTESTANTS[TRITON_LB].start(children, ground)
        for each in ranges:
            if not _missing(journal, count, each, commit):
                continue
            for at_once, found in _perf_analyzer(running.http, each, own, cores.load).items():
                level = Level(count, at_once)
                run = Run(found, {}, found.rate, [], 0.0, [], 0.0)
                journal.add(Key(NAME, _step(level), TRITON_LB, 0, commit), run)
            say(f"  {count} Tritons, {each[0]} to {each[1]} at once: {found.rate:.0f}/s at the end")


def _perf_analyzer(
    port: int, levels: tuple[int, int, int], directory: Path, core: int
) -> dict[int, Figures]:
    first, last, step = levels
    report = directory / f"{first}.csv"
    argv = [
        *(str(ENVIRONMENT / "bin" / "perf_analyzer"), "-m", MODEL, "-b", "1", "-i", "http"),
        *("-u", f"127.0.0.1:{port}", "--concurrency-range", f"{first}:{last}:{step}"),
        *("--measurement-interval", str(_WINDOW_MS), "--stability-percentage", "999"),
        *("-f", str(report)),
    ]
    count = len(range(first, last + 1, step))
    environment = {"LD_LIBRARY_PATH": str(ENVIRONMENT / "native")}
    run_pinned(argv, core=core, timeout_s=20.0 + count * _LEVEL_S, environment=environment)
    return parse(report.read_text())


def parse(report: str) -> dict[int, Figures]:
    """The CSV of perf_analyzer, by requests at once.

    Raises:
        BenchError: a column is missing, or nothing was measured.
    """
    found = {}
    for row in csv.DictReader(io.StringIO(report)):
        try:
            rate = float(row["Inferences/Second"])
            p50, p90, p99 = (float(row[f"p{each} latency"]) / 1000.0 for each in (50, 90, 99))
            found[int(row["Concurrency"])] = Figures(0, rate, rate, p50, p90, p99, 0.0, 0.0)
        except (KeyError, TypeError, ValueError) as error:
            raise BenchError(f"perf_analyzer wrote another report: {row}") from error
    if not found:
        raise BenchError("perf_analyzer measured nothing")
    return found


def needed(levels: Levels, budget_ms: float) -> dict[int, int]:
    """By requests at once, the fewest Tritons whose p90 is within the budget; without: too many."""
    found: dict[int, int] = {}
    for level, figures in levels.items():
        if figures.p90 <= budget_ms:
            found[level.at_once] = min(found.get(level.at_once, level.tritons), level.tritons)
    return found


def write_csv(levels: Levels, path: Path) -> None:
    """All figures."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("tritons", "concurrency", "throughput", "p50_ms", "p90_ms", "p99_ms"))
        for level, each in levels.items():
            row = (each.rate, each.p50, each.p90, each.p99)
            writer.writerow((level.tritons, level.at_once, *(f"{value:.1f}" for value in row)))


def table(levels: Levels) -> Rows:
    """Throughput and p90 by Tritons at a few loads, and how many are needed."""
    shown = [each for each in (1, 5, 10, 15, 20, 50, 100) if any(k.at_once == each for k in levels)]
    least = needed(levels, BUDGET_MS)
    found: list[Sequence[str]] = [("Tritons", *(f"{each} at once" for each in shown))]
    for count in sorted({level.tritons for level in levels}):
        cells = []
        for at_once in shown:
            figures = levels.get(Level(count, at_once))
            cells.append("" if figures is None else f"{figures.rate:.0f}/s, {number(figures.p90)}")
        found.append((f"{count}", *cells))
    words = [str(least.get(each, "more")) for each in shown]
    found.append((f"needed for p90 within {BUDGET_MS:g} ms", *words))
    return found


def section(levels: Levels, picture: str, file: str) -> str:
    """A chapter of the page; nothing without figures."""
    if not levels:
        return ""
    lines = [
        "## One to seven slices",
        "",
        "The figure of NVIDIA's article on MIG behind a load balancer, with triton-lb: one to seven"
        " Tritons (20 ms, no batching), a closed loop of 1 to 100 requests at once with"
        f" perf_analyzer over HTTP. Throughput and p90 in milliseconds; all of it in `{file}`.",
        "",
        *((f"![Throughput and p90 by slices]({picture})", "") if picture else ()),
        piped(table(levels)),
        "",
    ]
    return "\n".join(lines)


def draw(levels: Levels, path: Path) -> bool:
    """Throughput, p90, and how many are needed; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (rates, latencies, least) = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    shades = pyplot.get_cmap("viridis")
    for count in sorted({level.tritons for level in levels}):
        own = {level.at_once: each for level, each in levels.items() if level.tritons == count}
        style = {"color": shades((count - 1) / 7), "label": f"{count}"}
        rates.plot(list(own), [each.rate for each in own.values()], **style)
        latencies.plot(list(own), [each.p90 for each in own.values()], **style)
    rates.set_ylim(0, 500)
    rates.set_title("throughput, requests a second")
    latencies.set_title("p90, milliseconds")
    latencies.set_ylim(0, 400)
    latencies.axhline(BUDGET_MS, color="#888888", linestyle=":")
    found = needed(levels, BUDGET_MS)
    least.step(list(found), list(found.values()), where="post", color="#1b7837")
    least.set_title(f"Tritons needed for p90 within {BUDGET_MS:g} ms")
    for axes in (rates, latencies, least):
        axes.set_xlabel("requests at once")
        axes.spines[["top", "right"]].set_visible(False)
    rates.legend(title="Tritons", frameon=False, fontsize=8, loc="upper right", ncols=4)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return True
