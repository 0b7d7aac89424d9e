"""The one answer that a client gets."""

from __future__ import annotations

import json

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.control import Reach
from lb.domain.errors import UpstreamError
from lb.domain.outcome import Outcome, Reason
from lb.kserve import inference_pb2 as pb
from lb.kserve.operations import grpc_operation, http_route
from lb.net.ask.grpc import GrpcAnswer
from lb.net.ask.http import HttpAnswer
from lb.proxy.fan_out import replies
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest
from lb.proxy.fan_out.result import Result, answered_grpc, answered_http, unanswered
from tests.fakes.backends import make_backend

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC
TYPE = ((b"content-type", b"text/x"),)


def question(protocol: AppProtocol = HTTP, name: str = "RepositoryModelLoad") -> FanOutRequest:
    target = f"/inference.GRPCInferenceService/{name}".encode()
    operation = grpc_operation(target)
    if protocol is HTTP and name == "RepositoryModelLoad":
        target = b"/v2/repository/models/m/load"
        operation = http_route(b"POST", target).operation
    return FanOutRequest(
        protocol=protocol, operation=operation, model=b"m", method=b"POST", target=target,
        fields=(), body=b"",
    )  # fmt: skip


def http(name: str, status: int, body: bytes = b"") -> Result:
    return answered_http(make_backend(name), HttpAnswer(status, TYPE, body), 1.0, 2.0)


def grpc(name: str, status: int, detail: str = "", message: bytes = b"") -> Result:
    return answered_grpc(make_backend(name), GrpcAnswer(status, detail, message), 1.0, 2.0)


def lost(name: str, outcome: Outcome = Outcome.LOST) -> Result:
    return unanswered(make_backend(name), HTTP, UpstreamError(outcome, "cut off"))


def error_of(reply: FanOutReply) -> str:
    text = json.loads(reply.body)["error"]
    assert isinstance(text, str)
    return text


def test_success_is_the_first_ones_answer_as_it_gave_it() -> None:
    reply = replies.success(question(), [http("a", 200, b"one"), http("b", 200, b"two")])
    assert reply == FanOutReply(
        status=200, body=b"one", content_type=b"text/x", backends=("a", "b")
    )


def test_success_prefers_an_answer_in_the_clients_protocol() -> None:
    reply = replies.success(question(GRPC), [http("a", 200), grpc("b", 0, message=b"m")])
    assert (reply.status, reply.body) == (0, b"m")


def test_success_of_the_other_protocol_is_translated() -> None:
    settings = pb.LogSettingsResponse()
    settings.settings["log_info"].bool_param = True
    both = [grpc("a", 0, message=settings.SerializeToString())]
    reply = replies.success(question(HTTP, "LogSettings"), both)
    assert reply.body == b'{"log_info":true}'
    reply = replies.success(question(GRPC, "LogSettings"), [http("a", 200, b'{"log_info":true}')])
    assert reply.body == settings.SerializeToString()
    with pytest.raises(ValueError, match="no JSON"):
        replies.success(question(GRPC, "LogSettings"), [http("a", 200, b"?")])


def test_one_servers_words_stand_for_all_that_say_the_same() -> None:
    body = b'{"error":"failed to load"}'
    reply = replies.failure(question(), [http("a", 500, body), http("b", 500, body)])
    assert reply == FanOutReply(
        status=500,
        body=body,
        content_type=b"text/x",
        detail="failed to load",
        backends=("a", "b"),
    )
    reply = replies.failure(question(GRPC), [grpc("a", 3, "bad"), grpc("b", 3, "bad")])
    assert (reply.status, reply.detail, reply.reason) == (3, "bad", None)


def test_folders_with_names_by_chance_make_no_difference() -> None:
    one, two = (
        http("a", 400, b'{"error":"at /tmp/folder%b/1/model.py"}' % name)
        for name in (b"AbC123", b"xyz789")
    )
    assert error_of(replies.failure(question(), [one, two])) == "at /tmp/folderAbC123/1/model.py"


def test_the_same_error_in_two_protocols_is_one() -> None:
    both = [http("a", 404, b'{"error":"gone"}'), grpc("b", 5, "gone")]
    assert replies.failure(question(GRPC), both).detail == "gone"
    assert replies.failure(question(HTTP), both[1:]).status == 404
    assert error_of(replies.failure(question(HTTP), both[1:])) == "gone"


def test_a_failure_of_ours_has_its_reason() -> None:
    reply = replies.failure(question(), [lost("a"), http("b", 200)])
    assert (reply.status, reply.reason) == (502, Reason.UPSTREAM_LOST)
    reply = replies.failure(question(), [lost("a", Outcome.CONNECT_REFUSED)])
    assert (reply.status, reply.reason, reply.backends) == (503, Reason.CONNECT_REFUSED, ())


def test_long_errors_of_many_are_cut() -> None:
    body = json.dumps({"error": "x" * 3000}).encode()
    results = [http("ok", 200), *(http(f"b{at}", 500, body) for at in range(20))]
    text = error_of(replies.failure(question(), results))
    assert text.endswith("x...; and 12 more")
    assert len(text) < 4000


def test_refusals_have_the_shape_of_their_protocol() -> None:
    reach = Reach(make_backend("a"), (True, True))
    reply = replies.refusal(question(), Reason.NO_BACKEND, "nobody", [reach])
    assert (reply.status, error_of(reply), reply.backends) == (503, "nobody", ("a",))
    reply = replies.refusal(question(GRPC), Reason.NO_BACKEND, "nobody")
    assert (reply.status, reply.detail, reply.body) == (14, "nobody", b"")


def test_statuses_that_grpc_does_not_know_are_unknown() -> None:
    assert replies.failure(question(GRPC), [grpc("a", 77, "?")]).status == 2
    assert replies.failure(question(GRPC), [grpc("a", 77, "?"), grpc("b", 0)]).status == 2
