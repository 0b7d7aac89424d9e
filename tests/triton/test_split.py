"""Batches that are larger than a model takes, with three real Tritons and NVIDIA's clients: the
answer is that of the rows one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.fakes.process import wait_until
from tests.fakes.serving import metric
from tests.triton.balancer import RunningBalancer
from tests.triton.server import RealTriton
from tests.triton.tensors import texts

PATIENCE_S = 30.0
MODELS = {name: {"split": "oversize"} for name in ("simple", "simple_int8", "simple_string")}
TYPES = {"simple": "INT32", "simple_int8": "INT8", "simple_string": "BYTES"}


@pytest.fixture(scope="module")
def splitting(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...]
) -> Iterator[RunningBalancer]:
    """A balancer that cuts batches, before three Tritons."""
    folder: Path = tmp_path_factory.mktemp("split")
    for running in RunningBalancer.run(folder, tritons, models=MODELS):
        with grpcclient.InferenceServerClient(running.target.grpc) as client:
            wait_until(
                lambda client=client: _is_known(client),  # type: ignore[misc]
                timeout_s=PATIENCE_S,
                what="the configurations of the models are known",
            )
        yield running


def _is_known(client: grpcclient.InferenceServerClient) -> bool:
    try:
        for model in MODELS:
            client.infer(model, inputs(grpcclient, model, 9))
    except InferenceServerException:
        return False
    return True


def values(model: str, rows: int) -> tuple[Any, Any]:
    """Both inputs of a batch."""
    numbers = np.arange(rows * 16, dtype=np.int64).reshape(rows, 16)
    left, right = numbers * 7 % 61, numbers % 13
    if model == "simple_string":
        return texts(left), texts(right)
    kind = np.int8 if model == "simple_int8" else np.int32
    return left.astype(kind), right.astype(kind)


def inputs(client: Any, model: str, rows: int, **how: Any) -> list[Any]:
    """A batch for NVIDIA's clients."""
    made = []
    for name, data in zip(("INPUT0", "INPUT1"), values(model, rows), strict=True):
        tensor = client.InferInput(name, list(data.shape), TYPES[model])
        tensor.set_data_from_numpy(data, **how)
        made.append(tensor)
    return made


def check(model: str, rows: int, result: Any) -> None:
    left, right = (each.astype(np.int64) for each in values(model, rows))
    for name, wanted in (("OUTPUT0", left + right), ("OUTPUT1", left - right)):
        found = result.as_numpy(name)
        assert found.shape == (rows, 16)
        assert (found.astype(np.int64) == wanted).all()


@pytest.mark.parametrize("rows", [9, 100, 1000])
@pytest.mark.parametrize("model", MODELS)
def test_grpc_batches_are_answered(splitting: RunningBalancer, model: str, rows: int) -> None:
    with grpcclient.InferenceServerClient(splitting.target.grpc) as client:
        result = client.infer(model, inputs(grpcclient, model, rows), request_id="named")
    check(model, rows, result)
    assert result.get_response().id == "named"


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("rows", [9, 100, 1000])
@pytest.mark.parametrize("model", MODELS)
def test_http_batches_are_answered(
    splitting: RunningBalancer, model: str, rows: int, binary: bool
) -> None:
    outputs = [
        httpclient.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")
    ]
    client = httpclient.InferenceServerClient(splitting.target.http, network_timeout=PATIENCE_S)
    given = inputs(httpclient, model, rows, binary_data=binary)
    check(model, rows, client.infer(model, given, outputs=outputs))
    client.close()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_batches_are_answered(splitting: RunningBalancer, algorithm: str) -> None:
    client = httpclient.InferenceServerClient(splitting.target.http, network_timeout=PATIENCE_S)
    given = inputs(httpclient, "simple", 100)
    result = client.infer(
        "simple",
        given,
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    client.close()
    check("simple", 100, result)


def test_the_answer_is_byte_for_byte_that_of_its_parts(
    splitting: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    def ask(address: str, first: int, count: int) -> list[bytes]:
        with grpcclient.InferenceServerClient(address) as client:
            made = []
            for name, data in zip(("INPUT0", "INPUT1"), values("simple", 20), strict=True):
                tensor = grpcclient.InferInput(name, [count, 16], "INT32")
                tensor.set_data_from_numpy(data[first : first + count])
                made.append(tensor)
            return list(client.infer("simple", made).get_response().raw_output_contents)

    whole = ask(splitting.target.grpc, 0, 20)
    parts = [ask(tritons[0].target.grpc, first, 5) for first in (0, 5, 10, 15)]
    assert whole == [b"".join(part[place] for part in parts) for place in (0, 1)]


def test_every_triton_gets_parts(
    splitting: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    def attempts() -> list[float]:
        address = splitting.metrics
        name = "triton_lb_backend_attempts_total"
        series = [f'{name}{{backend="{each.name}",protocol="grpc"}}' for each in tritons]
        return [metric(address, each) for each in series]

    before = attempts()
    with grpcclient.InferenceServerClient(splitting.target.grpc) as client:
        client.infer("simple", inputs(grpcclient, "simple", 1000))
    assert all(after > earlier for after, earlier in zip(attempts(), before, strict=True))
