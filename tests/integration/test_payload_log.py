"""What a sampled inference leaves in the payload log, and that it changes nothing else."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest

from lb.domain.backend import AppProtocol
from lb.kserve import inference_pb2 as pb
from lb.kserve.messages import MODEL_INFER, MODEL_STREAM_INFER
from lb.payloads.lines import PayloadRecord
from lb.payloads.log import PayloadLog, payload_rules
from lb.settings.reporting import PayloadLogSettings
from lb.testing import Triton, simulated
from lb.wire.grpc.message import frame_message
from tests.fakes.otlp import collector
from tests.fakes.process import wait_until, whole_lines
from tests.fakes.relay import RunningRelay, running_http1_relay
from tests.fakes.serving import Serving
from tests.fakes.transport import FakeTransport
from tests.integration.test_second_attempts import Slow, grpc_pair, hedges_of, http_pair
from tests.wire.http1 import scripted_backend
from tests.wire.waiting import eventually

WAIT_S = 30.0


@pytest.fixture(scope="module")
def tritons() -> Iterator[list[Triton]]:
    with simulated(2) as running:
        yield list(running)


class Logged:
    """A load balancer with a payload log."""

    def __init__(self, folder: Path, tritons: list[Triton], **sections: Any) -> None:
        self.path = folder / "payloads.jsonl"
        payload_log = {"path": str(self.path), "models": {"*": 1}, **sections.pop("payload_log")}
        self.config = {
            "listen": dict.fromkeys(("http", "grpc", "metrics"), "127.0.0.1:0"),
            "backends": [{"http": each.http, "grpc": each.grpc} for each in tritons],
            "payload_log": payload_log,
            **sections,
        }
        self.serving = Serving(folder, self.config)
        addresses = self.serving.until_serving()
        self.http, self.grpc = addresses["http"], addresses["grpc"]
        self.metrics = addresses["metrics"]

    def post(self, model: str, body: bytes, verb: str = "infer", **fields: str) -> bytes:
        """POST to a model over HTTP, which must go well."""
        connection = http.client.HTTPConnection(self.http, timeout=WAIT_S)
        try:
            headers = {name.replace("_", "-"): value for name, value in fields.items()}
            connection.request("POST", f"/v2/models/{model}/{verb}", body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, text
        return text

    def infer(self, size: int = 16, request_id: str = "one", model: str = "identity_bytes") -> None:
        """An inference of so many bytes over gRPC."""
        request = pb.ModelInferRequest(model_name=model)
        request.inputs.add(name="INPUT0", datatype="BYTES", shape=[1])
        request.raw_input_contents.append((size).to_bytes(4, "little") + b"x" * size)
        answer = self.call(request, ("x-request-id", request_id))
        assert answer.raw_output_contents == request.raw_input_contents

    def infer_batch(self, rows: int) -> None:
        """An inference of so many rows over gRPC."""
        request = pb.ModelInferRequest(model_name="simple")
        for name in ("INPUT0", "INPUT1"):
            request.inputs.add(name=name, datatype="INT32", shape=[rows, 16])
            request.raw_input_contents.append(bytes(rows * 16 * 4))
        assert self.call(request).outputs[0].shape == [rows, 16]

    def call(
        self, request: pb.ModelInferRequest, *metadata: tuple[str, str]
    ) -> pb.ModelInferResponse:
        """One unary call."""
        with grpc.insecure_channel(self.grpc) as channel:
            call = channel.unary_unary(
                MODEL_INFER.path,
                request_serializer=MODEL_INFER.encode,
                response_deserializer=MODEL_INFER.decode,
            )
            return call(request, timeout=WAIT_S, metadata=metadata)

    def events(self, count: int) -> list[dict[str, Any]]:
        """All lines, once there are so many."""
        wait_until(
            lambda: len(whole_lines(self.path)) >= count,
            timeout_s=WAIT_S,
            what="lines",
        )
        return [json.loads(line) for line in whole_lines(self.path)]

    def metric(self, name: str) -> float:
        connection = http.client.HTTPConnection(self.metrics, timeout=WAIT_S)
        try:
            connection.request("GET", "/metrics/own")
            lines = connection.getresponse().read().decode().splitlines()
        finally:
            connection.close()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@contextmanager
def logged(
    folder: Path, tritons: list[Triton], payload_log: dict[str, Any] | None = None, **sections: Any
) -> Iterator[Logged]:
    running = Logged(folder, tritons, payload_log=payload_log or {}, **sections)
    try:
        yield running
    finally:
        running.serving.process.close()


def identity(values: list[float]) -> bytes:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [len(values)], "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


def test_payloads_of_both_protocols_are_logged_and_given_back(
    tmp_path: Path, tritons: list[Triton]
) -> None:
    with logged(tmp_path, tritons) as lb:
        lb.post("identity_fp32", identity([0.5]), x_request_id="json")
        lb.post("identity_fp32", gzip.compress(identity([2.0])), content_encoding="gzip")
        lb.infer(request_id="grpc")
        lb.infer(size=200_000, request_id="long")  # more than one frame and one read
        events = lb.events(8)
        wait_until(lambda: lb.metric("triton_lb_held_bytes") == 0, timeout_s=WAIT_S, what="room")
    by_id = {(event["id"], event["type"].rpartition(".")[2]): event for event in events}
    assert len(by_id) == 8
    assert by_id["json", "request"]["data"]["inputs"][0]["data"] == [0.5]
    assert by_id["json", "response"]["data"]["outputs"][0]["data"] == [0.5]
    assert by_id["grpc", "response"]["data"]["outputs"][0]["data"] == ["x" * 16]
    assert by_id["long", "request"]["data"]["inputs"][0].keys() >= {"data_base64"}
    assert [e["data"]["inputs"][0]["data"] for e in events if "contentencoding" in e] == [[2.0]]


def test_a_batch_that_is_cut_is_not_logged_and_not_said_to_be_dropped(
    tmp_path: Path, tritons: list[Triton]
) -> None:
    with logged(tmp_path, tritons, models={"simple": {"split": "oversize"}}) as lb:
        lb.infer_batch(9)  # more than the model takes
        lb.infer_batch(1)
        assert [event["path"] for event in lb.events(2)] == [MODEL_INFER.path] * 2
        assert lb.metric("triton_lb_split_batches_total") == 1
        assert lb.metric("triton_lb_log_dropped_total") == 0


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "one after the other"])
def test_messages_of_streams_are_logged_and_given_back(
    tmp_path: Path, tritons: list[Triton], waits: bool
) -> None:
    requests = []
    for number in range(6):
        # Both models: the stream is served by one backend at first, then maybe by several.
        asked = pb.ModelInferRequest(model_name="identity_bytes", id=str(number))
        asked.inputs.add(name="INPUT0", datatype="BYTES", shape=[1])
        asked.raw_input_contents.append((4).to_bytes(4, "little") + b"%04d" % number)
        requests.append(asked)
    requests.append(pb.ModelInferRequest(model_name="no_such_model", id="wrong"))
    with logged(tmp_path, tritons) as lb:
        with grpc.insecure_channel(lb.grpc) as channel:
            call = channel.stream_stream(
                MODEL_STREAM_INFER.path,
                request_serializer=MODEL_STREAM_INFER.encode,
                response_deserializer=MODEL_STREAM_INFER.decode,
            )
            answered = threading.Semaphore(1 if waits else len(requests))

            def ask() -> Iterator[pb.ModelInferRequest]:
                for each in requests:
                    answered.acquire(timeout=WAIT_S)
                    yield each

            answers = []
            for answer in call(ask(), timeout=WAIT_S, metadata=(("x-request-id", "stream"),)):
                answers.append(answer)
                answered.release()
        events = lb.events(2 * len(requests))
        wait_until(lambda: lb.metric("triton_lb_held_bytes") == 0, timeout_s=WAIT_S, what="room")
    assert len(answers) == len(requests)
    by_id = {(event["id"], event["type"].rpartition(".")[2]): event for event in events}
    for number in range(6):
        sent, got = by_id[f"stream/{number}", "request"], by_id[f"stream/{number}", "response"]
        assert sent["data"]["inputs"][0]["data"] == [f"{number:04d}"]
        assert got["data"]["outputs"][0]["data"] == [f"{number:04d}"]
        assert (got["status"], got["inferenceservicename"]) == ("OK", "identity_bytes")
    errors = [event for event in events if event.get("status") == "UNKNOWN"]
    assert len(errors) == 1
    assert "no_such_model" in errors[0]["data"]["error"]


class Records:
    """Stands for the thread that writes."""

    bytes_per_second = 0

    def __init__(self) -> None:
        self.written: list[PayloadRecord] = []

    def put(self, record: PayloadRecord, written: Callable[[PayloadRecord, bool], None]) -> None:
        self.written.append(record)
        written(record, True)


@pytest.mark.parametrize("is_hedged", [False, True])
@pytest.mark.parametrize("size", [1, 100_000])
@pytest.mark.parametrize("pair", [http_pair, grpc_pair])
async def test_a_request_with_two_attempts_is_logged_once(
    pair: Callable[..., AbstractAsyncContextManager[tuple[RunningRelay, list[Slow]]]],
    size: int,
    is_hedged: bool,
) -> None:
    rules = payload_rules(PayloadLogSettings(path="-", models={"m": 1.0}))
    assert rules is not None
    records = Records()
    sent = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(size)])
    message = sent.SerializeToString()
    async with asyncio.timeout(WAIT_S), pair(payloads=rules) as (relay, backends):
        relay.log_payloads(rules, records)  # type: ignore[arg-type]
        backends[0].gate.clear()
        if is_hedged:
            hedges_of(relay)
        else:
            relay.limit_attempts(0.1)
        for _ in range(2):
            if pair is http_pair:
                url = f"http://127.0.0.1:{relay.port}/v2/models/m/infer"
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(url, data=message) as answer,
                ):
                    assert await answer.read() == message
            else:
                async with grpc.aio.insecure_channel(f"127.0.0.1:{relay.port}") as channel:
                    assert await channel.unary_unary(MODEL_INFER.path)(message) == message
        assert backends[0].seen >= 1
        await eventually(lambda: len(records.written) == 2 and relay.payload_log.held == 0)
    body = message if pair is http_pair else frame_message(message)
    for record in records.written:
        assert b"".join(record.request.pieces or ()) == body
        assert b"".join(record.response.pieces or ()) == body
        assert record.backend == "b1"


def test_generated_text_is_logged_as_the_client_got_it(
    tmp_path: Path, tritons: list[Triton]
) -> None:
    body = json.dumps({"IN": [1, 2], "DELAY": [1, 1], "WAIT": [0]}).encode()
    with logged(tmp_path, tritons) as lb:
        text = lb.post("repeat_int32", body, verb="generate_stream").decode()
        request, response = lb.events(2)
    assert request["data"] == json.loads(body)
    assert response["data"] == text
    assert text.count("data: ") == 2


def test_a_fifo_that_nobody_reads_costs_payloads_and_nothing_else(
    tmp_path: Path, tritons: list[Triton]
) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    settings = {"path": str(path), "memory_bytes": "1MiB"}
    try:
        with logged(tmp_path, tritons, settings) as lb:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lb.infer, [100_000] * 40))
            assert lb.metric('triton_lb_log_dropped_total{log="payload"}') > 0
            assert 0 < lb.metric("triton_lb_held_bytes") <= 1 << 20
            lb.serving.until_logged("payload log drops inferences")
            lb.serving.process.signal(signal.SIGTERM)
            assert lb.serving.process.wait(WAIT_S) == 0
            assert lb.serving.log.count("payload log drops inferences") == 1
    finally:
        os.close(reader)


def test_it_follows_rotation_and_reloads(tmp_path: Path, tritons: list[Triton]) -> None:
    other = tmp_path / "other.jsonl"
    with logged(tmp_path, tritons) as lb:
        lb.infer(request_id="first")
        lb.events(2)
        lb.path.rename(tmp_path / "moved.jsonl")
        lb.serving.signal(signal.SIGUSR1)
        wait_until(lb.path.exists, timeout_s=WAIT_S, what="the new file")
        lb.infer(request_id="second")
        assert {event["id"] for event in lb.events(2)} == {"second"}

        def reload(count: int, **settings: Any) -> None:
            lb.serving.write(lb.config | {"payload_log": settings})
            lb.serving.signal(signal.SIGHUP)
            lb.serving.until_logged("configuration reloaded", count)

        reload(1, path=str(other), models={"identity_bytes": 1})
        lb.post("identity_fp32", identity([1.0]))
        lb.infer(request_id="third")
        wait_until(lambda: other.read_bytes().count(b"\n") == 2, timeout_s=WAIT_S, what="lines")
        reload(2)
        lb.infer(request_id="fourth")
        assert {json.loads(line)["id"] for line in other.read_text().splitlines()} == {"third"}
    assert len(lb.path.read_text().splitlines()) == 2


@pytest.mark.parametrize("cuts", [(), (30,), (-1,), (30, -1)])
async def test_each_http_request_is_drawn_once_however_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, cuts: tuple[int, ...]
) -> None:
    drawn: list[float] = []

    def draws(_: PayloadLog, share: float) -> bool:
        drawn.append(share)
        return len(drawn) % 2 == 0

    monkeypatch.setattr(PayloadLog, "draws", draws)
    rules = payload_rules(PayloadLogSettings(path="-", models={"m": 0.25}))
    assert rules is not None
    records = Records()
    async with (
        asyncio.timeout(WAIT_S),
        scripted_backend() as backend,
        running_http1_relay(backend.target, options={"payloads": rules}) as relay,
    ):
        relay.log_payloads(rules, records)  # type: ignore[arg-type]
        server, transport = relay.server_protocol(AppProtocol.HTTP), FakeTransport()
        server.connection_made(transport)
        for model in (*["m"] * 6, *["other"] * 2):
            request = (
                f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n[]"
            ).encode()
            start = 0
            for cut in (*cuts, len(request)):
                server.data_received(request[start:cut])
                start = cut
            await eventually(lambda: b"HTTP/1.1 200" in transport.written)
            transport.take()
        server.connection_lost(None)
        assert len(records.written) == 3
    assert drawn == [0.25] * 6


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_for_variants_is_logged_as_the_client_knows_it_and_traced_with_its_variant(
    tmp_path: Path, tritons: list[Triton], protocol: str
) -> None:
    name = "a_name_that_clients_use"
    variants = {name: {"variants": [{"name": "stable", "model": "identity_bytes", "weight": 1}]}}
    with collector() as spans:
        tracing = {"endpoint": spans.endpoint, "ratio": 1.0}
        with logged(tmp_path, tritons, models=variants, tracing=tracing) as lb:
            if protocol == "http":
                tensor = {"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["x"]}
                lb.post(name, json.dumps({"inputs": [tensor]}).encode(), x_request_id="one")
            else:
                lb.infer(request_id="one", model=name)
            request, response = lb.events(2)
            found = spans.wait_for(lambda spans: len(spans) >= 2)
    # The model that ran it is the service; payloads are the client's, with the name that it used.
    assert {each["inferenceservicename"] for each in (request, response)} == {"identity_bytes"}
    assert {each["id"] for each in (request, response)} == {"one"}
    assert response["data"]["model_name"] == name
    if protocol == "grpc":
        assert request["data"]["model_name"] == name
    else:
        assert request["path"] == f"/v2/models/{name}/infer"
    (whole,) = (span for span in found if span.kind == "SERVER")
    (attempt,) = (span for span in found if span.kind == "CLIENT")
    assert whole.attributes["triton_lb.variant"] == f"{name}/stable"
    assert whole.attributes["triton_lb.model"] == "identity_bytes"
    assert attempt.parent_id == whole.span_id
