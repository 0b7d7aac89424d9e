"""CPU of the proxy for a batch of 64 images (38 MB) over gRPC: cut in four, and whole.

    python -m benchmarks.bench_split

Both go to the same simulated Tritons, in turns: `cut` takes 16 rows, `whole` takes 64. Only the CPU
time of the proxy's process is compared, so that other load on the machine matters little.
"""

from __future__ import annotations

import statistics
import sys
from argparse import ArgumentParser
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from lb.kserve import inference_pb2 as pb
from lb.simulator import __main__ as simulator
from lb.simulator import models
from lb.simulator.models import InferRequest, Model, Respond, TensorSpec
from lb.simulator.process import Ports
from lb.simulator.tensors import Tensor
from lb.testing import running
from lb.testing.processes import Child
from lb.testing.tritons import Triton

_ROWS = 64
_IMAGE = (3, 224, 224)
_IMAGE_BYTES = 4 * 3 * 224 * 224
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_LIMIT_S = 60.0
_TRITONS = 2


@dataclass
class _Address:
    """What `running` asks of a Triton."""

    name: str
    http: str
    grpc: str
    metrics: str


async def _classify(request: InferRequest, respond: Respond) -> None:
    """Answer with one number per image."""
    rows = request.inputs["IMAGES"].shape[0]
    await respond((Tensor("CLASS", "INT32", (rows, 1), bytes(4 * rows)),))


def _serve() -> None:
    """Be a simulated Triton with both models."""
    for name, rows in (("cut", _ROWS // 4), ("whole", _ROWS)):
        model = Model(
            name=name,
            inputs=(TensorSpec("IMAGES", "FP32", _IMAGE),),
            outputs=(TensorSpec("CLASS", "INT32", (1,)),),
            run=_classify,
            max_batch_size=rows,
        )
        cast("dict[str, Model]", models.MODELS)[name] = model
    simulator.main(["--models", "cut", "whole"])


def _start(stack: ExitStack, name: str) -> _Address:
    child = Child(name, [sys.executable, "-m", "benchmarks.bench_split", "--serve"])
    stack.callback(child.close)
    child.wait_until(lambda: "\n" in child.output)
    ports = Ports.from_json(child.output.splitlines()[0])
    addresses = [ports.http_port, ports.grpc_port, ports.metrics_port]
    return _Address(name, *(ports.address(port) for port in addresses))


def _cpu_ns(pid: int) -> int:
    """CPU time of a process, all its threads: the clock ticks of `psutil` are too coarse."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def _batch(model: str) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="IMAGES", datatype="FP32", shape=[_ROWS, *_IMAGE])
    request.raw_input_contents.append(bytes(_ROWS * _IMAGE_BYTES))
    return request.SerializeToString()


def main() -> None:
    """Measure, and print the ratio."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", action="store_true", help="be a Triton of the benchmark")
    given = parser.parse_args()
    if given.serve:
        _serve()
        return
    batches = {model: _batch(model) for model in ("whole", "cut")}
    spent: dict[str, list[float]] = {model: [] for model in batches}
    with ExitStack() as stack:
        tritons = [_start(stack, f"triton-{number}") for number in range(_TRITONS)]
        settings = {"models": {"cut": {"split": "oversize"}}}
        balancer = stack.enter_context(running(cast("list[Triton]", tritons), settings))
        options = [("grpc.max_send_message_length", -1)]
        channel = stack.enter_context(grpc.insecure_channel(balancer.grpc, options))
        infer = channel.unary_unary(_INFER)
        for round_number in range(given.rounds + 1):
            for model, message in batches.items():
                before = _cpu_ns(balancer.pid)
                answer = pb.ModelInferResponse.FromString(infer(message, timeout=_LIMIT_S))
                after = _cpu_ns(balancer.pid)
                assert list(answer.outputs[0].shape) == [_ROWS, 1]
                if round_number:
                    spent[model].append((after - before) / 1e6)
    middle = {model: statistics.median(times) for model, times in spent.items()}
    print(
        f"whole {middle['whole']:.1f} ms, cut in four {middle['cut']:.1f} ms of CPU a batch: "
        f"{middle['cut'] / middle['whole']:.2f} times"
    )


if __name__ == "__main__":
    main()
