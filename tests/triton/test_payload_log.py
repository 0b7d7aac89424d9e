"""The payload log of real inferences: its lines say what was asked, and can be asked again."""

from __future__ import annotations

import http.client
import json
import queue
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.fakes.process import wait_until, whole_lines
from tests.triton.balancer import RunningBalancer
from tests.triton.server import RealTriton
from tests.triton.target import WAIT_S, Target
from tests.triton.tensors import milliseconds, numbers, pair, tensor, texts

Event = dict[str, Any]


class Logged:
    """A balancer that logs every payload."""

    def __init__(self, balancer: RunningBalancer, path: Path) -> None:
        self.balancer = balancer
        self.target = balancer.target
        self.path = path

    def lines(self) -> list[str]:
        """The lines so far."""
        return whole_lines(self.path)

    def exchange(self, request_id: str) -> tuple[Event, Event]:
        """Request and response of an id, once they are written."""

        def events() -> list[Event]:
            return [
                event for line in self.lines() if (event := json.loads(line))["id"] == request_id
            ]

        wait_until(lambda: len(events()) == 2, timeout_s=WAIT_S, what="both lines")
        request, response = events()
        return request, response


@pytest.fixture(scope="module")
def logged(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...]
) -> Iterator[Logged]:
    folder = tmp_path_factory.mktemp("payloads")
    path = folder / "payloads.jsonl"
    sections = {"payload_log": {"path": str(path), "models": {"*": 1.0, "sleeper": 0.0}}}
    for balancer in RunningBalancer.run(folder, tritons, **sections):
        yield Logged(balancer, path)


def raw_post(address: str, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """POST without a client library: status and body."""
    connection = http.client.HTTPConnection(address, timeout=WAIT_S)
    try:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, body, fields)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def replay(path: Path, target: Target, *options: str) -> CompletedProcess[str]:
    """Run the command."""
    command = (sys.executable, "-m", "lb", "replay", str(path), "--to", target.http, *options)
    return run(command, capture_output=True, text=True, timeout=60.0, check=False)


def values_of(event: Event, name: str) -> object:
    parts = (*event["data"].get("inputs", ()), *event["data"].get("outputs", ()))
    return next(part["data"] for part in parts if part["name"] == name)


@pytest.mark.parametrize("binary", [True, False])
def test_http_tensors_are_logged_as_values(logged: Logged, binary: bool) -> None:
    values = numbers(batch=1)
    with httpclient.InferenceServerClient(logged.target.http) as client:
        client.infer(
            "simple",
            pair(httpclient, values, binary_data=binary),
            headers={"x-request-id": f"http-{binary}"},
        )
    request, response = logged.exchange(f"http-{binary}")
    assert request["type"] == "org.kubeflow.serving.inference.request"
    assert response["type"] == "org.kubeflow.serving.inference.response"
    assert request["inferenceservicename"] == response["inferenceservicename"] == "simple"
    assert (response["status"], response["backend"] != "") == ("200", True)
    assert np.ravel(values_of(request, "INPUT0")).tolist() == values[0].ravel().tolist()
    assert values_of(response, "OUTPUT0") == (values[0] + values[1]).ravel().tolist()


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_grpc_tensors_are_logged_as_values(logged: Logged, compression: str | None) -> None:
    values = numbers(batch=1)
    request_id = f"grpc-{compression}"
    with grpcclient.InferenceServerClient(logged.target.grpc) as client:
        client.infer(
            "simple",
            pair(grpcclient, values),
            headers={"x-request-id": request_id},
            compression_algorithm=compression,
        )
    request, response = logged.exchange(request_id)
    assert request.get("contentencoding") == compression
    assert request["data"]["model_name"] == "simple"
    assert values_of(request, "INPUT1") == values[1].ravel().tolist()
    assert values_of(response, "OUTPUT1") == (values[0] - values[1]).ravel().tolist()
    assert response["status"] == "OK"


def record_inferences(target: Target) -> int:
    """Ask in every form that NVIDIA's clients have, and in those of others. Returns how often."""
    values, image = numbers(batch=4), np.linspace(-1e30, 1e30, 5000, dtype=np.float32)
    words = (texts(values[0]), texts(values[1]))
    count = 0
    with httpclient.InferenceServerClient(target.http, network_timeout=WAIT_S) as web:
        for binary, sent, wanted in (
            (True, None, None), (False, None, None), (True, "gzip", "deflate"),
            (False, "deflate", "gzip"),
        ):  # fmt: skip
            how = {"request_compression_algorithm": sent, "response_compression_algorithm": wanted}
            web.infer("simple", pair(httpclient, values, binary_data=binary), **how)
            web.infer("simple_string", pair(httpclient, words, binary_data=binary), **how)
            large = [tensor(httpclient, "INPUT0", image, binary_data=binary)]
            web.infer("identity_fp32", large, **how)
            count += 3
    with grpcclient.InferenceServerClient(target.grpc) as rpc:
        for compression in (None, "gzip"):
            how = {"compression_algorithm": compression}
            rpc.infer("simple", pair(grpcclient, values), **how)
            rpc.infer("simple_string", pair(grpcclient, words), **how)
            rpc.infer("identity_fp32", [tensor(grpcclient, "INPUT0", image)], **how)
            count += 3
    path = "/v2/models/identity_fp32/infer"
    raw = {"Inference_Header_Content_Length": "0", "Content_Type": "application/octet-stream"}
    status, _ = raw_post(target.http, path, image.tobytes(), **raw)
    assert status == 200
    # An error is an answer, too.
    status, _ = raw_post(target.http, path, b'{"inputs": []}')
    assert status == 400
    return count + 2


def test_replayed_lines_give_the_same_answers(
    logged: Logged, tritons: tuple[RealTriton, ...], tmp_path: Path
) -> None:
    before = len(logged.lines())
    count = record_inferences(logged.target)

    def fresh() -> list[str]:
        return logged.lines()[before:]

    wait_until(lambda: len(fresh()) == 2 * count, timeout_s=WAIT_S, what="all lines")
    lines = fresh()
    assert sum("data_base64" in line for line in lines) > 0  # the long tensors
    copy = tmp_path / "copy.jsonl"
    copy.write_text("\n".join(lines))
    for server in (tritons[1].target, logged.target):
        result = replay(copy, server)
        assert result.stdout == f"{count} replayed: {count} same, 0 different\n", result.stderr
        assert result.returncode == 0


def test_replayed_messages_of_streams_give_the_same_answers(
    logged: Logged, tritons: tuple[RealTriton, ...], tmp_path: Path
) -> None:
    count = 8
    with grpcclient.InferenceServerClient(logged.target.grpc) as client:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.start_stream(
            lambda result, error: answers.put((result, error)),
            headers={"x-request-id": "stream"},
        )
        for number in range(count):
            model = ("simple", "identity_fp32")[number % 2]
            if model == "simple":
                inputs = pair(grpcclient, numbers(batch=1))
            else:
                values = np.array([number, 0.5], dtype=np.float32)
                inputs = [tensor(grpcclient, "INPUT0", values)]
            client.async_stream_infer(model, inputs, request_id=str(number))
        for _ in range(count):
            assert answers.get(timeout=WAIT_S)[1] is None
        client.stop_stream()

    def fresh() -> list[str]:
        return [line for line in logged.lines() if json.loads(line)["id"].startswith("stream/")]

    wait_until(lambda: len(fresh()) == 2 * count, timeout_s=WAIT_S, what="all lines")
    copy = tmp_path / "copy.jsonl"
    copy.write_text("\n".join(fresh()))
    result = replay(copy, tritons[1].target)
    assert result.stdout == f"{count} replayed: {count} same, 0 different\n", result.stderr


def test_a_replay_tells_which_answers_differ(logged: Logged, tmp_path: Path) -> None:
    values = np.array([1.0, 2.0], dtype=np.float32)
    with grpcclient.InferenceServerClient(logged.target.grpc) as client:
        inputs = [tensor(grpcclient, "INPUT0", values)]
        client.infer("identity_fp32", inputs, headers={"x-request-id": "close"})
    request, response = logged.exchange("close")
    response["data"]["outputs"][0]["data"][1] = 2.001
    copy = tmp_path / "copy.jsonl"
    copy.write_text("".join(json.dumps(event) + "\n" for event in (request, response)))
    result = replay(copy, logged.target)
    assert result.stdout == "1 replayed: 0 same, 1 different\n  close: OUTPUT0: other values\n"
    assert result.returncode == 1
    assert replay(copy, logged.target, "--rtol", "0.01").returncode == 0


def test_a_model_whose_share_is_0_is_not_logged(logged: Logged) -> None:
    with httpclient.InferenceServerClient(logged.target.http) as client:
        client.infer("sleeper", milliseconds(httpclient, 1), headers={"x-request-id": "asleep"})
        client.infer("simple", pair(httpclient, numbers()), headers={"x-request-id": "awake"})
    logged.exchange("awake")
    assert "asleep" not in logged.path.read_text()


def test_a_request_without_a_response_is_logged_with_its_status(logged: Logged) -> None:
    with grpcclient.InferenceServerClient(logged.target.grpc) as client:
        how = {"headers": {"x-request-id": "late"}, "client_timeout": 0.2}
        with pytest.raises(grpcclient.InferenceServerException):
            client.infer("slow_cancel", milliseconds(grpcclient, 2000), **how)
    request, response = logged.exchange("late")
    assert request["data"]["model_name"] == "slow_cancel"
    assert "data" not in response
    assert response["status"] not in ("OK", "none")
