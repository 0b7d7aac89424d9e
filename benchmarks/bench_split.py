"""CPU of the proxy for a batch of 64 images (38 MB) over gRPC or HTTP: cut in four, and whole. With
`--small` for requests of eight rows that stay whole, with `split: auto` and `off`.

    python -m benchmarks.bench_split
    python -m benchmarks.bench_split --protocol http
    python -m benchmarks.bench_split --protocol http --small

Both go to the same simulated Tritons, in turns: `cut` takes 16 rows, `whole` takes 64. Only the CPU
time of the proxy's process is compared, so that other load on the machine matters little.
"""

from __future__ import annotations

import json
import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from math import prod
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
_SMALL_MODELS = ("off", "auto")
_SMALL_ROWS = 8
_LESSONS = 100
_SMALL_AT_ONCE = 20
"""Requests of a model in turn."""


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
    sizes = {"cut": _ROWS // 4, "whole": _ROWS, "off": _ROWS, "auto": _ROWS}
    for name, rows in sizes.items():
        image = (1,) if name in _SMALL_MODELS else _IMAGE
        model = Model(
            name=name,
            inputs=(TensorSpec("IMAGES", "FP32", image),),
            outputs=(TensorSpec("CLASS", "INT32", (1,)),),
            run=_classify,
            max_batch_size=rows,
        )
        cast("dict[str, Model]", models.MODELS)[name] = model
    simulator.main(["--models", *sizes])


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


def _ask_grpc(stack: ExitStack, balancer: Balancer, shape: list[int]) -> Ask:
    options = [("grpc.max_send_message_length", -1)]
    channel = stack.enter_context(grpc.insecure_channel(balancer.grpc, options))
    infer = channel.unary_unary(_INFER)
    messages: dict[str, bytes] = {}

    def ask(model: str) -> list[int]:
        if model not in messages:
            messages[model] = _message(model, shape)
        answer = pb.ModelInferResponse.FromString(infer(messages[model], timeout=_LIMIT_S))
        return list(answer.outputs[0].shape)

    return ask


def _ask_http(stack: ExitStack, balancer: Balancer, shape: list[int]) -> Ask:
    host, _, port = balancer.http.rpartition(":")
    connection = stack.enter_context(closing(HTTPConnection(host, int(port), timeout=_LIMIT_S)))
    connection.connect()
    size = 4 * prod(shape)
    tensor = {
        "name": "IMAGES", "datatype": "FP32", "shape": shape,
        "parameters": {"binary_data_size": size},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + bytes(size)
    fields = f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(body)}"

    def ask(model: str) -> list[int]:
        # The head and the body in one, as clients of Triton send short requests.
        line = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {balancer.http}"
        connection.sock.sendall(f"{line}\r\n{fields}\r\n\r\n".encode() + body)
        answer = HTTPResponse(connection.sock)
        answer.begin()
        text = answer.read()
        end = int(answer.headers.get("Inference-Header-Content-Length", len(text)))
        found: list[int] = json.loads(text[:end])["outputs"][0]["shape"]
        return found

    return ask


_ASK = {"grpc": _ask_grpc, "http": _ask_http}


def _message(model: str, shape: list[int]) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="IMAGES", datatype="FP32", shape=shape)
    request.raw_input_contents.append(bytes(4 * prod(shape)))
    return request.SerializeToString()


def _teach(ask_one: Ask, ask: Ask) -> None:
    """Show what a row of the small models costs: next to nothing, so that no batch is divided."""
    for _ in range(_LESSONS):
        for model in _SMALL_MODELS:
            ask_one(model)
            ask(model)


def _measure(
    ask: Ask, pid: int, models: Sequence[str], rows: int, rounds: int, at_once: int
) -> dict[str, list[float]]:
    """Milliseconds of the CPU that a request takes in each round, by model."""
    spent: dict[str, list[float]] = {model: [] for model in models}
    for round_number in range(rounds + 1):
        for model in models if round_number % 2 else reversed(models):
            before = _cpu_ns(pid)
            for _ in range(at_once):
                shape = ask(model)
                assert shape == [rows, 1], shape
            if round_number:
                spent[model].append((_cpu_ns(pid) - before) / 1e6 / at_once)
    return spent


def main() -> None:
    """Measure, and print the ratio."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=sorted(_ASK), default="grpc")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--small", action="store_true", help="requests that stay whole")
    parser.add_argument("--serve", action="store_true", help="be a Triton of the benchmark")
    given = parser.parse_args()
    if given.serve:
        _serve()
        return
    models = _SMALL_MODELS if given.small else _MODELS
    rows, image = (_SMALL_ROWS, (1,)) if given.small else (_ROWS, _IMAGE)
    with ExitStack() as stack:
        tritons = [_start(stack, f"triton-{number}") for number in range(_TRITONS)]
        settings = {"models": {"cut": {"split": "oversize"}, "auto": {"split": "auto"}}}
        balancer = stack.enter_context(running(cast("list[Triton]", tritons), settings))
        ask = _ASK[given.protocol](stack, balancer, [rows, *image])
        if given.small:
            _teach(_ASK[given.protocol](stack, balancer, [1, *image]), ask)
        at_once = _SMALL_AT_ONCE if given.small else 1
        spent = _measure(ask, balancer.pid, models, rows, given.rounds, at_once)
    middle = {model: statistics.median(times) for model, times in spent.items()}
    first, second = models
    each = statistics.median(b / a for a, b in zip(spent[first], spent[second], strict=True))
    print(
        f"{first} {middle[first]:.3f} ms, {second} {middle[second]:.3f} ms of CPU a request: "
        f"{middle[second] / middle[first]:.3f} times; median of rounds {each:.3f}"
    )


if __name__ == "__main__":
    main()
