"""Simulated Tritons whose models take 5 ms, and 2 ms for each row, one request after the other.

    python -m tests.fakes.batch_models

`linear` echoes its rows. `sums` also has an output that is no longer with more rows. `wide` takes
one row at a time, and has a long answer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, cast

from lb.simulator import __main__ as simulator
from lb.simulator import models
from lb.simulator.models import InferRequest, Model, Respond, TensorSpec
from lb.simulator.process import Ports
from lb.simulator.tensors import Tensor
from lb.testing.processes import Child
from lb.testing.tritons import Triton

MAX_ROWS: Final = 64
WIDTH: Final = 1_000_000
"""Bytes of the output of `wide` for each row."""
FIXED: Final = 16
"""Entries of the output of `sums`, whatever the batch."""
_BASE_S, _ROW_S = 0.005, 0.002


class Address:
    """What `running` asks of a Triton."""

    def __init__(self, name: str, ports: Ports) -> None:
        self.name = name
        self.http = ports.address(ports.http_port)
        self.grpc = ports.address(ports.grpc_port)
        self.metrics = ports.address(ports.metrics_port)


async def _echo(request: InferRequest, respond: Respond) -> None:
    tensor = request.inputs["IN"]
    await asyncio.sleep(_BASE_S + _ROW_S * tensor.shape[0])
    outputs = [Tensor("OUT", tensor.datatype, tensor.shape, tensor.data)]
    if request.model == "sums":
        outputs.append(Tensor("SUMS", "INT32", (FIXED,), bytes(4 * FIXED)))
    await respond(tuple(outputs))


async def _widen(request: InferRequest, respond: Respond) -> None:
    rows = request.inputs["IN"].shape[0]
    await respond((Tensor("OUT", "UINT8", (rows, WIDTH), bytes(rows * WIDTH)),))


def _models() -> Iterator[Model]:
    yield Model(
        name="wide",
        inputs=(TensorSpec("IN", "INT32", (-1,)),),
        outputs=(TensorSpec("OUT", "UINT8", (WIDTH,)),),
        run=_widen,
        max_batch_size=1,
    )
    for name in ("linear", "sums"):
        outputs = [TensorSpec("OUT", "INT32", (-1,))]
        if name == "sums":
            outputs.append(TensorSpec("SUMS", "INT32", (FIXED,)))
        yield Model(
            name=name,
            inputs=(TensorSpec("IN", "INT32", (-1,)),),
            outputs=tuple(outputs),
            run=_echo,
            max_batch_size=MAX_ROWS,
            instances=1,
        )


@contextmanager
def batch_tritons(count: int) -> Iterator[tuple[Triton, ...]]:
    """Start some, and end them."""
    with ExitStack() as stack:
        found = []
        for number in range(count):
            name = f"triton-{number}"
            child = Child(name, [sys.executable, "-m", "tests.fakes.batch_models"])
            stack.callback(child.close)
            child.wait_until(lambda child=child: "\n" in child.output)
            found.append(Address(name, Ports.from_json(child.output.splitlines()[0])))
        yield cast("tuple[Triton, ...]", tuple(found))


if __name__ == "__main__":
    cast("dict[str, Model]", models.MODELS).update({each.name: each for each in _models()})
    simulator.main(["--models", "linear", "sums", "wide"])
