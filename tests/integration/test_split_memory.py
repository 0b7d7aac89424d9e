"""Batches whose answers are longer than memory allows at once: they are answered one after the
other, and nobody else is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from lb.testing import running
from lb.testing.balancer import Balancer
from tests.fakes.batch_models import WIDTH, batch_tritons
from tests.integration.test_split import INFER, LIMIT_S, metric, post
from tests.integration.test_split_auto import batch, body

ROWS = 8
BATCHES = 8
MEMORY = "40MiB"
"""Less than the answers to all batches, and more than one needs."""


def by_http(balancer: Balancer) -> int:
    text, fields = body(ROWS, "wide")
    status, headers, answer = post(balancer.http, text, fields, model="wide")
    assert status == 200, answer
    return len(answer) - int(headers["inference-header-content-length"])


def by_grpc(balancer: Balancer) -> int:
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(balancer.grpc, options=options) as channel:
        infer = channel.unary_unary(
            INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        (output,) = infer(batch(ROWS, "wide"), timeout=LIMIT_S).raw_output_contents
        return len(output)


@pytest.mark.parametrize("ask", [by_http, by_grpc])
def test_answers_that_are_joined_refuse_nobody_memory(ask: Callable[[Balancer], int]) -> None:
    settings = {
        "models": {"wide": {"split": "auto"}},
        "limits": {"memory_bytes": MEMORY},
    }
    statuses: set[int] = set()
    over = threading.Event()
    with batch_tritons(2) as tritons, running(tritons, settings) as balancer:

        def others() -> None:
            text, fields = body(1, "linear")
            while not over.is_set():
                statuses.add(post(balancer.http, text, fields, model="linear")[0])

        with ThreadPoolExecutor(BATCHES + 1) as pool:
            try:
                other = pool.submit(others)
                sizes = list(pool.map(lambda _: ask(balancer), range(BATCHES)))
            finally:
                over.set()
            other.result()
        assert sizes == [ROWS * WIDTH] * BATCHES
        assert statuses == {200}
        assert metric(balancer, "triton_lb_held_bytes") == 0
