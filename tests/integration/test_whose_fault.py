"""Requests that backends reset: what another backend answers was not the request's fault, and what
every backend resets was. Passive health learns of the former only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lb.domain.backend import AppProtocol, Backend
from tests.fakes.passive_health import Told
from tests.fakes.relay import running_http1_relay, running_relay
from tests.wire.frames import (
    INTERNAL_ERROR,
    METHOD_PATH,
    RESPONSE_FIELDS,
    answer,
    call,
    continuation,
    data,
    headers,
    literals,
    message,
    named,
    request_fields,
    rst,
)
from tests.wire.http1 import Peer as Http1Peer
from tests.wire.http1 import inference_response, reply, scripted_backend
from tests.wire.http1 import raw_client as http1_client
from tests.wire.http2 import Peer, RawBackend, Script, plays, raw_backend, raw_client
from tests.wire.waiting import eventually

BAD = (b"x-bad", b"yes")
_INTERNAL, _UNKNOWN = 13, 2


def resets(is_bad: Callable[[dict[bytes, bytes]], bool]) -> Callable[[RawBackend], Script]:
    """Reset the streams of some requests, and answer the others."""

    async def play(peer: Peer) -> None:
        while True:
            request = await peer.until(lambda frame: frame.ends_stream)
            stream = request.stream
            is_reset = is_bad(peer.fields(stream))
            peer.send(rst(stream, INTERNAL_ERROR) if is_reset else answer(stream))

    return plays(play)


def is_malformed(fields: dict[bytes, bytes]) -> bool:
    return BAD[0] in fields


unreadable = resets(is_malformed)
broken = resets(lambda _: True)


def watched(backends: list[Backend]) -> Told:
    for backend in backends:
        backend.reports_due = 1000
    return Told()


async def test_what_every_backend_resets_counts_against_none() -> None:
    async with (
        raw_backend(unreadable) as one,
        raw_backend(unreadable) as two,
        running_relay(one.target, two.target) as relay,
    ):
        relay.judge = told = watched(relay.backends)
        async with raw_client(relay.port) as client:
            for stream in range(1, 25, 4):
                client.send(call(stream, None, BAD))
                await client.until_over(stream)
                assert client.status(stream) == _INTERNAL
                client.send(call(stream + 2))
                await client.until_over(stream + 2)
                assert client.status(stream + 2) == 0
        assert told.failures.total() == 0
        assert told.answers.total() == 6
        await relay.until_clean()


async def test_what_one_backend_resets_and_another_answers_counts_against_the_first() -> None:
    async with (
        raw_backend(broken) as bad,
        raw_backend(unreadable) as fine,
        running_relay(bad.target, fine.target) as relay,
    ):
        relay.judge = told = watched(relay.backends)
        async with raw_client(relay.port) as client:
            for stream in range(1, 13, 2):
                client.send(call(stream))
                await client.until_over(stream)
                assert client.status(stream) == 0
        retried = sum(record.attempts - 1 for record in relay.finished.records)
        assert told.failures == {"b0": retried}
        assert retried > 0
        await relay.until_clean()


async def test_a_client_whose_requests_always_fail_leaves_retries_to_others() -> None:
    async with (
        raw_backend(broken) as bad,
        raw_backend(unreadable) as fine,
        running_relay(bad.target, fine.target) as relay,
        raw_client(relay.port, address="127.0.0.2") as hostile,
        raw_client(relay.port) as good,
    ):
        relay.allow_retries(per_s=2.0)
        streams = range(1, 81, 2)
        hostile.send(*(call(stream, None, BAD) for stream in streams))
        for stream in streams:
            await hostile.until_over(stream)
            assert hostile.status(stream) == _INTERNAL
        for stream in range(1, 9, 2):
            good.send(call(stream))
            await good.until_over(stream)
            assert good.status(stream) == 0
        await relay.until_clean()


async def test_a_reset_that_no_other_backend_can_judge_counts_until_requests_are_at_fault() -> None:
    async with (
        raw_backend(broken) as one,
        raw_backend(broken) as two,
        running_relay(one.target, two.target) as relay,
    ):
        relay.judge = told = watched(relay.backends)
        async with raw_client(relay.port) as client:

            async def ask(stream: int) -> None:
                client.send(call(stream))
                await client.until_over(stream)

            relay.max_attempts = 1
            await ask(1)
            assert told.failures.total() == 1
            relay.max_attempts = 2
            await ask(3)
            relay.max_attempts = 1
            await ask(5)
            assert told.failures.total() == 1
        await relay.until_clean()


async def test_a_connection_that_every_server_closes_over_one_request_counts_against_none() -> None:
    async def script(peer: Http1Peer) -> None:
        while True:
            if (await peer.request()).field(b"x-bad") is not None:
                return
            await peer.send(reply(inference_response()))

    good = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    bad = good.replace(b"Host: a", b"Host: a\r\nX-Bad: yes")
    async with (
        scripted_backend(script) as one,
        scripted_backend(script) as two,
        running_http1_relay(one.target, two.target) as relay,
    ):
        relay.judge = told = watched(relay.backends)
        for _ in range(5):
            for content, status in ((bad, 502), (good, 200)):
                async with http1_client(relay.port) as client:
                    await client.send(content)
                    assert (await client.answer("POST")).status == status
        assert told.failures.total() == 0
        await eventually(relay.is_clean)


LONG = (b"grpc-message", b"x" * 70_000)
_EXHAUSTED = 8


def long_head(stream: int) -> bytes:
    """An error in one frame."""
    return headers(stream, [*RESPONSE_FIELDS, (b"grpc-status", b"5"), LONG], end=True)


def long_trailers(stream: int) -> bytes:
    """An error in frames as long as peers must take, behind a head."""
    block = literals([(b"grpc-status", b"5"), LONG])
    pieces = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    return (
        headers(stream, RESPONSE_FIELDS)
        + headers(stream, pieces[0], end=True, done=False)
        + b"".join([continuation(stream, piece, done=False) for piece in pieces[1:-1]])
        + continuation(stream, pieces[-1])
    )


def long_trailers_behind_a_message(stream: int) -> bytes:
    """An error that comes when some of the answer has gone to the client."""
    begun = headers(stream, RESPONSE_FIELDS) + data(stream, message())
    return begun + headers(stream, [(b"grpc-status", b"5"), LONG], end=True)


@pytest.mark.parametrize("reply", [long_head, long_trailers, long_trailers_behind_a_message])
async def test_an_answer_with_too_large_a_head_ends_its_own_call_only(
    reply: Callable[[int], bytes],
) -> None:
    """Servers repeat names in their errors: whoever sends long ones must not end the calls of
    others, at one backend after the other."""
    held: list[tuple[Peer, int]] = []

    async def play(peer: Peer) -> None:
        while True:
            stream = (await peer.until(lambda frame: frame.ends_stream)).stream
            if not is_malformed(peer.fields(stream)):
                held.append((peer, stream))
                continue
            peer.send(reply(stream))
            for other, waiting in held:
                other.send(answer(waiting))

    async with (
        raw_backend(plays(play)) as one,
        raw_backend(plays(play)) as two,
        running_relay(one.target, two.target) as relay,
        raw_client(relay.port) as client,
    ):
        relay.judge = told = watched(relay.backends)
        client.send(call(1), call(3))
        await eventually(lambda: len(held) == 2)
        client.send(call(5, None, BAD))
        for stream, status in ((5, _EXHAUSTED), (1, 0), (3, 0)):
            await client.until_over(stream)
            assert client.status(stream) == status
        assert client.fields(5)[b"grpc-message"].endswith(b"that are too large")
        assert [record.attempts for record in relay.finished.records] == [1, 1, 1]
        assert [len(backend.peers) for backend in (one, two)] == [1, 1]
        failures = [backend.ports[AppProtocol.GRPC].failures for backend in relay.backends]
        assert sorted(failures, key=len) == [{}, {"answer_head_too_large": 1}]
        assert told.failures.total() == 1  # whose fault it was, a comparison with others tells
        await relay.until_clean()


async def test_an_http_answer_with_too_large_a_head_is_asked_for_once() -> None:
    async def script(peer: Http1Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 400 Bad Request\r\nX: " + b"x" * 70_000 + b"\r\n\r\n")

    async with (
        scripted_backend(script) as one,
        scripted_backend(script) as two,
        running_http1_relay(one.target, two.target) as relay,
    ):
        relay.judge = told = watched(relay.backends)
        async with http1_client(relay.port) as client:
            await client.send(
                b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
            )
            assert (await client.answer("POST")).status == 502
        assert [record.attempts for record in relay.finished.records] == [1]
        assert told.failures.total() == 1
        await eventually(relay.is_clean)


PAGE = [(b":status", b"200"), (b"content-type", b"text/html")]


@pytest.mark.parametrize(
    ("path", "has_other"),
    [(METHOD_PATH, True), (METHOD_PATH, False), (b"/test.Service/Any", False)],
)
@pytest.mark.parametrize("ends_at_once", [True, False])
async def test_a_page_of_something_else_is_no_answer(
    path: bytes, has_other: bool, ends_at_once: bool
) -> None:
    async def play(peer: Peer) -> None:
        while True:
            stream = (await peer.until(lambda frame: frame.ends_stream)).stream
            page = headers(stream, PAGE, end=ends_at_once)
            peer.send(page if ends_at_once else page + data(stream, b"<html>", end=True))

    async with (
        raw_backend(plays(play)) as bad,
        raw_backend() as fine,
        running_relay(bad.target, *([fine.target] if has_other else [])) as relay,
    ):
        relay.judge = told = watched(relay.backends)
        async with raw_client(relay.port) as client:
            for stream in range(1, 9, 2):
                fields = request_fields(path=path)
                client.send(headers(stream, fields), data(stream, named(), end=True))
                await client.until_over(stream)
                if has_other:
                    assert client.status(stream) == 0
                else:
                    assert client.status(stream) == _UNKNOWN
                    text = client.fields(stream)[b"grpc-message"]
                    assert b"content-type" in text
        assert told.failures["b0"] > 0
        assert told.failures["b1"] == told.answers["b0"] == 0
        await relay.until_clean()


@pytest.mark.parametrize(
    ("status", "is_to_blame"),
    [(b"429", False), (b"500", True), (b"502", True), (b"503", True), (b"504", True)],
)
async def test_a_proxy_before_a_dead_triton_counts_against_it(
    status: bytes, is_to_blame: bool
) -> None:
    async def play(peer: Peer) -> None:
        while True:
            stream = (await peer.until(lambda frame: frame.ends_stream)).stream
            page = headers(stream, [(b":status", status), (b"content-type", b"text/html")])
            peer.send(page + data(stream, b"<html>", end=True))

    async with raw_backend(plays(play)) as proxy, running_relay(proxy.target) as relay:
        relay.judge = told = watched(relay.backends)
        async with raw_client(relay.port) as client:
            client.send(call(1))
            await client.until_over(1)
        assert told.failures["b0"] == is_to_blame
        assert not told.answers["b0"]
        await relay.until_clean()


async def test_binary_metadata_that_is_not_base64_is_refused_with_a_reason() -> None:
    async with raw_backend() as backend, running_relay(backend.target) as relay:
        async with raw_client(relay.port) as client:
            values = [b"YWI", b"YWI=", b"", b"YWI=,YWI", b"not!base64", b"-_-_"]
            for number, value in enumerate(values):
                stream = 2 * number + 1
                client.send(call(stream, None, (b"x-foo-bin", value)))
                await client.until_over(stream)
                is_bad = number >= 4
                assert client.status(stream) == (_INTERNAL if is_bad else 0)
                if is_bad:
                    assert b"-bin is not base64" in client.fields(stream)[b"grpc-message"]
        assert len(backend.requests) == 4
        await relay.until_clean()
