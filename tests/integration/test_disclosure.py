"""Clients that may know learn which backend served them, and how; others see what it sent."""

from __future__ import annotations

import re

import grpc
import grpc.aio
import pytest

from lb.access.disclosure import Disclosure
from lb.access.gate import Gate, GateRules
from lb.access.tokens import Token, TokenBook, digest_of
from lb.domain.access import Audience, Role
from tests.fakes.grpc_server import grpc_channel, grpc_server, path
from tests.fakes.relay import running_http1_relay, running_relay
from tests.fakes.stream_backend import StreamClient, step, stream_backend
from tests.wire.http1 import RawClient, raw_client, scripted_backend
from tests.wire.waiting import eventually

SECRETS = {
    "user": "0123456789abcdef",
    "operator": "fedcba9876543210",
    "switch": "0011223344556677",
}
TOKENS = TokenBook(
    [
        Token("user", digest_of(SECRETS["user"].encode()), frozenset({Role.INFER})),
        Token(
            "operator",
            digest_of(SECRETS["operator"].encode()),
            frozenset({Role.INFER, Role.READ}),
        ),
        Token("switch", digest_of(SECRETS["switch"].encode()), frozenset({Role.OPERATE})),
    ]
)
FIELDS = (
    b"x-triton-lb-backend",
    b"x-triton-lb-request-id",
    b"x-triton-lb-attempts",
    b"server-timing",
)
STAGES = re.compile(r"queue;dur=\d+\.\d\d, connect;dur=\d+\.\d\d, backend;dur=\d+\.\d\d")
ALL = {"disclosure": Disclosure(Audience.ALL)}
ROLE = {"disclosure": Disclosure(Audience.ROLE)}
IDS = {"disclosure": Disclosure(request_ids=True)}


def facts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items() if name in FIELDS}


async def ask(client: RawClient, *lines: bytes) -> dict[str, str]:
    """What an answer says beside what the backend sent."""
    head = (b"POST /v2/models/m/infer HTTP/1.1", b"Host: a", b"Content-Length: 2", *lines)
    await client.send(b"\r\n".join((*head, b"", b"{}")))
    answer = await client.answer("POST")
    assert answer.complete
    return facts(answer.fields)


async def test_http_clients_learn_who_answered() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=ALL) as relay,
        raw_client(relay.port) as client,
    ):
        for _ in range(2):
            found = await ask(client, b"X-Request-Id: mine")
            assert STAGES.fullmatch(found.pop("server-timing"))
            assert found == {
                "x-triton-lb-backend": "b0",
                "x-triton-lb-request-id": "mine",
                "x-triton-lb-attempts": "1",
            }
        first, second = [(await ask(client))["x-triton-lb-request-id"] for _ in range(2)]
        assert first != second
        assert relay.finished.records[-1].request_id == second.encode()
        assert all(each.field(b"x-request-id") in (b"mine", None) for each in backend.requests)
        await eventually(relay.is_clean)


async def test_errors_of_ours_say_it_too() -> None:
    async with (
        running_http1_relay("127.0.0.1:1", options=ALL) as relay,
        raw_client(relay.port) as client,
    ):
        found = await ask(client)
        assert (found["x-triton-lb-backend"], found["x-triton-lb-attempts"]) == ("b0", "1")
        assert "queue;dur=" in found["server-timing"]


async def test_nobody_learns_it_by_default() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target) as relay,
        raw_client(relay.port) as client,
    ):
        assert await ask(client) == {}
    async with (
        grpc_server() as (_, target),
        running_relay(target) as relay,
        grpc_channel(relay.target) as channel,
    ):
        assert await trailing(channel) == {}


async def test_http_callers_with_a_role_learn_it() -> None:
    gate = Gate(GateRules(needs_token=True), TOKENS)
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=ROLE, gate=gate) as relay,
        raw_client(relay.port) as client,
    ):
        for name, learns in (("user", False), ("operator", True), ("user", False)):
            bearer = f"Authorization: Bearer {SECRETS[name]}".encode()
            assert bool(await ask(client, bearer)) is learns
        assert await ask(client) == {}  # 401
        switch = f"Authorization: Bearer {SECRETS['switch']}".encode()
        assert "x-triton-lb-backend" not in (refused := await ask(client, switch))
        assert refused  # 403
        await client.send(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n" + switch + b"\r\n\r\n")
        assert facts((await client.answer("GET")).fields) == {}  # it takes no token


async def test_backends_get_an_id_where_the_client_has_none() -> None:
    async with (
        scripted_backend() as backend,
        running_http1_relay(backend.target, options=IDS) as relay,
        raw_client(relay.port) as client,
    ):
        assert await ask(client) == await ask(client) == {}
        await ask(client, b"X-Request-Id: mine")
        seen = [each.field(b"x-request-id") for each in backend.requests]
        assert len(set(seen)) == 3
        assert seen == [record.request_id for record in relay.finished.records]
        assert seen[-1] == b"mine"
        assert all(seen)


# gRPC


async def trailing(channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> dict[str, str]:
    """The trailing metadata of an inference, as far as it is about how it was served."""
    call = channel.unary_unary(path("ModelInfer"))(b"\x0a\x01m", metadata=metadata)
    await call.code()
    return {key: value for key, value in await call.trailing_metadata() if key.encode() in FIELDS}


async def test_grpc_clients_learn_who_answered() -> None:
    async with (
        grpc_server() as (_, target),
        running_relay(target, options=ALL) as relay,
        grpc_channel(relay.target) as channel,
    ):
        for _ in range(2):
            found = await trailing(channel, ("x-request-id", "mine"))
            assert STAGES.fullmatch(found.pop("server-timing"))
            assert found == {
                "x-triton-lb-backend": "b0",
                "x-triton-lb-request-id": "mine",
                "x-triton-lb-attempts": "1",
            }
        await channel.close()
        await relay.until_clean()


async def test_grpc_callers_with_a_role_learn_it_and_errors_say_it() -> None:
    gate = Gate(GateRules(needs_token=True), TOKENS)
    async with (
        running_relay("127.0.0.1:1", options=ROLE, gate=gate) as relay,
        grpc_channel(relay.target) as channel,
    ):
        for name, attempts in (("user", None), ("operator", "1")):
            found = await trailing(channel, ("authorization", f"Bearer {SECRETS[name]}"))
            assert found.get("x-triton-lb-attempts") == attempts
        assert await trailing(channel) == {}  # UNAUTHENTICATED


async def test_grpc_backends_get_an_id_where_the_client_has_none() -> None:
    async with (
        grpc_server() as (service, target),
        running_relay(target, options=IDS) as relay,
        grpc_channel(relay.target) as channel,
    ):
        seen = []
        for metadata in ((), (), (("x-request-id", "mine"),)):
            await trailing(channel, *metadata)
            seen.append(dict(service.metadata)["x-request-id"])
        assert len(set(seen)) == 3
        assert seen[-1] == "mine"
        assert [each.encode() for each in seen] == [
            record.request_id for record in relay.finished.records
        ]


@pytest.mark.parametrize("models", [("plain",), ("plain", "seq")])
async def test_streams_say_it_at_their_end(models: tuple[str, ...]) -> None:
    async with (
        stream_backend("b0") as backend,
        running_relay(backend.target, options=ALL) as relay,
        grpc_channel(relay.target) as channel,
    ):
        stream = StreamClient(channel)
        for model in models:
            await stream.send(step(model))
            await stream.answer()
        assert await stream.end() is grpc.StatusCode.OK
        found = dict(await stream.call.trailing_metadata())
        assert (found["x-triton-lb-backend"], found["x-triton-lb-attempts"]) == ("b0", "1")
        assert "backend;dur=" in found["server-timing"]
