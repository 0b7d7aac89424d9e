"""Backends that accept connections and answer nothing: what becomes of the requests they have."""

from __future__ import annotations

import asyncio
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
