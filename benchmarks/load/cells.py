"""What is measured: one cell is a request shape, a number of connections and of streams on each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from fnmatch import fnmatchcase

from benchmarks.load.payloads import UNSCHEDULED


class Driver(Enum):
    """The load generator of a cell."""

    WRK = "wrk"
    H2LOAD = "h2load"
    UNIQUE = "unique"
    STREAM = "stream"
    EVENTS = "events"
    MIXED = "mixed"
    PACED = "paced"


class Answers(Enum):
    """What stands behind the gRPC ports of a site."""

    SMALL = "nghttpd, small answers"
    LARGE = "nghttpd, answers of 4 MiB"
    STAND_IN = "our stand-in, which also echoes streams"


@dataclass(frozen=True)
class Site:
    """The backends that a cell needs; for each site everything is started anew.

    `backends` None: as many as the run was asked to use. `events`: the HTTP ports send server-sent
    events, and nothing else but health.
    """

    grpc: Answers = Answers.SMALL
    events: bool = False
    backends: int | None = None


USUAL = Site()
LARGE = Site(Answers.LARGE)
STREAMS = Site(Answers.STAND_IN, events=True)


@dataclass(frozen=True)
class Cell:
    """One row of the table.

    `body` names a file of `payloads.write_requests`, `model` the HTTP model that is asked. `core`
    cells are those of a quick run and get the most rounds. `unique`: a `traceparent` that never
    repeats. `half_of`: the cell half of whose rate is offered, as the baseline reached it there.
    """

    name: str
    title: str
    driver: Driver
    connections: int
    streams: int = 1
    body: str = ""
    model: str = ""
    is_grpc: bool = False
    core: bool = False
    tls: bool = False
    unique: bool = False
    half_of: str = ""
    site: Site = USUAL

    @property
    def unit(self) -> str:
        """What the CPU is divided by."""
        if self.driver is Driver.STREAM:
            return "message and echo"
        return "event" if self.driver is Driver.EVENTS else "request"


def _http(title: str, connections: int, *, body: str = "http-small", model: str = "simple") -> Cell:
    name = f"http-{_slug(title)}-{connections}"
    text = f"HTTP/1.1 {title}, {connections} connection{'s' if connections > 1 else ''}"
    return Cell(name, text, Driver.WRK, connections, body=body, model=model)


def _grpc(
    title: str, connections: int, streams: int, *, body: str = "grpc-small", site: Site = USUAL
) -> Cell:
    name = f"grpc-{_slug(title)}-{connections}x{streams}"
    text = f"gRPC {title}, {connections} x {streams}"
    return Cell(name, text, Driver.H2LOAD, connections, streams, body=body, is_grpc=True, site=site)


def _slug(title: str) -> str:
    return title.partition(",")[0].replace(" ", "-").lower()


def _core(cell: Cell) -> Cell:
    return replace(cell, core=True)


def _half(cell: Cell) -> Cell:
    """The cell that offers half of the baseline's rate in another one."""
    return replace(
        cell,
        name=f"{cell.name}-half-rate",
        title=f"{cell.title}, half of the rate",
        driver=Driver.PACED,
        half_of=cell.name,
    )


def _backends(number: int) -> list[Cell]:
    """The small cells with that many backends, all on the same kind of stand-in."""
    site = replace(STREAMS, events=False, backends=number)
    http = replace(_http("small, 130 B", 16), site=site)
    grpc = _grpc("small, 200 B", 8, 1, site=site)
    return [
        replace(
            cell,
            name=f"{cell.name.split('-')[0]}-backends-{number}",
            title=f"{cell.title}, {number} backends",
        )
        for cell in (http, grpc)
    ]


_SMALL, _UNIQUE = "small, 130 B", "never-repeating headers, 130 B"
_CALL, _UNIQUE_CALL = "small, 200 B", "never-repeating headers, 200 B"
_FOREIGN = "no inference, 602,112 B request"
_IMAGE, _BIG, _ANSWER = "image, 602,112 B request", "4 MiB request", "4 MiB response"
_HTTP_TLS = replace(_core(_http("TLS small, 130 B", 64)), driver=Driver.H2LOAD, tls=True)
_GRPC_TLS = replace(_core(_grpc("TLS small, 200 B", 8, 8)), tls=True)
_PLAIN, _PLAIN_CALL = "unscheduled, 130 B", "unscheduled, 200 B"
_HTTP_64, _GRPC_8X8 = _core(_http(_SMALL, 64)), _core(_grpc(_CALL, 8, 8))

CELLS = (
    _http(_SMALL, 1),
    _core(_http(_SMALL, 16)),
    _HTTP_64,
    _http(_SMALL, 256),
    *(_core(_http(_PLAIN, count, model=UNSCHEDULED)) for count in (16, 64)),
    replace(_http(_UNIQUE, 64), unique=True),
    _grpc(_CALL, 1, 1),
    _core(_grpc(_CALL, 8, 1)),
    _grpc(_CALL, 1, 32),
    _GRPC_8X8,
    _core(_grpc(_CALL, 64, 4)),
    *(_core(_grpc(_PLAIN_CALL, 8, count, body="grpc-unscheduled")) for count in (1, 8)),
    replace(_core(_grpc(_UNIQUE_CALL, 8, 8)), driver=Driver.UNIQUE, unique=True),
    _HTTP_TLS,
    _GRPC_TLS,
    _core(_half(_HTTP_64)),
    _core(_half(_GRPC_8X8)),
    replace(_half(_HTTP_TLS), core=False),
    replace(_half(_GRPC_TLS), core=False),
    _http(_IMAGE, 1, body="http-image", model="image"),
    _core(_http(_IMAGE, 16, body="http-image", model="image")),
    _grpc(_IMAGE, 1, 1, body="grpc-image"),
    _core(_grpc(_IMAGE, 4, 4, body="grpc-image")),
    _grpc(_FOREIGN, 4, 4, body="grpc-foreign"),
    _http(_BIG, 1, body="http-large", model="image"),
    _http(_BIG, 16, body="http-large", model="image"),
    _grpc(_BIG, 1, 1, body="grpc-large"),
    _grpc(_BIG, 4, 4, body="grpc-large"),
    _http(_ANSWER, 1, model="large"),
    _core(_http(_ANSWER, 16, model="large")),
    replace(
        _http("mixed", 32),
        name="mixed-32",
        title="mixed: 70 % gRPC, 30 % HTTP, 200 B to 4 MiB, 32 at once",
        driver=Driver.MIXED,
        connections=8,
        streams=4,
        is_grpc=True,
    ),
    _grpc(_ANSWER, 1, 1, site=LARGE),
    _grpc(_ANSWER, 4, 4, site=LARGE),
    replace(_core(_grpc("stream messages, 200 B", 8, 8, site=STREAMS)), driver=Driver.STREAM),
    replace(_grpc("stream messages, 200 B", 8, 64, site=STREAMS), driver=Driver.STREAM),
    replace(
        _core(_http("server-sent events, 1,000/s each", 16)),
        name="http-events-16",
        title="HTTP/1.1 server-sent events, 16 clients x 1,000/s",
        driver=Driver.EVENTS,
        site=STREAMS,
    ),
    *(cell for number in (2, 200, 8, 64) for cell in _backends(number)),
)
"""Sorted by site: 200 backends follow 2, because these two are compared."""


def select(patterns: list[str], core: bool = False) -> list[Cell]:
    """Cells whose name matches one of the shell patterns, and those that their rate depends on.

    Args:
        patterns: none for all cells.
        core: without patterns, the core cells only.

    Raises:
        ValueError: a pattern matches nothing.
    """
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in CELLS):
            names = ", ".join(cell.name for cell in CELLS)
            raise ValueError(f"no cell is called {pattern!r}; there are: {names}")
    if patterns:
        chosen = [cell for cell in CELLS if any(fnmatchcase(cell.name, each) for each in patterns)]
    else:
        chosen = [cell for cell in CELLS if cell.core or not core]
    needed = {cell.half_of for cell in chosen}
    return [cell for cell in CELLS if cell in chosen or cell.name in needed]
