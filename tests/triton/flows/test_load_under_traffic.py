"""Models go and come on all servers while another one is in use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.flows.kit import Kit
from tests.triton.server import RealTriton
from tests.triton.tensors import numbers, pair, texts

SLOW_START = b"""
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(1.5)

    def execute(self, requests):
        made = pb_utils.Tensor("OUT", np.array([1], dtype=np.int32))
        return [pb_utils.InferenceResponse([made]) for _ in requests]
"""
SLOW_CONFIG = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
}


class Traffic:
    """Requests for one model, one after the other in each thread, until `stop`."""

    def __init__(self, *infers: Callable[[], Any]) -> None:
        self.answered = 0
        self.errors: list[Exception] = []
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(infer,)) for infer in infers]
        for thread in self._threads:
            thread.start()

    def _run(self, infer: Callable[[], Any]) -> None:
        while not self._stopping.is_set():
            try:
                infer()
                self.answered += 1
            except Exception as error:
                self.errors.append(error)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)


def states(triton: RealTriton) -> dict[str, str]:
    with httpclient.InferenceServerClient(triton.target.http) as client:
        return Kit(httpclient, client).index()


def ready_models(triton: RealTriton) -> set[str]:
    return {name for name, state in states(triton).items() if state == "READY"}


def test_no_request_of_another_model_fails(
    controlling_balancer: RunningBalancer, controlled_tritons: tuple[RealTriton, ...]
) -> None:
    target = controlling_balancer.target
    backends = controlled_tritons[:3]
    ready = ready_models(backends[0])
    left, right = numbers(seed=60)
    strings = (texts(left), texts(right))
    with (
        httpclient.InferenceServerClient(target.http, concurrency=2) as over_http,
        grpcclient.InferenceServerClient(target.grpc) as over_grpc,
    ):
        http_inputs, grpc_inputs = pair(httpclient, strings), pair(grpcclient, strings)
        traffic = Traffic(
            lambda: over_http.infer("simple_string", http_inputs),
            lambda: over_grpc.infer("simple_string", grpc_inputs),
        )
        try:
            for client in (over_grpc, over_http):
                client.unload_model("simple")
                assert not client.is_model_ready("simple")
                client.load_model("simple")
                assert client.is_model_ready("simple")
            over_grpc.load_model(
                "slow_start", config=json.dumps(SLOW_CONFIG), files={"file:1/model.py": SLOW_START}
            )
            assert over_http.is_model_ready("slow_start")
            over_grpc.unload_model("slow_start")
            wait_until(
                lambda: all("UNLOADING" not in states(triton).values() for triton in backends),
                timeout_s=30,
                what="all models have settled",
            )
        finally:
            traffic.stop()
    assert [ready_models(triton) for triton in backends] == [ready] * 3
    first, second, third = (states(triton) for triton in backends)
    assert first == second == third
    assert traffic.errors == []
    assert traffic.answered > 100
    wait_until(
        controlling_balancer.all_in_rotation, timeout_s=30, what="all are ready altogether again"
    )
