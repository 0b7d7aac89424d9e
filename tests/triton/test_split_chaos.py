"""Batches that are cut while Tritons die, freeze, lose the model and get newer versions of it,
while deadlines pass and clients leave. Each answer is right, or one error with a text, and nothing
is left.

`make split-chaos` sends 10,000 batches.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lb.kserve import inference_pb2 as pb
from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.batched import MAX_ROWS, STEP, BatchTriton, batch_tritons
from tests.triton.records import Records
from tests.triton.target import http_status

BATCHES = int(os.environ.get("SPLIT_BATCHES", "0"))
"""To send at least; some are sent while each fault happens once."""
MODEL = "versioned"
TRITONS = 3
CLIENTS = 6
WAIT_S = 60.0
UNLOAD_S = 20.0
"""Models take up to 4 s to end."""
MAX_CONCURRENT = 32
"""Requests of one client: those that leave are counted until a Triton has finished their parts."""
INFER = "/inference.GRPCInferenceService/ModelInfer"
GRPC_ERRORS = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
HTTP_ERRORS = {502, 503}
FAULTS = ("kill", "freeze", "unload", "reload")


@pytest.fixture(scope="module")
def tritons(
    tmp_path_factory: pytest.TempPathFactory, records: Records
) -> Iterator[tuple[BatchTriton, ...]]:
    workspace = tmp_path_factory.mktemp("split_chaos")
    with batch_tritons(TRITONS, workspace, records.directory, MODEL) as started:
        yield started


@pytest.fixture
def balancer(tmp_path: Path, tritons: tuple[BatchTriton, ...]) -> Iterator[RunningBalancer]:
    sections: dict[str, Any] = {
        "models": {MODEL: {"split": "auto"}},
        "access": {"limits": [{"by": "address", "max_concurrent_requests": MAX_CONCURRENT}]},
    }
    yield from RunningBalancer.run(tmp_path, tritons, **sections)


def numbers(rows: int) -> list[int]:
    return [number * 7 % 61 for number in range(rows)]


def what_is_wrong(rows: int, data: bytes, version: str) -> str:
    """All rows have to be there, in their order, and of the version that the answer names."""
    wanted = [number + STEP * int(version) for number in numbers(rows)]
    return "" if data == struct.pack(f"<{rows}i", *wanted) else f"{rows} rows differ"


class Found(NamedTuple):
    """What became of a batch."""

    status: str
    wrong: str
    """Empty where that is right."""
    text: str = ""
    """Of an error."""


class Clients:
    """Send batches until they are told to stop, and note what became of them."""

    def __init__(self, balancer: RunningBalancer) -> None:
        self._target = balancer.target
        self._is_stopped = False
        self._lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Their texts."""
        self.wrong: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(Random(number), number % 3 == 0))
            for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def sent(self) -> int:
        with self._lock:
            return self.seen.total()

    def stop(self) -> None:
        self._is_stopped = True
        for thread in self._threads:
            thread.join()

    def _run(self, rng: Random, is_http: bool) -> None:
        with grpc.insecure_channel(self._target.grpc) as channel:
            infer = channel.unary_unary(
                INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
            )
            while not self._is_stopped:
                rows = rng.randint(1, 6 * MAX_ROWS)
                is_impatient = rng.random() < 0.1
                try:
                    if is_http:
                        found = self.ask_http(rows, 0.01 if is_impatient else WAIT_S)
                    else:
                        found = self.ask_grpc(
                            infer, rows, rng.uniform(0.001, 0.05) if is_impatient else WAIT_S
                        )
                except Exception as error:  # a thread must not end unseen
                    found = Found("failed", repr(error))
                with self._lock:
                    self.seen[found.status] += 1
                    if found.text:
                        self.errors[re.sub(r"[0-9]+", "N", found.text)] += 1
                    if found.wrong:
                        self.wrong.append(f"{found.status}: {found.wrong}")

    @staticmethod
    def ask_grpc(infer: Any, rows: int, timeout_s: float) -> Found:
        """Send one batch."""
        request = pb.ModelInferRequest(model_name=MODEL)
        request.inputs.add(name="IN", datatype="INT32", shape=[rows, 1])
        request.raw_input_contents.append(struct.pack(f"<{rows}i", *numbers(rows)))
        try:
            answer = infer(request, timeout=timeout_s)
        except grpc.RpcError as error:
            status, text = error.code(), error.details()
            is_late = status is grpc.StatusCode.DEADLINE_EXCEEDED and timeout_s == WAIT_S
            is_clear = status in GRPC_ERRORS and bool(text) and not is_late
            return Found(f"gRPC {status.name}", "" if is_clear else repr(text), text or "")
        [data] = answer.raw_output_contents
        return Found("gRPC OK", what_is_wrong(rows, data, answer.model_version))

    def ask_http(self, rows: int, timeout_s: float) -> Found:
        """Send one batch, or leave before it is answered."""
        data = struct.pack(f"<{rows}i", *numbers(rows))
        tensor = {
            "name": "IN", "datatype": "INT32", "shape": [rows, 1],
            "parameters": {"binary_data_size": len(data)},
        }  # fmt: skip
        content = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        head = json.dumps(content).encode()
        fields = {"Inference-Header-Content-Length": str(len(head))}
        host, _, port = self._target.http.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
        try:
            connection.request("POST", f"/v2/models/{MODEL}/infer", head + data, fields)
            answer = connection.getresponse()
            body = answer.read()
        except TimeoutError:
            return Found("HTTP left", "" if timeout_s < WAIT_S else "there was no answer")
        finally:
            connection.close()
        status = f"HTTP {answer.status}"
        if answer.status != 200:
            text = json.loads(body)["error"]
            is_clear = answer.status in HTTP_ERRORS and bool(text)
            return Found(status, "" if is_clear else repr(body), text)
        size = int(answer.headers["Inference-Header-Content-Length"])
        version = json.loads(body[:size])["model_version"]
        return Found(status, what_is_wrong(rows, body[size:], version))


class Faults:
    """What happens to Tritons, to one at a time."""

    def __init__(self, tritons: tuple[BatchTriton, ...], balancer: RunningBalancer) -> None:
        self._tritons = tritons
        self._balancer = balancer
        self._rng = Random(5)
        self.done: Counter[str] = Counter()
        self._pause = threading.Event()

    def play(self) -> None:
        """Have each fault happen once, in any order."""
        for kind in self._rng.sample(FAULTS, len(FAULTS)):
            self.done[kind] += 1
            getattr(self, f"_{kind}")(self._rng.choice(self._tritons))

    def _some_time(self) -> None:
        self._pause.wait(self._rng.uniform(0.1, 1.0))

    def _wait_until_back(self, triton: BatchTriton) -> None:
        # Not while a version is still unloaded: one that is frozen meanwhile never ends that.
        try:
            wait_until(
                lambda: http_status(triton.target.http, "/v2/health/ready") == 200,
                timeout_s=UNLOAD_S,
                what="it has what it loads, and no more what it unloads",
            )
        except TimeoutError:
            # At times Triton 2.51 does not end it anyway. Whoever runs it starts it again.
            self.done["restart"] += 1
            triton.restart()
        triton.wait_ready()
        backends = self._balancer.backends
        wait_until(
            lambda: backends()[triton.name].is_in, timeout_s=WAIT_S, what=f"{triton.name} is back"
        )

    def _kill(self, triton: BatchTriton) -> None:
        triton.kill9()
        triton.restart()
        self._wait_until_back(triton)

    def _freeze(self, triton: BatchTriton) -> None:
        triton.sigstop()
        self._some_time()
        triton.sigcont()
        self._wait_until_back(triton)

    def _unload(self, triton: BatchTriton) -> None:
        triton.unload(MODEL)
        self._some_time()
        triton.load(MODEL)
        self._wait_until_back(triton)

    def _reload(self, triton: BatchTriton) -> None:
        first = self._tritons.index(triton)
        for each in (*self._tritons[first:], *self._tritons[:first]):
            each.load_next_version(MODEL)
        for each in self._tritons:
            self._wait_until_back(each)


def gauges(balancer: RunningBalancer) -> dict[str, int]:
    """What is open, held, in flight or queued."""
    wanted = {
        "triton_lb_open_requests", "triton_lb_held_bytes", "triton_lb_backend_in_flight",
        "triton_lb_model_backend_requests", "triton_lb_queue_length",
    }  # fmt: skip
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(balancer.metrics_text()):
        for sample in family.samples:
            if sample.name in wanted:
                found[sample.name] += int(sample.value)
    return {name: value for name, value in found.items() if value}


def test_batches_survive_faults(
    balancer: RunningBalancer, tritons: tuple[BatchTriton, ...]
) -> None:
    with grpc.insecure_channel(balancer.target.grpc) as channel:
        infer = channel.unary_unary(
            INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        wait_until(
            lambda: Clients.ask_grpc(infer, 2 * MAX_ROWS, WAIT_S).status == "gRPC OK",
            timeout_s=WAIT_S,
            what="the configuration of the model is known",
        )
    clients = Clients(balancer)
    faults = Faults(tritons, balancer)
    try:
        faults.play()
        while clients.sent < BATCHES:
            faults.play()
    finally:
        clients.stop()
    print(dict(clients.seen.most_common()), dict(faults.done), clients.errors)  # noqa: T201
    assert clients.wrong == []
    assert clients.seen["gRPC OK"] > 0
    assert clients.seen["HTTP 200"] > 0
    wait_until(lambda: not gauges(balancer), timeout_s=WAIT_S, what="nothing is left")
    # No request of a limit is counted any more: as many as it allows are served at once.
    with grpc.insecure_channel(balancer.target.grpc) as channel:
        infer = channel.unary_unary(
            INFER, pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        with ThreadPoolExecutor(MAX_CONCURRENT) as pool:
            found = pool.map(
                lambda rows: Clients.ask_grpc(infer, rows, WAIT_S), [1] * MAX_CONCURRENT
            )
            assert {each.status for each in found} == {"gRPC OK"}
    assert "Traceback" not in balancer.log
