"""Three real Tritons and the balancer in front of them, once per test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tritonclient.grpc
import tritonclient.http

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.records import Records
from tests.triton.server import RealTriton
from tests.triton.target import WAIT_S, Target


@pytest.fixture(autouse=True)
def _dead_tritons() -> Iterator[None]:
    """A Triton that dies fails the test that it died in, and no later one."""
    gone = [triton for triton in RealTriton.started if not triton.is_running]
    for triton in gone:
        triton.restart()
    for triton in gone:
        triton.wait_ready()
    for running in RunningBalancer.started if gone else ():
        wait_until(running.all_in_rotation, timeout_s=30.0, what="all Tritons are back")
    yield
    died = [triton for triton in RealTriton.started if triton.died]
    if died:
        pytest.fail("\n".join(f"{triton.name} died:\n{triton.last_words}" for triton in died))


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Where models note, by request id, what became of a request."""
    return Records(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="session")
def tritons(
    tmp_path_factory: pytest.TempPathFactory, records: Records
) -> Iterator[tuple[RealTriton, ...]]:
    """Three Tritons that serve the same models."""
    workspace = tmp_path_factory.mktemp("tritons")
    with RealTriton.several(3, workspace, records.directory) as running:
        yield running


@pytest.fixture(scope="session")
def balancer(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...]
) -> Iterator[RunningBalancer]:
    """The balancer before all three."""
    yield from RunningBalancer.run(tmp_path_factory.mktemp("balancer"), tritons)


@pytest.fixture(params=["direct", "balanced"])
def target(request: pytest.FixtureRequest, tritons: tuple[RealTriton, ...]) -> Target:
    """What a flow runs against; it must not notice which of the two it is."""
    if request.param == "direct":
        return tritons[0].target
    running: RunningBalancer = request.getfixturevalue("balancer")
    return running.target


@pytest.fixture
def reference(tritons: tuple[RealTriton, ...]) -> Target:
    """The Triton whose answers are the right ones."""
    return tritons[0].target


@pytest.fixture(params=["another_triton", "balanced"])
def compared(request: pytest.FixtureRequest, tritons: tuple[RealTriton, ...]) -> Target:
    """What is compared with the reference: a second Triton shows that answers are repeatable."""
    if request.param == "another_triton":
        return tritons[1].target
    running: RunningBalancer = request.getfixturevalue("balancer")
    return running.target


@pytest.fixture
def http_client(target: Target) -> Iterator[tritonclient.http.InferenceServerClient]:
    """NVIDIA's HTTP client."""
    with tritonclient.http.InferenceServerClient(
        target.http, concurrency=16, connection_timeout=WAIT_S, network_timeout=WAIT_S
    ) as client:
        yield client


@pytest.fixture
def grpc_client(target: Target) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    """NVIDIA's gRPC client."""
    with tritonclient.grpc.InferenceServerClient(target.grpc) as client:
        yield client
