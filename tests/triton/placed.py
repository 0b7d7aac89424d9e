"""Small models for Tritons that load them on demand, and what tests ask of these."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio

from tests.triton.balancer import RunningBalancer
from tests.triton.explicit import ask
from tests.triton.server import RealTriton
from tests.triton.tensors import tensor

WAIT_S = 60.0
_CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "IN", data_type: TYPE_INT32, dims: [ 1 ] } ]
output [ { name: "OUT", data_type: TYPE_INT32, dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
MODEL = """
import os
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(os.environ["TEST_RECORDS"], "loads"), "a") as file:
            file.write(args["model_name"] + "\\n")

    def execute(self, requests):
        out = pb_utils.Tensor("OUT", numpy.array([1], numpy.int32))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""
"""Writes down that it was loaded."""
BROKEN_MODEL = """
class TritonPythonModel:
    def initialize(self, args):
        raise RuntimeError("these weights are no weights")
"""
DEADLY_MODEL = """
import os
import signal

class TritonPythonModel:
    def initialize(self, args):
        os.kill(os.getppid(), signal.SIGKILL)
"""
"""Ends the Triton that loads it: its process is a child of that."""


def name_of(number: int) -> str:
    return f"m{number}"


def write_models(root: Path, models: Iterable[tuple[str, str]]) -> None:
    """Make a repository.

    Args:
        root: its folder.
        models: names, and what each is.
    """
    for name, text in models:
        folder = root / name / "1"
        folder.mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(_CONFIG)
        (folder / "model.py").write_text(text)


def index(triton: RealTriton) -> list[dict[str, str]]:
    found: list[dict[str, str]] = ask(triton.target.http, "POST", "/v2/repository/index", {})
    return found


def names_in(lines: list[dict[str, str]], *states: str) -> set[str]:
    """The models of a list in one of these states; without any, those that take room."""
    return {
        each["name"]
        for each in lines
        if (state := each.get("state", "")) in states
        or (not states and state not in ("", "UNAVAILABLE"))
    }


def ready(triton: RealTriton) -> set[str]:
    return names_in(index(triton), "READY")


def taken(triton: RealTriton) -> set[str]:
    return names_in(index(triton))


def shown(balancer: RunningBalancer) -> dict[str, Any]:
    found: dict[str, Any] = ask(balancer.admin, "GET", "/api/v1/placement")
    return found


@asynccontextmanager
async def client_of(balancer: RunningBalancer) -> AsyncIterator[Callable[[str], Any]]:
    """Asks a model for an answer over gRPC."""
    client = grpcaio.InferenceServerClient(balancer.target.grpc)
    try:
        inputs = [tensor(grpcclient, "IN", np.array([1], dtype=np.int32))]
        yield lambda name: client.infer(name, inputs, client_timeout=WAIT_S)
    finally:
        await client.close()
