"""The port for SageMaker: answers in its clothes, and models that come and go."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from ipaddress import ip_network

import pytest

from lb.access.gate import ControlRule, Gate, GateRules
from lb.domain.model import NO_FACTS
from lb.domain.outcome import Reason
from lb.domain.pool import ModelRoute
from lb.kserve.sagemaker import MODELS, LoadedModel, SageMakerRoutes
from lb.proxy.fan_out.question import FanOutReply, FanOutRequest
from lb.proxy.http1.sagemaker import SageMakerFront
from lb.proxy.http1.server import Http1ServerConnection
from tests.fakes.http1_sides import FakeTransport, Sides
from tests.fakes.relay import RecordedFanOut

OK = FanOutReply(status=200, backends=("b0",))
INVOKE = b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
URL = "/opt/ml/models/H/model"


class Bench(Sides):
    """A client of a front, and a backend."""

    def __init__(self, reply: FanOutReply | None = OK, inference: bytes = b"infer") -> None:
        super().__init__()
        everybody = ControlRule(networks=(ip_network("0.0.0.0/0"),))
        self.dispatcher.gate = Gate(GateRules(control=everybody))
        self.fan_out = RecordedFanOut(reply or OK)
        self.relay.parts = replace(self.relay.parts, fan_out=self.fan_out if reply else None)
        routes = SageMakerRoutes(model=b"m", is_multi_model=True, inference=inference)
        self.front = SageMakerFront(self.relay, routes)
        self.server = Http1ServerConnection(self.relay, self.front)
        self.sent = FakeTransport(self.server)
        self.server.connection_made(self.sent)
        self.backend, self.wire = self.upstream()

    def invoke(self, answer: bytes, request: bytes = INVOKE) -> bytes:
        """The answer to an inference."""
        self.server.data_received(request)
        assert self.wire.take()
        self.backend.data_received(answer)
        return self.sent.take()

    async def manage(self, method: str, path: str, body: object = None, *fields: str) -> bytes:
        """Status and body of the answer to another request."""
        data = json.dumps(body).encode() if body is not None else b""
        lines = [f"{method} {path} HTTP/1.1", "Host: a", f"Content-Length: {len(data)}", *fields]
        self.server.data_received("\r\n".join([*lines, "", ""]).encode() + data)
        asked = [task for task in asyncio.all_tasks() if task.get_name().startswith("ask:")]
        await asyncio.gather(*asked)
        head, _, rest = self.sent.take().partition(b"\r\n\r\n")
        return head[9:12] + b" " + rest if rest else head[9:12]

    def shelve(self, name: bytes = b"H", model: bytes = b"H") -> None:
        """Say that a model is loaded."""
        self.front.shelf.add(name, LoadedModel(model, URL))


async def test_binary_answers_say_in_their_type_where_the_json_ends() -> None:
    answer = Bench().invoke(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: 2\r\nContent-Length: 6\r\n\r\n{}1234"
    )
    assert answer == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.sagemaker-triton.binary+json;"
        b"json-header-size=2\r\nContent-Length: 6\r\n\r\n{}1234"
    )


async def test_long_answers_are_not_collected() -> None:
    bench = Bench()
    first = bench.invoke(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: 2\r\nContent-Length: 6\r\n\r\n{}1"
    )
    assert first.endswith(b"{}1")
    bench.backend.data_received(b"234")
    assert bench.sent.take() == b"234"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"Failed to process the request", b"400 Bad Request"),
        (b"CUDA out of memory", b"507 Insufficient Storage"),
    ],
)
async def test_failed_inferences_of_many_models_have_codes_of_the_front(
    text: bytes, status: bytes
) -> None:
    body = b'{"error":"%b"}' % text
    bench = Bench()
    bench.shelve()
    answer = bench.invoke(
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body),
        INVOKE.replace(b"/invocations", b"/models/H/invoke"),
    )
    assert answer == b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
    (record,) = bench.finished.records
    assert record.status == int(status[:3])


MULTI = INVOKE.replace(b"/invocations", b"/models/H/invoke")


@pytest.mark.parametrize("size", [1, 7, 60, 90])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_the_status_of_an_error_waits_for_its_text(size: int, is_chunked: bool) -> None:
    body = b'{"error":"CUDA out of memory"}'
    bench = Bench()
    bench.shelve()
    framing = b"Content-Length: %d" % len(body)
    answer = body
    if is_chunked:
        framing = b"Transfer-Encoding: chunked"
        answer = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    answer = b"HTTP/1.1 500 Internal Server Error\r\n%b\r\n\r\n%b" % (framing, answer)
    got = bench.invoke(answer[:size], MULTI)
    for at in range(size, len(answer), size):
        bench.backend.data_received(answer[at : at + size])
        got += bench.sent.take()
    head, _, rest = got.partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 507 Insufficient Storage\r\n" + framing
    assert body in rest
    (record,) = bench.finished.records
    assert record.status == 507
    assert record.bytes_out == len(body)


async def test_of_a_long_error_only_the_beginning_is_awaited() -> None:
    bench = Bench()
    bench.shelve()
    start = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5010\r\n\r\n"
    assert bench.invoke(start, MULTI) == b""
    bench.backend.data_received(b"x" * 4000)
    assert bench.sent.take() == b""
    bench.backend.data_received(b"x" * 1000)
    assert bench.sent.take() == start.replace(b"500 Internal Server Error", b"400 Bad Request") + (
        b"x" * 5000
    )
    bench.backend.data_received(b"0123456789")
    assert bench.sent.take() == b"0123456789"
    assert bench.memory_budget.held == 0


async def test_an_error_that_never_comes_is_an_answer_of_our_own() -> None:
    bench = Bench()
    bench.shelve()
    start = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 10\r\n\r\n{"
    assert bench.invoke(start, MULTI) == b""
    bench.backend.connection_lost(None)
    assert bench.sent.take().startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert bench.in_flight == 0


async def test_failed_invocations_keep_their_code() -> None:
    error = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}"
    assert Bench().invoke(error) == error


async def test_generated_text_is_passed_as_it_comes() -> None:
    error = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
    assert Bench(inference=b"generate").invoke(error) == error


async def test_invocations_use_shared_memory_by_the_same_rule() -> None:
    bench = Bench()
    bench.dispatcher.gate = Gate(GateRules(strict_shared_memory=True))
    bench.server.data_received(
        b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 26\r\n\r\n"
        b'{"shared_memory_region":5}'
    )
    assert bench.sent.take().startswith(b"HTTP/1.1 403 ")


async def test_models_are_loaded_listed_invoked_and_unloaded() -> None:
    bench = Bench()
    load = {"model_name": "H", "url": URL}
    assert await bench.manage("POST", "/models", load) == b"200"
    (question,) = bench.fan_out.questions
    assert (question.target, question.model) == (b"/v2/repository/models/H/load", b"H")
    assert question.operation.name == "RepositoryModelLoad"

    assert await bench.manage("GET", "/models") == b'200 {"models":[]}', "no backend has it yet"
    routes = {b"H": ModelRoute(facts=NO_FACTS, ready_versions=frozenset({b"1"}))}
    bench.pool.publish(replace(bench.pool.current, routes=routes))
    described = b'{"modelName":"H","modelUrl":"%b"}' % URL.encode()
    assert await bench.manage("GET", "/models") == b'200 {"models":[%b]}' % described
    assert await bench.manage("GET", "/models/H") == b"200 " + described

    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    invoke = INVOKE.replace(b"/invocations", b"/models/H/invoke")
    assert bench.invoke(answer, invoke) == answer

    assert await bench.manage("DELETE", "/models/H") == b"200"
    assert bench.fan_out.questions[1].target == b"/v2/repository/models/H/unload"
    assert json.loads(bench.fan_out.questions[1].body) == {
        "parameters": {"unload_dependents": True}
    }
    assert await bench.manage("GET", "/models/H") == b"404"
    assert await bench.manage("DELETE", "/models/H") == b"404"
    assert await bench.manage("POST", "/models/H/invoke", {}) == b"404"
    bench.sent.lose()
    assert not bench.dispatcher.open_exchanges


async def test_the_header_names_the_model_for_the_backends() -> None:
    bench = Bench()
    load = {"model_name": "H", "url": URL}
    await bench.manage("POST", "/models", load, "X-Amzn-SageMaker-Target-Model: m.tar.gz")
    assert bench.fan_out.questions[0].target == b"/v2/repository/models/m.tar.gz/load"
    await bench.manage("DELETE", "/models/H")
    assert bench.fan_out.questions[1].target == b"/v2/repository/models/m.tar.gz/unload"


async def test_a_model_that_is_loaded_cannot_be_loaded_again() -> None:
    bench = Bench()
    bench.shelve()
    answer = await bench.manage("POST", "/models", {"model_name": "H", "url": URL})
    assert answer.startswith(b"409 ")
    assert not bench.fan_out.questions


async def test_there_is_no_room_for_any_number_of_models() -> None:
    bench = Bench()
    for number in range(MODELS):
        bench.shelve(b"%d" % number)
    answer = await bench.manage("POST", "/models", {"model_name": "H", "url": URL})
    assert answer.startswith(b"507 ")


@pytest.mark.parametrize(
    ("text", "status"), [("out of memory", b"507"), ("failed to load", b"400")]
)
async def test_a_failed_load_leaves_nothing(text: str, status: bytes) -> None:
    body = json.dumps({"error": text}).encode()
    bench = Bench(FanOutReply(status=500, body=body, reason=Reason.UPSTREAM_RESET))
    answer = await bench.manage("POST", "/models", {"model_name": "H", "url": URL})
    assert answer == status + b" " + body
    assert bench.front.shelf.find(b"H") is None


class SlowUnload(RecordedFanOut):
    """The index says for a while that the model is unloaded."""

    said = (b'[{"name":"H","state":"UNLOADING"}]', b'[{"name":"H","state":"UNAVAILABLE"}]')

    async def ask(self, question: FanOutRequest) -> FanOutReply:
        reply = await super().ask(question)
        looks = sum(each.operation.name == "RepositoryIndex" for each in self.questions)
        return replace(reply, body=self.said[looks - 1]) if looks else reply


async def test_an_unload_is_over_when_the_index_says_so() -> None:
    bench = Bench()
    fan_out = SlowUnload(OK)
    bench.relay.parts = replace(bench.relay.parts, fan_out=fan_out)
    bench.shelve()
    assert await bench.manage("DELETE", "/models/H") == b"200"
    assert len(fan_out.questions) == 3


async def test_a_failed_unload_keeps_the_model() -> None:
    bench = Bench(FanOutReply(status=503, body=b"{}"))
    bench.shelve()
    assert await bench.manage("DELETE", "/models/H") == b"400 {}"
    assert bench.front.shelf.find(b"H") is not None


async def test_a_load_that_names_no_model_is_refused() -> None:
    assert (await Bench().manage("POST", "/models", [])).startswith(b"400 ")


async def test_without_a_fan_out_models_stay_as_they_are() -> None:
    bench = Bench(None)
    bench.shelve()
    assert await bench.manage("POST", "/models", {"model_name": "G"}) == b"501"
    assert await bench.manage("DELETE", "/models/H") == b"501"


async def test_a_client_that_left_is_told_nothing() -> None:
    bench = Bench()
    bench.fan_out.may_answer.clear()
    body = b'{"model_name":"H"}'
    head = b"POST /models HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    bench.server.data_received(head + body)
    bench.sent.lose()
    bench.fan_out.may_answer.set()
    asked = [task for task in asyncio.all_tasks() if task.get_name().startswith("ask:")]
    await asyncio.gather(*asked)
    assert bench.sent.take() == b""
    assert not bench.dispatcher.open_exchanges
