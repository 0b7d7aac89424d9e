"""Backends that accept connections and answer nothing: what becomes of the requests they have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from lb.domain.backend import Backend
from lb.domain.outcome import Outcome, Reason
from tests.fakes.gated import Side, grpc_side, http_side, until
from tests.fakes.relay import Relay, running_http1_relay, snapshot_of
from tests.wire.http1 import Peer, raw_client, scripted_backend

SIDES = {"grpc": grpc_side, "http": http_side}
LIMIT_S = 30.0
FAILED = {"grpc": 14, "http": 502}


def find(relay: Relay, backend: Backend, side: Side, *, is_hung: bool, is_down: bool) -> None:
    """Probes have found this of a backend, which gets requests only while it is well."""
    port = backend.port(side.protocol)
    port.is_hung, port.is_given_up = is_hung, is_down
    backends = tuple(relay.backends)
    rest = [each for each in backends if each is not backend or not is_hung]
    relay.pool.publish(replace(snapshot_of(rest), backends=backends))


def leave_one_attempt(relay: Relay) -> None:
    relay.max_attempts = 1


def forbid_reruns(relay: Relay) -> None:
    relay.run_once(b"m")


def leave_no_budget(relay: Relay) -> None:
    relay.allow_retries(0.0)


def change_nothing(_relay: Relay) -> None:
    """The rules are the usual ones; there is no other backend."""


NOWHERE_TO_GO = {
    "no attempt left": (2, leave_one_attempt),
    "may not run twice": (2, forbid_reruns),
    "no budget": (2, leave_no_budget),
    "no other backend": (1, change_nothing),
}


@pytest.mark.parametrize("protocol", SIDES)
@pytest.mark.parametrize(("count", "set_rules"), NOWHERE_TO_GO.values(), ids=NOWHERE_TO_GO)
async def test_what_cannot_leave_a_silent_backend_fails_once_that_is_down_and_not_before(
    protocol: str, count: int, set_rules: Callable[[Relay], None]
) -> None:
    async with asyncio.timeout(LIMIT_S), SIDES[protocol](count) as side:
        relay, gate = side.relay, side.gates[0]
        silent = relay.backends[0]
        set_rules(relay)
        short = side.ask("short")
        await until(lambda: gate.seen == ["short"], "it is there")
        find(relay, silent, side, is_hung=True, is_down=False)
        gate.release()
        assert (await short).code == side.ok, "a short pause costs nothing"
        find(relay, silent, side, is_hung=False, is_down=False)
        long = side.ask("long")
        await until(lambda: gate.seen == ["short", "long"], "it is there as well")
        find(relay, silent, side, is_hung=True, is_down=False)
        assert relay.outcomes.seen == []
        find(relay, silent, side, is_hung=True, is_down=True)
        assert (await long).code == FAILED[protocol]
        assert relay.outcomes.seen == [("b0", Outcome.SILENT)]
        assert side.records[-1].reason is Reason.UPSTREAM_SILENT
        assert side.seen == ["short", "long"]


@pytest.mark.parametrize("protocol", SIDES)
async def test_what_may_wait_for_a_backend_does_not_leave_the_only_one_for_a_short_pause(
    protocol: str,
) -> None:
    async with asyncio.timeout(LIMIT_S), SIDES[protocol](1) as side:
        relay, gate = side.relay, side.gates[0]
        relay.queue.configure(wait_for_backend_s=LIMIT_S)
        asked = side.ask("once")
        await until(lambda: gate.seen == ["once"], "it is there")
        find(relay, relay.backends[0], side, is_hung=True, is_down=False)
        gate.release()
        assert (await asked).code == side.ok
        assert side.records[-1].attempts == 1


def refuse(relay: Relay, backend: Backend, side: Side, *, is_lost: bool) -> None:
    """Its port refused a connection, after which another process answers there."""
    port = backend.port(side.protocol)
    port.left_before = time.monotonic()
    port.lost_before = port.left_before if is_lost else 0.0
    relay.pool.publish(snapshot_of(tuple(relay.backends)))


@pytest.mark.parametrize("protocol", SIDES)
async def test_what_a_process_had_that_is_gone_without_a_word_goes_to_another_backend(
    protocol: str,
) -> None:
    async with asyncio.timeout(LIMIT_S), SIDES[protocol](2) as side:
        relay, gate = side.relay, side.gates[0]
        before = side.ask("before")
        await until(lambda: gate.seen == ["before"], "it is there")
        refuse(relay, relay.backends[0], side, is_lost=False)
        await until(lambda: side.gates[1].seen == ["before"], "it has gone to the other one")
        side.gates[1].release()
        assert (await before).code == side.ok


@pytest.mark.parametrize("protocol", SIDES)
async def test_what_began_with_the_process_that_followed_stays_there(protocol: str) -> None:
    async with asyncio.timeout(LIMIT_S), SIDES[protocol](1) as side:
        relay, gate = side.relay, side.gates[0]
        refuse(relay, relay.backends[0], side, is_lost=True)
        after = side.ask("after")
        await until(lambda: gate.seen == ["after"], "it is there")
        relay.pool.publish(snapshot_of(tuple(relay.backends)))
        gate.release()
        assert (await after).code == side.ok


@pytest.mark.parametrize("protocol", SIDES)
async def test_what_cannot_leave_a_process_that_is_gone_fails_once_it_is_given_up(
    protocol: str,
) -> None:
    async with asyncio.timeout(LIMIT_S), SIDES[protocol](1) as side:
        relay, gate = side.relay, side.gates[0]
        request = side.ask("once")
        await until(lambda: gate.seen == ["once"], "it is there")
        refuse(relay, relay.backends[0], side, is_lost=False)
        assert relay.outcomes.seen == []
        refuse(relay, relay.backends[0], side, is_lost=True)
        assert (await request).code == FAILED[protocol]
        assert relay.outcomes.seen == [("b0", Outcome.SILENT)]


async def test_a_connection_that_is_open_only_when_its_backend_is_down_gets_no_request() -> None:
    async def listen(peer: Peer) -> None:
        await peer.closed()

    async with (
        asyncio.timeout(LIMIT_S),
        scripted_backend(listen) as backend,
        running_http1_relay(str(backend.target)) as relay,
        raw_client(relay.port) as client,
    ):
        port = relay.backends[0].ports[0]
        assert port is not None
        port.is_hung = port.is_given_up = True
        await client.send(b"GET /v2/models/m HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await client.answer("GET")
        assert (answer.status, relay.finished.records[0].reason) == (503, Reason.CONNECT_FAILED)
        assert port.bytes_sent == 0
