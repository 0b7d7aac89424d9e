"""Requests of a stream are under way at backends like any others, and go where they end first."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.domain.schedule import Capacity, QueuePlan
from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.message import frame_message
from lb.wire.http2.frames import ErrorCode
from tests.fakes.paper_streams import ROUTES, PaperStreams, request, result
from tests.fakes.relay import Options, snapshot_of
from tests.wire.frames import (
    DATA,
    OK_TRAILERS,
    RESPONSE_FIELDS,
    WINDOW_UPDATE,
    data,
    headers,
    rst,
    window_update,
)

FACTS = ModelFacts(is_stateful=False, is_decoupled=False, instances=1)
PLAN = QueuePlan(limits={}, default=Capacity(1, is_auto=True))
SCHEDULED = ModelRoute(facts=FACTS, is_uniform=True, plan=PLAN)


class Paper(PaperStreams):
    """A stream to backends whose model `work` is scheduled."""

    def __init__(self, backends: int = 2, options: Options | None = None, **sizes: int) -> None:
        super().__init__(backends=backends, options=options, **sizes)
        self.bench.ref.publish(
            replace(self.bench.ref.current, routes={**ROUTES, b"work": SCHEDULED})
        )
        self.heads: set[int] = set()
        self.owed: dict[int, list[str]] = {number: [] for number in range(backends)}

    def asks(self, *names: str, model: str = "work", rows: int = 0) -> None:
        """The client sends requests."""
        for name in names:
            message = pb.ModelInferRequest(model_name=model, id=name)
            if rows:
                message.inputs.add(name="x", datatype="INT32", shape=[rows, 1])
                message.raw_input_contents.append(bytes(4 * rows))
            self.send(frame_message(message.SerializeToString()))
        for number, owed in self.owed.items():
            owed += self.requests(number)

    def does(self, number: int, seconds: float = 0.0, answer: bytes = b"") -> None:
        """A backend answers its next request after a time."""
        self.bench.loop.advance(seconds)
        name = self.owed[number].pop(0)
        head = b"" if number in self.heads else headers(1, RESPONSE_FIELDS)
        self.heads.add(number)
        self.backends[number].sends(head + data(1, answer or result("work", name)))

    def under_way(self) -> list[int]:
        """Requests that the scheduler knows to be under way, by backend."""
        found = dict.fromkeys(self.bench.backends, 0)
        for lane in self.bench.dispatcher.queue.scheduler.model_backends():
            found[lane.backend] += lane.in_flight
        return list(found.values())

    def learnt(self) -> list[float]:
        """What an execution is expected to take, by backend; 0 where nothing is known."""
        found = dict.fromkeys(self.bench.backends, 0.0)
        for lane in self.bench.dispatcher.queue.scheduler.model_backends():
            found[lane.backend] = lane.expected_s
        return list(found.values())


async def test_what_they_take_is_learnt() -> None:
    paper = Paper(1)
    for number in range(20):
        paper.asks(f"{number}")
        paper.does(0, 0.02)
        paper.bench.loop.advance(0.1)
    assert paper.learnt() == pytest.approx([0.02], rel=0.01)
    assert paper.under_way() == [0]


async def test_what_waits_at_the_backend_is_learnt_from_when_it_began() -> None:
    paper = Paper(1)
    for number in range(10):
        paper.asks(*(f"{number}.{each}" for each in range(5)))
        for _ in range(5):
            paper.does(0, 0.02)
        paper.bench.loop.advance(0.1)
    assert paper.learnt() == pytest.approx([0.02], rel=0.01)


async def test_errors_teach_nothing() -> None:
    paper = Paper(1)
    error = pb.ModelStreamInferResponse(error_message="no", infer_response=pb.ModelInferResponse())
    for number in range(10):
        paper.asks(f"{number}")
        paper.does(0, 0.001, frame_message(error.SerializeToString()))
    assert paper.under_way() == [0]
    assert paper.learnt() == [0.0]


async def test_answers_that_come_in_pieces_count_once_they_are_whole() -> None:
    paper = Paper(1)
    paper.asks("a", "b")
    whole = result("work", "a", bytes(20_000)) + result("work", "b")
    paper.backends[0].sends(headers(1, RESPONSE_FIELDS) + data(1, whole[:7_000]))
    assert paper.under_way() == [2]
    paper.backends[0].sends(data(1, whole[7_000:]))
    assert paper.under_way() == [0]


async def test_rows_are_read_and_guessed_by_the_size() -> None:
    paper = Paper(1)
    for rows in (1, 8, 4, 8, 1, 2) * 8:
        paper.asks("x", rows=rows)
        paper.does(0, 0.001 + 0.002 * rows)
        paper.bench.loop.advance(0.1)
    (lane,) = paper.bench.dispatcher.queue.scheduler.model_backends()
    assert lane.row_s == pytest.approx(0.002, rel=0.25)


async def test_steps_teach_how_long_steps_take() -> None:
    paper = Paper(1)
    table = paper.bench.dispatcher.steps.table
    for number in range(20):
        paper.send(request("seq", 7, f"{number}", start=not number))
        paper.owed[0] += paper.requests(0)
        paper.does(0, 0.03)
        paper.bench.loop.advance(0.1)
    latency = table.latency(b"seq", paper.bench.backends[0])
    assert latency is not None
    assert latency.quick_s == pytest.approx(0.03, rel=0.01)
    assert paper.bench.dispatcher.queue.scheduler.wake_at == float("inf")


async def test_steps_of_several_backends_teach_by_backend() -> None:
    paper = Paper()
    table = paper.bench.dispatcher.steps.table
    for number in range(20):
        for sequence in (1, 2):
            paper.send(request("seq", sequence, f"{sequence}", start=not number))
        paper.owed[0] += paper.requests(0)
        paper.owed[1] += paper.requests(1)
        paper.does(0, 0.01)
        paper.does(1, 0.03)
        paper.bench.loop.advance(0.1)
    latencies = [table.latency(b"seq", backend) for backend in paper.bench.backends]
    assert [round(each.quick_s, 3) for each in latencies if each is not None] == [0.01, 0.04]


async def test_what_held_for_another_pool_is_not_asked_for_again() -> None:
    paper = Paper(3)
    paper.asks("a")
    other = QueuePlan(limits={}, default=Capacity(5))
    route = replace(SCHEDULED, plan=other)
    pool = snapshot_of(paper.bench.backends[:2], 2)
    paper.bench.ref.publish(replace(pool, routes={**ROUTES, b"work": route}))
    paper.does(0, 0.01)
    paper.asks("b")
    paper.does(0, 0.01)
    lanes = paper.bench.dispatcher.queue.scheduler.model_backends()
    assert {lane.backend.name: lane.limit for lane in lanes}["b0"] == 5


async def test_a_stream_at_a_backend_that_gets_nothing_new_goes_on_there_uncounted() -> None:
    paper = Paper(3)
    paper.asks("a")
    pool = snapshot_of(paper.bench.backends[1:], 2)
    paper.bench.ref.publish(replace(pool, routes={**ROUTES, b"work": SCHEDULED}))
    paper.does(0, 0.01)
    paper.asks("b", "c")
    assert paper.owed[0] == ["b", "c"]
    assert paper.under_way() == [0, 0, 0]


async def test_requests_that_go_again_are_under_way_where_they_are() -> None:
    paper = Paper()
    paper.asks("a")
    assert paper.under_way() == [1, 0]
    paper.backends[0].sends(rst(1, ErrorCode.REFUSED_STREAM))
    assert paper.requests(1) == ["a"]
    assert paper.under_way() == [0, 1]
    paper.owed[1] = ["a"]
    paper.does(1, 0.01)
    assert paper.under_way() == [0, 0]


async def test_where_answers_cannot_be_told_apart_by_number_no_accounts_are_kept() -> None:
    paper = Paper(1)
    paper.asks("a")
    paper.send(request("free", 5, "f", start=True))
    paper.asks("b")
    assert paper.under_way() == [0]
    paper.backends[0].sends(
        headers(1, RESPONSE_FIELDS),
        data(1, result("work", "a")), data(1, result("free", "f")), data(1, result("work", "b")),
    )  # fmt: skip
    await paper.turn()
    assert paper.ids() == ["a", "f", "b"]
    assert paper.under_way() == [0]


async def test_a_stream_stays_where_it_is_while_that_backend_is_idle_when_it_sends() -> None:
    paper = Paper(3)
    for number in range(20):
        paper.asks(f"{number}")
        paper.does(0, 0.02)
    assert len(paper.ids()) == 20
    assert paper.heads == {0}


async def test_requests_that_are_spread_keep_their_ids_when_their_backend_is_lost() -> None:
    paper = Paper()
    paper.bench.max_attempts = 1
    for number in range(20):
        paper.asks(f"{number}")
        paper.does(0, 0.02)
    for burst in range(3):
        paper.asks(*(f"{burst}.{each}" for each in range(8)))
        assert all(paper.under_way())
        while any(paper.owed.values()):
            for number in (0, 1):
                if paper.owed[number]:
                    paper.does(number, 0.02)
    await paper.turn()
    paper.ids()
    paper.asks("a", "b", "c", "d")
    lost, kept = paper.owed[1], paper.owed[0]
    assert len(lost) == len(kept) == 2
    paper.backends[1].sends(rst(1, ErrorCode.INTERNAL_ERROR))
    for _ in tuple(kept):
        paper.does(0, 0.02)
    await paper.turn()
    answers = paper.answers()
    assert [answer.infer_response.id for answer in answers] == ["a", "b", "c", "d"]
    assert [answer.infer_response.id for answer in answers if answer.error_message] == lost
    assert paper.under_way() == [0, 0]


async def test_spread_messages_and_answers_give_their_senders_room() -> None:
    paper = Paper(options={"stream_window": 65_536, "stream_window_max": 65_536})
    credited = {0: 0, 1: 0}
    for _ in range(100):
        for number in range(8):
            paper.send(request("work", 0, f"{number}", tensor=bytes(1_000)))
        for number, backend in enumerate(paper.backends):
            for frame in backend.gets():
                if frame.kind == DATA:
                    paper.owed[number].append("x")
                elif frame.kind == WINDOW_UPDATE and frame.stream:
                    credited[number] += frame.increment
        for number, owed in paper.owed.items():
            for _ in tuple(owed):
                paper.does(number, 0.02, result("work", "x", bytes(1_000)))
        paper.client.sends(window_update(1, 8_500), window_update(0, 8_500))
        for backend in paper.backends[: len(paper.heads)]:
            backend.sends(window_update(1, 8_500), window_update(0, 8_500))
    await paper.turn()
    assert len(paper.heads) == 2
    to_client = [f.increment for f in paper.looks() if f.kind == WINDOW_UPDATE and f.stream]
    assert sum(to_client) > 750_000
    assert sum(credited.values()) > 650_000
    assert len([frame for frame in paper.got if frame.kind == DATA]) == 800


async def test_very_many_requests_without_an_answer_are_given_up_in_several_iterations() -> None:
    paper = Paper(1)
    for first in range(0, 3000, 500):
        paper.asks(*(f"{number}" for number in range(first, first + 500)))
    assert paper.under_way() == [3000]
    paper.client.sends(rst(1, ErrorCode.CANCEL))
    before = 3000
    while before:
        (now,) = paper.under_way()
        assert 0 < before - now <= 300
        before = now
        await paper.turn()
    assert paper.bench.is_clean()


async def test_whatever_happens_the_scheduler_knows_what_is_under_way() -> None:
    rng = Random(7)
    for _ in range(60):
        paper = Paper(3)
        asked: list[str] = []
        for _ in range(40):
            dice = rng.random()
            if dice < 0.5:
                asked.append(f"{len(asked)}")
                paper.asks(asked[-1], rows=rng.choice((0, 1, 9)))
            elif any(paper.owed.values()):
                number = rng.choice([each for each, owed in paper.owed.items() if owed])
                paper.does(number, rng.random() * 0.02)
            assert paper.under_way() == [len(owed) for owed in paper.owed.values()]
        if rng.random() < 0.5:
            paper.client.sends(rst(1, ErrorCode.CANCEL))
        else:
            for number, owed in paper.owed.items():
                while owed:
                    paper.does(number, 0.001)
            await paper.turn()
            assert paper.ids() == asked
            paper.client.sends(data(1, end=True))
            for number in range(3):
                if number in paper.heads:
                    paper.backends[number].sends(headers(1, OK_TRAILERS, end=True))
            await paper.turn()
        assert paper.under_way() == [0, 0, 0]
        assert paper.bench.is_clean() or not asked


async def test_whatever_is_lost_nothing_is_left_under_way() -> None:
    rng = Random(11)
    for _ in range(80):
        paper = Paper(3)
        alive = {0, 1, 2}
        for count in range(30):
            dice = rng.random()
            number = rng.choice(sorted(alive or {0}))
            if dice < 0.55 or not alive:
                model = rng.choice(("work", "work", "work", "plain", "seq", "free"))
                sequence = rng.randint(1, 3) if model in ("seq", "free") else 0
                paper.send(request(model, sequence, f"{count}", start=bool(sequence)))
            elif dice < 0.8:
                head = b"" if number in paper.heads else headers(1, RESPONSE_FIELDS)
                paper.heads.add(number)
                paper.backends[number].sends(head + data(1, result("work", f"{count}")))
            elif dice < 0.9:
                code = rng.choice((ErrorCode.REFUSED_STREAM, ErrorCode.INTERNAL_ERROR))
                paper.backends[number].sends(rst(1, code))
            else:
                alive.discard(number)
                paper.backends[number].goes()
            await paper.turn()
            if not paper.bench.dispatcher.open_exchanges:
                break
        paper.client.sends(rst(1, ErrorCode.CANCEL))
        await paper.turn()
        assert paper.under_way() == [0, 0, 0]
        assert paper.bench.leftovers()["in_flight"] == 0
        assert paper.bench.leftovers()["held"] == 0
