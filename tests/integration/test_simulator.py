"""The simulated Triton as a process, driven by NVIDIA's own client, unchanged."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio_client
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio_client
from tritonclient.utils import InferenceServerException

from lb.simulator.process import Ports

ONE = np.arange(16, dtype=np.int32).reshape(1, 16)
TWO = np.full((1, 16), 3, dtype=np.int32)
COMMAND = [sys.executable, "-m", "lb.simulator"]


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    with subprocess.Popen([*COMMAND, "--speed", "100"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Ports.from_json(process.stdout.readline())
        process.terminate()
        assert process.wait(timeout=30) == 0


@pytest.fixture(params=["http", "grpc"])
def module(request: pytest.FixtureRequest) -> Any:
    return {"http": http_client, "grpc": grpc_client}[request.param]


@pytest.fixture
def client(module: Any, ports: Ports) -> Iterator[Any]:
    port = ports.http_port if module is http_client else ports.grpc_port
    with module.InferenceServerClient(f"{ports.host}:{port}") as client:
        yield client


def inputs(module: Any, **arrays: np.ndarray) -> list[Any]:
    kinds = {"i": "INT32", "u": "UINT32", "f": "FP32", "O": "BYTES"}
    made = []
    for name, array in arrays.items():
        made.append(module.InferInput(name, list(array.shape), kinds[array.dtype.kind]))
        made[-1].set_data_from_numpy(array)
    return made


def repeat_inputs(values: list[int]) -> list[Any]:
    return inputs(
        grpc_client,
        IN=np.array(values, np.int32),
        DELAY=np.zeros(len(values), np.uint32),
        WAIT=np.zeros(1, np.uint32),
    )


def test_health_metadata_and_config(client: Any, module: Any) -> None:
    as_dict: dict[str, Any] = {} if module is http_client else {"as_json": True}
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("unknown")
    server = client.get_server_metadata(**as_dict)
    assert (server["name"], server["version"]) == ("triton", "2.51.0")
    metadata = client.get_model_metadata("simple", **as_dict)
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    config = client.get_model_config("simple", **as_dict)
    assert config.get("config", config)["max_batch_size"] == 8
    index = client.get_model_repository_index(**as_dict)
    models = index if isinstance(index, list) else index["models"]
    assert {"name": "simple", "version": "1", "state": "READY"} in models


def test_inference_adds_subtracts_and_is_counted(client: Any, module: Any) -> None:
    result = client.infer("simple", inputs(module, INPUT0=ONE, INPUT1=TWO), request_id="7")
    assert np.array_equal(result.as_numpy("OUTPUT0"), ONE + TWO)
    assert np.array_equal(result.as_numpy("OUTPUT1"), ONE - TWO)
    assert client.get_inference_statistics("simple")


def test_only_requested_outputs_are_sent(client: Any, module: Any) -> None:
    result = client.infer(
        "simple",
        inputs(module, INPUT0=ONE, INPUT1=TWO),
        outputs=[module.InferRequestedOutput("OUTPUT1")],
    )
    assert result.as_numpy("OUTPUT0") is None
    assert np.array_equal(result.as_numpy("OUTPUT1"), ONE - TWO)


@pytest.mark.parametrize(
    ("model", "array"),
    [
        ("identity_fp32", np.linspace(0, 1, 7, dtype=np.float32).reshape(1, 7)),
        ("identity_fp32", np.zeros((0,), np.float32)),
        ("identity_bytes", np.array([b"a", b"", "é".encode()], np.object_)),
    ],
)
def test_identity_echoes(client: Any, module: Any, model: str, array: np.ndarray) -> None:
    result = client.infer(model, inputs(module, INPUT0=array))
    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


def test_refusal_has_tritons_text(client: Any, module: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("unknown", inputs(module, INPUT0=ONE))
    assert caught.value.message() == "Request for unknown model: 'unknown' is not found"
    assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")


def test_four_mebibytes_pass_both_ways(client: Any, module: Any) -> None:
    array = np.random.default_rng(1).random(1 << 20, np.float32)
    result = client.infer("identity_fp32", inputs(module, INPUT0=array))
    assert np.array_equal(result.as_numpy("OUTPUT0"), array)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_http_compression_both_ways(ports: Ports, algorithm: str) -> None:
    with http_client.InferenceServerClient(f"{ports.host}:{ports.http_port}") as client:
        result = client.infer(
            "simple",
            inputs(http_client, INPUT0=ONE, INPUT1=TWO),
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
    assert np.array_equal(result.as_numpy("OUTPUT0"), ONE + TWO)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_grpc_compression(ports: Ports, algorithm: str) -> None:
    with grpc_client.InferenceServerClient(f"{ports.host}:{ports.grpc_port}") as client:
        result = client.infer(
            "simple",
            inputs(grpc_client, INPUT0=ONE, INPUT1=TWO),
            compression_algorithm=algorithm,
        )
    assert np.array_equal(result.as_numpy("OUTPUT0"), ONE + TWO)


@pytest.mark.parametrize("binary", [True, False])
def test_http_tensors_in_either_form(ports: Ports, binary: bool) -> None:
    given = [http_client.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor, array in zip(given, (ONE, TWO), strict=True):
        tensor.set_data_from_numpy(array, binary_data=binary)
    outputs = [http_client.InferRequestedOutput("OUTPUT0", binary_data=binary)]
    with http_client.InferenceServerClient(f"{ports.host}:{ports.http_port}") as client:
        result = client.infer("simple", given, outputs=outputs)
    assert np.array_equal(result.as_numpy("OUTPUT0"), ONE + TWO)


def test_http_async_inferences(ports: Ports) -> None:
    address = f"{ports.host}:{ports.http_port}"
    with http_client.InferenceServerClient(address, concurrency=4) as client:
        given = inputs(http_client, INPUT0=ONE, INPUT1=TWO)
        pending = [client.async_infer("simple", given) for _ in range(8)]
        for request in pending:
            assert np.array_equal(request.get_result().as_numpy("OUTPUT0"), ONE + TWO)


def test_grpc_stream_of_a_decoupled_model(ports: Ports) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with grpc_client.InferenceServerClient(f"{ports.host}:{ports.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer(
            "repeat_int32", repeat_inputs([7, 8, 9]), enable_empty_final_response=True
        )
        results = [answers.get(timeout=30) for _ in range(4)]
        client.stop_stream()
    assert [result.as_numpy("OUT")[0] for result in results[:3]] == [7, 8, 9]
    assert results[3].get_response().parameters["triton_final_response"].bool_param


def test_grpc_stream_goes_on_after_an_error(ports: Ports) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with grpc_client.InferenceServerClient(f"{ports.host}:{ports.grpc_port}") as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("unknown", inputs(grpc_client, INPUT0=ONE))
        client.async_stream_infer("simple", inputs(grpc_client, INPUT0=ONE, INPUT1=TWO))
        error, result = answers.get(timeout=30), answers.get(timeout=30)
        client.stop_stream()
    assert error.message() == "Request for unknown model: 'unknown' is not found"
    assert np.array_equal(result.as_numpy("OUTPUT0"), ONE + TWO)


def test_grpc_async_callbacks(ports: Ports) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with grpc_client.InferenceServerClient(f"{ports.host}:{ports.grpc_port}") as client:
        given = inputs(grpc_client, INPUT0=ONE, INPUT1=TWO)
        for _ in range(8):
            client.async_infer("simple", given, partial(lambda result, error: answers.put(result)))
        for _ in range(8):
            assert np.array_equal(answers.get(timeout=30).as_numpy("OUTPUT1"), ONE - TWO)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_asyncio_clients(ports: Ports, protocol: str) -> None:
    module, port = {
        "http": (http_aio_client, ports.http_port),
        "grpc": (grpc_aio_client, ports.grpc_port),
    }[protocol]
    async with module.InferenceServerClient(f"{ports.host}:{port}") as client:
        result = await client.infer("simple", inputs(module, INPUT0=ONE, INPUT1=TWO))
    assert np.array_equal(result.as_numpy("OUTPUT0"), ONE + TWO)


def test_metrics_count_inferences(client: Any, module: Any, ports: Ports) -> None:
    client.infer("simple", inputs(module, INPUT0=ONE, INPUT1=TWO))
    with urllib.request.urlopen(f"http://{ports.host}:{ports.metrics_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith('nv_inference_count{model="simple"')]
    assert int(line.rpartition(" ")[2]) >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_ends_cleanly_on_a_signal(number: signal.Signals) -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_process_serves_the_chosen_models_only() -> None:
    command = [*COMMAND, "--models", "simple", "sleeper"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        chosen = Ports.from_json(process.stdout.readline())
        with http_client.InferenceServerClient(f"{chosen.host}:{chosen.http_port}") as client:
            names = [model["name"] for model in client.get_model_repository_index()]
        process.terminate()
    assert names == ["simple", "sleeper"]


def test_it_listens_on_ipv6_as_well() -> None:
    command = [*COMMAND, "--host", "::1", "--models", "simple"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            found = Ports.from_json(process.stdout.readline())
            assert found.host == "::1"
            for port in (found.http_port, found.metrics_port):
                path = "metrics" if port == found.metrics_port else "v2/health/ready"
                with urllib.request.urlopen(f"http://{found.address(port)}/{path}") as answer:
                    assert answer.status == 200
            target = f"ipv6:{found.address(found.grpc_port)}"
            with grpc_client.InferenceServerClient(target) as client:
                assert client.is_server_ready()
        finally:
            process.terminate()
            assert process.wait(timeout=30) == 0
