"""Streams that got responses from a backend which then freezes: what becomes of its requests, and
of those that follow, once it is down."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest

from lb.domain.backend import AppProtocol, Backend
from lb.domain.outcome import Outcome
from tests.fakes.clock import FakeLoop
from tests.fakes.relay import snapshot_of
from tests.fakes.stream_backend import step
from tests.integration.test_stream_resumption import ROUTES, Setup, Triton, running
from tests.wire.waiting import eventually

BOTH_LOOPS = True


def find(setup: Setup, triton: Triton, *, is_hung: bool, is_down: bool) -> Backend:
    """Probes have found this of a backend, which gets requests only while it is well."""
    relay = setup.relay
    backend = relay.backends[setup.tritons.index(triton)]
    port = backend.port(AppProtocol.GRPC)
    port.is_hung, port.is_given_up = is_hung, is_down
    rest = [each for each in relay.backends if each is not backend or not is_hung]
    snapshot = replace(snapshot_of(rest), backends=tuple(relay.backends))
    relay.pool.publish(replace(snapshot, routes=ROUTES, knows_all=True))
    return backend


def suspect(setup: Setup, triton: Triton) -> None:
    """It is frozen, perhaps only for a moment: that costs nothing."""
    triton.freeze()
    backend = find(setup, triton, is_hung=True, is_down=False)
    assert (backend.in_flight, setup.relay.outcomes.seen) == (1, [])


def thaw(setup: Setup, triton: Triton) -> None:
    """It goes on."""
    find(setup, triton, is_hung=False, is_down=False)
    triton.answer_all()


async def begin(setup: Setup) -> Triton:
    """Have one request answered. Returns by whom."""
    await setup.send("0")
    assert await setup.ids(1) == ["0"]
    return setup.tritons[0]


@pytest.mark.parametrize("count", [1, 2])
async def test_the_next_messages_of_an_idle_stream_go_to_a_backend_that_lives(count: int) -> None:
    async with running(count) as setup:
        first = await begin(setup)
        suspect(setup, first)
        backend = find(setup, first, is_hung=True, is_down=True)
        assert (backend.in_flight, setup.relay.outcomes.seen) == (0, [("b0", Outcome.SILENT)])
        if count == 1:
            thaw(setup, first)
        await setup.send("1", "2")
        assert await setup.ids(2) == ["1", "2"]
        assert setup.tritons[-1].seen[-2:] == ["1", "2"]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_requests_without_an_answer_go_to_another_backend_once_theirs_is_down() -> None:
    async with running() as setup:
        first = await begin(setup)
        first.freeze()
        await setup.send("1", "2")
        await eventually(lambda: first.seen == ["0", "1", "2"])
        suspect(setup, first)
        assert setup.tritons[1].seen == []
        find(setup, first, is_hung=True, is_down=True)
        assert await setup.ids(2) == ["1", "2"]
        assert setup.tritons[1].seen == ["1", "2"]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_requests_that_no_other_backend_can_serve_wait_for_theirs() -> None:
    async with running(1) as setup:
        first = await begin(setup)
        first.freeze()
        await setup.send("1", "2")
        await eventually(lambda: first.seen == ["0", "1", "2"])
        find(setup, first, is_hung=True, is_down=True)
        thaw(setup, first)
        assert await setup.ids(2) == ["1", "2"]
        assert first.seen == ["0", "1", "2"]
        assert await setup.stream.end() is grpc.StatusCode.OK


@pytest.mark.parametrize("model", ["plain", "seq"])
async def test_a_stream_to_which_only_trailers_are_owed_ends_well(model: str) -> None:
    async with running() as setup:
        first = setup.tritons[0]
        await setup.stream.send(step(model, 1 if model == "seq" else 0, "0", start=True))
        assert await setup.ids(1) == ["0"]
        first.freeze()
        await setup.stream.call.done_writing()
        await eventually(lambda: any(peer.ended for peer in first.raw.peers))
        suspect(setup, first)
        find(setup, first, is_hung=True, is_down=True)
        assert await setup.stream.rest() == []
        assert await setup.stream.call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("other", [False, True])
async def test_a_stream_that_is_half_closed_when_its_backend_is_down_ends_well(other: bool) -> None:
    """While it is open, its sequence may go on there."""
    loop = FakeLoop()
    async with running(loop=loop) as setup:
        first = setup.tritons[0]
        await setup.stream.send(step("seq", 1, "0", start=True))
        assert await setup.ids(1) == ["0"]
        suspect(setup, first)
        backend = find(setup, first, is_hung=True, is_down=True)
        if other:
            await setup.send("1")
            assert await setup.ids(1) == ["1"]
            assert setup.tritons[1].seen == ["1"]
        await setup.stream.call.done_writing()
        await eventually(lambda: any(peer.ended for peer in first.raw.peers))
        assert backend.in_flight == 1
        loop.advance(1.0)
        assert await setup.stream.rest() == []
        assert await setup.stream.call.code() is grpc.StatusCode.OK


async def test_what_must_not_go_again_waits_and_later_messages_go_elsewhere() -> None:
    async with running() as setup:
        first, second = setup.tritons
        await begin(setup)
        first.freeze()
        await setup.send("1", model="orders")
        await eventually(lambda: first.seen == ["0", "1"])
        find(setup, first, is_hung=True, is_down=True)
        assert setup.relay.outcomes.seen == []
        await setup.send("2", "3")
        await eventually(lambda: second.seen == ["2", "3"])
        thaw(setup, first)
        assert await setup.ids(3) == ["1", "2", "3"]
        assert await setup.stream.end() is grpc.StatusCode.OK
        assert first.seen == ["0", "1"]


@pytest.mark.parametrize("is_ended", [False, True])
async def test_requests_of_one_of_several_backends_go_again_in_their_turn(is_ended: bool) -> None:
    async with running() as setup:
        names = [str(number) for number in range(12)]
        first, second = await setup.divide(names, answers=2)
        left = first.seen[2:]
        assert len(left) > 1
        if is_ended:
            await setup.stream.call.done_writing()
        suspect(setup, first)
        find(setup, first, is_hung=True, is_down=True)
        await eventually(lambda: second.seen[-len(left) :] == left)
        second.answer_all()
        assert await setup.ids(12) == names
        if not is_ended:
            await setup.send("12", "13", model="work")
            assert await setup.ids(2) == ["12", "13"]
            await setup.stream.call.done_writing()
        assert await setup.stream.rest() == []
        assert await setup.stream.call.code() is grpc.StatusCode.OK


async def test_one_of_several_backends_that_owes_only_trailers_is_left() -> None:
    async with running() as setup:
        names = [str(number) for number in range(12)]
        first, second = await setup.divide(names, answers=0)
        assert first.seen
        assert second.seen
        for triton in setup.tritons:
            triton.answer_all()
        assert await setup.ids(12) == names
        suspect(setup, first)
        find(setup, first, is_hung=True, is_down=True)
        await setup.send("12", "13", model="work")
        assert await setup.ids(2) == ["12", "13"]
        assert second.seen[-2:] == ["12", "13"]
        assert await setup.stream.end() is grpc.StatusCode.OK
