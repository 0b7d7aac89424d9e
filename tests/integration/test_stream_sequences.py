"""Streams of inferences over several backends: where messages go, and how answers come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from lb.domain.backend import AppProtocol, Backend
from lb.domain.model import ModelFacts
from lb.domain.outcome import Reason
from lb.domain.pool import ModelRoute, Placement, Placements, PoolSnapshot
from lb.domain.sequence import Question
from tests.fakes.grpc_server import grpc_channel
from tests.fakes.relay import FewestInFlight, Options, RunningRelay, running_relay, snapshot_of
from tests.fakes.stream_backend import StreamBackend, StreamClient, step, stream_backend
from tests.wire.waiting import eventually

BOTH_LOOPS = True
SEQ = ModelFacts(is_stateful=True, is_decoupled=False, idle_s=5.0)
FREE = ModelFacts(is_stateful=True, is_decoupled=True, idle_s=5.0)
PLAIN = ModelFacts(is_stateful=False, is_decoupled=False)


def placed(backends: Sequence[Backend]) -> Placements:
    policy = FewestInFlight()
    chosen = tuple(backends)
    placement = Placement(chosen, policy.build(chosen), policy)
    return placement, placement


def pool_of(relay: RunningRelay, *eligible: int) -> PoolSnapshot:
    """All backends, of which some may get new requests; `only1` is on b1 alone."""
    backends = [relay.backends[number] for number in eligible or range(len(relay.backends))]
    routes = {
        b"seq": ModelRoute(facts=SEQ),
        b"free": ModelRoute(facts=FREE),
        b"numbers": ModelRoute(facts=replace(SEQ, has_number_ids=True)),
        b"plain": ModelRoute(facts=PLAIN, is_uniform=True, is_plain=True),
        b"only1": ModelRoute(facts=PLAIN, placements=placed(relay.backends[1:2])),
    }
    snapshot = replace(snapshot_of(backends), routes=routes, knows_all=True)
    return replace(snapshot, backends=tuple(relay.backends))


class Setup:
    def __init__(
        self, relay: RunningRelay, backends: list[StreamBackend], channel: grpc.aio.Channel
    ) -> None:
        self.relay = relay
        self.backends = backends
        self.channel = channel

    def stream(self, **options: object) -> StreamClient:
        return StreamClient(self.channel, **options)

    @property
    def in_flight(self) -> list[int]:
        return [backend.in_flight for backend in self.relay.backends]

    @property
    def open_sequences(self) -> list[int]:
        return [backend.open_sequences for backend in self.relay.backends]


@asynccontextmanager
async def running(count: int = 2, options: Options | None = None) -> AsyncIterator[Setup]:
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(stream_backend(f"b{n}")) for n in range(count)]
        targets = [backend.target for backend in backends]
        relay = await stack.enter_async_context(running_relay(*targets, options=options))
        relay.pool.publish(pool_of(relay))
        channel = await stack.enter_async_context(grpc_channel(relay.target))
        yield Setup(relay, backends, channel)
        await channel.close()
        await relay.until_clean()


@pytest.fixture
async def two() -> AsyncIterator[Setup]:
    async with running() as setup:
        yield setup


async def test_sequences_of_one_stream_are_spread_and_stay_where_they_began() -> None:
    async with running(3) as setup:
        stream = setup.stream()
        # Where answers come before all have begun, the time that they took has a say.
        for backend in setup.backends:
            backend.gate.clear()
        for round_ in range(4):
            await stream.send(
                *(step("seq", n, f"{n}", start=round_ == 0, end=round_ == 3) for n in range(1, 31))
            )
            await eventually(lambda: sum(len(each.seen) for each in setup.backends) >= 30)
            for backend in setup.backends:
                backend.gate.set()
            answers = await stream.answers(30)
            assert [name for name, _ in answers] == [str(n) for n in range(1, 31)]
            if round_ == 0:
                first = answers
                assert setup.open_sequences == [10, 10, 10]
                assert setup.in_flight == [1, 1, 1]
            assert answers == first
        assert setup.open_sequences == [0, 0, 0]
        assert await stream.end() is grpc.StatusCode.OK
        assert [backend.half_closed for backend in setup.backends] == [1, 1, 1]
        assert setup.in_flight == [0, 0, 0]


@pytest.mark.parametrize("streams", [1, 10])
async def test_starts_that_are_refused_are_soon_forgotten(two: Setup, streams: int) -> None:
    for backend in two.backends:
        backend.errors["seq"] = "unexpected inference input"
    for first in range(1, 11, 10 // streams):
        stream = two.stream()
        count = 10 // streams
        await stream.send(*(step("seq", first + n, start=True) for n in range(count)))
        assert len(await stream.answers(count)) == count
        assert await stream.end() is grpc.StatusCode.OK
    assert two.open_sequences == [5, 5]
    two.relay.sweep_sequences(5.0)  # as docs/protocols.md says
    assert two.open_sequences == [0, 0]


async def test_a_sequence_goes_on_over_another_stream(two: Setup) -> None:
    first, second = two.stream(), two.stream()
    await first.send(step("seq", 1, start=True), step("seq", "1", start=True))
    assert [place for _, place in await first.answers(2)] == ["b0", "b1"]
    await second.send(step("seq", "1"), step("seq", 1), step("seq", "1"))
    assert [place for _, place in await second.answers(3)] == ["b1", "b0", "b1"]
    assert await first.end() is await second.end() is grpc.StatusCode.OK
    assert len(two.relay.finished.records) == 2


@pytest.mark.parametrize("sent", ["nothing", "a request", "a step elsewhere"])
@pytest.mark.parametrize("is_news", [True, False])
async def test_a_step_waits_until_other_processes_have_told_what_they_know(
    two: Setup, sent: str, is_news: bool
) -> None:
    """Whatever went over its stream before."""
    question = Question()
    stream = two.stream()
    if sent == "a request":
        await stream.send(step("plain", request_id="before"))
        assert await stream.answer() == ("before", "b0")
    elif sent == "a step elsewhere":
        await stream.send(step("seq", 1, "before", start=True))
        assert await stream.answer() == ("before", "b0")
    two.relay.have_others_asked(question)
    await stream.send(step("seq", 2, "early"), step("plain", request_id="behind"))
    await eventually(lambda: len(two.relay.queue) == 1)
    assert sum(len(backend.seen) for backend in two.backends) == int(sent != "nothing")
    if is_news:
        two.relay.hear_of_sequence(b"seq", 2, two.relay.backends[1])
    question.end()
    (early, place), (behind, _) = await stream.answers(2)
    assert (early, behind) == ("early", "behind")
    assert place == "b1" or not is_news
    assert await stream.end() is grpc.StatusCode.OK
    assert len(two.relay.queue) == 0
    (record,) = two.relay.finished.records
    assert record.attempts == 1
    assert record.backend is not None
    assert record.backend.name == place or sent != "nothing"
    assert (record.sequence is None) == (sent == "a request")


async def test_a_step_that_waits_for_news_is_forgotten_with_its_stream(two: Setup) -> None:
    question = Question()
    two.relay.have_others_asked(question)
    stream = two.stream()
    await stream.send(step("seq", 2, "early"))
    await eventually(lambda: len(two.relay.queue) == 1)
    stream.call.cancel()
    await eventually(lambda: len(two.relay.queue) == 0)
    question.end()
    await two.relay.until_clean()
    assert [len(backend.seen) for backend in two.backends] == [0, 0]


async def test_answers_of_several_backends_come_in_the_order_of_their_requests(two: Setup) -> None:
    slow, fast = two.backends
    slow.gate.clear()
    stream = two.stream()
    await stream.send(step("seq", 1, "slow", start=True), step("seq", 2, "fast", start=True))
    await stream.send(step("plain", request_id="last"), step("seq", 2, "faster"))
    await eventually(lambda: len(fast.seen) == 2 and slow.seen)
    slow.gate.set()
    assert [name for name, _ in await stream.answers(4)] == ["slow", "fast", "last", "faster"]
    assert await stream.end() is grpc.StatusCode.OK


async def test_decoupled_answers_come_as_they_come(two: Setup) -> None:
    two.backends[0].gate.clear()
    stream = two.stream()
    await stream.send(step("seq", 1, "slow", start=True))
    await stream.send(step("free", 2, "none", start=True, version="0"))
    await stream.send(step("free", 3, "three", start=True, version="3"))
    await eventually(lambda: len(two.backends[1].seen) == 1)
    assert {n for n, _ in await stream.answers(3)} == {"three"}
    two.backends[0].gate.set()
    assert await stream.answer() == ("slow", "b0")
    assert await stream.end() is grpc.StatusCode.OK


async def test_counted_and_decoupled_answers_of_one_backend_are_told_apart(two: Setup) -> None:
    two.relay.pool.publish(pool_of(two.relay, 0))
    slow, fast = two.backends
    slow.gate.clear()
    stream = two.stream()
    await stream.send(step("free", request_id="f", version="2"), step("seq", 1, "a", start=True))
    assert [name for name, _ in await stream.answers(2)] == ["f", "f"]
    two.relay.pool.publish(pool_of(two.relay, 1))
    await stream.send(step("seq", 2, "b", start=True))
    await eventually(lambda: fast.seen)
    slow.gate.set()
    await stream.send(step("free", 1, "g", version="2"))
    names = [name for name, _ in await stream.answers(4)]
    assert names.index("a") < names.index("b")
    assert sorted(names) == ["a", "b", "g", "g"]
    assert await stream.end() is grpc.StatusCode.OK


async def test_a_model_that_the_backend_of_the_stream_lacks_is_found_elsewhere(two: Setup) -> None:
    stream = two.stream()
    await stream.send(step("plain", request_id="1"), step("only1", request_id="2"))
    await stream.send(step("plain", request_id="3"))
    assert await stream.answers(3) == [("1", "b0"), ("2", "b1"), ("3", "b0")]
    assert await stream.end() is grpc.StatusCode.OK


async def test_a_stream_without_sequences_has_one_upstream_stream(two: Setup) -> None:
    stream = two.stream()
    for number in range(200):
        await stream.send(step("plain", request_id=str(number)))
        assert await stream.answer() == (str(number), "b0")
    assert [backend.streams for backend in two.backends] == [1, 0]
    assert await stream.end() is grpc.StatusCode.OK


async def test_a_start_avoids_a_draining_backend_which_keeps_its_sequences(two: Setup) -> None:
    stream = two.stream()
    await stream.send(step("seq", 1, start=True))
    assert (await stream.answer())[1] == "b0"
    two.relay.pool.publish(pool_of(two.relay, 1))
    await stream.send(step("seq", 1), step("seq", 2, start=True), step("seq", 1, end=True))
    await stream.send(step("seq", 1, start=True))
    assert [place for _, place in await stream.answers(4)] == ["b0", "b1", "b0", "b1"]
    assert await stream.end() is grpc.StatusCode.OK


async def test_a_sequence_that_nobody_started_stays_with_the_stream(two: Setup) -> None:
    stream = two.stream()
    await stream.send(step("plain"), step("seq", 77))
    assert [place for _, place in await stream.answers(2)] == ["b0", "b0"]
    assert await stream.end() is grpc.StatusCode.OK


async def test_errors_in_the_stream_count_as_answers(two: Setup) -> None:
    two.backends[1].errors["seq"] = "refused"
    stream = two.stream()
    for _ in range(3):
        await stream.send(*(step("seq", n, str(n), start=True) for n in (1, 2, 3, 4)))
        names = [name for name, _ in await stream.answers(4)]
        assert names == ["1", "2", "3", "4"]
    assert await stream.end() is grpc.StatusCode.OK


async def test_answers_are_timed_whichever_backends_they_come_from(two: Setup) -> None:
    two.backends[1].errors["seq"] = "refused"
    stream = two.stream()
    for name in ("plain", "plain", "only1", "plain"):
        await stream.send(step(name))
        await stream.answer()
    await stream.send(step("seq", 1, start=True), step("seq", 2, start=True))
    errors = [place for _, place in await stream.answers(2)].count("refused")
    assert await stream.end() is grpc.StatusCode.OK
    assert errors == 1
    usage = two.relay.finished.meter.traffic[AppProtocol.GRPC].models[b"plain"]
    assert sum(usage.first_answers.counts) == 1
    assert sum(usage.intervals.counts) == 4  # an error is no answer


async def test_cancelling_ends_all_upstream_streams(two: Setup) -> None:
    for backend in two.backends:
        backend.gate.clear()
    stream = two.stream()
    await stream.send(step("seq", 1, start=True), step("seq", 2, start=True))
    await eventually(lambda: all(backend.seen for backend in two.backends))
    stream.call.cancel()
    await eventually(lambda: all(backend.cancelled for backend in two.backends))
    await eventually(lambda: two.in_flight == [0, 0])
    (record,) = two.relay.finished.records
    assert record.reason is Reason.CLIENT_GONE


async def test_a_deadline_ends_all_upstream_streams(two: Setup) -> None:
    for backend in two.backends:
        backend.gate.clear()
    stream = two.stream(timeout=2.0)
    await stream.send(step("seq", 1, start=True), step("seq", 2, start=True))
    assert await stream.rest() == []
    assert await stream.call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: two.in_flight == [0, 0])
    assert two.relay.finished.records


async def test_the_first_bad_status_wins_when_all_are_done(two: Setup) -> None:
    two.backends[1].ends["bad"] = grpc.StatusCode.DATA_LOSS
    stream = two.stream()
    await stream.send(step("seq", 1, "1", start=True), step("seq", 2, "2", start=True))
    await stream.answers(2)
    two.relay.pool.publish(pool_of(two.relay, 1))
    await stream.send(step("bad", 3, "3", start=True), step("seq", 1, "4"))
    while (await stream.answer())[0] != "4":
        pass
    assert await stream.end() is grpc.StatusCode.DATA_LOSS
    assert await stream.call.details() == "ended by its model"
    assert two.backends[0].half_closed == 1


async def test_the_first_error_ends_all_when_the_client_wishes(two: Setup) -> None:
    two.backends[1].ends["bad"] = grpc.StatusCode.INTERNAL
    two.backends[0].gate.clear()
    stream = two.stream(metadata=(("triton_grpc_error", "true"),))
    await stream.send(step("seq", 1, "1", start=True), step("seq", 2, "2", start=True))
    two.relay.pool.publish(pool_of(two.relay, 1))
    await stream.send(step("bad", 3, "3", start=True))
    assert await stream.rest() == [("2", "b1")]
    assert await stream.call.code() is grpc.StatusCode.INTERNAL
    await eventually(lambda: two.backends[0].cancelled)


async def test_a_step_does_not_pass_the_limit_of_its_backend(two: Setup) -> None:
    first, second = two.stream(), two.stream()
    await first.send(step("seq", 1, start=True), step("seq", 2, start=True))
    await first.answers(2)
    two.relay.pool.publish(pool_of(two.relay, 1))
    await second.send(step("plain"))
    assert (await second.answer())[1] == "b1"
    two.relay.backends[0].max_in_flight = 1
    await second.send(step("seq", 1, "full", end=True))
    name, text = await second.answer()
    assert name == "full"
    assert "sequence 1 of model seq runs on backend b0, which is at its request limit" in text
    await first.send(step("seq", 1, "fits"))
    assert await first.answer() == ("fits", "b0")
    assert await first.end() is await second.end() is grpc.StatusCode.OK


# Backends that die


async def dies(setup: Setup, number: int) -> None:
    """As the directory sees a backend that refuses connections."""
    await setup.backends[number].stop(None)
    setup.relay.backends[number].died()
    rest = [n for n in range(len(setup.backends)) if n != number]
    setup.relay.pool.publish(pool_of(setup.relay, *rest))


@pytest.mark.parametrize("number", [0, 1])
async def test_a_lost_backend_costs_the_stream_only_its_sequences(two: Setup, number: int) -> None:
    dead, alive = two.backends[number], two.backends[1 - number]
    stream = two.stream()
    await stream.send(step("seq", 1, "1", start=True), step("seq", 2, "2", start=True))
    assert await stream.answers(2) == [("1", "b0"), ("2", "b1")]
    dead.gate.clear()
    lost, kept = number + 1, 2 - number
    await stream.send(step("seq", lost, "lost"), step("seq", kept, "kept"))
    await eventually(lambda: len(dead.seen) == 2 and len(alive.seen) == 2)
    await dies(two, number)
    name, text = await stream.answer()
    assert name == "lost"
    assert f"sequence {lost} of model seq" in text
    assert await stream.answer() == ("kept", alive.name)
    # Not moved: the next step is told, too, and the next START is placed afresh.
    await stream.send(step("seq", lost, "again"), step("seq", kept, "still"))
    name, text = await stream.answer()
    assert name == "again"
    assert f"sequence {lost} of model seq" in text
    assert await stream.answer() == ("still", alive.name)
    await stream.send(step("seq", lost, "new", start=True), step("plain", request_id="p"))
    assert await stream.answers(2) == [("new", alive.name), ("p", alive.name)]
    assert await stream.end() is grpc.StatusCode.OK
    assert len(alive.seen) == 5


async def test_a_lost_backend_is_told_to_decoupled_sequences_once(two: Setup) -> None:
    stream = two.stream()
    await stream.send(step("free", 1, "1", start=True), step("free", 2, "2", start=True))
    await stream.send(step("free", 1, "3"), step("free", 2, "4"))
    await stream.answers(4)
    await dies(two, 1)
    name, text = await stream.answer()
    assert name == "4"
    assert "sequence 2 of model free" in text
    await stream.send(step("free", 1, "5"))
    assert await stream.answer() == ("5", "b0")
    assert await stream.end() is grpc.StatusCode.OK


async def test_the_only_backend_of_a_stream_takes_it_along(two: Setup) -> None:
    stream = two.stream()
    await stream.send(step("seq", 1, "1", start=True), step("seq", 1, "2"))
    await stream.answers(2)
    await dies(two, 0)
    assert await stream.rest() == []
    assert await stream.call.code() is not grpc.StatusCode.OK
    await eventually(lambda: two.in_flight == [0, 0])


async def test_the_last_backend_of_a_stream_ends_it(two: Setup) -> None:
    stream = two.stream()
    await stream.send(step("seq", 1, "1", start=True), step("seq", 2, "2", start=True))
    await stream.answers(2)
    await dies(two, 0)
    await dies(two, 1)
    assert await stream.rest() == []
    assert await stream.call.code() is grpc.StatusCode.UNAVAILABLE
    assert "b1" in await stream.call.details()


async def test_a_step_of_a_lost_sequence_may_open_a_stream(two: Setup) -> None:
    first = two.stream()
    await first.send(step("seq", 1, start=True))
    await first.answer()
    await dies(two, 0)
    stream = two.stream()
    await stream.send(step("seq", 1, "lost"), step("seq", 1, "new", start=True))
    name, text = await stream.answer()
    assert name == "lost"
    assert "sequence 1 of model seq is lost" in text
    assert await stream.answer() == ("new", "b1")
    assert await stream.end() is grpc.StatusCode.OK


async def test_a_text_is_no_id_where_ids_are_numbers(two: Setup) -> None:
    """A Triton may die of it. The stream goes on, as after any error of a Triton."""
    stream = two.stream()
    await stream.send(step("numbers", "seven", "text", start=True))
    name, text = await stream.answer()
    assert name == "text"
    assert "the model's sequence ids are numbers" in text
    await stream.send(step("numbers", 7, "number", start=True, end=True))
    name, _ = await stream.answer()
    assert name == "number"
    await stream.send(step("numbers", "eight", "text", start=True))
    name, text = await stream.answer()
    assert (name, "numbers" in text) == ("text", True)
    assert await stream.end() is grpc.StatusCode.OK


async def test_a_sequence_that_could_not_begin_begins_elsewhere() -> None:
    async with running(2) as setup:
        await setup.backends[0].stop(None)
        stream = setup.stream()
        await stream.send(step("seq", 1, "1", start=True))
        assert (await stream.answer())[1] == "b1"
        await stream.send(step("seq", 2, "2", start=True))
        # Over a second upstream stream: the client is told, and free to begin again.
        name, text = await stream.answer()
        assert name == "2"
        assert "sequence 2 of model seq: backend b0 (grpc) refused the connection" in text
        assert setup.relay.home_of(b"seq", 1) is setup.relay.backends[1]
        assert setup.relay.home_of(b"seq", 2) is None
        setup.relay.pool.publish(pool_of(setup.relay, 1))
        await stream.send(step("seq", 2, "2", start=True), step("seq", 1, "1", end=True))
        assert await stream.answers(2) == [("2", "b1"), ("1", "b1")]
        assert await stream.end() is grpc.StatusCode.OK


# Sizes, windows, and streams that say little


async def test_large_messages_pass_without_being_collected() -> None:
    options = {"stream_window": 2**17, "stream_window_max": 2**17}
    async with running(2, options) as setup:
        tensor = bytes(8 * 2**20)
        stream = setup.stream()
        await stream.send(step("seq", 1, "1", start=True), step("seq", 2, "2", start=True))
        await stream.answers(2)
        most = 0
        sending = asyncio.ensure_future(
            stream.send(*(step("seq", n % 2 + 1, str(n), tensor=tensor) for n in range(4)))
        )
        while not sending.done():
            most = max(most, setup.relay.memory_budget.held)
            await asyncio.sleep(0.001)
        await sending
        assert [name for name, _ in await stream.answers(4)] == ["0", "1", "2", "3"]
        assert most <= 2 * 2**20
        assert await stream.end() is grpc.StatusCode.OK


async def test_answers_that_are_not_due_are_held_by_the_window_of_their_backend() -> None:
    async with running(2, {"stream_window_max": 2**17}) as setup:
        slow, fast = setup.backends
        fast.answer_bytes = 2**16
        stream = setup.stream()
        await stream.send(step("seq", 1, "1", start=True), step("seq", 2, "2", start=True))
        await stream.answers(2)
        slow.gate.clear()
        await stream.send(step("seq", 1, "slow"))
        await stream.send(*(step("seq", 2, str(n)) for n in range(40)))
        await eventually(lambda: setup.relay.memory_budget.held > 2**16)
        await asyncio.sleep(0.1)
        assert (
            setup.relay.memory_budget.held <= 2**17 + 41 * 512
        )  # the window, and who waits for what
        slow.gate.set()
        names = [name for name, _ in await stream.answers(41)]
        assert names == ["slow", *map(str, range(40))]
        assert await stream.end() is grpc.StatusCode.OK


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_messages_are_looked_into(
    two: Setup, compression: grpc.Compression
) -> None:
    stream = two.stream(compression=compression)
    for is_start in (True, False, False):
        await stream.send(*(step("seq", n, start=is_start, tensor=bytes(999)) for n in (1, 2)))
        assert [place for _, place in await stream.answers(2)] == ["b0", "b1"]
    assert await stream.end() is grpc.StatusCode.OK


async def test_a_stream_without_a_message_reaches_no_backend(two: Setup) -> None:
    stream = two.stream()
    assert await stream.end() is grpc.StatusCode.OK
    # A Triton's own answer to it is nothing but trailers.
    assert tuple(await stream.call.initial_metadata()) == ()
    assert [backend.streams for backend in two.backends] == [0, 0]


async def test_many_sequences_over_many_streams_are_spread_evenly() -> None:
    async with running(3) as setup:
        streams = [setup.stream() for _ in range(10)]
        for round_ in range(5):
            for number, stream in enumerate(streams):
                await stream.send(
                    *(
                        step("free", n, str(n), start=round_ == 0, end=round_ == 4)
                        for n in range(1, 301)
                        if n % 10 == number
                    )
                )
            for stream in streams:
                await stream.answers(30)
            if round_ < 4:
                assert setup.open_sequences == [100, 100, 100]
        for stream in streams:
            assert await stream.end() is grpc.StatusCode.OK
        for backend in setup.backends:
            homes = {request.parameters["sequence_id"].int64_param for request in backend.seen}
            assert len(homes) == 100
            assert len(backend.seen) == 500
        assert setup.relay.pool.current.placement(AppProtocol.GRPC).eligible
