"""A canary that is killed under traffic: its users are moved to the stable variant, nobody notices,
and operators are told why."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Any, cast

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from lb.simulator.process import Ports
from lb.testing import running, simulated
from lb.testing.balancer import Balancer
from lb.testing.processes import Child
from lb.testing.tritons import Triton
from tests.fakes.batch_models import Address
from tests.fakes.process import ENVIRONMENT, wait_until
from tests.fakes.terminal import Terminal

INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMIT_S = 60.0
COMMAND = [sys.executable, "-m", "lb.cli.main"]
STABLE_USER, CANARY_USER = "bert", "anna"
"""Users whose hashes lead to these variants, on every replica and in every version."""
MODEL, CANARY = "identity_fp32", "identity_v2"
SERVE = f"""
from dataclasses import replace
from lb.simulator import __main__, models

models.MODELS["{CANARY}"] = replace(models.MODELS["{MODEL}"], name="{CANARY}")
__main__.main(["--models", "{CANARY}"])
"""
"""A Triton with a second version of the model."""
SETTINGS: dict[str, Any] = {
    "models": {
        "floats": {
            "variants": [
                {"name": "stable", "model": MODEL, "weight": 50},
                {"name": "canary", "model": CANARY, "weight": 50},
            ],
            "sticky": "header:x-user",
            "rollback": {"errors": "2x", "p99": "1.5x"},
        }
    }
}


class User(threading.Thread):
    """Sends one request after another over a protocol, until it is told to stop."""

    def __init__(self, balancer: Balancer, user: str, *, is_grpc: bool) -> None:
        super().__init__(daemon=True)
        self.answers = 0
        self.failures: list[str] = []
        self._balancer = balancer
        self._user = user
        self._is_grpc = is_grpc
        self._is_over = threading.Event()

    def stop(self) -> None:
        self._is_over.set()
        self.join(LIMIT_S)

    def run(self) -> None:
        with self._asking() as ask:
            while not self._is_over.is_set():
                try:
                    ask()
                    self.answers += 1
                except (AssertionError, grpc.RpcError, HTTPException, OSError) as error:
                    self.failures.append(str(error))

    @contextmanager
    def _asking(self) -> Iterator[Any]:
        if self._is_grpc:
            with grpc.insecure_channel(self._balancer.grpc) as channel:
                infer = channel.unary_unary(
                    INFER,
                    request_serializer=pb.ModelInferRequest.SerializeToString,
                    response_deserializer=pb.ModelInferResponse.FromString,
                )
                yield lambda: self._ask_over_grpc(infer)
        else:
            connection = HTTPConnection(self._balancer.http, timeout=LIMIT_S)
            yield lambda: self._ask_over_http(connection)
            connection.close()

    def _ask_over_grpc(self, infer: Any) -> None:
        request = pb.ModelInferRequest(model_name="floats")
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
        request.raw_input_contents.append(struct.pack("<f", 7))
        answer = infer(request, timeout=LIMIT_S, metadata=[("x-user", self._user)])
        assert struct.unpack("<f", answer.raw_output_contents[0]) == (7,)

    def _ask_over_http(self, connection: HTTPConnection) -> None:
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [7]}]}
        headers = {"x-user": self._user}
        connection.request("POST", "/v2/models/floats/infer", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        assert json.loads(text)["outputs"][0]["data"] == [7]


def get(address: str, path: str) -> str:
    connection = HTTPConnection(address, timeout=LIMIT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def variants(balancer: Balancer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(balancer.admin, "/api/v1/variants"))["models"][0]
    return found


@pytest.fixture
def canary() -> Iterator[Child]:
    child = Child("canary", [sys.executable, "-c", SERVE])
    try:
        child.wait_until(lambda: "\n" in child.output)
        yield child
    finally:
        child.close()


def test_a_canary_that_is_killed_is_rolled_back_and_everybody_learns_why(canary: Child) -> None:
    address = Address("canary-0", Ports.from_json(canary.output.splitlines()[0]))
    with (
        simulated(1, models=[MODEL]) as started,
        running([*started, cast("Triton", address)], SETTINGS) as balancer,
    ):
        stable = [User(balancer, STABLE_USER, is_grpc=each) for each in (False, True)]
        moved = [User(balancer, CANARY_USER, is_grpc=each) for each in (False, True)]

        def all_go_on() -> None:
            before = [each.answers for each in (*stable, *moved)]
            wait_until(
                lambda: all(
                    each.answers > count + 20
                    for each, count in zip((*stable, *moved), before, strict=True)
                ),
                timeout_s=LIMIT_S,
                what="answers for all users",
            )

        for each in (*stable, *moved):
            each.start()
        all_go_on()
        served = {each["name"]: each["answers"] for each in variants(balancer)["variants"]}
        assert min(served.values()) > 0
        canary.signal(signal.SIGKILL)
        wait_until(
            lambda: variants(balancer)["changed"] == "rollback",
            timeout_s=LIMIT_S,
            what="the rollback",
        )
        all_go_on()
        for each in (*stable, *moved):
            each.stop()
        assert [each.failures for each in (*stable, *moved)] == [[], [], [], []]

        why = "no backend has it ready any more"
        assert variants(balancer)["why"] == f"canary: {why}"
        assert f"variant rolled back: {why}" in balancer.log
        assert (
            'triton_lb_variant_rollbacks_total{model="floats",variant="canary",why="dead"} 1.0'
            in get(balancer.metrics, "/metrics")
        )
        rows = json.loads(get(balancer.admin, "/api/v1/live"))["variants"]  # what the page shows
        notes = {each["name"]: each["note"] for each in rows}
        assert notes["floats/canary"] == f"rolled back: canary: {why}"
        with Terminal([*COMMAND, "top", "--admin", balancer.admin], columns=160) as terminal:
            terminal.until("triton-0")
            terminal.press("m")
            terminal.until(f"rolled back: canary: {why}")
            terminal.press("q")
        for command, text in (
            (("variants",), f"floats: rolled back: canary: {why}"),
            (("status",), "floats/canary 0 % (file: 50 %, rollback)"),
        ):
            shown = subprocess.run(
                [*COMMAND, *command, "--admin", balancer.admin],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                env=ENVIRONMENT,
                check=False,
            )
            assert text in shown.stdout, shown
