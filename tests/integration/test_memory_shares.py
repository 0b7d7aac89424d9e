"""Many small requests of one client do not keep the requests of others out of memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest

from lb.domain.outcome import Reason
from lb.wire.memory_budget import MemoryBudget
from tests.fakes.pouring import POUR_PATH, pours, sized
from tests.fakes.relay import RunningRelay, running_http1_relay, running_relay
from tests.wire import http1
from tests.wire.frames import (
    INITIAL_WINDOW_SIZE,
    data,
    headers,
    message,
    request_fields,
)
from tests.wire.http2 import Peer, raw_backend, raw_client
from tests.wire.waiting import eventually

BOTH_LOOPS = True
KIB, MIB = 1024, 1024 * 1024
CEILING = 2 * MIB
SMALL = 40 * KIB
"""Less than a connection may hold, whatever others need."""
TRIES = 20
RESOURCE_EXHAUSTED = 8
REFLECTION = b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
SYMBOL = b"inference.GRPCInferenceService"
QUESTIONS = message(b"\x22" + bytes((len(SYMBOL),)) + SYMBOL) * 400


def pour(stream: int, size: int) -> bytes:
    """A request for `size` bytes."""
    return headers(stream, request_fields(sized(size), path=POUR_PATH), end=True)


def unread_answer(stream: int) -> bytes:
    return pour(stream, SMALL)


def unread_reflection(stream: int) -> bytes:
    return headers(stream, request_fields(path=REFLECTION)) + data(stream, QUESTIONS)


async def is_served(client: Peer) -> bool:
    """Whether one of a few small requests of a client is answered; the others are refused."""
    for stream in range(1, 2 * TRIES, 2):
        client.send(pour(stream, 100))
        await client.until_over(stream)
        if client.status(stream) == 0:
            return True
        assert client.status(stream) == RESOURCE_EXHAUSTED
    return False


def cut(relay: RunningRelay) -> set[str]:
    """The addresses of clients whose requests had to give way after they had begun."""
    return {
        record.client.rpartition(":")[0]
        for record in relay.finished.records
        if record.reason is Reason.MEMORY and record.status == 200 and record.bytes_out
    }


def _is_fuller(memory_budget: MemoryBudget, size: int) -> bool:
    return memory_budget.held >= size or memory_budget.is_short


async def fill(relay: RunningRelay, attack: Callable[[int], bytes], *clients: Peer) -> int:
    """Have clients begin requests, in turn, until memory is short. Returns the next free stream."""
    memory_budget = relay.memory_budget
    stream = 1
    while not memory_budget.is_short:
        for client in clients:
            held = memory_budget.held
            client.send(attack(stream))
            await eventually(partial(_is_fuller, memory_budget, held + SMALL))
        stream += 2
    assert memory_budget.evictions == 0
    return stream


@pytest.mark.parametrize("attack", [unread_answer, unread_reflection])
async def test_one_connection_does_not_fill_the_memory(attack: Callable[[int], bytes]) -> None:
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target, ceiling=CEILING) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 0}) as attacker,
        raw_client(relay.port) as good,
    ):
        await fill(relay, attack, attacker)
        assert await is_served(good)
        assert relay.memory_budget.held <= CEILING * 3 // 4
        assert not good.resets
        await attacker.until(lambda _: len(attacker.resets) == relay.memory_budget.evictions)
        assert 1 not in attacker.resets, "those that began first are nearest to their end"
        attacker.abort()
        await relay.until_clean()


async def test_many_connections_of_one_client_do_not_fill_the_memory() -> None:
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target, ceiling=CEILING) as relay,
        raw_client(relay.port) as good,
        AsyncExitStack() as stack,
    ):
        attackers = [
            await stack.enter_async_context(
                raw_client(relay.port, {INITIAL_WINDOW_SIZE: 0}, address="127.0.0.2")
            )
            for _ in range(CEILING // SMALL)
        ]
        await fill(relay, unread_answer, *attackers)
        assert await is_served(good)
        assert cut(relay) == {"127.0.0.2"}
        for each in attackers:
            each.abort()
        await relay.until_clean()


async def hangs_once(peer: http1.Peer) -> None:
    """Leave requests for one model without an answer."""
    while True:
        request = await peer.request()
        if b"hangs" in request.target:
            await asyncio.Event().wait()
        await peer.send(http1.reply())


async def test_requests_behind_others_of_http1_do_not_fill_the_memory() -> None:
    hanging = b"GET /v2/models/hangs HTTP/1.1\r\nHost: a\r\n\r\n"
    behind = http1.GET * (SMALL // len(http1.GET) + 1)
    async with (
        http1.scripted_backend(hangs_once) as backend,
        running_http1_relay(backend.target, ceiling=CEILING) as relay,
        http1.raw_client(relay.port) as good,
        AsyncExitStack() as stack,
    ):
        memory_budget = relay.memory_budget
        attackers = []
        while not memory_budget.is_short:
            each = await stack.enter_async_context(http1.raw_client(relay.port, "127.0.0.2"))
            held = memory_budget.held
            await each.send(hanging + behind)
            await eventually(partial(_is_fuller, memory_budget, held + SMALL))
            attackers.append(each)
        for _ in range(TRIES):
            await good.send(http1.GET)
            answer = await good.answer()
            if answer.status == 200:
                break
            assert answer.status == 503
        assert answer.status == 200
        assert (await attackers[-1].answer()).status == 503, "it began last"
        assert await attackers[-1].is_closed()
        assert memory_budget.held <= CEILING * 3 // 4


async def test_clients_that_load_the_process_alike_do_not_push_each_other_out() -> None:
    async with (
        raw_backend(pours) as backend,
        running_relay(backend.target, ceiling=CEILING) as relay,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 0}) as one,
        raw_client(relay.port, {INITIAL_WINDOW_SIZE: 0}, address="127.0.0.2") as other,
    ):
        stream = await fill(relay, unread_answer, one, other)
        for _ in range(3):
            other.send(pour(stream, 100))
            await other.until_over(stream)
            assert other.status(stream) == RESOURCE_EXHAUSTED
            stream += 2
        assert relay.memory_budget.evictions == 0
