"""Split batches while Tritons die, freeze or answer late, and while clients leave: there is a right
answer or one clear error, and nothing is left behind."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from lb.testing import running, simulated
from lb.testing.balancer import Balancer
from lb.testing.tritons import Triton
from tests.fakes.process import wait_until
from tests.integration.test_split import (
    INFER,
    LIMIT_S,
    ask,
    batch,
    expected,
    http_body,
    metric,
    post,
)

SETTINGS = {
    "models": {"simple": {"split": "oversize"}},
    "hedging": {"enabled": False},
}


@pytest.fixture
def tritons() -> Iterator[tuple[Triton, ...]]:
    # A part takes a second: parts are to be seen under way on a busy machine, too.
    with simulated(3, speeds=[0.002], models=["simple"]) as started:
        yield started


@pytest.fixture
def balancer(tritons: tuple[Triton, ...]) -> Iterator[Balancer]:
    with running(tritons, SETTINGS) as started:
        yield started


def wait_for_parts(balancer: Balancer, count: int) -> None:
    wait_until(
        lambda: metric(balancer, "triton_lb_backend_in_flight") >= count,
        timeout_s=LIMIT_S,
        what="parts are under way",
    )


def wait_for_nothing(balancer: Balancer) -> None:
    for name in ("triton_lb_backend_in_flight", "triton_lb_held_bytes", "triton_lb_open_requests"):
        wait_until(
            lambda name=name: metric(balancer, name) == 0, timeout_s=LIMIT_S, what=f"{name} is 0"
        )


@pytest.mark.parametrize("fault", [Triton.kill, Triton.freeze])
def test_parts_of_a_triton_that_dies_or_is_silent_run_elsewhere(
    tritons: tuple[Triton, ...], balancer: Balancer, fault: Callable[[Triton], None]
) -> None:
    messages: list[pb.ModelInferResponse] = []
    bodies: list[tuple[int, dict[str, str], bytes]] = []
    with grpc.insecure_channel(balancer.grpc) as channel:
        threads = [
            threading.Thread(target=lambda: messages.append(ask(channel, batch(40)))),
            threading.Thread(
                target=lambda: bodies.append(post(balancer.http, *http_body(40, binary=True)))
            ),
        ]
        for thread in threads:
            thread.start()
        wait_for_parts(balancer, 10)
        fault(tritons[0])
        for thread in threads:
            thread.join(LIMIT_S)
    [message], [(status, headers, body)] = messages, bodies
    assert list(message.raw_output_contents) == expected(40)
    assert status == 200
    assert body[int(headers["inference-header-content-length"]) :] == b"".join(expected(40))
    wait_for_nothing(balancer)
    if fault is Triton.freeze:
        tritons[0].thaw()


def test_a_deadline_ends_all_parts(balancer: Balancer) -> None:
    with grpc.insecure_channel(balancer.grpc) as channel:
        infer = channel.unary_unary(
            INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        with pytest.raises(grpc.RpcError) as failure:
            infer(batch(40), timeout=0.1)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for_nothing(balancer)


def test_a_client_that_cancels_ends_all_parts(balancer: Balancer) -> None:
    with grpc.insecure_channel(balancer.grpc) as channel:
        infer = channel.unary_unary(
            INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        future = infer.future(batch(40), timeout=LIMIT_S)
        wait_for_parts(balancer, 5)
        future.cancel()
        wait_for_nothing(balancer)


def test_an_http_client_that_leaves_frees_its_parts_once_they_are_computed(
    balancer: Balancer,
) -> None:
    text, fields = http_body(40, binary=True)
    host, _, port = balancer.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as client:
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        head = (
            f"POST /v2/models/simple/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(text)}\r\n"
        )
        client.sendall(f"{head}{lines}\r\n".encode() + text)
        wait_for_parts(balancer, 5)
    wait_for_nothing(balancer)


def test_no_triton_is_one_clear_error(tritons: tuple[Triton, ...], balancer: Balancer) -> None:
    for triton in tritons:
        triton.kill()
    with (
        grpc.insecure_channel(balancer.grpc) as channel,
        pytest.raises(grpc.RpcError) as failure,
    ):
        ask(channel, batch(40))
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    status, _, body = post(balancer.http, *http_body(40, binary=True))
    assert status in {502, 503}
    assert b"error" in body
    wait_for_nothing(balancer)
