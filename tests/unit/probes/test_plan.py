from __future__ import annotations

import dataclasses

import pytest

from lb.domain.backend import AppProtocol, BackendKind
from lb.probes.plan import ProbeChoice, ProbeKind, ProbeQuestion, plan_probe
from tests.fakes.backends import GRPC_ADDRESS, HTTP_ADDRESS, make_spec

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC
TRITON, KSERVE = BackendKind.TRITON, BackendKind.KSERVE
TFSERVING, GENERIC = BackendKind.TFSERVING, BackendKind.GENERIC


@pytest.mark.parametrize(
    ("kind", "protocol", "question", "path"),
    [
        (TRITON, HTTP, ProbeQuestion.HTTP_GET, "/v2/health/ready"),
        (TRITON, GRPC, ProbeQuestion.SERVER_READY, "/v2/health/ready"),
        (KSERVE, HTTP, ProbeQuestion.HTTP_GET, "/v2/health/ready"),
        (KSERVE, GRPC, ProbeQuestion.SERVER_READY, "/v2/health/ready"),
        (TFSERVING, HTTP, ProbeQuestion.CONNECT, "/"),
        (TFSERVING, GRPC, ProbeQuestion.CONNECT, "/"),
        (GENERIC, HTTP, ProbeQuestion.HTTP_GET, "/"),
        (GENERIC, GRPC, ProbeQuestion.GRPC_HEALTH, "/"),
    ],
)
def test_auto_asks_each_port_in_its_protocol_as_the_kind_does(
    kind: BackendKind, protocol: AppProtocol, question: ProbeQuestion, path: str
) -> None:
    spec = dataclasses.replace(make_spec(), kind=kind)
    plan = plan_probe(spec, protocol, ProbeChoice())
    assert plan.question is question
    assert plan.path == path
    assert plan.address == spec.address(protocol)


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_one_kind_for_both_ports_asks_the_port_that_speaks_it(protocol: AppProtocol) -> None:
    spec = make_spec()
    assert plan_probe(spec, protocol, ProbeChoice(kind=ProbeKind.HTTP)).address == HTTP_ADDRESS
    assert plan_probe(spec, protocol, ProbeChoice(kind=ProbeKind.GRPC)).address == GRPC_ADDRESS


def test_a_tf_serving_is_asked_for_the_state_of_its_model() -> None:
    spec = dataclasses.replace(make_spec(), kind=TFSERVING)
    choice = ProbeChoice(model="half plus/two")

    over_http, over_grpc = (plan_probe(spec, protocol, choice) for protocol in (HTTP, GRPC))

    assert over_http.question is ProbeQuestion.MODEL_STATUS_GET
    assert over_http.path == "/v1/models/half%20plus%2Ftwo"
    assert over_http.protocol is HTTP
    assert over_grpc.question is ProbeQuestion.MODEL_STATUS_CALL
    assert (over_grpc.model, over_grpc.protocol) == ("half plus/two", GRPC)


def test_a_tf_serving_may_be_asked_for_something_else() -> None:
    spec = dataclasses.replace(make_spec(), kind=TFSERVING)
    choice = ProbeChoice(model="m", http_path="/ping", grpc_health=True)

    assert plan_probe(spec, HTTP, choice).question is ProbeQuestion.HTTP_GET
    assert plan_probe(spec, HTTP, choice).path == "/ping"
    assert plan_probe(spec, GRPC, choice).question is ProbeQuestion.GRPC_HEALTH


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_tcp_asks_every_port_itself(protocol: AppProtocol) -> None:
    plan = plan_probe(make_spec(), protocol, ProbeChoice(kind=ProbeKind.TCP))
    assert plan.question is ProbeQuestion.CONNECT
    assert plan.address == make_spec().address(protocol)


def test_what_is_configured_replaces_what_the_kind_suggests() -> None:
    spec = dataclasses.replace(make_spec(), headers=(("authorization", "Bearer x"),))
    choice = ProbeChoice(http_path="/ping", expected_status=(200, 204), grpc_health=True)
    plan = plan_probe(spec, HTTP, choice)
    assert (plan.path, plan.expected_status) == ("/ping", (200, 204))
    assert plan.headers == spec.headers
    assert plan_probe(spec, GRPC, choice).question is ProbeQuestion.GRPC_HEALTH


def test_a_port_that_does_not_exist_has_no_probe() -> None:
    with pytest.raises(LookupError, match="backend gpu-0 has no grpc port"):
        plan_probe(make_spec(grpc=None), GRPC, ProbeChoice())
