"""Messages of a stream wait for models that are loaded for them, over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, OnDemand, Placement
from tests.fakes.grpc_server import grpc_channel
from tests.fakes.relay import FewestInFlight, RunningRelay, running_relay, snapshot_of
from tests.fakes.stream_backend import StreamBackend, StreamClient, step, stream_backend
from tests.wire import http2
from tests.wire.frames import data, headers, message, request_fields
from tests.wire.waiting import eventually

BOTH_LOOPS = True
FACTS = ModelFacts(is_stateful=False, is_decoupled=False)
WINDOW = 2**16
_STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"


class Setup:
    """A relay before backends that have the model `warm` ready; `cold` and `other` are loaded
    nowhere until a test says so."""

    def __init__(
        self, relay: RunningRelay, backends: list[StreamBackend], channel: grpc.aio.Channel
    ) -> None:
        self.relay = relay
        self.backends = backends
        self.channel = channel
        self.stream = StreamClient(channel)
        self.wait_s = 60.0
        self._places: dict[str, int] = {}
        self._errors: dict[str, str] = {}
        self.publish()

    def publish(self, *gone: int) -> None:
        """Publish the pool without some of the backends."""
        backends = [b for n, b in enumerate(self.relay.backends) if n not in gone]
        snapshot = snapshot_of(backends)
        policy = FewestInFlight()
        nowhere = Placement((), None, policy)
        routes = {b"warm": ModelRoute(facts=FACTS, ready_versions=frozenset({b"1"}))}
        for model in ("cold", "other"):
            place, on_demand = nowhere, OnDemand(self.wait_s, self._errors.get(model, ""))
            if model in self._places:
                homes = (self.relay.backends[self._places[model]],)
                place, on_demand = Placement(homes, policy.build(homes), policy), None
            routes[model.encode()] = ModelRoute(
                facts=FACTS, placements=(place, place), on_demand=on_demand
            )
        self.relay.pool.publish(
            replace(
                snapshot,
                backends=tuple(self.relay.backends),
                routes=routes,
                parting=frozenset(self.relay.backends[n] for n in gone),
                knows_all=True,
            )
        )

    def load(self, model: str, backend: int) -> None:
        """A backend has loaded a model."""
        self._places[model] = backend
        self.publish()

    def unload(self, model: str) -> None:
        """No backend has a model any more."""
        del self._places[model]
        self.publish()

    def fail(self, model: str, text: str) -> None:
        """A model cannot be loaded."""
        self._errors[model] = text
        self.publish()

    async def begin(self, *requests: str) -> None:
        """Send requests for `warm`, one after the other; each gets its answer."""
        for name in requests or ("first",):
            await self.stream.send(step("warm", 0, name))
            assert await self.stream.answer() == (name, "b0")

    async def until_held(self, count: int = 1) -> None:
        """Wait until so many messages wait for a load."""
        await eventually(lambda: len(self.relay.queue) == count)

    def seen(self, number: int) -> list[str]:
        """The ids of all requests that a backend has got."""
        return [each.id for each in self.backends[number].seen]


@asynccontextmanager
async def running(count: int = 2, **options: int) -> AsyncIterator[Setup]:
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(stream_backend(f"b{n}")) for n in range(count)]
        targets = [backend.target for backend in backends]
        relay = await stack.enter_async_context(running_relay(*targets, options=options))
        channel = await stack.enter_async_context(grpc_channel(relay.target))
        setup = Setup(relay, backends, channel)
        yield setup
        await channel.close()
        await relay.until_clean()
        assert len(relay.queue) == 0


@pytest.mark.parametrize("home", [0, 1])
async def test_a_later_message_waits_until_its_model_is_loaded(home: int) -> None:
    """Those behind it wait as well, and answers to earlier ones go on."""
    async with running() as setup:
        wanted = setup.relay.queue.note_wanted()
        await setup.begin()
        setup.backends[0].gate.clear()
        await setup.stream.send(step("warm", 0, "a"), step("cold", 0, "b"), step("warm", 0, "c"))
        await setup.until_held()
        assert wanted == [b"cold"]
        setup.backends[0].gate.set()
        assert await setup.stream.answer() == ("a", "b0")
        assert "c" not in setup.seen(0)
        setup.load("cold", home)
        assert await setup.stream.answers(2) == [("b", f"b{home}"), ("c", "b0")]
        await setup.stream.send(*(step("cold", 0, f"{number}") for number in range(3)))
        assert await setup.stream.answers(3) == [(f"{n}", f"b{home}") for n in range(3)]
        assert await setup.stream.end() is grpc.StatusCode.OK
        (record,) = setup.relay.finished.records
        assert record.queue_why == "loading"
        assert setup.relay.queue.wait_reasons == {(b"cold", "loading"): 1}


@pytest.mark.parametrize("is_spread", [False, True])
async def test_an_error_within_a_stream_tells_that_a_backend_has_lost_its_model(
    is_spread: bool,
) -> None:
    async with running() as setup:
        told: list[tuple[str, bytes, bytes | None]] = []
        setup.relay.misplaced = lambda backend, *what: told.append((backend.name, *what))
        await setup.begin()
        if is_spread:
            setup.load("other", 1)
            await setup.stream.send(step("other", 0, "b"))
            assert await setup.stream.answer() == ("b", "b1")
        setup.backends[0].errors["warm"] = "Request for unknown model: 'warm' is not found"
        await setup.stream.send(step("warm", 0, "c"))
        assert await setup.stream.answer() == ("c", "b1")
        assert told == [("b0", b"warm", None)]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_message_waits_where_the_stream_has_several_backends() -> None:
    async with running() as setup:
        await setup.begin()
        setup.load("other", 1)
        await setup.stream.send(step("other", 0, "a"))
        assert await setup.stream.answer() == ("a", "b1")
        for backend in setup.backends:
            backend.gate.clear()
        await setup.stream.send(
            step("other", 0, "b"), step("warm", 0, "c"), step("cold", 0, "d"), step("other", 0, "e")
        )
        await setup.until_held()
        for backend in reversed(setup.backends):
            backend.gate.set()
        assert await setup.stream.answers(2) == [("b", "b1"), ("c", "b0")]
        setup.load("cold", 1)
        assert await setup.stream.answers(2) == [("d", "b1"), ("e", "b1")]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_one_message_waits_after_the_other() -> None:
    async with running() as setup:
        await setup.begin()
        names = [("cold", "a"), ("other", "b"), ("warm", "c"), ("other", "d")]
        await setup.stream.send(*(step(model, 0, name) for model, name in names))
        await setup.until_held()
        setup.load("cold", 1)
        assert await setup.stream.answer() == ("a", "b1")
        await setup.until_held()
        setup.load("other", 0)
        assert await setup.stream.answers(3) == [("b", "b0"), ("c", "b0"), ("d", "b0")]
        assert await setup.stream.end() is grpc.StatusCode.OK


@pytest.mark.parametrize("why", ["failed", "late"])
async def test_only_the_message_whose_model_is_not_loaded_gets_an_error(why: str) -> None:
    async with running() as setup:
        await setup.begin()
        setup.wait_s = 0.05 if why == "late" else 60.0
        setup.publish()
        setup.backends[0].gate.clear()
        await setup.stream.send(
            step("warm", 0, "a"), step("cold", 0, "b", tensor=bytes(3 * WINDOW)),
            step("warm", 0, "c"),
        )  # fmt: skip
        text = "the model could not be loaded in time"
        if why == "failed":
            await setup.until_held()
            text = "failed to load 'cold'"
            setup.fail("cold", text)
        await setup.until_held(0)
        setup.backends[0].gate.set()
        assert await setup.stream.answers(3) == [("a", "b0"), ("b", text), ("c", "b0")]
        if why == "failed":
            await setup.stream.send(step("cold", 0, "d"), step("warm", 0, "e"))
            assert await setup.stream.answers(2) == [("d", text), ("e", "b0")]
        assert await setup.stream.end() is grpc.StatusCode.OK
        assert all(each.model_name == "warm" for each in setup.backends[0].seen)


async def test_a_client_may_half_close_while_a_message_waits() -> None:
    async with running() as setup:
        await setup.begin()
        await setup.stream.send(step("cold", 0, "a"), step("warm", 0, "b"))
        await setup.stream.call.done_writing()
        await setup.until_held()
        setup.load("cold", 1)
        assert await setup.stream.rest() == [("a", "b1"), ("b", "b0")]
        assert await setup.stream.call.code() is grpc.StatusCode.OK
        assert [backend.half_closed for backend in setup.backends] == [1, 1]


@pytest.mark.parametrize("is_half_closed", [True, False])
async def test_a_message_outlives_the_only_backend_of_its_stream(is_half_closed: bool) -> None:
    async with running() as setup:
        await setup.begin()
        await setup.stream.send(step("cold", 0, "a"), step("cold", 0, "b"))
        if is_half_closed:
            await setup.stream.call.done_writing()
        await setup.until_held()
        await setup.backends[0].stop(None)  # type: ignore[attr-defined]
        await eventually(lambda: setup.relay.in_flight == 0)
        setup.load("cold", 1)
        assert await setup.stream.answers(2) == [("a", "b1"), ("b", "b1")]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_what_a_lost_backend_owes_goes_again_and_the_message_behind_it_waits_on() -> None:
    async with running() as setup:
        await setup.begin()
        setup.backends[0].gate.clear()
        await setup.stream.send(step("warm", 0, "a"), step("cold", 0, "b"))
        await setup.until_held()
        await setup.backends[0].stop(None)  # type: ignore[attr-defined]
        assert await setup.stream.answer() == ("a", "b1")
        setup.load("cold", 1)
        assert await setup.stream.answer() == ("b", "b1")
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_what_a_lost_backend_owes_waits_for_its_model_to_be_loaded_again() -> None:
    async with running() as setup:
        setup.load("cold", 0)
        await setup.begin()
        setup.backends[0].gate.clear()
        await setup.stream.send(*(step(("cold", "warm")[n % 2], 0, f"{n}") for n in range(6)))
        await eventually(lambda: len(setup.seen(0)) == 7)
        setup.unload("cold")
        await setup.backends[0].stop(None)  # type: ignore[attr-defined]
        await setup.until_held()
        assert setup.relay.queue.awaited == {b"cold"}
        setup.load("cold", 1)
        assert await setup.stream.answers(6) == [(f"{n}", "b1") for n in range(6)]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_messages_wait_together_whose_backend_was_gone_before_it_was_connected() -> None:
    """It is found out between them that the backend has the model no longer."""
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(writer)  # and say nothing

    async with AsyncExitStack() as stack:
        gone = await stack.enter_async_context(await asyncio.start_server(accept, "127.0.0.1", 0))
        live = await stack.enter_async_context(stream_backend("b1"))
        mute = f"127.0.0.1:{gone.sockets[0].getsockname()[1]}"
        relay = await stack.enter_async_context(running_relay(mute, live.target))
        channel = await stack.enter_async_context(grpc_channel(relay.target))
        peer = await stack.enter_async_context(http2.raw_client(relay.port))
        setup = Setup(relay, [live], channel)
        setup.stream.call.cancel()
        setup.load("cold", 0)
        messages = [message(step("cold", 0, name).SerializeToString()) for name in "ab"]
        peer.send(headers(1, request_fields(path=_STREAM)), data(1, messages[0]))
        writer = await accepted.get()
        setup.unload("cold")
        peer.send(data(1, messages[1], end=True))
        assert await peer.is_alive()
        gone.close()
        writer.close()
        await eventually(lambda: relay.in_flight == 0)
        await setup.until_held()
        setup.load("cold", 1)
        await peer.until_over(1)
        assert peer.status(1) == 0
        assert [each.id for each in live.seen] == ["a", "b"]
        await relay.until_clean()


async def test_what_a_lost_backend_owes_waits_for_its_model_beside_a_message_that_waits() -> None:
    async with running() as setup:
        setup.load("cold", 0)
        await setup.begin()
        setup.backends[0].gate.clear()
        await setup.stream.send(*(step("cold", 0, name) for name in "ab"), step("other", 0, "c"))
        await setup.until_held()
        setup.unload("cold")
        await setup.backends[0].stop(None)  # type: ignore[attr-defined]
        await setup.until_held(2)
        assert setup.relay.queue.awaited == {b"cold", b"other"}
        setup.load("cold", 1)
        assert await setup.stream.answers(2) == [("a", "b1"), ("b", "b1")]
        setup.load("other", 1)
        assert await setup.stream.answer() == ("c", "b1")
        assert await setup.stream.end() is grpc.StatusCode.OK
        (record,) = setup.relay.finished.records
        assert record.queue_why == "loading"


@pytest.mark.parametrize("is_half_closed", [True, False])
@pytest.mark.parametrize("is_loaded", [True, False])
async def test_requests_of_several_models_that_a_backend_owes_go_where_each_can(
    *, is_loaded: bool, is_half_closed: bool
) -> None:
    """Answers come in the order of the requests; only what cannot be loaded gets an error."""
    async with running(3) as setup:
        setup.load("cold", 1)
        setup.load("other", 0)
        await setup.begin()
        await setup.stream.send(step("cold", 0, "x"))
        assert await setup.stream.answer() == ("x", "b1")
        setup.backends[0].gate.clear()
        await setup.stream.send(*(step(("warm", "other")[n % 2], 0, f"{n}") for n in range(4)))
        await eventually(lambda: setup.seen(0)[1:] == ["0", "1", "2", "3"])
        setup.unload("other")
        await setup.backends[0].stop(None)  # type: ignore[attr-defined]
        name, warm = await setup.stream.answer()
        assert name == "0"
        await setup.until_held()
        assert setup.relay.queue.awaited == {b"other"}
        if is_half_closed:
            await setup.stream.call.done_writing()
        other = "failed to load 'other'"
        if is_loaded:
            other = "b2"
            setup.load("other", 2)
        else:
            setup.fail("other", other)
        assert await setup.stream.answers(3) == [("1", other), ("2", warm), ("3", other)]
        if not is_half_closed:
            await setup.stream.send(step("warm", 0, "4"))
            assert (await setup.stream.answer())[0] == "4"
            await setup.stream.call.done_writing()
        assert await setup.stream.rest() == []
        assert await setup.stream.call.code() is grpc.StatusCode.OK


async def test_nothing_is_left_of_a_client_that_leaves_while_lost_requests_wait() -> None:
    async with running() as setup:
        setup.load("cold", 0)
        await setup.begin()
        setup.backends[0].gate.clear()
        await setup.stream.send(step("cold", 0, "a"), step("other", 0, "b"))
        await setup.until_held()
        setup.unload("cold")
        await setup.backends[0].stop(None)  # type: ignore[attr-defined]
        await setup.until_held(2)
        setup.stream.call.cancel()
        await setup.until_held(0)
        await eventually(setup.relay.is_clean)


async def test_a_stream_waits_for_the_model_of_its_first_message_whatever_comes_with_it() -> None:
    async with running() as setup, http2.raw_client(setup.relay.port) as peer:
        messages = b"".join(
            message(step(model, 0, name).SerializeToString())
            for model, name in (("cold", "a"), ("cold", "b"), ("warm", "c"))
        )
        peer.send(headers(1, request_fields(path=_STREAM)), data(1, messages, end=True))
        await setup.until_held()
        assert setup.relay.queue.awaited == {b"cold"}
        setup.load("cold", 1)
        await peer.until_over(1)
        assert peer.status(1) == 0
        assert setup.seen(1) == ["a", "b", "c"]
        assert setup.seen(0) == []


async def test_a_stream_whose_message_waits_leaves_a_backend_that_is_removed() -> None:
    async with running() as setup:
        await setup.begin()
        await setup.stream.send(step("cold", 0, "a"))
        await setup.stream.call.done_writing()
        await setup.until_held()
        setup.publish(0)
        await eventually(lambda: setup.backends[0].half_closed == 1)
        setup.load("cold", 1)
        assert await setup.stream.rest() == [("a", "b1")]
        assert await setup.stream.call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("end", ["cancel", "deadline"])
async def test_nothing_is_left_of_a_client_that_leaves_while_a_message_waits(end: str) -> None:
    async with running() as setup:
        if end == "deadline":
            setup.stream.call.cancel()
            setup.stream = StreamClient(setup.channel, timeout=0.5)
        await setup.begin()
        await setup.stream.send(step("cold", 0, "a", tensor=bytes(1000)), step("warm", 0, "b"))
        await setup.until_held()
        if end == "cancel":
            setup.stream.call.cancel()
        else:
            assert await setup.stream.rest() == []
            assert await setup.stream.call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await setup.until_held(0)
        await eventually(setup.relay.is_clean)
        assert setup.seen(0) == ["first"]


async def test_a_stream_holds_no_more_than_its_window_while_a_message_waits() -> None:
    """All of it is in the memory budget; its client waits, and is let go on afterwards."""
    async with running(stream_window=WINDOW, stream_window_max=WINDOW) as setup:
        await setup.begin()
        before = setup.relay.memory_budget.held
        count = 100
        messages = [step("cold", 0, f"{n}", tensor=bytes(WINDOW // 20)) for n in range(count)]
        sending = asyncio.ensure_future(setup.stream.send(*messages))
        await setup.until_held()
        await eventually(lambda: setup.relay.memory_budget.held - before > WINDOW // 2)
        assert setup.relay.memory_budget.held - before <= WINDOW
        setup.load("cold", 1)
        assert await setup.stream.answers(count) == [(f"{n}", "b1") for n in range(count)]
        await sending
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_very_many_messages_go_on_in_order_behind_one_that_waited() -> None:
    async with running() as setup:
        await setup.begin()
        names = [f"{number}" for number in range(500)]
        await setup.stream.send(*(step("cold", 0, name) for name in names))
        await setup.until_held()
        setup.load("cold", 1)
        assert await setup.stream.answers(len(names)) == [(name, "b1") for name in names]
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_message_for_which_there_is_no_room_is_not_held() -> None:
    async with running() as setup:
        await setup.begin()
        budget = setup.relay.memory_budget
        kept = budget.short_at
        budget.short_at = 0
        await setup.stream.send(step("cold", 0, "a"))
        name, text = await setup.stream.answer()
        budget.short_at = kept
        assert (name, "out of memory" in text) == ("a", True)
        assert await setup.stream.end() is grpc.StatusCode.OK


async def test_a_stream_ends_at_a_backend_that_is_to_unload_its_model_and_its_client_goes_on() -> (
    None
):
    async with running() as setup:
        home = setup.backends[0]
        await setup.begin()
        setup.relay.leave_streams(0, b"cold")  # it was not asked for
        await setup.begin("again")
        home.gate.clear()
        await setup.stream.send(step("warm", 0, "a"))
        await eventually(lambda: "a" in setup.seen(0))
        setup.relay.leave_streams(0, b"warm")
        await setup.stream.send(step("warm", 0, "b"))
        await eventually(lambda: "b" in setup.seen(1))
        assert (home.streams, home.half_closed) == (1, 0)
        home.gate.set()
        assert await setup.stream.answers(2) == [("a", "b0"), ("b", "b1")]
        await eventually(lambda: home.half_closed == 1)
        setup.relay.leave_streams(1, b"warm")
        await eventually(lambda: setup.relay.in_flight == 0)
        await setup.begin("c")
        assert await setup.stream.end() is grpc.StatusCode.OK
