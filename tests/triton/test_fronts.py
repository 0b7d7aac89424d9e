"""The fronts for SageMaker and Vertex AI answer as those of a Triton do, byte by byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.process import free_ports
from tests.triton.balancer import RunningBalancer
from tests.triton.raw_http import RawAnswer, ask_once, message
from tests.triton.records import Records
from tests.triton.server import RealTriton
from tests.triton.test_identical import BINARY, BINARY_HEAD, GOOD

SAGEMAKER = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
HEALTH_ROUTE = "/v1/endpoints/7/health"
PREDICT_ROUTE = "/v1/endpoints/7:predict"


def failing(why: str) -> bytes:
    """A request that the model `failing` fails in this way."""
    tensor = {"name": "WHY", "shape": [1], "datatype": "BYTES", "data": [why]}
    return json.dumps({"inputs": [tensor]}).encode()


@dataclass(frozen=True)
class Fronts:
    """Addresses of the two fronts."""

    sagemaker: str
    vertex: str


@dataclass(frozen=True)
class Pair:
    """The fronts of a Triton, and ours before the same Triton."""

    triton: Fronts
    ours: Fronts


def running(workspace: Path, records: Records, model: str) -> Iterator[Pair]:
    """A Triton with both fronts for `model`, and the balancer before it."""
    ports = free_ports(4)
    theirs, ours = (
        Fronts(f"127.0.0.1:{sagemaker}", f"127.0.0.1:{vertex}")
        for sagemaker, vertex in (ports[:2], ports[2:])
    )
    triton = RealTriton(
        f"fronted-{model}",
        workspace,
        records.directory,
        "--allow-http=true",
        "--allow-grpc=true",
        "--allow-metrics=true",
        "--allow-sagemaker=true",
        f"--sagemaker-port={ports[0]}",
        "--allow-vertex-ai=true",
        f"--vertex-ai-port={ports[1]}",
        f"--vertex-ai-default-model={model}",
        environment={
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": model,
            "AIP_HEALTH_ROUTE": HEALTH_ROUTE,
            "AIP_PREDICT_ROUTE": PREDICT_ROUTE,
        },
    )
    fronts = {
        "sagemaker": {
            "enabled": True,
            "address": ours.sagemaker,
            "default_model": model,
            "multi_model": True,
        },
        "vertex": {
            "enabled": True,
            "address": ours.vertex,
            "default_model": model,
            "health_route": HEALTH_ROUTE,
            "predict_route": PREDICT_ROUTE,
        },
    }
    try:
        triton.wait_ready()
        for _ in RunningBalancer.run(workspace, [triton], fronts=fronts):
            yield Pair(theirs, ours)
    finally:
        triton.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, records: Records) -> Iterator[Pair]:
    yield from running(tmp_path_factory.mktemp("fronts"), records, "simple")


@pytest.fixture(scope="module")
def failing_pair(tmp_path_factory: pytest.TempPathFactory, records: Records) -> Iterator[Pair]:
    yield from running(tmp_path_factory.mktemp("failing-fronts"), records, "failing")


def post(path: str, body: bytes, content_type: str = "", *extra: str) -> bytes:
    fields = [f"Content-Type: {content_type}"] if content_type else []
    return message("POST", path, body, *fields, *extra)


def common(predict: str, health: str, mime: str) -> dict[str, bytes]:
    """Requests that both fronts take."""
    size = len(BINARY_HEAD)
    return {
        "health": message("GET", health),
        "health with a query": message("GET", f"{health}?a=b"),
        "posted health": post(health, b""),
        "health with a slash": message("GET", f"{health}/"),
        "v2 route": message("GET", "/v2/health/ready"),
        "unknown route": post("/nope", GOOD),
        "json": post(predict, GOOD, "application/json"),
        "octets": post(predict, GOOD, "application/octet-stream"),
        "no type": post(predict, GOOD),
        "query": post(f"{predict}?a=b", GOOD, "application/json"),
        "binary": post(predict, BINARY, f"{mime}{size}"),
        "binary and more": post(predict, BINARY, f"{mime}{size}; charset=utf-8"),
        "binary in capitals": post(predict, BINARY, f"{mime.upper()}{size}"),
        "binary with a blank": post(predict, BINARY, f"{mime.replace(';', '; ')}{size}"),
        "binary behind something": post(predict, BINARY, f"x{mime}{size}"),
        "negative size": post(predict, BINARY, f"{mime}-5"),
        "size too large": post(predict, BINARY, f"{mime}99999"),
        "size is no number": post(predict, BINARY, f"{mime}abc"),
        "no json": post(predict, BINARY, f"{mime}0"),
        "header of v2": post(
            predict, BINARY, "application/octet-stream", f"Inference-Header-Content-Length: {size}"
        ),
        "both": post(predict, BINARY, f"{mime}{size}", "Inference-Header-Content-Length: 3"),
        "compressed answer": post(predict, BINARY, f"{mime}{size}", "Accept-Encoding: gzip"),
        "coding that is not looked at": post(predict, GOOD, "", "Content-Encoding: br"),
        "get": message("GET", predict),
        "empty": post(predict, b""),
        "no end of json": post(predict, b"{", "application/json"),
        "wrong shape": post(predict, GOOD.replace(b"15]", b"15, 16]"), "application/json"),
    }


REDIRECTED_BINARY = ("v2/models/simple/infer", BINARY, f"{VERTEX}{len(BINARY_HEAD)}")


def redirected(target: str, body: bytes = b"", content_type: str = "") -> bytes:
    return post(PREDICT_ROUTE, body, content_type, f"X-Vertex-Ai-Triton-Redirect: {target}")


SAGEMAKER_REQUESTS = {
    **common("/invocations", "/ping", SAGEMAKER),
    "list": message("GET", "/models"),
    "list with a slash": message("GET", "/models/"),
    "unknown model": message("GET", "/models/nix"),
    "invocation of an unknown model": post("/models/nix/invoke", GOOD),
    "unload of an unknown model": message("DELETE", "/models/nix"),
    "unload of no model": message("DELETE", "/models"),
    "put": message("PUT", "/models/nix", b"{}"),
}
VERTEX_REQUESTS = {
    **common(PREDICT_ROUTE, HEALTH_ROUTE, VERTEX),
    **{
        f"redirected to {target}": redirected(target)
        for target in (
            "v2", "V2", "/v2", "v2?x=1", "nope", "v2/health/live", "v2/health/ready",
            "v2/models/simple", "v2/models/simple/ready", "v2/models/simple/versions/1/config",
            "v2/models/nix", "v2/models/simple/generate", "v2/logging", "v2/trace/setting",
            "v2/repository/index", "v2/systemsharedmemory/status", "v2/cudasharedmemory/status",
        )
    },
    "redirected inference": redirected("v2/models/simple/infer", GOOD, "application/json"),
    "redirected binary": redirected(*REDIRECTED_BINARY),
    "redirected to an unknown model": redirected("v2/models/nix/infer", GOOD),
    "redirected failure": redirected("v2/models/failing/infer", failing("no reason")),
}  # fmt: skip


def ours_like(answer: RawAnswer) -> RawAnswer:
    """Without the phrase of the status, which means nothing (RFC 9112 4)."""
    code = b" ".join(answer.status_line.split(b" ")[:2])
    return RawAnswer(code, answer.end_to_end.fields, answer.end_to_end.body)


@pytest.mark.parametrize("name", SAGEMAKER_REQUESTS)
def test_sagemaker_gets_the_answers_of_a_triton(pair: Pair, name: str) -> None:
    request = SAGEMAKER_REQUESTS[name]

    expected, answer = (
        ours_like(ask_once(fronts.sagemaker, request)) for fronts in (pair.triton, pair.ours)
    )

    assert answer == expected


@pytest.mark.parametrize("name", VERTEX_REQUESTS)
def test_vertex_gets_the_answers_of_a_triton(pair: Pair, name: str) -> None:
    request = VERTEX_REQUESTS[name]

    expected, answer = (
        ours_like(ask_once(fronts.vertex, request)) for fronts in (pair.triton, pair.ours)
    )

    assert answer == expected


def test_requests_in_chunks_are_translated_too(pair: Pair) -> None:
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BINARY), BINARY)
    head = message(
        "POST",
        "/invocations",
        None,
        f"Content-Type: {SAGEMAKER}{len(BINARY_HEAD)}",
        "Transfer-Encoding: chunked",
    )

    expected, answer = (
        ours_like(ask_once(fronts.sagemaker, head + chunks)) for fronts in (pair.triton, pair.ours)
    )

    assert answer == expected
    assert answer.status_line.endswith(b" 200")


@pytest.mark.parametrize("why", ["raise", "out of memory", "no reason"])
def test_failures_of_models_have_the_codes_of_a_triton(failing_pair: Pair, why: str) -> None:
    for address, path in (("sagemaker", "/invocations"), ("vertex", PREDICT_ROUTE)):
        request = post(path, failing(why), "application/json")
        expected, answer = (
            ours_like(ask_once(getattr(fronts, address), request))
            for fronts in (failing_pair.triton, failing_pair.ours)
        )
        assert answer == expected
