"""CPU of the proxy for a batch of 64 images (38 MB) over gRPC or HTTP: cut in four, and whole.

    python -m benchmarks.bench_split
    python -m benchmarks.bench_split --protocol http

Both go to the same simulated Tritons, in turns: `cut` takes 16 rows, `whole` takes 64. Only the CPU
time of the proxy's process is compared, so that other load on the machine matters little.
"""

from __future__ import annotations

import json
import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
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
from lb.testing.balancer import Balancer
from lb.testing.processes import Child
from lb.testing.tritons import Triton

_ROWS = 64
_IMAGE = (3, 224, 224)
_IMAGE_BYTES = 4 * 3 * 224 * 224
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_LIMIT_S = 60.0
_TRITONS = 2
_MODELS = ("whole", "cut")


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
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            total += int((task / "schedstat").read_text().split()[0])
    return total


Ask = Callable[[str], list[int]]
"""Sends a batch for a model; the shape of what is answered."""


def _ask_grpc(stack: ExitStack, balancer: Balancer) -> Ask:
    options = [("grpc.max_send_message_length", -1)]
    channel = stack.enter_context(grpc.insecure_channel(balancer.grpc, options))
    infer = channel.unary_unary(_INFER)
    batches = {model: _message(model) for model in _MODELS}

    def ask(model: str) -> list[int]:
        answer = pb.ModelInferResponse.FromString(infer(batches[model], timeout=_LIMIT_S))
        return list(answer.outputs[0].shape)

    return ask


def _ask_http(stack: ExitStack, balancer: Balancer) -> Ask:
    host, _, port = balancer.http.rpartition(":")
    connection = stack.enter_context(closing(HTTPConnection(host, int(port), timeout=_LIMIT_S)))
    size = _ROWS * _IMAGE_BYTES
    tensor = {
        "name": "IMAGES", "datatype": "FP32", "shape": [_ROWS, *_IMAGE],
        "parameters": {"binary_data_size": size},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + bytes(size)
    fields = {"Inference-Header-Content-Length": str(len(head))}

    def ask(model: str) -> list[int]:
        connection.request("POST", f"/v2/models/{model}/infer", body, fields)
        answer = connection.getresponse()
        text = answer.read()
        end = int(answer.headers.get("Inference-Header-Content-Length", len(text)))
        found: list[int] = json.loads(text[:end])["outputs"][0]["shape"]
        return found

    return ask


_ASK = {"grpc": _ask_grpc, "http": _ask_http}


def _message(model: str) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="IMAGES", datatype="FP32", shape=[_ROWS, *_IMAGE])
    request.raw_input_contents.append(bytes(_ROWS * _IMAGE_BYTES))
    return request.SerializeToString()


def main() -> None:
    """Measure, and print the ratio."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=sorted(_ASK), default="grpc")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--serve", action="store_true", help="be a Triton of the benchmark")
    given = parser.parse_args()
    if given.serve:
        _serve()
        return
    spent: dict[str, list[float]] = {model: [] for model in _MODELS}
    with ExitStack() as stack:
        tritons = [_start(stack, f"triton-{number}") for number in range(_TRITONS)]
        settings = {"models": {"cut": {"split": "oversize"}}}
        balancer = stack.enter_context(running(cast("list[Triton]", tritons), settings))
        ask = _ASK[given.protocol](stack, balancer)
        for round_number in range(given.rounds + 1):
            for model in _MODELS:
                before = _cpu_ns(balancer.pid)
                shape = ask(model)
                after = _cpu_ns(balancer.pid)
                assert shape == [_ROWS, 1], shape
                if round_number:
                    spent[model].append((after - before) / 1e6)
    middle = {model: statistics.median(times) for model, times in spent.items()}
    print(
        f"whole {middle['whole']:.1f} ms, cut in four {middle['cut']:.1f} ms of CPU a batch: "
        f"{middle['cut'] / middle['whole']:.2f} times"
    )


if __name__ == "__main__":
    main()
