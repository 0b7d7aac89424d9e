"""The ports for hosting platforms are made as the settings say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lb.proxy.http1.sagemaker import SageMakerFront
from lb.proxy.http1.vertex import VertexFront
from lb.runtime.listeners import ConnectionPipeline, front_factory
from lb.runtime.logs import Logs
from lb.runtime.sockets import endpoints
from lb.runtime.wiring import LoadBalancer
from lb.settings.model import Settings

FRONTS: dict[str, Any] = {
    "sagemaker": {"enabled": True, "address": "a:3", "ping": "live"},
    "vertex": {
        "enabled": True,
        "address": "a:4",
        "health_route": "/h",
        "predict_route": "/p",
        "default_model": "m",
    },
}
BASE: dict[str, Any] = {"listen": {"http": "a:1"}, "backends": [{"http": "b:1"}]}


@pytest.fixture
async def product(tmp_path: Path) -> AsyncIterator[LoadBalancer]:
    settings = Settings.model_validate({**BASE, "fronts": FRONTS})
    logs = Logs(settings)
    made = LoadBalancer(settings, logs)
    yield made
    await made.aclose()
    logs.close()


def test_fronts_that_are_off_listen_nowhere() -> None:
    assert Settings.model_validate(BASE).fronts.addresses == {}


async def test_each_front_is_an_endpoint_with_connections_of_its_own(product: LoadBalancer) -> None:
    found = {each.name: each for each in endpoints(product.settings)}

    assert [str(found[name].address) for name in ("http", "sagemaker", "vertex")] == [
        "a:1",
        "a:3",
        "a:4",
    ]
    made = {name: ConnectionPipeline(product, each).factory() for name, each in found.items()}
    assert isinstance(made["sagemaker"].front, SageMakerFront)
    assert isinstance(made["vertex"].front, VertexFront)
    assert made["http"].front is None


async def test_other_listeners_are_no_fronts(product: LoadBalancer) -> None:
    assert front_factory(product.settings.fronts, "http", product.relay.http1) is None


@pytest.mark.parametrize(
    ("name", "request_line", "asks"),
    [
        ("sagemaker", b"GET /ping", b"/v2/health/live"),
        ("sagemaker", b"POST /invocations", b"/v2/models/unspecified_SAGEMAKER"),
        ("vertex", b"GET /h", b"/v2/health/ready"),
        ("vertex", b"POST /p", b"/v2/models/m/infer"),
    ],
)
async def test_fronts_do_what_is_configured(
    product: LoadBalancer, name: str, request_line: bytes, asks: bytes
) -> None:
    make = front_factory(product.settings.fronts, name, product.relay.http1)
    assert make is not None
    connection = make()
    plan = connection._read_plan(request_line + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert plan.path.startswith(asks)
