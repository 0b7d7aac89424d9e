"""The backends of a run: real Tritons whose models keep a ledger, and what stands between."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.faults.between import Between
from benchmarks.faults.ledger import BackendLedgers
from benchmarks.faults.rogue import Rogue
from benchmarks.load.processes import BenchError
from tests.triton.server import RealTriton
from tests.triton.target import Target

MODELS = Path(__file__).parent / "models"
_INSTANCES = 4
"""Of the model `ledger` on each Triton."""


def capacity(tritons: int, milliseconds: float) -> float:
    """Inferences a second that they can run, if one takes so long."""
    return tritons * _INSTANCES * 1000.0 / milliseconds


@dataclass(frozen=True)
class Way:
    """How balancers reach a Triton: directly, or through what disturbs."""

    name: str
    target: Target
    metrics_port: int


class Site:
    """The Tritons, the directory of their ledgers, and the ports between, if any."""

    def __init__(self, tritons: Sequence[RealTriton], records: Path) -> None:
        self.tritons = tuple(tritons)
        self.ledgers = BackendLedgers(records)
        self.between: list[Between] = []
        self.rogue: Rogue | None = None
        self._records = records

    @classmethod
    def start(cls, directory: Path, count: int = 3) -> Site:
        """Start the Tritons and wait until all are ready.

        Raises:
            BenchError: the environment with Triton is missing, or one does not start.
        """
        records = directory / "records"
        records.mkdir()
        options = ("--model-control-mode=explicit", "--load-model=*")
        running: list[RealTriton] = []
        try:
            for number in range(count):
                name = f"triton-{number}"
                running.append(RealTriton(name, directory, records, *options, models=MODELS))
            for triton in running:
                triton.wait_ready()
        except (OSError, RuntimeError, TimeoutError) as error:
            for triton in running:
                triton.close()
            raise BenchError(f"no Tritons: {error}") from error
        return cls(running, records)

    def close(self) -> None:
        """End the Tritons."""
        for triton in self.tritons:
            triton.sigcont() if triton.is_running else None
            triton.close()

    async def make_well(self) -> None:
        """Undo whatever a scenario left behind: all run, and none misbehaves."""
        for path in (*self._records.glob("poison-*"), *self._records.glob("slow-*")):
            path.unlink()
        for triton in self.tritons:
            if triton.is_running:
                triton.sigcont()
            else:
                triton.restart()
        for triton in self.tritons:
            await asyncio.to_thread(triton.wait_ready)

    def tell(self, number: int, what: str, value: str) -> None:
        """Make a Triton's model misbehave: `poison` or `slow`."""
        draft = self._records / f"draft-{what}"
        draft.write_text(value)
        draft.replace(self._records / f"{what}-{self.tritons[number].name}")

    def heal(self, number: int) -> None:
        """End what `tell` began."""
        for what in ("poison", "slow"):
            (self._records / f"{what}-{self.tritons[number].name}").unlink(missing_ok=True)

    @property
    def ways(self) -> list[Way]:
        """Where balancers send to."""
        ways = []
        for number, triton in enumerate(self.tritons):
            target = triton.target
            if self.between:
                http, grpc = self.between[2 * number : 2 * number + 2]
                target = Target(f"127.0.0.1:{http.port}", f"127.0.0.1:{grpc.port}")
            ways.append(Way(triton.name, target, triton.metrics_port))
        if self.rogue is not None:
            ways.append(Way(self.rogue.name, self.rogue.target, self.rogue.metrics_port))
        return ways

    @asynccontextmanager
    async def joined_by_rogue(self, seed: int) -> AsyncIterator[None]:
        """Put a scripted backend beside the Tritons."""
        async with Rogue(self._records, Random(seed)).running() as rogue:
            self.rogue = rogue
            try:
                yield
            finally:
                self.rogue = None

    @asynccontextmanager
    async def disturbed(self, seed: int) -> AsyncIterator[None]:
        """Put a `Between` before each port, those of HTTP and gRPC in turn."""
        async with AsyncExitStack() as stack:
            for number, triton in enumerate(self.tritons):
                for port in (triton.http_port, triton.grpc_port):
                    between = Between(port, Random(seed + 2 * number))
                    self.between.append(await stack.enter_async_context(between))
            try:
                yield
            finally:
                self.between = []

    def opens(self, number: int) -> bool:
        """Whether both ports of a Triton accept connections."""
        triton = self.tritons[number]
        for port in (triton.http_port, triton.grpc_port):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            except OSError:
                return False
        return True
