"""Good clients beside bad ones, and backends that close when they like: every client gets its own
answers and no other, and nothing is sent twice that must not be."""

from __future__ import annotations

import asyncio
import random

from tests.corpus.http1 import ALL
from tests.fakes.relay import RunningRelay, running_http1_relay
from tests.wire.http1 import Peer, RawClient, raw_client, reply, scripted_backend
from tests.wire.waiting import eventually

BOTH_LOOPS = True


async def _echo(peer: Peer) -> None:
    """Answer with what was asked."""
    while True:
        received = await peer.request()
        body = received.target + b" " + received.body
        if len(body) % 2:
            await peer.send(reply(body))
        else:
            await peer.send(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
                % (len(body), body)
            )


async def _ask(client: RawClient, name: int, count: int, rng: random.Random) -> None:
    """Send requests of all kinds and check each answer."""
    for number in range(count):
        target = b"/v2/models/m%d/infer/%d" % (name, number)
        body = b"%d-%d" % (name, number) * rng.randrange(200)
        if rng.random() < 0.5:
            framed = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        else:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            framed = b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
        await client.send(b"POST %b HTTP/1.1\r\nHost: a\r\n%b" % (target, framed))
        answer = await client.answer("POST")
        assert answer.complete
        assert answer.body == target + b" " + body


async def _attack(relay: RunningRelay) -> None:
    """Send the whole corpus, a connection for each row."""
    for row in ALL:
        async with raw_client(relay.port) as client:
            try:
                await client.send(row.wire)
                await asyncio.wait_for(client.reader.read(65536), 0.05)
            except (TimeoutError, ConnectionError):
                pass  # this row waits for more, or was refused while it was sent


async def test_bad_clients_do_not_touch_the_good_ones() -> None:
    options = {"linger_s": 0.05}
    async with (
        scripted_backend(_echo) as backend,
        running_http1_relay(backend.target, options=options) as relay,
    ):

        async def run(name: int) -> None:
            async with raw_client(relay.port) as client:
                await _ask(client, name, 150, random.Random(name))

        await asyncio.gather(*(run(name) for name in range(8)), _attack(relay))
        await eventually(relay.is_clean)
        assert not any(b"evil" in got.target for got in backend.requests)
        assert not any(b"smuggled" in got.target for got in backend.requests)


async def test_backend_that_closes_idle_connections_costs_no_request() -> None:
    rng = random.Random(7)
    served: list[bytes] = []

    async def closes_soon(peer: Peer) -> None:
        while True:
            received = await peer.request()
            served.append(received.target)
            await peer.send(reply(received.target))
            if rng.random() < 0.4:
                await asyncio.sleep(rng.choice([0, 0, 0.0005]))
                return

    async with (
        scripted_backend(closes_soon) as backend,
        running_http1_relay(backend.target) as relay,
    ):

        async def run(name: int) -> None:
            async with raw_client(relay.port) as client:
                for number in range(150):
                    target = b"/v2/models/m/infer?%d-%d" % (name, number)
                    await client.send(
                        b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}" % target
                    )
                    answer = await client.answer("POST")
                    assert (answer.status, answer.body) == (200, target)

        await asyncio.gather(*(run(name) for name in range(4)))
        assert len(served) == len(set(served)) == 600
        await eventually(relay.is_clean)


async def test_backends_die_and_others_take_over() -> None:
    async def dies_sometimes(peer: Peer) -> None:
        for _ in range(5):
            received = await peer.request()
            await peer.send(reply(received.body))
        await peer.reset()

    async with (
        scripted_backend(dies_sometimes) as first,
        scripted_backend(_echo) as second,
        running_http1_relay(first.target, second.target) as relay,
    ):

        async def run() -> int:
            failed = 0
            async with raw_client(relay.port) as client:
                for _ in range(100):
                    await client.send(
                        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
                        b'Content-Length: 14\r\n\r\n{"outputs":[]}'
                    )
                    answer = await client.answer("POST")
                    assert answer.status in (200, 502)
                    failed += answer.status == 502
            return failed

        failed = await asyncio.gather(*(run() for _ in range(6)))
        assert sum(failed) <= 6, "only what was under way on a connection that was reset"
        await eventually(relay.is_clean)
        records = relay.finished.records
        assert len(records) == 600
        assert sum(record.attempts for record in records) == sum(
            sum(backend.ports[0].codes.values()) + sum(backend.ports[0].failures.values())
            for backend in relay.backends
            if backend.ports[0] is not None
        )
