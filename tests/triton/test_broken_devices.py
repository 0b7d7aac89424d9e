"""Answers of real Tritons that name a broken device: another one is asked, however they are put."""

from __future__ import annotations

import queue
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.triton.balancer import RunningBalancer
from tests.triton.raw_http import ask_once, message
from tests.triton.target import WAIT_S, Target

_WHY = "CUDA error: device-side assert triggered"


def unary(target: Target) -> str:
    client = grpcclient.InferenceServerClient(target.grpc)
    with pytest.raises(Exception, match="CUDA") as caught:
        client.infer("failing", why())
    client.close()
    return str(caught.value)


def stream(target: Target) -> str:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client = grpcclient.InferenceServerClient(target.grpc)
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("failing", why())
    _, error = answers.get(timeout=WAIT_S)
    client.stop_stream()
    client.close()
    assert answers.empty()
    return str(error)


def generate(target: Target, path: str = "generate") -> str:
    body = b'{"WHY": "%b"}' % _WHY.encode()
    answer = ask_once(target.http, message("POST", f"/v2/models/failing/{path}", body))
    return str(answer)


def generate_stream(target: Target) -> str:
    return generate(target, "generate_stream")


def why() -> list[Any]:
    tensor = grpcclient.InferInput("WHY", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([_WHY.encode()], dtype=object))
    return [tensor]


def reruns(balancer: RunningBalancer) -> int:
    match = re.search(r"^triton_lb_reruns_total (\d+)", balancer.metrics_text(), re.MULTILINE)
    assert match is not None
    return int(match[1])


@pytest.mark.parametrize("ask", [unary, stream, generate, generate_stream])
def test_every_triton_is_asked_once_and_the_last_error_is_the_clients(
    ask: Callable[[Target], str], balancer: RunningBalancer
) -> None:
    before = reruns(balancer)
    assert _WHY in ask(balancer.target)
    assert reruns(balancer) == before + 2
