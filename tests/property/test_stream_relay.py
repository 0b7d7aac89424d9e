"""Streams over several backends: whatever the cut of the frames, each backend gets whole messages,
the client gets all answers in the order of its requests, and nothing is left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, OnDemand, Placement
from lb.domain.schedule import Capacity, QueuePlan
from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.message import frame_message
from lb.wire.http2.frames import window_update
from tests.fakes.http2_connections import PaperRelay, Side
from tests.fakes.relay import FewestInFlight
from tests.fakes.stream_backend import step
from tests.wire.frames import (
    DATA,
    HEADERS,
    OK_TRAILERS,
    RESPONSE_FIELDS,
    data,
    headers,
    request_fields,
)

STREAM = b"/inference.GRPCInferenceService/ModelStreamInfer"
BACKENDS = 3
FACTS = {
    b"seq": ModelFacts(is_stateful=True, is_decoupled=False, idle_s=60.0),
    b"plain": ModelFacts(is_stateful=False, is_decoupled=False),
}
ROUTES = {
    name: ModelRoute(facts=facts, is_plain=not facts.is_stateful) for name, facts in FACTS.items()
}
COLD = replace(
    ROUTES[b"plain"],
    placements=(Placement((), None, FewestInFlight()),) * 2,
    is_plain=False,
    on_demand=OnDemand(60.0),
)
ROUTES[b"work"] = ModelRoute(
    facts=FACTS[b"plain"],
    is_uniform=True,
    plan=QueuePlan(limits={}, default=Capacity(1, is_auto=True)),
)
"""That model is scheduled, so its requests are spread."""


class Bot:
    """A backend that answers each request with its id, when it is told to."""

    def __init__(self, name: str, side: Side) -> None:
        self.name = name
        self.side = side
        self.got: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.closed: set[int] = set()
        self.answered: dict[int, int] = {}

    def look(self) -> None:
        for frame in self.side.gets():
            if frame.kind == HEADERS:
                self.got[frame.stream] = b""
                self.answered[frame.stream] = 0
                self.side.sends(headers(frame.stream, RESPONSE_FIELDS))
            elif frame.kind == DATA:
                self.got[frame.stream] += frame.payload
                self.side.sends(window_update(frame.stream, max(1, len(frame.payload))))
            if frame.kind in {DATA, HEADERS} and frame.flags & 1:
                self.ended.add(frame.stream)

    def requests(self, stream: int) -> list[pb.ModelInferRequest]:
        return [pb.ModelInferRequest.FromString(each) for each in split(self.got[stream])]

    def answer(self, pieces: list[int]) -> bool:
        """Answer one request more, in DATA frames cut so. Whether there was one."""
        for stream in self.got:
            requests = self.requests(stream)
            if self.answered[stream] < len(requests):
                request = requests[self.answered[stream]]
                self.answered[stream] += 1
                response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
                response.parameters["backend"].string_param = self.name
                message = frame_message(
                    pb.ModelStreamInferResponse(infer_response=response).SerializeToString()
                )
                for part in cut(message, pieces):
                    self.side.sends(data(stream, part))
                return True
            if stream in self.ended - self.closed:
                self.closed.add(stream)
                self.side.sends(headers(stream, OK_TRAILERS, end=True))
        return False


def split(stream: bytes) -> list[bytes]:
    """The whole messages at the beginning of a stream."""
    found = []
    while len(stream) >= 5 and len(stream) >= 5 + int.from_bytes(stream[1:5], "big"):
        size = int.from_bytes(stream[1:5], "big")
        found.append(stream[5 : 5 + size])
        stream = stream[5 + size :]
    return found


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(at % (len(stream) + 1) for at in cuts)})
    return [stream[start:stop] for start, stop in pairwise(edges)]


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["seq", "seq", "seq", "plain", "work", "unknown"]),
        st.integers(1, 5),
        st.integers(0, 6000),
    ),
    min_size=1,
    max_size=14,
)
WORK = st.lists(
    st.tuples(st.sampled_from(["work"] * 8 + ["plain"]), st.just(1), st.sampled_from([9, 9, 700])),
    min_size=8,
    max_size=30,
)
WITH_COLD = st.lists(
    st.tuples(
        st.sampled_from(["cold", "cold", "seq", "plain", "work", "unknown"]),
        st.integers(1, 5),
        st.integers(0, 6000),
    ),
    min_size=1,
    max_size=14,
)
CUTS = st.lists(st.integers(0, 40_000), max_size=25)
TURNS = st.lists(st.integers(0, BACKENDS - 1), max_size=40)


@settings(max_examples=70, deadline=None)
@given(REQUESTS, CUTS, CUTS, TURNS)
def test_messages_stay_whole_and_answers_in_order(
    wanted: list[tuple[str, int, int]], cuts: list[int], answer_cuts: list[int], turns: list[int]
) -> None:
    asyncio.run(play(wanted, cuts, answer_cuts, turns))


@settings(max_examples=70, deadline=None)
@given(WORK, st.one_of(st.just([]), CUTS), TURNS)
def test_messages_that_pass_unread_do_as_well(
    wanted: list[tuple[str, int, int]], answer_cuts: list[int], turns: list[int]
) -> None:
    """Each message comes in a frame of its own, as clients write them."""
    asyncio.run(play(wanted, None, answer_cuts, turns))


@settings(max_examples=100, deadline=None)
@given(WITH_COLD, CUTS, CUTS, TURNS, st.integers(0, 25), st.sampled_from([*range(BACKENDS), None]))
def test_so_it_is_where_some_wait_until_their_model_is_loaded(
    wanted: list[tuple[str, int, int]],
    cuts: list[int],
    answer_cuts: list[int],
    turns: list[int],
    loaded_after: int,
    home: int | None,
) -> None:
    """It is loaded after some of the request has come, or that fails."""
    # A stream whose first message is refused ends.
    asyncio.run(play([("plain", 1, 9), *wanted], cuts, answer_cuts, turns, loaded_after, home))


def with_cold(relay: PaperRelay, home: int | None = None, error: str = "") -> None:
    """Publish where the model `cold` is loaded, or why it is not."""
    route = replace(COLD, on_demand=OnDemand(60.0, error))
    if home is not None:
        policy = FewestInFlight()
        homes = (relay.backends[home],)
        placement = Placement(homes, policy.build(homes), policy)
        route = replace(COLD, placements=(placement, placement), on_demand=None)
    routes = ROUTES | {b"cold": route}
    relay.pool.publish(replace(relay.pool.current, routes=routes))


async def play(
    wanted: list[tuple[str, int, int]],
    cuts: list[int] | None,
    answer_cuts: list[int],
    turns: list[int],
    loaded_after: int = 0,
    home: int | None = 0,
) -> None:
    relay = PaperRelay(backends=BACKENDS)
    with_cold(relay)
    is_refused = home is None
    client = relay.client()
    bots = [Bot(f"b{number}", relay.backend(number)) for number in range(BACKENDS)]
    started: set[int] = set()
    requests = []
    for number, (model, sequence, size) in enumerate(wanted):
        is_step = model == "seq"
        requests.append(
            step(
                model,
                sequence if is_step else 0,
                str(number),
                start=is_step and sequence not in started,
                tensor=bytes(size),
            )
        )
        if is_step:
            started.add(sequence)
    messages = [frame_message(request.SerializeToString()) for request in requests]
    stream = b"".join(messages)
    got = bytearray()
    over: list[bool] = []

    async def settle() -> None:
        for bot in bots:
            bot.look()
        await asyncio.sleep(0)
        for frame in client.gets():
            if frame.kind == DATA:
                got.extend(frame.payload)
                client.sends(window_update(1, max(1, len(frame.payload))))
            if frame.flags & 1 and frame.kind == HEADERS:
                over.append(True)

    client.sends(headers(1, request_fields(path=STREAM)))
    order = list(turns)
    parts = messages if cuts is None else cut(stream, cuts)
    for number, part in enumerate(parts):
        if number == loaded_after:
            with_cold(relay, home, "no weights")
            await settle()
        client.sends(data(1, part))
        relay.loop.advance(0.001)
        await settle()
        if order:
            bots[order.pop()].answer(answer_cuts)
            await settle()
    client.sends(data(1, end=True))
    await settle()
    if loaded_after >= len(parts):
        with_cold(relay, home, "no weights")
    for _ in range(200):
        await settle()
        moved = [bot.answer(answer_cuts) for bot in bots]
        if over and not any(moved):
            break
    assert over == [True]
    answers = [pb.ModelStreamInferResponse.FromString(each) for each in split(bytes(got))]
    seen = {bot.name: [r for s in bot.got for r in bot.requests(s)] for bot in bots}
    # Everything arrived, once, unchanged, and in order where it arrived.
    arrived = [each for bot in bots for part in bot.got.values() for each in split(part)]
    sent = [request for request in requests if not (is_refused and request.model_name == "cold")]
    assert sorted(arrived) == sorted(request.SerializeToString() for request in sent)
    for received in seen.values():
        numbers = [int(request.id) for request in received]
        assert numbers == sorted(numbers)
    assert [len(bot.got) <= 1 for bot in bots] == [True] * BACKENDS
    # A sequence stays where it began.
    homes: dict[int, set[str]] = {}
    for name, received in seen.items():
        for request in received:
            if request.model_name == "seq":
                homes.setdefault(request.parameters["sequence_id"].int64_param, set()).add(name)
    assert all(len(names) == 1 for names in homes.values())
    # Answers of known models are in the order of their requests, those of unknown ones all there.
    known = [
        answer.infer_response.id
        for answer in answers
        if answer.infer_response.model_name != "unknown"
    ]
    assert known == [request.id for request in requests if request.model_name != "unknown"]
    assert len(answers) == len(requests)
    assert relay.is_clean()
    client.goes()
    relay.timers.close()
