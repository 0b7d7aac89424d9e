"""The two ledgers of a run: what clients asked and got, and what backends executed; joined.

Times are seconds of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Kind(Enum):
    """What a client asked."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    STEP = "sequence step"
    STREAM = "stream"
    BAD = "bad request"
    """Refused by every Triton: the client's own mistake."""
    DEATH = "query of death"
    """Kills the server that runs it."""


@dataclass(slots=True)
class Asked:
    """One request and what became of it."""

    id: str
    kind: Kind
    size: int
    began: float
    """When it was due."""
    ended: float = 0.0
    outcomes: int = 0
    """How often it ended: exactly once, unless the harness is wrong."""
    server: str = ""
    error: str = ""
    wrong: str = ""
    """What is wrong with an answer that said that all was well."""
    response_begun: bool = False

    @property
    def may_run_twice(self) -> bool:
        """Whether nothing but time is lost by executing it again."""
        return self.kind is not Kind.STEP

    @property
    def is_counted(self) -> bool:
        """Whether its failure counts: good, may run twice, and not begun to be answered."""
        good = self.kind in {Kind.HTTP, Kind.GRPC, Kind.STREAM}
        return good and not (self.error and self.response_begun)

    @property
    def took(self) -> float:
        return self.ended - self.began


class ClientLedger:
    """What clients asked, in the order in which it was due."""

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}

    def open(self, request_id: str, kind: Kind, size: int, now: float) -> Asked:
        """Note that a request is due; its id was not used before."""
        if request_id in self.asked:
            raise ValueError(f"{request_id} was asked already")
        self.asked[request_id] = asked = Asked(request_id, kind, size, now)
        return asked


@dataclass(frozen=True)
class Execution:
    """A backend began to run a request, or failed it at once."""

    id: str
    server: str
    at: float
    failed: bool


class BackendLedgers:
    """Reads what the models of all servers have appended to their ledgers since the last time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = defaultdict(int)
        self._waiting: list[Execution] = []

    def news(self) -> list[Execution]:
        """Everything noted since the last call; a line that is being written waits."""
        found, self._waiting = [*self._waiting, *self._fresh()], []
        return found

    def peek(self, since: float) -> list[Execution]:
        """What was noted since a moment; `news` tells of it all the same."""
        self._waiting += self._fresh()
        return [each for each in self._waiting if each.at >= since]

    def _fresh(self) -> list[Execution]:
        found: list[Execution] = []
        for path in sorted(self._directory.glob("executions-*")):
            with path.open("rb") as file:
                file.seek(self._read[path])
                whole, _, _ = file.read().rpartition(b"\n")
            self._read[path] += len(whole) + bool(whole)
            server = path.name.removeprefix("executions-")
            found += [parse_line(line, server) for line in whole.decode().splitlines()]
        return found


def parse_line(line: str, server: str) -> Execution:
    """Read `ID began|failed TIME`."""
    request_id, what, at = line.split(" ")
    return Execution(request_id, server, float(at), what == "failed")


@dataclass(frozen=True)
class Joined:
    """Both ledgers of one run of one scenario, and when its steps happened."""

    asked: tuple[Asked, ...]
    executed: Mapping[str, tuple[Execution, ...]]
    marks: tuple[tuple[str, float], ...] = ()
    """Names of moments in the order in which they came; a name may come again."""
    notes: Mapping[str, float] = field(default_factory=dict)
    """Figures that steps took themselves, such as reloads that were seen to be applied."""

    def times(self, mark: str) -> list[float]:
        """When a moment of that name was."""
        return [at for name, at in self.marks if name == mark]

    def counted(self, begin: float = 0.0, end: float = float("inf")) -> list[Asked]:
        """Requests whose failure counts and that were due in between."""
        return [each for each in self.asked if each.is_counted and begin <= each.began < end]

    def wrong(self) -> list[Asked]:
        """Answers that are not those of the request, or of nobody's execution."""
        found = []
        for each in self.asked:
            if each.wrong:
                found.append(each)
            elif not each.error and each.kind in {Kind.HTTP, Kind.GRPC, Kind.STEP, Kind.STREAM}:
                servers = [run.server for run in self.executed.get(each.id, ())]
                if each.outcomes and each.server not in servers:
                    each.wrong = f"answered by {each.server}, executed by {servers}"
                    found.append(each)
        return found

    def twice(self) -> list[Asked]:
        """Requests that must not run twice and did."""
        return [
            each
            for each in self.asked
            if not each.may_run_twice and len(self.executed.get(each.id, ())) > 1
        ]

    def without_one_outcome(self) -> list[Asked]:
        """Requests that ended never, or more than once."""
        return [each for each in self.asked if each.outcomes != 1]


def join(
    asked: Iterable[Asked],
    executions: Iterable[Execution],
    marks: Iterable[tuple[str, float]] = (),
    notes: Mapping[str, float] | None = None,
) -> Joined:
    """Join the ledgers by id; executions of requests of other runs are left out."""
    mine = tuple(sorted(asked, key=lambda each: each.began))
    ids = {each.id for each in mine}
    by_id: dict[str, list[Execution]] = defaultdict(list)
    for each in executions:
        if each.id in ids:
            by_id[each.id].append(each)
    executed = {key: tuple(sorted(runs, key=lambda run: run.at)) for key, runs in by_id.items()}
    return Joined(mine, executed, tuple(marks), dict(notes or {}))


def quantile(values: Iterable[float], share: float) -> float | None:
    """The value below which `share` of them lie; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
