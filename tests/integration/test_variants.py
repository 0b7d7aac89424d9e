"""Names that variants serve, over HTTP with a backend that a test writes: what it gets, and what
clients see of its answers, byte by byte."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lb.access.disclosure import Disclosure
from lb.access.gate import ControlRule, Gate, GateRules
from lb.domain.access import Audience
from tests.fakes.relay import RunningRelay, running_http1_relay
from tests.wire.http1 import (
    Peer,
    RawClient,
    ScriptedBackend,
    inference_response,
    raw_client,
    scripted_backend,
)
from tests.wire.waiting import eventually

NAME = b"detector"
USER, PIN = b"x-user", b"x-triton-lb-variant"
LONG = b"detector_of_the_second_generation"
Setup = tuple[ScriptedBackend, RunningRelay, RawClient]


@asynccontextmanager
async def serving(
    answer: bytes,
    model: bytes = LONG,
    version: bytes = b"",
    gate: Gate | None = None,
    audience: Audience = Audience.NOBODY,
    backends: int = 1,
) -> AsyncIterator[Setup]:
    """A relay before a backend, or several at one address, that gives one answer to everything."""

    async def script(peer: Peer) -> None:
        while await peer.request():
            await peer.send(answer)

    options = {
        "variant_names": frozenset({NAME}),
        "noted": frozenset({USER, PIN, b"x-beta"}),
        "disclosure": Disclosure(audience),
    }
    async with (
        scripted_backend(script) as backend,
        running_http1_relay(*[backend.target] * backends, options=options, gate=gate) as relay,
        raw_client(relay.port) as client,
    ):
        first = {"name": "canary", "model": model, "version": version, "weight": 1}
        other = {"name": "other", "model": b"other", "match": (b"x-beta", b"1")}
        relay.use_variants(NAME, first, other, header=USER)
        yield backend, relay, client
        await eventually(relay.is_clean)


def inference(path: bytes, body: bytes = b"{}", fields: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n%b" % (
        path, len(body), fields, body,
    )  # fmt: skip


def reply(body: bytes, fields: bytes = b"", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), fields, body)


async def test_the_model_stands_in_the_path_and_the_name_in_the_answer() -> None:
    answer = b'{"id":"7","model_name":"%b","model_version":"3","outputs":[]}' % LONG
    async with serving(reply(answer), version=b"3") as (backend, relay, client):
        fields = b"Accept-Encoding: gzip\r\nX-Other: 1\r\n"
        await client.send(inference(b"/v2/models/detector/infer?a=b", b'{"inputs":[]}', fields))
        got = await client.answer()
        assert got.body == answer.replace(LONG, NAME)
        assert int(got.fields[b"content-length"]) == len(got.body)
        received = backend.requests[0]
        line, _, rest = received.head.partition(b"\r\n")
        assert line == b"POST /v2/models/%b/versions/3/infer?a=b HTTP/1.1" % LONG
        assert b"accept-encoding" not in rest.lower()
        assert b"X-Other: 1" in rest
        assert received.body == b'{"inputs":[]}'
        await eventually(lambda: relay.finished.records)
        record = relay.finished.records[0]
        assert (record.model, record.variant) == (LONG, "detector/canary")
        assert record.path == b"/v2/models/detector/infer"
        assert relay.variant_counts() == [(1, 0), (0, 0)]


@pytest.mark.parametrize("step", [0, 1, 7])
async def test_a_binary_answer_says_how_long_its_json_is_now(step: int) -> None:
    head = b'{"model_name":"%b","outputs":[{"parameters":{"binary_data_size":4}}]}' % LONG
    answer = reply(head + b"\0\1\2\3", b"Inference-Header-Content-Length: %d\r\n" % len(head))

    async def script(peer: Peer) -> None:
        while await peer.request():
            for at in range(0, len(answer), step or len(answer)):
                await peer.send(answer[at : at + (step or len(answer))])

    async with serving(b"") as (backend, _, client):
        backend.script = script
        await client.send(inference(b"/v2/models/detector/infer"), step=step)
        got = await client.answer()
        size = int(got.fields[b"inference-header-content-length"])
        assert json.loads(got.body[:size])["model_name"] == "detector"
        assert got.body[size:] == b"\0\1\2\3"
        assert int(got.fields[b"content-length"]) == len(got.body)


async def test_each_event_of_a_stream_has_the_name() -> None:
    events = b"".join(
        b'data: {"model_name":"%b","text_output":"%d"}\n\n' % (LONG, number) for number in range(5)
    )
    cut = len(events) // 2 + 3
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (events[:cut], events[cut:]))
    fields = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    head = b"HTTP/1.1 200 OK\r\n%b\r\n" % fields
    async with serving(head + chunks + b"0\r\n\r\n") as (_, _, client):
        for _ in range(2):
            await client.send(inference(b"/v2/models/detector/generate_stream"))
            got = await client.answer()
            assert got.body == events.replace(LONG, NAME)
            assert got.complete


async def test_each_event_has_the_name_after_the_error_of_another_backend() -> None:
    full = reply(b'{"error":"Exceeds maximum queue size"}', status=b"503 Service Unavailable")
    events = [b'data: {"model_name":"%b","text_output":"%d"}\n\n' % (LONG, each) for each in (1, 2)]
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    async with serving(b"", backends=2) as (backend, _, client):

        async def script(peer: Peer) -> None:
            while await peer.request():
                if len(backend.requests) == 1:
                    await peer.send(full)
                    continue
                await peer.send(head)
                for event in events:
                    await peer.send(b"%x\r\n%b\r\n" % (len(event), event))
                await peer.send(b"0\r\n\r\n")

        backend.script = script
        await client.send(inference(b"/v2/models/detector/generate_stream"))
        got = await client.answer()
        assert (got.status, got.body) == (200, b"".join(events).replace(LONG, NAME))
        assert len(backend.requests) == 2


async def test_errors_pass_as_they_are_and_count() -> None:
    text = b'{"error":"model_name of %b is wrong"}' % LONG
    async with serving(reply(text, status=b"500 Internal Server Error")) as (_, relay, client):
        await client.send(inference(b"/v2/models/detector/infer"))
        got = await client.answer()
        assert (got.status, got.body) == (500, text)
        await eventually(lambda: relay.finished.records)
        assert relay.variant_counts() == [(1, 1), (0, 0)]


async def test_metadata_is_about_the_first_variant_under_the_name() -> None:
    body = b'{"name":"%b","versions":["1"],"inputs":[{"name":"%b"}]}' % (LONG, LONG)
    async with serving(reply(body)) as (backend, _, client):
        await client.send(b"GET /v2/models/detector HTTP/1.1\r\nHost: a\r\n\r\n")
        got = await client.answer()
        assert json.loads(got.body) == {
            "name": "detector",
            "versions": ["1"],
            "inputs": [{"name": LONG.decode()}],
        }
        assert backend.requests[0].head.startswith(b"GET /v2/models/%b HTTP/1.1" % LONG)


async def test_a_version_in_the_path_means_the_model() -> None:
    async with serving(reply(inference_response(b"detector"))) as (backend, _, client):
        await client.send(inference(b"/v2/models/detector/versions/2/infer"))
        await client.answer()
        assert backend.requests[0].head.startswith(b"POST /v2/models/detector/versions/2/infer ")


async def test_clients_that_may_know_learn_of_their_variant() -> None:
    answer = reply(inference_response(LONG))
    async with serving(answer, audience=Audience.ALL) as (_, _, client):
        await client.send(inference(b"/v2/models/detector/infer"))
        assert (await client.answer()).fields[b"x-triton-lb-variant"] == b"detector/canary"
    async with serving(answer) as (_, _, client):
        await client.send(inference(b"/v2/models/detector/infer"))
        assert b"x-triton-lb-variant" not in (await client.answer()).fields


async def test_headers_choose_a_variant() -> None:
    async with serving(reply(inference_response(b"other"))) as (backend, _, client):
        for field in (b"X-Beta: 1\r\n", b"X-Triton-Lb-Variant: other\r\n"):
            await client.send(inference(b"/v2/models/detector/infer", fields=field))
            got = await client.answer()
            assert json.loads(got.body)["model_name"] == "detector"
        assert all(b"/v2/models/other/infer" in each.head for each in backend.requests)


async def test_an_unknown_variant_and_a_client_that_may_not_choose_are_refused() -> None:
    request = inference(b"/v2/models/detector/infer", fields=b"x-triton-lb-variant: nightly\r\n")
    async with serving(b"") as (backend, _, client):
        await client.send(request)
        got = await client.answer()
        assert got.status == 400
        assert b"canary, other" in got.body
    gate = Gate(GateRules(control=ControlRule(loopback=False)))
    async with serving(b"", gate=gate) as (backend, _, client):
        await client.send(request)
        assert (await client.answer()).status == 403
        assert not backend.requests


async def test_a_large_request_goes_on_as_it_comes() -> None:
    body = b'{"inputs":[{"name":"INPUT","data":[' + b"1," * 200_000 + b"1]}]}"
    async with serving(reply(inference_response(LONG))) as (backend, _, client):
        await client.send(inference(b"/v2/models/detector/infer", body), step=50_000)
        got = await client.answer()
        assert json.loads(got.body)["model_name"] == "detector"
        assert backend.requests[0].body == body
