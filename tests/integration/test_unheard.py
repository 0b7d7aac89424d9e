"""Connections to backends over which nothing arrives any more, over real sockets: the kernel of one
end drops all packets, as a firewall does that forgot the connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from lb.domain.backend import Port
from lb.domain.outcome import Outcome
from tests.fakes.deaf import make_deaf
from tests.fakes.gated import Gated, GrpcSide, HttpSide, Side, gated_grpc, gated_http, until
from tests.fakes.grpc_server import grpc_channel
from tests.fakes.relay import running_http1_relay, running_relay

_LIMIT_S = 60.0
_RENEWED_S = 7.0
"""Within which a dead connection is replaced: the kernel sends again after 1.4, 3 and 6.2 s."""


class Between:
    """Passes on what comes over TCP, both ways."""

    def __init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, target: str) -> str:
        """Where it listens."""
        host, _, port = target.rpartition(":")

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward = await asyncio.open_connection(host, int(port))
            self._writers += [writer, onward[1]]
            self._tasks.add(asyncio.create_task(_copy(reader, onward[1])))
            self._tasks.add(asyncio.create_task(_copy(onward[0], writer)))

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self._server = server
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Nothing passes over the connections that there are; new ones work."""
        for writer in self._writers[::2]:
            make_deaf(writer.get_extra_info("socket"))

    async def end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


@asynccontextmanager
async def site(protocol: str) -> AsyncIterator[tuple[Side, list[Between]]]:
    """A relay, and two backends behind something that can be cut. They answer probes."""
    gates = [Gated(), Gated()]
    ways = [Between(), Between()]
    async with AsyncExitStack() as stack:
        begin = gated_grpc if protocol == "grpc" else gated_http
        targets = []
        for gate, way in zip(gates, ways, strict=True):
            target = await stack.enter_async_context(begin(gate))
            targets.append(await way.begin(target))
            stack.push_async_callback(way.end)
        side: Side
        if protocol == "grpc":
            relay = await stack.enter_async_context(running_relay(*targets))
            side = GrpcSide(relay, gates)
            side.channel = await stack.enter_async_context(grpc_channel(relay.target))
        else:
            options = {"deadline_header": b"x-timeout"}
            http1 = await stack.enter_async_context(running_http1_relay(*targets, options=options))
            side = HttpSide(http1, gates)
        ports = [port for backend in side.relay.backends for port in backend.ports if port]
        side.relay.watch_unheard()
        probes = asyncio.create_task(_answer_probes(ports))
        stack.callback(probes.cancel)
        yield side, ways
        for gate in gates:
            gate.open = True
            gate.release()
        await until(lambda: not any(side.relay.leftovers().values()), "nothing is left")


async def _answer_probes(ports: list[Port]) -> None:
    while True:
        for port in ports:
            port.probed_at = time.monotonic()
        await asyncio.sleep(0.5)


async def goes_elsewhere(protocol: str) -> None:
    async with site(protocol) as (side, ways):
        for gate in side.gates:
            gate.open = True
        assert (await side.ask("first")).code == side.ok
        (used,) = (at for at, gate in enumerate(side.gates) if gate.seen)
        await asyncio.sleep(1.0)  # all is acknowledged: otherwise the deaf end goes on talking
        ways[used].cut()
        asked = [side.ask(name) for name in ("second", "third")]
        assert [(await task).code for task in asked] == [side.ok] * 2
        assert (f"b{used}", Outcome.STALLED) in side.relay.outcomes.seen
        assert not side.relay.blocked_models
        assert max(record.attempts for record in side.records) == 2
        assert (await side.ask("fourth")).code == side.ok
        assert side.records[-1].attempts == 1, "a new connection works"


async def is_waited_for(protocol: str) -> None:
    """A server that reads and says nothing: its kernel acknowledges."""
    async with site(protocol) as (side, _):
        asked = await side.asked("slow")
        await asyncio.sleep(3.5)
        assert side.relay.outcomes.seen == []
        side.gates[0].release()
        side.gates[1].release()
        assert (await asked).code == side.ok
        assert side.records[0].attempts == 1


async def is_renewed_despite_deadlines(protocol: str) -> None:
    """Each request is ended by its client long before its connection has been silent for long."""
    async with site(protocol) as (side, ways):
        for gate in side.gates:
            gate.open = True
        assert (await side.ask("first")).code == side.ok
        await asyncio.sleep(1.0)
        ways[0].cut()
        async with asyncio.timeout(_RENEWED_S):
            codes = [(await side.ask("second", timeout_s=0.5)).code]
            while codes[-1] != side.ok:
                codes.append((await side.ask("again", timeout_s=0.5)).code)
            assert set(codes[:-1]) == {side.late}
            await until(lambda: not side.relay.backends[0].in_flight, "what it owes is given up")
        assert (await side.ask("last")).code == side.ok
        assert "last" in side.gates[0].seen, "a new connection to the same backend works"
        assert not side.relay.blocked_models


async def is_renewed_while_nobody_asks(protocol: str) -> None:
    """What the only request has sent is still not acknowledged after its end."""
    async with site(protocol) as (side, ways):
        for gate in side.gates:
            gate.open = True
        assert (await side.ask("first")).code == side.ok
        await asyncio.sleep(1.0)
        ways[0].cut()
        assert (await side.ask("second", timeout_s=0.3)).code == side.late
        await asyncio.sleep(_RENEWED_S)
        assert (await side.ask("third")).code == side.ok
        assert side.records[-1].attempts == 1, "the dead connection was not asked"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_connection_that_nobody_hears_is_renewed_however_short_deadlines_are(
    protocol: str,
) -> None:
    async with asyncio.timeout(_LIMIT_S):
        await asyncio.gather(
            is_renewed_despite_deadlines(protocol), is_renewed_while_nobody_asks(protocol)
        )


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_requests_leave_a_connection_that_nobody_hears_and_no_other(protocol: str) -> None:
    async with asyncio.timeout(_LIMIT_S):
        await asyncio.gather(goes_elsewhere(protocol), is_waited_for(protocol))
