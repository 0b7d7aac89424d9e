"""Three real Tritons and the balancer in front of them, once per test run."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import pytest
import tritonclient.grpc
import tritonclient.http

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.records import Records
from tests.triton.server import RealTriton
from tests.triton.target import WAIT_S, Target

BACK_S = 60.0
"""Tritons that start again are probed within a second; machines may be busy with anything."""
_OUTCOME = pytest.StashKey[pytest.TestReport]()
"""How the body of a test ended, kept with its item."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the outcome of a test's body for the fixture that isolates tests."""
    report = yield
    if report.when == "call":
        item.stash[_OUTCOME] = report
    return report


@pytest.fixture(autouse=True)
def _isolated(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep a failure to the test that it happened in.

    Tests share Tritons and balancers, and a test that fails leaves its sequences open, its load
    running or a backend drained. Whatever is running then starts again. A Triton that dies fails
    the test during which it died.
    """
    dead = [triton for triton in RealTriton.started if not triton.is_running]
    _restart(dead, [])
    yield
    report = request.node.stash.get(_OUTCOME, None)
    died = [triton for triton in RealTriton.started if triton.died]
    if died or (report is not None and report.failed):
        words = "\n".join(f"{triton.name} died:\n{triton.last_words}" for triton in died)
        _restart(RealTriton.started, RunningBalancer.started)
        if died:
            pytest.fail(words)


def _restart(tritons: Sequence[RealTriton], balancers: Sequence[RunningBalancer]) -> None:
    """Start these again and wait until every balancer has all its Tritons in rotation."""
    for triton in tritons:
        triton.restart()
    for triton in tritons:
        triton.wait_ready()
    for balancer in balancers:
        balancer.restart()
    for balancer in balancers:
        balancer.wait_ready()
    for balancer in RunningBalancer.started if tritons else ():
        wait_until(balancer.all_in_rotation, timeout_s=BACK_S, what="all Tritons are back")


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
