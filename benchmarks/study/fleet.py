"""The real Tritons of a part, and what they say about themselves."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.processes import BenchError
from benchmarks.study.gpus import Gpu, Models, executed, write_repository
from tests.triton.server import RealTriton


@dataclass(frozen=True)
class Address:
    """Loopback ports of a Triton."""

    name: str
    http: int
    grpc: int
    metrics: int


@dataclass(frozen=True)
class Counted:
    """What a Triton has done since it began, all models together."""

    inferences: int = 0
    """Rows."""
    executions: int = 0
    busy_s: float = 0.0
    """Seconds of computing, those of all instances added."""

    def __sub__(self, other: Counted) -> Counted:
        return Counted(
            self.inferences - other.inferences,
            self.executions - other.executions,
            self.busy_s - other.busy_s,
        )


class Fleet:
    """Running Tritons, in the order of their models."""

    def __init__(self, tritons: Sequence[RealTriton], models: Sequence[Models], records: Path):
        self.models = tuple(models)
        self._tritons = tuple(tritons)
        self._records = records

    @classmethod
    def start(cls, directory: Path, models: Sequence[Models]) -> Fleet:
        """Start one Triton for each set of models and wait until all are ready.

        Raises:
            BenchError: the environment with Triton is missing, or one does not start.
        """
        records = directory / "records"
        records.mkdir(parents=True)
        running: list[RealTriton] = []
        try:
            for number, each in enumerate(models):
                name = f"triton-{number}"
                repository = directory / "repositories" / name
                write_repository(repository, each)
                running.append(RealTriton(name, directory, records, models=repository))
            for triton in running:
                triton.wait_ready()
        except (OSError, RuntimeError, TimeoutError) as error:
            for triton in running:
                triton.close()
            raise BenchError(f"no Tritons: {error}") from error
        return cls(running, models, records)

    def close(self) -> None:
        """End them."""
        for triton in self._tritons:
            triton.close()

    @property
    def addresses(self) -> list[Address]:
        """Where balancers reach them."""
        return [
            Address(each.name, each.http_port, each.grpc_port, each.metrics_port)
            for each in self._tritons
        ]

    def slow_down(self, number: int, factor: float) -> None:
        """Let one take so many times as long; 1: as long as it should."""
        path = self._records / f"slow-{self._tritons[number].name}"
        if factor == 1.0:
            path.unlink(missing_ok=True)
            return
        draft = self._records / "draft"
        draft.write_text(str(factor))
        draft.replace(path)

    def counted(self) -> list[Counted]:
        """Ask each for its statistics.

        Raises:
            BenchError: one does not answer.
        """
        return [
            _counted(triton.http_port, models)
            for triton, models in zip(self._tritons, self.models, strict=True)
        ]


def _counted(port: int, models: Mapping[str, Gpu]) -> Counted:
    total = Counted()
    for asked, gpu in models.items():
        name = executed(asked, gpu)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20.0)
        try:
            connection.request("GET", f"/v2/models/{name}/stats")
            said = json.loads(connection.getresponse().read())["model_stats"][0]
        except (OSError, KeyError, ValueError) as error:
            raise BenchError(f"a Triton gave no statistics: {error}") from error
        finally:
            connection.close()
        computed = sum(each["compute_infer"]["ns"] for each in said["batch_stats"])
        total = Counted(
            total.inferences + said["inference_count"],
            total.executions + said["execution_count"],
            total.busy_s + computed / 1e9,
        )
    return total
