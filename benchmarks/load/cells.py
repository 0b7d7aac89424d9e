"""What is measured: one cell is a request shape, a number of connections and of streams on each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase


class Driver(Enum):
    """The load generator of a cell."""

    WRK = "wrk"
    H2LOAD = "h2load"
    UNIQUE = "unique"
    STREAM = "stream"


@dataclass(frozen=True)
class Cell:
    """One row of the table.

    `body` names a file of `payloads.write_requests`, `model` the HTTP model that is asked. `core`
    cells run unless others are asked for; the rest only by name or pattern.
    """

    name: str
    title: str
    driver: Driver
    connections: int
    streams: int = 1
    body: str = ""
    model: str = ""
    core: bool = True

    @property
    def is_http1(self) -> bool:
        return self.driver is Driver.WRK

    @property
    def needs_streams(self) -> bool:
        """Whether the gRPC backends must echo streams."""
        return self.driver is Driver.STREAM


def _http(body: str, model: str, title: str, connections: int, *, core: bool = True) -> Cell:
    name = f"http-{title.split(',')[0].replace(' ', '-')}-{connections}"
    text = f"HTTP/1.1 {title}, {connections} connection{'s' if connections > 1 else ''}"
    return Cell(name, text, Driver.WRK, connections, body=body, model=model, core=core)


def _grpc(
    driver: Driver, title: str, connections: int, streams: int, body: str, *, core: bool = True
) -> Cell:
    name = f"grpc-{title.split(',')[0].replace(' ', '-')}-{connections}x{streams}"
    text = f"gRPC {title}, {connections} x {streams}"
    return Cell(name, text, driver, connections, streams, body=body, core=core)


CELLS = (
    _http("http-small", "simple", "small, 130 B", 1, core=False),
    _http("http-small", "simple", "small, 130 B", 16),
    _http("http-small", "simple", "small, 130 B", 64),
    _http("http-small", "simple", "small, 130 B", 256, core=False),
    _grpc(Driver.H2LOAD, "small, 200 B", 1, 1, "grpc-small", core=False),
    _grpc(Driver.H2LOAD, "small, 200 B", 8, 1, "grpc-small"),
    _grpc(Driver.H2LOAD, "small, 200 B", 1, 32, "grpc-small", core=False),
    _grpc(Driver.H2LOAD, "small, 200 B", 8, 8, "grpc-small"),
    _grpc(Driver.H2LOAD, "small, 200 B", 64, 4, "grpc-small"),
    _grpc(Driver.UNIQUE, "unique headers, 200 B", 8, 8, "grpc-small"),
    _grpc(Driver.STREAM, "stream messages, 200 B", 8, 8, "grpc-small"),
    _http("http-image", "image", "image, 602,112 B request", 1),
    _http("http-image", "image", "image, 602,112 B request", 16),
    _grpc(Driver.H2LOAD, "image, 602,112 B request", 1, 1, "grpc-image"),
    _grpc(Driver.H2LOAD, "image, 602,112 B request", 4, 4, "grpc-image"),
    _http("http-small", "large", "large response, 4 MiB", 1),
    _http("http-small", "large", "large response, 4 MiB", 16),
)


def select(patterns: list[str]) -> list[Cell]:
    """Cells whose name matches one of the shell patterns; no pattern: the core cells.

    Raises:
        ValueError: a pattern matches nothing.
    """
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in CELLS):
            names = ", ".join(cell.name for cell in CELLS)
            raise ValueError(f"no cell is called {pattern!r}; there are: {names}")
    if not patterns:
        return [cell for cell in CELLS if cell.core]
    return [cell for cell in CELLS if any(fnmatchcase(cell.name, each) for each in patterns)]
