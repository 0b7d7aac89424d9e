"""Requests that wait for their turn, over real sockets and in both protocols."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from lb.domain.backend import Address, AppProtocol
from lb.domain.outcome import Reason
from lb.kserve import inference_pb2 as pb
from tests.fakes.clock import FakeLoop
from tests.fakes.gated import HttpSide, Side, grpc_side, http_side, until
from tests.fakes.grpc_server import grpc_channel, grpc_server, path
from tests.fakes.relay import running_relay, snapshot_of
from tests.wire.http1 import raw_client

SIDES = {"grpc": grpc_side, "http": http_side}


@pytest.fixture(params=SIDES)
async def one(request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    """One backend that takes one request at a time."""
    async with asyncio.timeout(60), SIDES[request.param](1) as side:
        side.schedule()
        yield side


@pytest.fixture(params=SIDES)
async def two(request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    """Two of them."""
    async with asyncio.timeout(60), SIDES[request.param](2) as side:
        side.schedule()
        yield side


async def test_requests_begin_one_after_the_other_in_their_order(one: Side) -> None:
    names = ["a", "b", "c", "d"]
    tasks = [await one.asked(name) for name in names]
    for count, name in enumerate(names, start=1):
        await until(lambda name=name: name in one.gates[0].running, name)  # type: ignore[misc]
        assert one.seen == names[:count]
        assert one.relay.backends[0].in_flight == 1
        one.gates[0].release()
    assert [(await task).code for task in tasks] == [one.ok] * 4
    records = {record.queue_position for record in one.records}
    assert records == {None, 0, 1, 2}
    assert one.queue.positions == {b"m": 3}
    assert all(record.placed_at > record.started_at for record in one.records[1:])


async def test_what_waits_goes_to_whichever_backend_has_room(two: Side) -> None:
    tasks = [await two.asked(name) for name in ("a", "b", "c")]
    assert sorted(two.seen) == ["a", "b"]
    gate = next(gate for gate in two.gates if "b" in gate.running)
    gate.release()
    await until(lambda: "c" in gate.running, "c runs where b ran")
    for each in two.gates:
        each.release()
    assert [(await task).code for task in tasks] == [two.ok] * 3


async def test_a_client_that_leaves_while_it_waits_costs_nothing(one: Side) -> None:
    first = await one.asked("a")
    gone, last = await one.asked("b"), await one.asked("c")
    await asyncio.sleep(0.15)  # who ends a connection at once may wait for the answer
    gone.cancel()
    await until(lambda: len(one.queue) == 1, "b has left")
    one.gates[0].release()
    await until(lambda: "c" in one.gates[0].running, "c runs")
    one.gates[0].release()
    assert [(await first).code, (await last).code] == [one.ok] * 2
    assert one.seen == ["a", "c"]
    left = next(record for record in one.records if record.reason is Reason.CLIENT_GONE)
    assert left.attempts == 0
    assert left.backend is None


@pytest.mark.parametrize(("protocol", "timeout_s"), [("grpc", 2.0), ("http", 0.5)])
async def test_a_deadline_that_passes_while_waiting_ends_it(
    protocol: str, timeout_s: float
) -> None:
    # A gRPC client ends its call itself, by a clock that the test does not have. The relay's clock
    # stands below a second: then the first request would be overdue, and the next one be sent.
    loop = FakeLoop()
    async with asyncio.timeout(60), SIDES[protocol](1, loop=loop) as one:
        one.schedule()
        first = await one.asked("a")
        late = await one.asked("b", timeout_s=timeout_s)
        if protocol == "http":
            loop.advance(timeout_s)
        assert (await late).code == one.late
        await until(lambda: not len(one.queue), "the relay has heard of it")
        one.gates[0].release()
        assert (await first).code == one.ok
        assert one.seen == ["a"]
        record = next(record for record in one.records if record.reason is not None)
        assert record.reason in (Reason.DEADLINE, Reason.CLIENT_GONE)


@pytest.mark.parametrize("protocol", SIDES)
async def test_whoever_comes_to_an_idle_backend_is_sent_there_whatever_others_took(
    protocol: str,
) -> None:
    loop = FakeLoop()
    async with asyncio.timeout(60), SIDES[protocol](1, loop=loop) as one:
        one.schedule()
        for number in range(25):
            slow = await one.asked(f"slow {number}")
            loop.advance(40.0)
            one.gates[0].release()
            assert (await slow).code == one.ok
        one.gates[0].open = True
        hurried = [f"quick {number}" for number in range(20)]
        for name in hurried:
            assert (await one.ask(name, timeout_s=30.0)).code == one.ok
        assert one.seen[25:] == hurried


async def test_more_than_may_wait_are_refused_and_told_when_to_come_again(one: Side) -> None:
    one.schedule(max_waiting=1)
    first, second = await one.asked("a"), await one.asked("b")
    refused = await one.ask("c")
    assert refused.code == one.overloaded
    assert refused.retry_after_s is not None
    assert refused.retry_after_s > 0
    one.gates[0].open = True
    one.gates[0].release()
    assert [(await first).code, (await second).code] == [one.ok] * 2
    assert one.seen == ["a", "b"]
    assert [record.reason for record in one.records if record.reason] == [Reason.QUEUE_FULL]


async def test_a_higher_priority_goes_first_and_takes_the_place_of_a_lower_one(one: Side) -> None:
    one.schedule(max_waiting=2)
    first = await one.asked("a")
    bulk, other = await one.asked("bulk", priority=3), await one.asked("other", priority=3)
    urgent = one.ask("urgent", priority=1)
    refused = await other
    assert refused.code == one.overloaded
    one.gates[0].release()
    await until(lambda: "urgent" in one.gates[0].running, "the urgent one runs")
    one.gates[0].open = True
    one.gates[0].release()
    assert [(await task).code for task in (first, bulk, urgent)] == [one.ok] * 3
    assert one.seen == ["a", "urgent", "bulk"]


NOTED = frozenset({b"x-team", b"x-urgency"})
NOTING = {
    "grpc": lambda: grpc_side(1, {"noted": NOTED}),
    "http": lambda: http_side(1, {"noted": NOTED}),
}


def team_of(name: str) -> str:
    return name.partition("-")[0]


@pytest.mark.parametrize("protocol", NOTING)
async def test_who_asks_for_more_than_others_gets_no_more(protocol: str) -> None:
    async with asyncio.timeout(60), NOTING[protocol]() as side:
        side.schedule()
        side.queue.configure(tenant_header=b"x-team")
        names = ("first", "greedy-1", "greedy-2", "greedy-3", "greedy-4", "modest-1", "modest-2")
        tasks = [await side.asked(name, fields={"x-team": team_of(name)}) for name in names]
        side.gates[0].open = True
        side.gates[0].release()
        assert {(await task).code for task in tasks} == {side.ok}
        served = [team_of(name) for name in side.seen[1:5]]
        assert sorted(served) == ["greedy", "greedy", "modest", "modest"]


@pytest.mark.parametrize("protocol", NOTING)
async def test_shares_of_tenants_count(protocol: str) -> None:
    async with asyncio.timeout(60), NOTING[protocol]() as side:
        side.schedule(tenant_weights={"big": 3.0})
        side.queue.configure(tenant_header=b"x-team")
        names = ["first", *(f"small-{n}" for n in range(4)), *(f"big-{n}" for n in range(6))]
        tasks = [await side.asked(name, fields={"x-team": team_of(name)}) for name in names]
        side.gates[0].open = True
        side.gates[0].release()
        assert {(await task).code for task in tasks} == {side.ok}
        served = [team_of(name) for name in side.seen[1:9]]
        assert served.count("big") == 6


@pytest.mark.parametrize("protocol", NOTING)
async def test_a_header_tells_how_urgent_a_request_is(protocol: str) -> None:
    async with asyncio.timeout(60), NOTING[protocol]() as side:
        side.schedule()
        side.queue.configure(priority_header=b"x-urgency")
        tasks = [await side.asked("first")]
        for name, said in (("usual", "2"), ("bulk", "3"), ("nothing", "x"), ("urgent", "1")):
            tasks.append(await side.asked(name, fields={"x-urgency": said}))
        side.gates[0].open = True
        side.gates[0].release()
        assert {(await task).code for task in tasks} == {side.ok}
        assert side.seen == ["first", "urgent", "usual", "nothing", "bulk"]


async def test_a_long_body_waits_within_its_bounds_and_arrives_whole(one: Side) -> None:
    first = await one.asked("a")
    size = 6 * 2**20
    long = one.ask("long", size=size)
    await until(lambda: len(one.queue) == 1, "it waits")
    await until(lambda: one.relay.memory_budget.held > 0, "some of it is there")
    assert one.relay.memory_budget.held <= 2 * 2**20
    one.gates[0].open = True
    one.gates[0].release()
    assert [(await task).code for task in (first, long)] == [one.ok] * 2
    record = one.records[-1]
    assert record.bytes_in > size


async def test_rows_are_read_from_the_first_bytes(one: Side) -> None:
    first = await one.asked("a")
    many = await one.asked("b", rows=32, size=100_000)
    (ticket,) = one.queue.tickets()
    assert (ticket.rows, ticket.model, ticket.eligible) == (32, b"m", tuple(one.relay.backends))
    assert ticket.size > 100_000
    one.gates[0].open = True
    one.gates[0].release()
    assert [(await task).code for task in (first, many)] == [one.ok] * 2


async def test_waiting_requests_survive_the_death_of_a_backend(two: Side) -> None:
    tasks = [await two.asked(name) for name in ("a", "b", "c", "d")]
    alive = two.relay.backends[1]
    two.publish(alive)
    two.gates[1].open = True
    two.gates[1].release()
    await asyncio.gather(*tasks[2:])
    assert {"c", "d"} <= set(two.gates[1].seen)
    assert not {"c", "d"} & set(two.gates[0].seen)
    two.gates[0].release()
    assert [(await task).code for task in tasks] == [two.ok] * 4


async def test_waiting_requests_are_refused_when_the_last_backend_goes(one: Side) -> None:
    first, second = await one.asked("a"), await one.asked("b")
    one.publish()
    assert (await second).code == one.unavailable
    one.gates[0].release()
    assert (await first).code == one.ok
    assert one.seen == ["a"]


async def test_requests_can_wait_until_there_is_a_backend(one: Side) -> None:
    one.queue.configure(wait_for_backend_s=30.0)
    one.publish()
    tasks = [await one.asked(name) for name in ("a", "b")]
    gone = await one.asked("gone")
    await asyncio.sleep(0.15)
    gone.cancel()
    await until(lambda: len(one.queue) == 2, "one has left")
    one.gates[0].open = True
    one.publish(*one.relay.backends)
    assert [(await task).code for task in tasks] == [one.ok] * 2
    assert sorted(one.seen) == ["a", "b"]


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_stream_waits_for_a_backend_with_all_its_messages(refuses: bool) -> None:
    async with asyncio.timeout(60), grpc_server() as (_, target), running_relay(target) as relay:
        relay.queue.configure(wait_for_backend_s=30.0)
        port = relay.backends[0].port(AppProtocol.GRPC)
        address = port.address
        if refuses:
            port.address = Address("127.0.0.1", 1)
        else:
            relay.pool.publish(snapshot_of([]))
        messages = [pb.ModelInferRequest(model_name="m", id=str(n)) for n in range(50)]
        sent = [message.SerializeToString() for message in messages]
        async with grpc_channel(relay.target) as channel:
            call = channel.stream_stream(path("ModelStreamInfer"))()
            for message in sent:
                await call.write(message)
            await until(lambda: len(relay.queue) == 1, "it waits")
            await call.done_writing()
            port.address = address
            relay.pool.publish(snapshot_of(relay.backends, generation=2))
            assert [answer async for answer in call] == sent
            # One that is given up, and one whose client leaves.
            relay.pool.publish(snapshot_of([], generation=3))
            gone = channel.stream_stream(path("ModelStreamInfer"))()
            await gone.write(sent[0])
            await until(lambda: len(relay.queue) == 1, "it waits")
            gone.cancel()
            await until(lambda: not len(relay.queue), "it has left")
        await relay.until_clean()


async def test_waiting_for_a_backend_ends_at_the_limit(one: Side) -> None:
    one.queue.configure(wait_for_backend_s=0.05)
    one.publish()
    assert (await one.ask("a")).code == one.unavailable
    assert one.seen == []


@pytest.mark.parametrize("is_scheduled", [True, False])
async def test_requests_wait_while_every_backend_refuses(one: Side, is_scheduled: bool) -> None:
    one.queue.configure(wait_for_backend_s=30.0)
    if not is_scheduled:
        one.relay.pool.publish(one.snapshot(None, *one.relay.backends))
    port = one.relay.backends[0].ports[one.protocol]
    assert port is not None
    address, port.address = port.address, Address("127.0.0.1", 1)
    tasks = [one.ask(name) for name in ("a", "b")]
    await until(lambda: port.failures.get("connect_refused", 0) > 8, "it was tried often")
    assert not any(task.done() for task in tasks)
    one.gates[0].open = True
    port.address = address
    assert [(await task).code for task in tasks] == [one.ok] * 2


async def test_a_model_that_is_scheduled_no_more_lets_all_go(one: Side) -> None:
    tasks = [await one.asked(name) for name in ("a", "b", "c")]
    one.relay.pool.publish(one.snapshot(None, *one.relay.backends))
    await until(lambda: len(one.gates[0].running) == 3, "all run")
    one.gates[0].release()
    assert [(await task).code for task in tasks] == [one.ok] * 3


async def test_a_limit_that_grows_lets_more_go(one: Side) -> None:
    tasks = [await one.asked(name) for name in ("a", "b", "c")]
    one.schedule(concurrency=2)
    await until(lambda: len(one.gates[0].running) == 2, "two run")
    one.gates[0].open = True
    one.gates[0].release()
    assert [(await task).code for task in tasks] == [one.ok] * 3


async def test_an_end_of_the_relay_ends_all_that_wait(one: Side) -> None:
    tasks = [await one.asked(name) for name in ("a", "b", "c")]
    await one.relay.aclose()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert one.seen == ["a"]
    assert len(one.queue) == 0


async def test_a_client_that_half_closes_gets_its_answer_where_that_is_set() -> None:
    async with asyncio.timeout(60), http_side(1) as side:
        assert isinstance(side, HttpSide)
        side.relay.configure(aborts_on_half_close=False)
        side.schedule()
        first = await side.asked("a")
        async with raw_client(side.relay.port) as client:
            await client.send(side.request("b"))
            client.half_close()
            await until(lambda: len(side.queue) == 1, "it waits")
            side.gates[0].open = True
            side.gates[0].release()
            assert (await client.answer("POST")).status == 200
        assert (await first).code == side.ok


async def test_a_body_that_comes_late_does_not_hold_its_turn_back_for_others() -> None:
    async with asyncio.timeout(60), http_side(1) as side:
        assert isinstance(side, HttpSide)
        side.schedule()
        first = await side.asked("a")
        whole = side.request("slow", size=300_000)
        async with raw_client(side.relay.port) as client:
            await client.send(whole[:40_000])
            await until(lambda: len(side.queue) == 1, "it waits")
            side.gates[0].open = True
            side.gates[0].release()
            await until(lambda: not len(side.queue), "it has its turn")
            await client.send(whole[40_000:])
            assert (await client.answer("POST")).status == 200
        assert (await first).code == side.ok
        assert side.seen == ["a", "slow"]
