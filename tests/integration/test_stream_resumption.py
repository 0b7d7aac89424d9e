"""Streams whose backend is killed between answers: requests without an answer go to another one,
and the client gets each answer once, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, Placement
from lb.domain.schedule import Capacity, QueuePlan
from lb.kserve import inference_pb2 as pb
from lb.kserve.stream_answers import error_answer
from lb.wire.grpc.message import PREFIX_SIZE
from tests.fakes.clock import FakeLoop
from tests.fakes.grpc_server import grpc_channel
from tests.fakes.paper_streams import result
from tests.fakes.relay import FewestInFlight, RunningRelay, running_relay, snapshot_of
from tests.fakes.stream_backend import StreamClient, step
from tests.wire.frames import OK_TRAILERS, RESPONSE_FIELDS, data, headers
from tests.wire.http2 import Peer, RawBackend, Script, raw_backend
from tests.wire.waiting import eventually

BOTH_LOOPS = True
ONE_ANSWER = ModelFacts(is_stateful=False, is_decoupled=False)
ROUTES = {
    b"plain": ModelRoute(facts=ONE_ANSWER, is_uniform=True, is_plain=True),
    b"other": ModelRoute(facts=ONE_ANSWER, is_uniform=True, is_plain=True),
    b"orders": ModelRoute(facts=ONE_ANSWER, is_uniform=True, is_plain=True),
    b"versions": ModelRoute(facts=ONE_ANSWER),
    b"seq": ModelRoute(facts=ModelFacts(is_stateful=True, is_decoupled=False, idle_s=60.0)),
    b"free": ModelRoute(facts=ModelFacts(is_stateful=False, is_decoupled=True)),
    b"work": ModelRoute(
        facts=replace(ONE_ANSWER, instances=1),
        is_uniform=True,
        plan=QueuePlan(limits={}, default=Capacity(1, is_auto=True)),
    ),
}


LEAVES = "Server is stopping, scheduler for model has stopped accepting new inference requests"
"""What a Triton says that exits."""


class Triton:
    """A backend that answers requests of streams in order, until it is killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[str] = []
        """Ids of all requests."""
        self.answers = 1 << 30
        """So many requests are answered; others wait."""
        self.answered = 0
        self.dies_of = ""
        """The id of a request that kills it."""
        self.refuses: dict[str, str] = {}
        """An error that is the answer to each request for a model."""
        self.raw = RawBackend()
        self._waiting: list[tuple[Peer, int, bytes]] = []
        """Answers that are still to be sent; an empty one ends the stream."""

    def script(self, raw: RawBackend) -> Script:
        self.raw = raw
        return self._play

    async def _play(self, peer: Peer) -> None:
        taken: dict[int, int] = {}
        while (frame := await peer.next()) is not None:
            stream = frame.stream
            if not stream:
                continue
            if stream in peer.heads and stream not in taken:
                taken[stream] = 0
                peer.send(headers(stream, RESPONSE_FIELDS))
            body = peer.bodies.get(stream, b"")
            while len(body) >= (at := taken[stream]) + 5 and len(body) >= (
                stop := at + 5 + int.from_bytes(body[at + 1 : at + 5], "big")
            ):
                taken[stream] = stop
                request = pb.ModelInferRequest.FromString(bytes(body[at + 5 : stop]))
                self.seen.append(request.id)
                if request.id == self.dies_of:
                    peer.abort()
                    return
                is_last = request.model_name == "free"
                answer = result(request.model_name, request.id, is_last=is_last)
                if error := self.refuses.get(request.model_name):
                    answer = error_answer(request.id.encode(), error)
                self._waiting.append((peer, stream, answer))
            if stream in peer.ended:
                self._waiting.append((peer, stream, b""))
            self._answer()

    def _answer(self) -> None:
        while self._waiting and self.answered < self.answers:
            peer, stream, message = self._waiting.pop(0)
            if message:
                self.answered += 1
                peer.send(data(stream, message))
            else:
                peer.send(headers(stream, OK_TRAILERS, end=True))

    def answer_all(self) -> None:
        """Answer what waits, and all that comes."""
        self.answers = 1 << 30
        self._answer()

    def refuse(self, model: str, error: str) -> None:
        """Answer with an error what waits, and all that comes for a model."""
        self.refuses[model] = error
        waiting, self._waiting = self._waiting, []
        for peer, stream, answer in waiting:
            if answer:
                response = pb.ModelStreamInferResponse.FromString(answer[PREFIX_SIZE:])
                answer = error_answer(response.infer_response.id.encode(), error)
            self._waiting.append((peer, stream, answer))
        self.answer_all()

    def freeze(self) -> None:
        """Answer nothing any more, as a process that is stopped."""
        self.answers = self.answered

    def kill(self) -> None:
        """End all of its connections at once, as the kernel does for a killed process."""
        for peer in self.raw.peers:
            peer.abort()
        self._waiting.clear()


class Setup:
    def __init__(
        self, relay: RunningRelay, tritons: list[Triton], channel: grpc.aio.Channel
    ) -> None:
        self.relay = relay
        self.tritons = tritons
        self.stream = StreamClient(channel)

    def place(self, **homes: int) -> None:
        """Each of some models is ready at one backend."""
        routes = dict(ROUTES)
        for model, home in homes.items():
            backends = (self.relay.backends[home],)
            policy = FewestInFlight()
            place = Placement(backends, policy.build(backends), policy)
            routes[model.encode()] = replace(routes[model.encode()], placements=(place, place))
        self.relay.pool.publish(
            replace(snapshot_of(self.relay.backends), routes=routes, knows_all=True)
        )

    async def send(self, *names: str, model: str = "plain") -> None:
        await self.stream.send(*(step(model, request_id=name) for name in names))

    async def ids(self, count: int) -> list[str]:
        return [name for name, _ in await self.stream.answers(count)]

    async def divide(self, names: list[str], answers: int) -> list[Triton]:
        """Send requests that go to all backends, of which each answers the first so many. Returns
        the backends, those with most requests first: how these are divided depends on how fast the
        first ones were answered."""
        for triton in self.tritons:
            triton.answers = answers
        await self.send(*names, model="work")
        await eventually(lambda: sum(len(each.seen) for each in self.tritons) == len(names))
        return sorted(self.tritons, key=lambda each: -len(each.seen))


@asynccontextmanager
async def running(count: int = 2, loop: FakeLoop | None = None) -> AsyncIterator[Setup]:
    async with AsyncExitStack() as stack:
        tritons = [Triton(f"b{number}") for number in range(count)]
        targets = [
            (await stack.enter_async_context(raw_backend(triton.script))).target
            for triton in tritons
        ]
        relay = await stack.enter_async_context(running_relay(*targets, loop=loop))
        relay.pool.publish(replace(snapshot_of(relay.backends), routes=ROUTES, knows_all=True))
        relay.run_once(b"orders")
        channel = await stack.enter_async_context(grpc_channel(relay.target))
        yield Setup(relay, tritons, channel)
        await channel.close()
        await relay.until_clean()


async def test_requests_without_an_answer_are_answered_by_another_backend() -> None:
    async with running() as setup:
        first, second = setup.tritons
        first.answers = 3
        names = [str(number) for number in range(8)]
        await setup.send(*names)
        assert await setup.ids(3) == names[:3]
        await eventually(lambda: first.seen == names)
        first.kill()
        assert await setup.ids(5) == names[3:]
        assert second.seen == names[3:]
        await setup.send("later", "last")
        assert await setup.ids(2) == ["later", "last"]
        assert await setup.stream.end() is grpc.StatusCode.OK
        assert first.seen == names


async def test_requests_of_several_models_go_again_in_their_order() -> None:
    async with running() as setup:
        first = setup.tritons[0]
        first.answers = 1
        await setup.send("0", "1")
        await setup.send("2", model="other")
        await setup.send("3")
        assert await setup.ids(1) == ["0"]
        await eventually(lambda: len(first.seen) == 4)
        first.kill()
        assert await setup.ids(3) == ["1", "2", "3"]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_client_that_has_sent_all_gets_the_rest() -> None:
    async with running() as setup:
        first = setup.tritons[0]
        first.answers = 1
        await setup.send("0", "1", "2")
        assert await setup.ids(1) == ["0"]
        await setup.stream.call.done_writing()
        await eventually(lambda: len(first.seen) == 3)
        first.kill()
        assert [name for name, _ in await setup.stream.rest()] == ["1", "2"]
        assert await setup.stream.call.code() is grpc.StatusCode.OK


async def test_a_stream_that_waits_for_nothing_outlives_its_backend() -> None:
    async with running() as setup:
        await setup.send("0", "1")
        assert await setup.ids(2) == ["0", "1"]
        setup.tritons[0].kill()
        await eventually(lambda: setup.relay.backends[0].in_flight == 0)
        await setup.send("2")
        assert await setup.ids(1) == ["2"]
        assert setup.tritons[1].seen == ["2"]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_long_stream_outlives_more_backends_than_a_request_may_see() -> None:
    async with running() as setup:
        for death in range(6):
            for triton in setup.tritons:
                triton.answered, triton.answers = 0, 1
            await setup.send(f"{death}.0", f"{death}.1", f"{death}.2")
            assert await setup.ids(1) == [f"{death}.0"]
            last = f"{death}.2"
            await eventually(lambda last=last: any(last in triton.seen for triton in setup.tritons))
            for triton in setup.tritons:
                triton.answers = 1 << 30
            assert [triton.answered for triton in setup.tritons if triton.answered] == [1]
            next(triton for triton in setup.tritons if triton.answered).kill()
            assert await setup.ids(2) == [f"{death}.1", f"{death}.2"]
        assert setup.relay.max_attempts == 3
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_request_that_kills_kills_two_backends() -> None:
    async with running(4) as setup:
        for triton in setup.tritons:
            triton.dies_of = "killer"
        await setup.send("0")
        assert await setup.ids(1) == ["0"]
        await setup.send("killer")
        assert await setup.stream.rest() == []
        assert await setup.stream.call.code() is grpc.StatusCode.UNAVAILABLE
        assert sum("killer" in triton.seen for triton in setup.tritons) == 2


REFUSED = {
    "of a sequence": (step("seq", 1, "0", start=True), step("seq", 1, "1")),
    "with a version": (step("versions", 0, "0"), step("versions", 0, "1", version="1")),
    "large": (step("plain", 0, "0"), step("plain", 0, "1", tensor=bytes(70_000))),
    "of a decoupled model": (step("free", 0, "0"), step("free", 0, "1")),
    "that must run only once": (step("orders", 0, "0"), step("orders", 0, "1")),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_what_must_not_go_again_ends_the_stream(kind: str) -> None:
    async with running() as setup:
        first, second = setup.tritons
        first.answers = 1
        answered, lost = REFUSED[kind]
        await setup.stream.send(answered)
        assert await setup.ids(1) == ["0"]
        await setup.stream.send(lost)
        await eventually(lambda: first.seen == ["0", "1"])
        first.kill()
        assert await setup.stream.rest() == []
        assert await setup.stream.call.code() is grpc.StatusCode.UNAVAILABLE
        assert second.seen == []


async def test_a_request_behind_one_that_must_not_go_again_does() -> None:
    """Once that has its answer, nothing stands in the way of the next."""
    async with running() as setup:
        first = setup.tritons[0]
        first.answers = 2
        await setup.send("0", model="orders")
        await setup.send("1", model="orders")
        await setup.send("2", "3")
        assert await setup.ids(2) == ["0", "1"]
        await eventually(lambda: len(first.seen) == 4)
        first.kill()
        assert await setup.ids(2) == ["2", "3"]
        assert await setup.stream.end() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    "error",
    [
        LEAVES,
        "Request for unknown model: 'plain' has no available versions",
        "Request for unknown model: 'plain' is not at ready state",
    ],
)
async def test_requests_that_a_backend_does_not_run_any_more_go_elsewhere(error: str) -> None:
    async with running() as setup:
        first, second = setup.tritons
        first.answers = 2
        await setup.send("0", "1")
        assert await setup.ids(2) == ["0", "1"]
        first.refuses["plain"] = error
        await setup.send("2", "3", "4")
        await eventually(lambda: len(first.seen) == 5)
        first.answer_all()
        assert await setup.stream.answers(3) == [("2", ""), ("3", ""), ("4", "")]
        assert second.seen == ["2", "3", "4"]
        await setup.send("5")
        assert await setup.stream.answers(1) == [("5", "")]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_an_error_that_every_backend_gives_is_for_the_client() -> None:
    async with running() as setup:
        error = "Request for unknown model: 'plain' has no available versions"
        await setup.send("0")
        assert await setup.ids(1) == ["0"]
        for triton in setup.tritons:
            triton.refuses["plain"] = error
        await setup.send("1", "2")
        assert await setup.stream.answers(2) == [("1", error), ("2", error)]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_backend_that_still_runs_others_keeps_them() -> None:
    """Without it they would become errors, since their model is decoupled."""
    async with running() as setup:
        first, second = setup.tritons
        error = "Request for unknown model: 'plain' has no available versions"
        await setup.send("0")
        assert await setup.ids(1) == ["0"]
        first.refuses["plain"] = error
        first.freeze()
        await setup.send("1")
        await setup.send("2", model="free")
        await eventually(lambda: len(first.seen) == 3)
        first.answer_all()
        assert sorted(await setup.stream.answers(2)) == [("1", error), ("2", "")]
        assert second.seen == []
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_of_several_backends_one_may_run_nothing_any_more() -> None:
    async with running() as setup:
        names = [str(number) for number in range(12)]
        first, second = await setup.divide(names, answers=2)
        refused = first.seen[2:]
        assert len(refused) > 1
        first.refuse("work", LEAVES)
        await eventually(lambda: second.seen[-len(refused) :] == refused)
        second.answer_all()
        assert await setup.stream.answers(12) == [(name, "") for name in names]
        await setup.send("12", "13", model="work")
        assert await setup.ids(2) == ["12", "13"]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_requests_of_one_of_several_backends_go_again_in_their_turn() -> None:
    async with running() as setup:
        names = [str(number) for number in range(12)]
        first, second = await setup.divide(names, answers=2)
        lost = first.seen[2:]
        assert len(lost) > 1
        first.kill()
        await eventually(lambda: second.seen[-len(lost) :] == lost)
        for triton in setup.tritons:
            triton.answer_all()
        assert await setup.ids(12) == names
        await setup.send("12", "13", model="work")
        assert await setup.ids(2) == ["12", "13"]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_lost_requests_of_a_decoupled_model_get_errors_and_the_stream_goes_on() -> None:
    """They are told apart from those whose last answer has come."""
    async with running() as setup:
        first, second = setup.tritons
        setup.place(plain=0, free=1)
        await setup.send("0")
        assert await setup.ids(1) == ["0"]
        await setup.send("1", model="free")
        assert await setup.ids(1) == ["1"]
        first.freeze()
        second.freeze()
        await setup.send("2", "3", model="free")
        await setup.send("4")
        await eventually(lambda: second.seen == ["1", "2", "3"] and first.seen == ["0", "4"])
        second.kill()
        errors = await setup.stream.answers(2)
        assert [name for name, _ in errors] == ["2", "3"]
        assert all("backend b1" in text for _, text in errors)
        first.answer_all()
        assert await setup.ids(1) == ["4"]
        await setup.send("5")
        assert await setup.ids(1) == ["5"]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_requests_beside_a_lost_one_of_a_decoupled_model_go_again() -> None:
    async with running(3) as setup:
        first = setup.tritons[0]
        await setup.send("0")
        assert await setup.ids(1) == ["0"]
        first.freeze()
        await setup.send("1", model="free")
        await setup.send("2")
        await eventually(lambda: first.seen == ["0", "1", "2"])
        first.kill()
        answers = dict(await setup.stream.answers(2))
        assert "backend b0" in answers["1"]
        assert answers["2"] == ""
        assert await setup.stream.end() is grpc.StatusCode.OK


@pytest.mark.parametrize("last", ["free", "plain"])
async def test_a_stream_outlives_the_backend_of_complete_requests_of_a_decoupled_model(
    last: str,
) -> None:
    async with running() as setup:
        for name in "0123":
            await setup.send(name, model="free")
            assert await setup.ids(1) == [name]
        await setup.send("4", model=last)
        assert await setup.ids(1) == ["4"]
        setup.tritons[0].kill()
        await eventually(lambda: setup.relay.backends[0].in_flight == 0)
        await setup.send("5", model="free")
        assert await setup.ids(1) == ["5"]
        assert await setup.stream.end() is grpc.StatusCode.OK
