"""Requests of one stream are run by all Tritons, and answered in order."""

from __future__ import annotations

import queue
import time
from collections import Counter
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.server import RealTriton
from tests.triton.target import WAIT_S

REQUESTS = 24
TAKES_MS = 1000
INSTANCES = 4
"""Of the model, on each Triton."""


def sleep_for(milliseconds: int) -> list[Any]:
    tensor = grpcclient.InferInput("MILLISECONDS", [1], "INT32")
    tensor.set_data_from_numpy(np.array([milliseconds], dtype=np.int32))
    return [tensor]


def test_requests_of_one_stream_use_all_tritons_and_keep_their_order(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(balancer.target.grpc) as client:
        client.start_stream(lambda result, error: arrived.put((result, error)))
        began = time.monotonic()
        for number in range(REQUESTS):
            client.async_stream_infer("sleeper", sleep_for(TAKES_MS), request_id=f"{number}")
        answers = [arrived.get(timeout=WAIT_S) for _ in range(REQUESTS)]
        took_s = time.monotonic() - began
        client.stop_stream()
    assert [error for _, error in answers if error is not None] == []
    ids = [result.get_response().id for result, _ in answers]
    assert ids == [f"{number}" for number in range(REQUESTS)]
    served = Counter(result.as_numpy("SERVER").item().decode() for result, _ in answers)
    # How many each of them runs depends on how fast it seemed on a busy machine.
    assert set(served) == {triton.name for triton in tritons}
    alone_s = TAKES_MS / 1000 * REQUESTS / INSTANCES
    assert took_s < 0.8 * alone_s
    wait_until(lambda: balancer.in_flight() == 0, timeout_s=WAIT_S, what="the stream has ended")
