"""Health by the name of a model, beside the health of a Triton, which looks at no name."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.triton.balancer import RunningBalancer
from tests.triton.target import Target

SERVING = health_pb2.HealthCheckResponse.SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
def channel(target: Target) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target.grpc) as opened:
        yield opened


@pytest.mark.parametrize(
    "service", ["", "inference.GRPCInferenceService", "simple", "liveness", "a/b"]
)
def test_a_check_that_serves_on_one_triton_serves(channel: grpc.Channel, service: str) -> None:
    request = health_pb2.HealthCheckRequest(service=service)

    answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=30)

    assert answer.status == SERVING


@pytest.mark.parametrize(("service", "status"), [("simple", SERVING), ("nix", UNKNOWN)])
def test_who_watches_hears_of_models(balancer: RunningBalancer, service: str, status: int) -> None:
    with grpc.insecure_channel(balancer.target.grpc) as opened:
        request = health_pb2.HealthCheckRequest(service=service)
        watch = health_pb2_grpc.HealthStub(opened).Watch(request, timeout=30)
        assert next(watch).status == status
        watch.cancel()
