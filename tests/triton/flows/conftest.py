"""Both clients for every flow, and Tritons whose models and settings flows may change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tritonclient.grpc
import tritonclient.http

from tests.triton.balancer import RunningBalancer
from tests.triton.flows.kit import Kit
from tests.triton.records import Records
from tests.triton.server import RealTriton
from tests.triton.target import Target

LOADED = ("simple", "simple_string", "sleeper")
"""What the controlled Tritons start with; flows leave them as they found them."""
EXPLICIT = ("--model-control-mode=explicit", *(f"--load-model={name}" for name in LOADED))


@pytest.fixture(scope="session")
def controlled_tritons(
    tmp_path_factory: pytest.TempPathFactory, records: Records
) -> Iterator[tuple[RealTriton, ...]]:
    """Four under explicit model control: three for the balancer, and one that is asked directly."""
    workspace = tmp_path_factory.mktemp("controlled")
    with RealTriton.several(4, workspace, records.directory, *EXPLICIT) as running:
        yield running


@pytest.fixture(scope="session")
def controlling_balancer(
    tmp_path_factory: pytest.TempPathFactory, controlled_tritons: tuple[RealTriton, ...]
) -> Iterator[RunningBalancer]:
    """The balancer before three of them."""
    workspace = tmp_path_factory.mktemp("controlling-balancer")
    yield from RunningBalancer.run(workspace, controlled_tritons[:3])


@pytest.fixture(params=["direct", "balanced"])
def controlled(
    request: pytest.FixtureRequest, controlled_tritons: tuple[RealTriton, ...]
) -> Target:
    """What a flow that changes models, regions or settings runs against."""
    if request.param == "direct":
        return controlled_tritons[3].target
    running: RunningBalancer = request.getfixturevalue("controlling_balancer")
    return running.target


@pytest.fixture(params=["http", "grpc"])
def kit(request: pytest.FixtureRequest, target: Target) -> Iterator[Kit]:
    """One of NVIDIA's clients, for flows that are the same with both."""
    with _client(request.param, target) as kit:
        yield kit


@pytest.fixture(params=["http", "grpc"])
def control_kit(request: pytest.FixtureRequest, controlled: Target) -> Iterator[Kit]:
    """One of NVIDIA's clients before the controlled Tritons."""
    with _client(request.param, controlled) as kit:
        yield kit


def _client(protocol: str, target: Target) -> Kit:
    if protocol == "grpc":
        return Kit(tritonclient.grpc, tritonclient.grpc.InferenceServerClient(target.grpc))
    client = tritonclient.http.InferenceServerClient(
        target.http, concurrency=8, connection_timeout=60.0, network_timeout=60.0
    )
    return Kit(tritonclient.http, client)
