"""Models are loaded, unloaded and configured anew through one address."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
from tritonclient.utils import InferenceServerException

from tests.fakes.process import wait_until
from tests.triton.flows.kit import Kit
from tests.triton.target import Target
from tests.triton.tensors import check_sum_and_difference, numbers, pair

MODEL = "simple_int8"
"""Not loaded at the start."""
MANY = 12
"""Enough requests to reach every server behind the balancer."""


def infer(kit: Kit, model: str = "simple") -> None:
    values = numbers()
    check_sum_and_difference(kit.client.infer(model, pair(kit.module, values)), values)


def config(kit: Kit, model: str) -> dict[str, Any]:
    answer = kit.json("get_model_config", model)
    found: dict[str, Any] = answer if kit.is_http else answer["config"]
    return found


def test_models_are_loaded_and_unloaded(control_kit: Kit) -> None:
    client = control_kit.client
    assert not client.is_model_ready(MODEL)
    client.load_model(MODEL)
    assert client.is_model_ready(MODEL)
    assert control_kit.index()[MODEL] == "READY"
    assert config(control_kit, MODEL)["name"] == MODEL
    client.unload_model(MODEL)
    assert not client.is_model_ready(MODEL)
    # The model's instances go while the state is UNLOADING.
    wait_until(
        lambda: control_kit.index()[MODEL] == "UNAVAILABLE", timeout_s=30, what="it is unloaded"
    )


def test_unloaded_models_are_refused_and_loaded_ones_serve_at_once(control_kit: Kit) -> None:
    client = control_kit.client
    for _ in range(2):
        client.unload_model("simple")
        assert not client.is_model_ready("simple")
        for _ in range(MANY):
            with pytest.raises(
                InferenceServerException, match="Request for unknown model: 'simple'"
            ):
                infer(control_kit)
        client.load_model("simple")
        assert client.is_model_ready("simple")
        for _ in range(MANY):
            infer(control_kit)


def test_ready_models_alone_are_listed_on_request(control_kit: Kit, controlled: Target) -> None:
    with grpcclient.InferenceServerClient(controlled.grpc) as client:
        stub = client._client_stub
        request = grpcclient.service_pb2.RepositoryIndexRequest(ready=True)
        ready = {entry.name for entry in stub.RepositoryIndex(request, timeout=60).models}
    assert ready == {name for name, state in control_kit.index().items() if state == "READY"}


def test_unknown_models_cannot_be_loaded(control_kit: Kit) -> None:
    with pytest.raises(InferenceServerException, match="failed to load 'nosuch'"):
        control_kit.client.load_model("nosuch")
    assert not control_kit.client.is_model_ready("nosuch")


def test_unknown_models_may_be_unloaded(control_kit: Kit) -> None:
    control_kit.client.unload_model("nosuch")


def test_configurations_may_be_given_with_the_load(control_kit: Kit) -> None:
    client = control_kit.client
    override = config(control_kit, "simple") | {"max_batch_size": 3}
    client.load_model("simple", config=json.dumps(override))
    for _ in range(MANY):
        assert config(control_kit, "simple")["max_batch_size"] == 3
        infer(control_kit)
    client.unload_model("simple")
    client.load_model("simple")
    assert config(control_kit, "simple")["max_batch_size"] == 8


def test_bad_configurations_are_refused_and_the_model_goes_on(control_kit: Kit) -> None:
    client = control_kit.client
    with pytest.raises(InferenceServerException):
        client.load_model("simple", config='{"max_batch_size": "many"}')
    for _ in range(MANY):
        infer(control_kit)


def test_files_may_be_given_with_the_load(control_kit: Kit, controlled: Target) -> None:
    client = control_kit.client
    source = (
        b"import numpy as np\n"
        b"import triton_python_backend_utils as pb_utils\n"
        b"class TritonPythonModel:\n"
        b"    def execute(self, requests):\n"
        b"        made = pb_utils.Tensor('OUT', np.array([41], dtype=np.int32))\n"
        b"        return [pb_utils.InferenceResponse([made]) for _ in requests]\n"
    )
    description = {
        "backend": "python",
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
    }
    client.load_model("sent", config=json.dumps(description), files={"file:1/model.py": source})
    made = control_kit.module.InferInput("IN", [1], "INT32")
    made.set_data_from_numpy(numbers()[0].flatten()[:1])
    for _ in range(MANY):
        assert client.infer("sent", [made]).as_numpy("OUT").item() == 41
    client.unload_model("sent")
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'sent'"):
        client.infer("sent", [made])


def test_ensembles_bring_their_models_and_take_them_away(control_kit: Kit) -> None:
    client = control_kit.client
    client.unload_model("simple")
    client.load_model("simple_ensemble")
    for name in ("simple_ensemble", "simple"):
        for _ in range(MANY):
            infer(control_kit, name)
    client.unload_model("simple_ensemble", unload_dependents=True)
    for name in ("simple_ensemble", "simple"):
        assert not client.is_model_ready(name)
    client.load_model("simple")
    infer(control_kit)


async def test_asyncio_clients_control_models(controlled: Target) -> None:
    async with grpcaio.InferenceServerClient(controlled.grpc) as client:
        await client.load_model(MODEL)
        assert await client.is_model_ready(MODEL)
        await client.unload_model(MODEL)
        assert not await client.is_model_ready(MODEL)
