"""Requests whose heads no Triton reads: it ends them without an answer, and that must not speak
against it. Other clients ask for the same model all the while."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from tests.triton.balancer import RunningBalancer
from tests.triton.raw_grpc import SERVICE, call_on_the_wire
from tests.triton.raw_http import ask_once, message
from tests.triton.server import RealTriton
from tests.triton.target import WAIT_S, Target

_INFER = "ModelInfer"
_INTERNAL = b"13"
_TIMES = 300
_PAUSE_S = 0.01
"""Between two good requests: a client that is slower than the bad one."""
_BAD_BINARY = ("x-foo-bin", "not!base64")
_BAD_ENCODING = ("grpc-encoding", "foo")
_REQUEST = pb.ModelInferRequest(
    model_name="identity_fp32",
    inputs=[pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1])],
    raw_input_contents=[bytes(4)],
).SerializeToString()
_JSON = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]}]}'


@pytest.fixture
def pair(tmp_path: Path, tritons: tuple[RealTriton, ...]) -> Iterator[RunningBalancer]:
    """A balancer before two of the Tritons."""
    yield from RunningBalancer.run(tmp_path, tritons[:2])


def ejections(balancer: RunningBalancer) -> list[str]:
    return re.findall(r"^triton_lb_backend_ejections_total.*", balancer.metrics_text(), re.M)


@contextmanager
def good_client(balancer: RunningBalancer) -> Iterator[None]:
    """One that asks one good request after the other, and gets its answers."""
    is_over = threading.Event()

    def ask() -> int:
        count = 0
        with grpc.insecure_channel(balancer.target.grpc) as channel:
            infer = channel.unary_unary(SERVICE + _INFER)
            while not is_over.wait(_PAUSE_S):
                infer(_REQUEST, timeout=WAIT_S)
                count += 1
        return count

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask)
        try:
            yield
        finally:
            is_over.set()
        assert asked.result(WAIT_S) > 0


def grpc_status(target: Target, *metadata: tuple[str, str]) -> tuple[bytes, bytes]:
    """Status and text; empty for a reset."""
    outcome = call_on_the_wire(target.grpc, _INFER, _REQUEST, *metadata)
    found = dict(outcome.heads[-1]) if outcome.heads else {}
    return found.get(b"grpc-status", b""), found.get(b"grpc-message", b"")


def test_binary_metadata_that_is_not_base64_is_told_in_words(
    balancer: RunningBalancer, reference: Target
) -> None:
    assert grpc_status(reference, _BAD_BINARY) == (b"", b"")
    status, text = grpc_status(balancer.target, _BAD_BINARY)
    assert status == _INTERNAL
    assert b"-bin is not base64" in text


def test_what_every_triton_resets_ejects_none(pair: RunningBalancer, reference: Target) -> None:
    assert grpc_status(reference, _BAD_ENCODING) == (b"", b"")
    with good_client(pair):
        for _ in range(_TIMES):
            status, text = grpc_status(pair.target, _BAD_ENCODING)
            assert status == _INTERNAL
            assert b"reset the request" in text
    assert ejections(pair) == []


def test_what_every_triton_closes_its_connection_upon_ejects_none(pair: RunningBalancer) -> None:
    # Triton reads 8 KiB of fields.
    long = "X-Long: " + "a" * 9000
    bad = message("POST", "/v2/models/identity_fp32/infer", _JSON, long)
    with good_client(pair):
        for _ in range(_TIMES):
            assert ask_once(pair.target.http, bad).status == 502
    assert ejections(pair) == []
