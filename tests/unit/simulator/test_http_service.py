"""The HTTP port of a simulated Triton: routes, status codes, headers, encodings.

Expected answers are those of Triton 2.51 to the same requests.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from lb.simulator.http_service import JSON_SIZE, make_http_application
from lb.simulator.server import SimulatedTriton

ECHO = "/v2/models/identity_bytes/infer"
REPEAT = {"IN": [4, 5], "DELAY": [0, 0], "WAIT": 0}
HEAD = json.dumps(
    {
        "inputs": [
            {
                "name": "INPUT0",
                "shape": [1],
                "datatype": "BYTES",
                "parameters": {"binary_data_size": 5},
            }
        ]
    }
).encode()
BINARY = HEAD + b"\1\0\0\0a"
SIZE = {JSON_SIZE: str(len(HEAD))}
ANSWER = (
    b'{"model_name":"identity_bytes","model_version":"1","outputs":'
    b'[{"name":"OUTPUT0","datatype":"BYTES","shape":[1],"data":["a"]}]}'
)
Client = TestClient


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    server = TestServer(make_http_application(SimulatedTriton(speed=1e6)))
    await server.start_server(auto_decompress=False)
    options = {"auto_decompress": False, "skip_auto_headers": ("Accept-Encoding",)}
    async with TestClient(server, **options) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "status", "content_type", "body"),
    [
        ("GET", "/v2/health/live", 200, "text/plain", b""),
        ("GET", "/v2/health/ready", 200, "text/plain", b""),
        ("GET", "/v2/models/simple/ready", 200, "text/plain", b""),
        ("GET", "/v2/models/x/ready", 400, "text/plain", b'{"error":"Model version not ready"}'),
        ("GET", "/nothing", 404, "text/plain", b'{"error":"Not Found"}'),
        ("GET", "/v2/", 404, "text/plain", b'{"error":"Not Found"}'),
        ("GET", "/v2/models/simple/versions/x", 404, "text/plain", b'{"error":"Not Found"}'),
        ("POST", "/v2", 405, "application/json", b'{"error":"Method Not Allowed"}'),
        (
            "GET",
            "/v2/models/simp%6ce",
            404,
            "application/json",
            b'{"error":"Request for unknown model: \'simp%6ce\' is not found"}',
        ),
        (
            "GET",
            "/v2/models/simple/versions/2/config",
            404,
            "application/json",
            b'{"error":"Request for unknown model: \'simple\' version 2 is not found"}',
        ),
        (
            "GET",
            "/v2/models/x/stats",
            400,
            "application/json",
            b'{"error":"requested model \'x\' is not available"}',
        ),
        (
            "POST",
            "/v2/models/x/infer",
            404,
            "text/plain",
            b'{"error":"Request for unknown model: \'x\' is not found"}',
        ),
        (
            "POST",
            "/v2/models/repeat_int32/infer",
            501,
            "text/plain",
            b'{"error":"HTTP end point doesn\'t support models with decoupled transaction policy"}',
        ),
        (
            "POST",
            "/v2/repository/models/simple/load",
            503,
            "application/json",
            b'{"error":"explicit model load / unload is not allowed if polling is enabled"}',
        ),
        ("GET", "/v2/systemsharedmemory/status", 200, "application/json", b"[]"),
        ("GET", "/v2/cudasharedmemory/region/r/status", 200, "application/json", b"[]"),
    ],
)
async def test_answers_are_tritons(
    client: Client, method: str, path: str, status: int, content_type: str, body: bytes
) -> None:
    url = URL(f"http://{client.host}:{client.port}{path}", encoded=True)
    async with client.session.request(method, url) as response:
        assert (response.status, response.headers["Content-Type"]) == (status, content_type)
        assert await response.read() == body
        assert not {"Date", "Server", "Connection"} & set(response.headers)


async def test_settings_are_those_of_a_triton_without_options(client: Client) -> None:
    assert (await (await client.get("/v2/logging")).json())["log_info"] is True
    assert (await (await client.get("/v2/trace/setting")).json())["trace_level"] == ["OFF"]


async def test_inferences_are_counted_in_the_statistics(client: Client) -> None:
    assert (await client.post(ECHO, data=BINARY, headers=SIZE)).status == 200
    (one,) = (await (await client.get("/v2/models/identity_bytes/stats")).json())["model_stats"]
    assert one["inference_stats"]["success"]["count"] == 1
    everything = await (await client.get("/v2/models/stats")).json()
    assert one in everything["model_stats"]
    assert len(everything["model_stats"]) == 5


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [("gzip", "gzip"), ("br, deflate;q=1", "deflate"), ("br", None), ("", None)],
)
async def test_answer_is_compressed_as_the_client_accepts(
    client: Client, accept: str, encoding: str | None
) -> None:
    response = await client.post(ECHO, data=BINARY, headers=SIZE | {"Accept-Encoding": accept})
    assert response.headers.get("Content-Encoding") == encoding
    body = await response.read()
    plain = body if encoding is None else zlib.decompress(body, 32 + zlib.MAX_WBITS)
    assert plain == ANSWER


async def test_unknown_request_encoding_is_refused_with_those_that_are_known(
    client: Client,
) -> None:
    response = await client.post(ECHO, data=BINARY, headers=SIZE | {"Content-Encoding": "br"})
    assert response.status == 501
    assert response.headers["Accept-Encoding"] == "gzip, deflate"
    assert await response.json(content_type=None) == {"error": "Unsupported compression type"}


async def test_broken_compressed_body_reads_as_an_empty_one(client: Client) -> None:
    response = await client.post(ECHO, data=BINARY, headers=SIZE | {"Content-Encoding": "gzip"})
    text = f"inference header size should be in range (0, 0), got: {len(HEAD)}"
    assert (response.status, await response.json(content_type=None)) == (400, {"error": text})


async def test_binary_answer_tells_the_length_of_its_json(client: Client) -> None:
    raw = await client.post(ECHO, data=b"ab", headers={JSON_SIZE: "0"})
    assert raw.headers["Content-Type"] == "application/octet-stream"
    assert (await raw.read())[int(raw.headers[JSON_SIZE]) :] == b"\2\0\0\0ab"


async def test_length_of_the_json_that_is_no_number_counts_as_zero(client: Client) -> None:
    raw = await client.post(ECHO, data=b"ab", headers={JSON_SIZE: "x"})
    assert (await raw.read()).endswith(b"\2\0\0\0ab")


async def test_generate_answers_with_one_json_object_in_chunks(client: Client) -> None:
    response = await client.post(
        "/v2/models/repeat_int32/generate", json={**REPEAT, "IN": 4, "id": "g"}
    )
    assert response.headers["Transfer-Encoding"] == "chunked"
    assert await response.read() == (
        b'{"IDX":0,"OUT":4,"id":"g","model_name":"repeat_int32","model_version":"1"}'
    )


async def test_generate_tells_in_its_answer_that_there_was_not_one_response(client: Client) -> None:
    response = await client.post("/v2/models/repeat_int32/generate", json=REPEAT)
    assert response.status == 200
    assert (await response.json())["error"].startswith(
        "generate expects model to produce exactly 1"
    )


async def test_generate_stream_sends_one_event_per_response(client: Client) -> None:
    response = await client.post("/v2/models/repeat_int32/generate_stream", json=REPEAT)
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    events = (await response.read()).split(b"\n\n")
    assert [json.loads(event.removeprefix(b"data: "))["OUT"] for event in events[:-1]] == [4, 5]
    assert events[-1] == b""


@pytest.mark.parametrize("call", ["generate", "generate_stream"])
async def test_generate_refuses_before_it_answers(client: Client, call: str) -> None:
    path = f"/v2/models/repeat_int32/{call}"
    missing = await client.post(path, json={"IN": 4})
    assert (missing.status, missing.headers["Content-Type"]) == (400, "application/json")
    compressed = await client.post(path, data=b"", headers={"Content-Encoding": "gzip"})
    assert "only 'identity' is supported" in (await compressed.json())["error"]


async def test_client_that_leaves_a_stream_cancels_it() -> None:
    triton = SimulatedTriton()
    server = TestServer(make_http_application(triton))
    async with TestClient(server) as client:
        response = await client.post(
            "/v2/models/repeat_int32/generate_stream",
            json={"IN": [1] * 10_000, "DELAY": [1] * 10_000, "WAIT": 0},
        )
        await response.content.readuntil(b"\n\n")
        response.close()
    assert triton.counters["repeat_int32"].canceled == 1
