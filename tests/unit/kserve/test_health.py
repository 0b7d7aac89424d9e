"""Our own answers are the messages that clients expect."""

from __future__ import annotations

import pytest
from grpc_health.v1 import health_pb2

from lb.kserve import inference_pb2 as pb
from lb.kserve.health import Serving, flag_message, health_message


@pytest.mark.parametrize("value", [False, True])
def test_a_flag_reads_as_live_and_as_ready(value: bool) -> None:
    message = flag_message(value)
    assert pb.ServerLiveResponse.FromString(message) == pb.ServerLiveResponse(live=value)
    assert pb.ServerReadyResponse.FromString(message) == pb.ServerReadyResponse(ready=value)


@pytest.mark.parametrize("state", Serving)
def test_health_reads_as_its_state(state: Serving) -> None:
    response = health_pb2.HealthCheckResponse.FromString(health_message(state))
    assert response == health_pb2.HealthCheckResponse(status=state.name)
