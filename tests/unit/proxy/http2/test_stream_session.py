"""Streams of inferences as their client sees them, and those with one backend."""

from __future__ import annotations

import asyncio
import gc
import re
from dataclasses import replace

import pytest

from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import OnDemand, Placement
from lb.domain.schedule import Capacity, QueuePlan
from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve import inference_pb2 as pb
from lb.kserve.gate import RESERVED
from lb.proxy.http2 import stream_single
from lb.proxy.http2.options import Http2Options
from tests.fakes.http2_connections import PaperRelay
from tests.fakes.paper_streams import ROUTES, PaperStreams, request, result
from tests.fakes.relay import FewestInFlight, snapshot_of
from tests.wire.frames import (
    DATA,
    ENHANCE_YOUR_CALM,
    OK_TRAILERS,
    REFUSED_STREAM,
    RESPONSE_FIELDS,
    data,
    goaway,
    headers,
    message,
    named,
    request_fields,
    rst,
    window_update,
)

_SERVICE = b"/inference.GRPCInferenceService/"
_STREAM = _SERVICE + b"ModelStreamInfer"
_IS_OURS = re.compile(r"lb\.(proxy|wire)\b").match


@pytest.mark.parametrize("whole", [True, False])
async def test_errors_in_a_stream_are_masked_and_results_pass(whole: bool) -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    failure = pb.ModelStreamInferResponse(
        error_message="no room for " + RESERVED.decode() + "secret"
    ).SerializeToString()
    result = pb.ModelStreamInferResponse(
        infer_response=pb.ModelInferResponse(id="secret")
    ).SerializeToString()
    body = message(result) + message(failure)
    client.sends(
        headers(1, request_fields(path=_STREAM)) + data(1, named(b"m"), end=True),
    )
    parts = [headers(1, RESPONSE_FIELDS), data(1, body), headers(1, OK_TRAILERS, end=True)]
    if whole:
        backend.sends(b"".join(parts))
    else:
        for part in parts:
            backend.sends(part)
    got = b"".join(found.payload for found in client.gets() if found.kind == DATA)
    assert len(got) == len(body)
    assert got.count(b"secret") == 1
    assert got.startswith(message(result))
    (record,) = relay.finished.records
    assert (record.model, record.grpc_status, record.bytes_out) == (b"m", 0, len(body))
    assert relay.is_clean()


async def test_an_error_among_answers_of_its_size_is_masked() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    error = RESERVED + b"secret"
    failure = message(b"\x0a" + bytes((len(error),)) + error)
    result = message(b"\x12" + bytes((len(error),)) + error)
    client.sends(headers(1, request_fields(path=_STREAM)) + data(1, named(b"m")))
    backend.sends(headers(1, RESPONSE_FIELDS))
    harmless = message(b"\x0a" + bytes((len(error),)) + b"x" * len(error))
    answers = (result, result, failure, result, harmless, failure, result[:9], result[9:], result)
    for answer in answers:
        backend.sends(data(1, answer))
    masked = failure.replace(error, b"*" * len(error))
    got = b"".join(found.payload for found in client.gets() if found.kind == DATA)
    assert got == b"".join(answers).replace(failure, masked)


async def test_a_piece_of_an_answer_is_not_taken_for_one_that_looks_like_it() -> None:
    relay = PaperRelay()
    backend, client = relay.backend(), relay.client()
    error = RESERVED + b"secret"
    failure = message(b"\x0a" + bytes((len(error),)) + error)
    result = message(b"\x12" + bytes(len(failure) - 6))
    around = (2 * len(result)).to_bytes(4, "big")
    client.sends(headers(1, request_fields(path=_STREAM)) + data(1, named(b"m")))
    backend.sends(headers(1, RESPONSE_FIELDS))
    for piece in (result, result, b"\0" + around, result, result, failure):
        backend.sends(data(1, piece))
    got = b"".join(found.payload for found in client.gets() if found.kind == DATA)
    assert got == 2 * result + b"\0" + around + 2 * result + failure.replace(
        error, b"*" * len(error)
    )


async def test_a_sequence_among_messages_that_are_known_is_not_overlooked() -> None:
    paper = PaperStreams()
    paper.send(request("new", name="0"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("new", "0")))
    paper.send(request("new", name="1"), request("new", 1, "2", start=True))
    paper.send(request("new", 2, "3", start=True), request("other", name="4"))
    assert paper.requests(0) == ["0", "1", "3", "4"]
    assert paper.requests(1) == ["2"]


async def test_a_new_pool_ends_what_is_known_of_messages() -> None:
    paper = PaperStreams()
    paper.send(request("plain"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "")))
    paper.send(request("plain", name="a"))
    pool = paper.bench.ref.current
    policy = pool.placements[1].policy
    b1 = paper.bench.backends[1:]
    placement = Placement(b1, policy.build(b1), policy)
    route = replace(pool.routes[b"plain"], placements=(placement, placement), is_plain=False)
    paper.bench.ref.publish(replace(pool, routes={b"plain": route}))
    paper.send(request("plain", name="b"))
    assert paper.requests(0) == ["", "a"]
    assert paper.requests(1) == ["b"]


@pytest.mark.parametrize("step", [1, 3, 50])
async def test_a_message_is_placed_once_its_parameters_are_there(step: int) -> None:
    paper = PaperStreams()
    whole = request("seq", 1, "1", start=True, tensor=bytes(5000))
    for at in range(0, 300, step):
        paper.client.sends(data(1, whole[at : at + step]))
    assert paper.bench.backends[0].in_flight == 1
    assert paper.bench.memory_budget.held == 0
    paper.client.sends(data(1, whole[at + step :]))
    assert paper.requests(0) == ["1"]
    assert paper.bench.backends[0].open_sequences == 1


async def test_a_stream_that_ends_within_a_message_is_an_error() -> None:
    for size in (3, 20, 4000):
        paper = PaperStreams()
        paper.send(request("plain", name="1"))
        paper.client.sends(data(1, request("plain", tensor=bytes(9000))[:size], end=True))
        assert paper.status() == 13
        assert paper.bench.is_clean()
        assert paper.bench.finished.records[0].reason is Reason.BAD_REQUEST


async def test_without_a_backend_the_first_message_ends_the_stream() -> None:
    paper = PaperStreams()
    paper.bench.ref.publish(snapshot_of(()))
    paper.send(request("seq", 1, start=True))
    assert paper.status() == 14
    assert paper.bench.is_clean()
    assert paper.bench.finished.records[0].reason is Reason.NO_BACKEND


async def test_a_refused_stream_begins_anew_with_all_its_sequences() -> None:
    paper = PaperStreams()
    paper.send(request("seq", 1, "1", start=True), request("seq", 1, "2"))
    paper.client.sends(data(1, request("plain", name="3", tensor=bytes(500))[:200]))
    assert [each.in_flight for each in paper.bench.backends] == [1, 0]
    paper.backends[0].sends(rst(1, REFUSED_STREAM))
    assert [each.in_flight for each in paper.bench.backends] == [0, 1]
    assert [each.open_sequences for each in paper.bench.backends] == [0, 1]
    paper.client.sends(data(1, request("plain", name="3", tensor=bytes(500))[200:]))
    assert paper.requests(1) == ["1", "2", "3"]
    paper.send(end=True)
    answers = [data(1, result("seq", name)) for name in "123"]
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), *answers)
    paper.end(1)
    assert paper.ids() == ["1", "2", "3"]
    assert paper.status() == 0
    assert paper.bench.is_clean()


@pytest.mark.parametrize("refusal", [rst(1, REFUSED_STREAM), goaway(0)], ids=["reset", "goaway"])
async def test_a_refused_stream_that_was_half_closed_begins_anew_as_a_whole(refusal: bytes) -> None:
    paper = PaperStreams()
    sent = [request("plain", name=name) for name in "123"]
    paper.send(*sent, end=True)
    assert paper.requests(0) == ["1", "2", "3"]
    paper.backends[0].sends(refusal)
    frames = [frame for frame in paper.backends[1].gets() if frame.kind == DATA]
    assert b"".join(frame.payload for frame in frames) == b"".join(sent)
    assert [frame.ends_stream for frame in frames].index(True) == len(frames) - 1
    answers = [data(1, result("plain", name)) for name in "123"]
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), *answers)
    paper.end(1)
    assert paper.ids() == ["1", "2", "3"]
    assert paper.status() == 0
    assert paper.bench.is_clean()


async def test_a_half_closed_stream_that_begins_anew_may_go_to_several_backends() -> None:
    paper = PaperStreams()
    for number in (8, 9):  # b1 runs others, so both begin on b0
        paper.bench.dispatcher.steps.table.place(
            SequenceStep(SequenceKey(b"seq", number), is_start=True),
            Placement(paper.bench.backends[1:], None, FewestInFlight()),
            60.0,
            0.0,
        )
    starts = [request("seq", number, str(number), start=True) for number in (1, 2)]
    paper.send(*starts, end=True)
    assert paper.requests(0) == ["1", "2"]
    paper.backends[0].sends(rst(1, REFUSED_STREAM))
    for number, stream, start in ((1, 1, starts[0]), (0, 3, starts[1])):
        frames = [frame for frame in paper.backends[number].gets() if frame.kind == DATA]
        assert b"".join(frame.payload for frame in frames) == start
        assert frames[-1].ends_stream
        paper.backends[number].sends(
            headers(stream, RESPONSE_FIELDS),
            data(stream, result("seq", str(2 - number))),
            headers(stream, OK_TRAILERS, end=True),
        )
    assert paper.ids() == ["1", "2"]
    assert paper.status() == 0
    assert paper.bench.is_clean()


async def test_a_stream_that_its_only_backend_refuses_waits_before_it_is_opened_again() -> None:
    paper = PaperStreams(backends=1, has_own_queue=True)
    paper.bench.queue.configure(wait_for_backend_s=5.0)
    plan = QueuePlan(limits={}, default=Capacity(1, is_auto=True))
    work = replace(ROUTES[b"plain"], is_plain=False, plan=plan)
    paper.bench.ref.publish(replace(paper.bench.ref.current, routes={b"work": work}))
    paper.send(request("work", name="1"))
    backend, stream = paper.backends[0], 1
    assert paper.requests(0) == ["1"]
    opened, began = 1, paper.bench.loop.time()
    while paper.status() is None:
        backend.sends(rst(stream, REFUSED_STREAM))
        assert backend.gets() == [], "not at once"
        paper.bench.loop.advance(0.5)
        paper.bench.flush()
        if paper.requests(0) == ["1"]:
            opened += 1
            stream += 2
    assert paper.status() == 14
    assert 5 < opened <= 12
    assert 4.0 < paper.bench.loop.time() - began < 7.0
    assert paper.bench.is_clean()


@pytest.mark.interpreted("a constant")
async def test_without_an_end_of_unanswered_requests_their_order_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_single, "MAX_UNANSWERED", 100)
    paper = PaperStreams()
    names = [str(number) for number in range(300)]
    paper.send(*(request("seq", 1, name, start=name == "0") for name in names))
    assert paper.session.single.is_uncounted
    assert len(paper.session.single.pending_responses.counted) <= 101
    assert paper.requests(0) == names
    paper.send(request("seq", 2, "other", start=True))
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), data(1, result("seq", "other")))
    assert paper.ids() == ["other"]


async def test_a_read_full_of_messages_that_ask_for_nothing_ends_the_connection() -> None:
    paper = PaperStreams()
    paper.send(request("plain"))
    paper.client.sends(data(1, bytes(5) * 500))
    assert not paper.client.connection.parted
    paper.client.sends(data(1, bytes(5) * 10_000))
    assert paper.client.connection.parted
    assert paper.looks()[-1].code == ENHANCE_YOUR_CALM
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_empty_messages_in_frames_of_their_own_are_no_flood() -> None:
    paper = PaperStreams()
    paper.send(request("plain"))
    for _ in range(3000):
        paper.client.sends(data(1, bytes(5)))
        paper.client.connection.data_received(b"")  # another turn
    assert not paper.client.connection.parted
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_a_message_over_the_limit_ends_the_stream() -> None:
    paper = PaperStreams(options=Http2Options(message_size=1000))
    paper.send(request("plain", name="1"), request("plain", name="2", tensor=bytes(2000)))
    assert paper.status() == 8
    assert paper.bench.is_clean()


@pytest.mark.parametrize("model", ["seq", "free"])
async def test_requests_that_wait_for_answers_are_on_the_memory_budget_until_they_have_them(
    model: str,
) -> None:
    paper = PaperStreams()
    paper.send(request(model, 1, "first", start=True))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result(model, "first")))
    paper.backends[0].sends(window_update(1, 2**30))
    for number in range(2, 400):
        paper.send(request(model, number if model == "free" else 1, f"{number:200}", start=True))
    if model == "free":
        # Nobody can say when they are answered.
        assert paper.bench.memory_budget.held > 200 * 400
        paper.client.sends(rst(1))
    else:
        assert paper.bench.memory_budget.held > 600 * 390
        answers = (result(model, str(number)) for number in range(2, 400))
        paper.backends[0].sends(*(data(1, answer) for answer in answers))
        paper.send(*(request(model, 1, "") for _ in range(65)))
        assert paper.bench.memory_budget.held <= 500 * 66
        paper.client.goes()
    assert paper.bench.is_clean()


@pytest.mark.parametrize("model", ["seq", "free", "plain"])
async def test_a_client_whose_requests_nobody_answers_cannot_ask_for_ever(model: str) -> None:
    paper = PaperStreams(ceiling=2**17)
    paper.send(request(model, 1, "first", start=True))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result(model, "first")))
    paper.backends[0].sends(window_update(1, 2**30))
    body = request(model, 1, start=True)
    for number in range(2, 10_000):
        if not paper.bench.dispatcher.open_exchanges:
            break
        paper.send(request(model, number) if model == "free" else body)
    assert paper.bench.is_clean()
    assert paper.bench.finished.records[0].reason is Reason.MEMORY


def sent(paper: PaperStreams, backend: int) -> bytes:
    """What a backend has got of messages since the last time."""
    frames = paper.backends[backend].gets()
    return b"".join(frame.payload for frame in frames if frame.kind == DATA)


def pause(paper: PaperStreams) -> None:
    """So long that what may go again has gone."""
    paper.bench.loop.advance(0.05)
    paper.bench.relay.flush()


async def test_a_stream_that_is_lost_before_any_answer_goes_again() -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"), request("plain", name="2"))
    paper.backends[0].gets()
    paper.backends[0].goes()
    assert sent(paper, 1) == b"", "not at once"
    pause(paper)
    assert sent(paper, 1) == request("plain", name="1") + request("plain", name="2")
    paper.send(request("plain", name="3"))
    assert sent(paper, 1) == request("plain", name="3")
    paper.backends[1].sends(
        headers(1, RESPONSE_FIELDS), *(data(1, result("plain", str(n))) for n in (1, 2, 3))
    )
    assert paper.ids() == ["1", "2", "3"]
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_a_stream_with_a_sequence_does_not_go_again() -> None:
    paper = PaperStreams()
    paper.send(request("seq", 1, "1", start=True))
    paper.backends[0].goes()
    assert paper.backends[1].gets() == []
    assert paper.status() == 14
    assert paper.bench.is_clean()


async def test_a_stream_with_one_message_that_must_not_run_twice_does_not_go_again() -> None:
    paper = PaperStreams()
    paper.bench.run_once(b"plain")
    paper.send(request("seq", name="1"), request("plain", name="2"))
    paper.backends[0].goes()
    assert paper.backends[1].gets() == []
    assert paper.status() == 14
    assert paper.bench.is_clean()


async def test_a_stream_does_not_go_to_a_second_server_that_dies_with_the_first_one() -> None:
    paper = PaperStreams(backends=3)
    paper.send(request("plain", name="1"))
    for backend in paper.backends[:2]:
        backend.goes()
    left = replace(snapshot_of(paper.bench.backends[2:]), routes=ROUTES)
    paper.bench.ref.publish(left)  # refused connections have told
    pause(paper)
    assert sent(paper, 2) == request("plain", name="1")
    paper.backends[2].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    assert paper.ids() == ["1"]
    paper.client.goes()
    assert paper.bench.is_clean()


@pytest.mark.parametrize("cut", [3, 7, 20])
async def test_what_comes_between_two_attempts_of_a_stream_goes_with_the_second(cut: int) -> None:
    paper = PaperStreams()
    whole = request("plain", name="2", tensor=bytes(range(200)))
    paper.send(request("plain", name="1"), whole[:cut])
    paper.backends[0].goes()
    paper.send(whole[cut:])
    paper.send(request("plain", name="3"), end=True)
    pause(paper)
    assert sent(paper, 1) == request("plain", name="1") + whole + request("plain", name="3")
    paper.backends[1].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
    assert paper.ids() == ["1"]
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_a_head_that_was_held_does_not_go_out_between_two_attempts() -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS))
    paper.backends[0].goes()
    await asyncio.sleep(0)
    assert paper.looks() == []
    pause(paper)
    assert sent(paper, 1) == request("plain", name="1")
    paper.client.goes()
    assert paper.bench.is_clean()


async def test_nothing_is_left_of_a_stream_whose_client_goes_between_two_attempts() -> None:
    paper = PaperStreams()
    paper.send(request("plain", name="1", tensor=bytes(9000)))
    paper.backends[0].goes()
    paper.client.goes()
    assert paper.bench.is_clean()
    pause(paper)
    assert sent(paper, 1) == b""


def parts_left() -> list[str]:
    """What of the relay only the garbage collector would have found."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = [type(each).__name__ for each in gc.garbage if _IS_OURS(type(each).__module__)]
    gc.garbage.clear()
    return found


@pytest.mark.parametrize("end", ["reset", "loaded", "refused"])
async def test_a_stream_whose_message_is_held_leaves_no_rings(end: str) -> None:
    paper = PaperStreams()
    gc.collect()
    gc.disable()
    try:
        publish_cold(paper, OnDemand(60.0))
        paper.send(request("plain", name="1"))
        paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
        paper.send(request("cold", name="2"))
        assert len(paper.bench.queue) == 1
        if end != "reset":
            publish_cold(paper, None if end == "loaded" else OnDemand(60.0, "no weights"))
            await paper.turn()
            assert paper.requests(0) == (["1", "2"] if end == "loaded" else ["1"])
        paper.client.sends(rst(1, 8))
        await paper.turn()
        paper.bench.finished.records.clear()
        assert parts_left() == []
    finally:
        gc.enable()
    assert len(paper.bench.queue) == 0
    assert paper.bench.is_clean()


def publish_cold(paper: PaperStreams, on_demand: OnDemand | None) -> None:
    """Publish that the model `cold` is loaded on demand, or everywhere."""
    nowhere = Placement((), None, FewestInFlight())
    route = replace(
        ROUTES[b"plain"],
        placements=None if on_demand is None else (nowhere, nowhere),
        on_demand=on_demand,
        is_plain=False,
    )
    paper.bench.ref.publish(replace(paper.bench.ref.current, routes=ROUTES | {b"cold": route}))


@pytest.mark.parametrize("end", ["answered", "reset", "backend lost"])
@pytest.mark.parametrize("several", [False, True])
async def test_a_stream_that_is_over_leaves_no_rings(several: bool, end: str) -> None:
    paper = PaperStreams()
    gc.collect()
    gc.disable()
    try:
        if several:
            paper.begin_two()
        else:
            paper.send(request("plain", name="1"))
            paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("plain", "1")))
        assert (paper.session.merge is not None) is several
        if end == "answered":
            paper.send(end=True)
            paper.end(*range(1 + several))
        elif end == "reset":
            paper.client.sends(rst(1, 8))
        else:
            paper.backends[0].goes()
            paper.client.goes()
        await paper.turn()
        paper.bench.finished.records.clear()
        assert parts_left() == []
    finally:
        gc.enable()
    assert paper.bench.is_clean()


def frames(messages: list[bytes]) -> bytes:
    """Messages in frames of many."""
    return b"".join(
        data(1, b"".join(messages[at : at + 200])) for at in range(0, len(messages), 200)
    )


async def iterations_until_sent(paper: PaperStreams) -> tuple[int, int, bytes]:
    """How many iterations of the loop pass until a backend gets something, which one that is, and
    what it gets."""
    for count in range(1000):
        for number in range(len(paper.backends)):
            if got := sent(paper, number):
                return count, number, got
        await asyncio.sleep(0)
        paper.bench.flush()
    raise AssertionError("nobody got anything")


async def with_many(count: int, *, is_waiting: bool) -> tuple[PaperStreams, list[bytes]]:
    """A stream of so many messages that has just begun to go again, or has its first backend."""
    paper = PaperStreams(backends=3, has_own_queue=True)
    messages = [request("plain", name=str(number)) for number in range(count)]
    pool = paper.bench.ref.current
    if is_waiting:
        paper.bench.queue.configure(wait_for_backend_s=5.0)
        paper.bench.ref.publish(replace(snapshot_of(()), routes=ROUTES))
    paper.client.sends(frames(messages))
    await paper.turn()
    if is_waiting:
        paper.bench.ref.publish(replace(pool, generation=pool.generation + 9))
        paper.backends = [paper.bench.backend(number) for number in range(3)]
    else:
        assert sent(paper, 0) == b"".join(messages)
        paper.backends[0].goes()
    pause(paper)
    return paper, messages


def assert_ends_well(paper: PaperStreams, backend: int) -> None:
    """The backend answers once and ends the stream, and so does the call; nothing is left of it."""
    paper.backends[backend].sends(
        headers(1, RESPONSE_FIELDS),
        data(1, result("plain", "0")),
        headers(1, OK_TRAILERS, end=True),
    )
    assert paper.status() == 0
    assert paper.bench.is_clean()


@pytest.mark.parametrize("is_waiting", [False, True], ids=["lost", "waited"])
async def test_very_many_messages_are_routed_anew_in_several_iterations(
    *, is_waiting: bool
) -> None:
    paper, messages = await with_many(2000, is_waiting=is_waiting)
    count, backend, got = await iterations_until_sent(paper)
    assert got == b"".join(messages)
    assert count >= 2000 // 128
    paper.send(end=True)
    assert_ends_well(paper, backend)


@pytest.mark.parametrize("is_waiting", [False, True], ids=["lost", "waited"])
async def test_what_comes_while_messages_are_routed_anew_follows_them(*, is_waiting: bool) -> None:
    paper, messages = await with_many(2000, is_waiting=is_waiting)
    later = [request("plain", name=f"later {number}") for number in range(3)]
    paper.send(*later[:2])
    await asyncio.sleep(0)
    paper.send(later[2], end=True)
    _, backend, got = await iterations_until_sent(paper)
    assert got == b"".join(messages + later)
    assert_ends_well(paper, backend)


@pytest.mark.parametrize("end", ["reset", "client gone", "deadline", "no backend"])
@pytest.mark.parametrize("is_waiting", [False, True], ids=["lost", "waited"])
async def test_nothing_is_left_of_a_stream_that_ends_while_it_is_routed_anew(
    end: str, *, is_waiting: bool
) -> None:
    paper, messages = await with_many(2000, is_waiting=is_waiting)
    held = paper.bench.memory_budget.held
    messages.append(request("plain", name="later", tensor=bytes(9000)))
    paper.send(messages[-1])
    assert paper.bench.memory_budget.held >= held + 8192
    if end == "reset":
        paper.client.sends(rst(1, 8))
    elif end == "client gone":
        paper.client.goes()
    elif end == "deadline":
        paper.session.call.fail(Reason.DEADLINE, "too late")
    else:
        paper.session.call.backend_side.failed(Outcome.CONNECT_FAILED)
    paper.bench.flush()
    if end == "no backend":
        _, _, got = await iterations_until_sent(paper)
        assert got == b"".join(messages)
        paper.client.goes()
    await paper.turn()
    assert paper.bench.memory_budget.held == 0
    assert paper.bench.is_clean()


async def test_small_requests_do_not_overtake_many_that_are_routed_behind_a_held_one() -> None:
    paper = PaperStreams()
    publish_cold(paper, OnDemand(60.0))
    pool = paper.bench.ref.current
    plan = QueuePlan(limits={}, default=Capacity(10_000))
    work = replace(ROUTES[b"plain"], is_plain=False, plan=plan)
    paper.bench.ref.publish(replace(pool, routes=pool.routes | {b"work": work}))
    paper.send(request("work", name="0"))
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS), data(1, result("work", "0")))
    paper.send(request("cold", name="1"))
    many = [request("work", name=str(number)) for number in range(2, 1000)]
    paper.client.sends(frames(many))
    await paper.turn()
    publish_cold(paper, None)
    pool = paper.bench.ref.current
    paper.bench.ref.publish(replace(pool, routes=pool.routes | {b"work": work}))
    await asyncio.sleep(0)
    got: tuple[list[str], list[str]] = ([], [])
    for number in range(1000, 1100):
        await asyncio.sleep(0)
        paper.bench.flush()
        for backend, names in enumerate(got):
            names += paper.requests(backend)
        paper.client.connection.data_received(data(1, request("work", name=str(number))))
    await paper.turn()
    for backend, names in enumerate(got):
        names += paper.requests(backend)
        assert names == sorted(names, key=int)
    assert sorted(map(int, got[0] + got[1])) == list(range(1100))
    paper.client.goes()
    await paper.turn()
    assert paper.bench.is_clean()
