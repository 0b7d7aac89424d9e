"""Batches that are cut get the answer of a Triton that takes them whole, byte for byte: every data
type, in all forms that requests have, with inputs and outputs alone and together."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import triton_to_np_dtype

from tests.fakes.process import wait_until
from tests.fakes.serving import metric
from tests.triton.balancer import RunningBalancer
from tests.triton.batched import (
    DATA_TYPES,
    LABELS,
    MAX_ROWS,
    OF_SUMMED,
    BatchTriton,
    batch_tritons,
)
from tests.triton.records import Records
from tests.triton.target import WAIT_S
from tests.triton.tensors import Array

CUT, WHOLE = "echo", "echo_whole"
CUT_CLASSES, WHOLE_CLASSES = "classes", "classes_whole"
COLUMNS = 3
LONG = 70_000
CONTENTS = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "INT8": "int_contents",
    "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""Fields of typed contents. FP16 and BF16 have none, and no form in JSON."""
FORMS = ("raw", "typed", "binary", "json")


class Given(NamedTuple):
    """An input."""

    name: str
    datatype: str
    values: Array


class Pair(NamedTuple):
    """A balancer that cuts batches, and a Triton that takes them whole."""

    balancer: RunningBalancer
    triton: BatchTriton

    def cut(self) -> float:
        return metric(self.balancer.metrics, "triton_lb_split_batches_total")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, records: Records) -> Iterator[Pair]:
    workspace = tmp_path_factory.mktemp("golden")
    models = (CUT, WHOLE, CUT_CLASSES, WHOLE_CLASSES)
    with batch_tritons(3, workspace, records.directory, *models) as tritons:
        settings = {each: {"split": "oversize"} for each in (CUT, CUT_CLASSES)}
        for running in RunningBalancer.run(workspace, tritons, models=settings):
            found = Pair(running, tritons[0])
            wait_until(lambda: _is_known(found), timeout_s=WAIT_S, what="the model is known")  # noqa: B023
            yield found


def _is_known(pair: Pair) -> bool:
    tensor = Given("IN", "FP32", np.zeros((MAX_ROWS + 1, len(LABELS)), np.float32))
    try:
        ask_grpc(pair.balancer.target.grpc, CUT, raw([given("INT8", MAX_ROWS + 1)]))
        ask_grpc(pair.balancer.target.grpc, CUT_CLASSES, raw([tensor]))
    except grpc.RpcError:
        return False
    return True


def given(datatype: str, rows: int, name: str = "") -> Given:
    """A tensor whose rows differ from their neighbours."""
    numbers = np.arange(rows * COLUMNS).reshape(rows, COLUMNS)
    name = name or f"IN_{datatype}"
    if datatype == "BYTES":
        texts = [str(number).encode() * (number % 3) for number in numbers.flat]
        return Given(name, datatype, np.array(texts, dtype=np.object_).reshape(numbers.shape))
    most = 2 if datatype == "BOOL" else 61
    return Given(name, datatype, (numbers * 7 % most).astype(triton_to_np_dtype(datatype)))


def column(texts: list[bytes]) -> Given:
    """A text for each row."""
    return Given("IN_BYTES", "BYTES", np.array(texts, dtype=np.object_).reshape(-1, 1))


def raw(tensors: list[Given]) -> Any:
    """A request of NVIDIA's gRPC client."""
    request = service_pb2.ModelInferRequest(id="7")
    for each in tensors:
        made = grpcclient.InferInput(each.name, list(each.values.shape), each.datatype)
        made.set_data_from_numpy(each.values)
        request.inputs.append(made._get_tensor())
        request.raw_input_contents.append(made._get_content())
    return request


def typed(tensors: list[Given]) -> Any:
    """A request with typed contents, as NVIDIA's examples of explicit contents make them."""
    request = service_pb2.ModelInferRequest(id="7")
    for each in tensors:
        tensor = request.inputs.add(
            name=each.name, datatype=each.datatype, shape=list(each.values.shape)
        )
        getattr(tensor.contents, CONTENTS[each.datatype]).extend(each.values.flatten().tolist())
    return request


def ask_grpc(address: str, model: str, request: Any) -> tuple[Any, list[bytes]]:
    """What is answered: the outputs, and their bytes."""
    request.model_name = model
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(address, options) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        answer = infer(request, timeout=WAIT_S)
    assert answer.model_name == model
    content = [(each.name, each.datatype, list(each.shape)) for each in answer.outputs]
    return (answer.id, answer.model_version, content), list(answer.raw_output_contents)


def ask_http(
    address: str, model: str, tensors: list[Given], outputs: list[str], *, binary: bool
) -> tuple[Any, bytes]:
    """What is answered: the JSON, and what follows it."""
    inputs = []
    for each in tensors:
        made = httpclient.InferInput(each.name, list(each.values.shape), each.datatype)
        made.set_data_from_numpy(each.values, binary_data=binary)
        inputs.append(made)
    wanted = [httpclient.InferRequestedOutput(name, binary_data=binary) for name in outputs]
    body, size = httpclient.InferenceServerClient.generate_request_body(
        inputs, outputs=wanted, request_id="7"
    )
    fields = {} if size is None else {"Inference-Header-Content-Length": str(size)}
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_S)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body, fields)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    assert answer.status == 200, data[:500]
    end = int(answer.headers.get("Inference-Header-Content-Length", len(data)))
    content = json.loads(data[:end])
    assert content.pop("model_name") == model
    return content, data[end:]


def ask(address: Any, model: str, form: str, tensors: list[Given]) -> tuple[Any, Any]:
    """Ask in one of the forms, over the protocol that it belongs to."""
    if form in ("raw", "typed"):
        return ask_grpc(address.grpc, model, raw(tensors) if form == "raw" else typed(tensors))
    outputs = [re.sub("^IN", "OUT", each.name) for each in tensors if each.name[:2] == "IN"]
    outputs += OF_SUMMED if len(outputs) < len(tensors) else ()
    return ask_http(address.http, model, tensors, outputs, binary=form == "binary")


def check(pair: Pair, form: str, tensors: list[Given]) -> None:
    """The answers are the same, and the batch was cut if it has to be."""
    before = pair.cut()
    rows = len(tensors[0].values)
    found = ask(pair.balancer.target, CUT, form, tensors)
    assert found == ask(pair.triton.target, WHOLE, form, tensors)
    assert pair.cut() - before == (rows > MAX_ROWS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("datatype", DATA_TYPES)
def test_each_data_type_alone(pair: Pair, datatype: str, form: str) -> None:
    if datatype not in CONTENTS and form in ("typed", "json"):
        form = "raw"
    for rows in (1, MAX_ROWS + 1, 60):
        check(pair, form, [given(datatype, rows)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [9, 1000])
def test_several_inputs_and_outputs(pair: Pair, form: str, rows: int) -> None:
    kinds = DATA_TYPES if form in ("raw", "binary") else CONTENTS
    check(pair, form, [given(each, rows) for each in kinds])


@pytest.mark.parametrize("form", FORMS)
def test_sums_of_numbers_and_texts(pair: Pair, form: str) -> None:
    rows = 1000
    numbers = [given("INT32", rows, name) for name in ("LEFT", "RIGHT")]
    check(pair, form, [*numbers, *(given("BYTES", rows, name) for name in ("FIRST", "SECOND"))])


@pytest.mark.parametrize("form", FORMS)
def test_long_and_empty_texts(pair: Pair, form: str) -> None:
    texts = [b"x" * LONG if number % 5 == 0 else b"" for number in range(20)]
    check(pair, form, [column(texts)])


@pytest.mark.parametrize("form", ["raw", "binary"])
def test_a_thousand_long_texts(pair: Pair, form: str) -> None:
    texts = [b"%d" % number * (number % 7) for number in range(1000)]
    texts[17] = texts[998] = bytes(range(256)) * (LONG // 256)
    check(pair, form, [column(texts)])


@pytest.mark.parametrize("client", [grpcclient, httpclient])
def test_names_of_classes(pair: Pair, client: Any) -> None:
    """As NVIDIA's `image_client.py` asks for them."""
    rows = 20
    scores = np.random.default_rng(3).random((rows, len(LABELS)), dtype=np.float32)
    tensor = client.InferInput("IN", list(scores.shape), "FP32")
    tensor.set_data_from_numpy(scores)
    outputs = [client.InferRequestedOutput("SCORES", class_count=2)]
    before = pair.cut()
    found = []
    for target, model in (
        (pair.balancer.target, CUT_CLASSES),
        (pair.triton.target, WHOLE_CLASSES),
    ):
        address = target.grpc if client is grpcclient else target.http
        with client.InferenceServerClient(address) as asked:
            found.append(asked.infer(model, [tensor], outputs=outputs).as_numpy("SCORES"))
    assert found[0].shape == (rows, 2)
    assert (found[0] == found[1]).all()
    best = [LABELS[at].encode() for at in scores.argmax(axis=1)]
    assert [each[0].split(b":")[2] for each in found[0]] == best
    assert pair.cut() == before + 1
