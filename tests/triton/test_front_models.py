"""SageMaker loads and unloads models through its front, on all Tritons behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.fakes.process import free_ports, wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.raw_http import RawAnswer, ask_once, message
from tests.triton.records import Records
from tests.triton.server import RealTriton
from tests.triton.target import http_status
from tests.triton.test_identical import GOOD

URL = "/opt/ml/models/simple/model"
READY = "/v2/models/simple/ready"


@dataclass(frozen=True)
class Endpoint:
    """A front, and the Tritons behind it."""

    address: str
    tritons: tuple[RealTriton, ...]

    def ask(self, method: str, path: str, body: bytes | None = None) -> RawAnswer:
        return ask_once(self.address, message(method, path, body))

    @property
    def serving(self) -> list[bool]:
        """Which of the Tritons have the model ready."""
        return [http_status(each.target.http, READY) == 200 for each in self.tritons]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, records: Records) -> Iterator[Endpoint]:
    workspace = tmp_path_factory.mktemp("models")
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    front = {"enabled": True, "address": address, "multi_model": True}
    tritons: list[RealTriton] = []
    try:
        for number in range(2):
            triton = RealTriton(
                f"multi-{number}",
                workspace,
                records.directory,
                "--model-control-mode=explicit",
                "--load-model=simple_string",
            )
            tritons.append(triton)
        for triton in tritons:
            triton.wait_ready()
        for balancer in RunningBalancer.run(workspace, tritons, fronts={"sagemaker": front}):
            yield Endpoint(balancer_address(balancer, address), tuple(tritons))
    finally:
        for triton in tritons:
            triton.close()


def balancer_address(balancer: RunningBalancer, address: str) -> str:
    """The front of a balancer that is ready for requests."""
    wait_until(lambda: http_status(address, "/ping") == 200, what="the front is ready")
    assert balancer.all_in_rotation()
    return address


def test_a_model_is_loaded_invoked_and_unloaded_everywhere(endpoint: Endpoint) -> None:
    load = json.dumps({"model_name": "simple", "url": URL}).encode()
    described = {"modelName": "simple", "modelUrl": URL}

    assert endpoint.ask("POST", "/models/simple/invoke", GOOD).status == 404
    assert endpoint.ask("POST", "/models", load).status == 200
    assert endpoint.serving == [True, True]
    assert endpoint.ask("POST", "/models", load).status == 409

    assert json.loads(endpoint.ask("GET", "/models").body) == {"models": [described]}
    assert json.loads(endpoint.ask("GET", "/models/simple").body) == described
    for _ in range(4):
        answer = endpoint.ask("POST", "/models/simple/invoke", GOOD)
        assert answer.status == 200
        assert json.loads(answer.body)["model_name"] == "simple"

    assert endpoint.ask("DELETE", "/models/simple").status == 200
    assert endpoint.serving == [False, False]
    assert endpoint.ask("GET", "/models/simple").status == 404


def test_a_model_that_no_repository_has_is_not_loaded(endpoint: Endpoint) -> None:
    load = json.dumps({"model_name": "nix", "url": "/opt/ml/models/nix/model"}).encode()

    answer = endpoint.ask("POST", "/models", load)

    assert answer.status == 400
    assert b"failed to load 'nix'" in answer.body
    assert endpoint.ask("GET", "/models/nix").status == 404
