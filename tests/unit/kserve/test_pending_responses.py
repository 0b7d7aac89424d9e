"""What a backend owes on a stream."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable

import pytest

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve import inference_pb2 as pb
from lb.kserve.pending_responses import (
    ENDED_S,
    FREE_MODELS,
    OPEN_SEQUENCES,
    UNFINISHED_REQUESTS,
    Due,
    PendingResponses,
    PendingSequence,
    StreamMessage,
)
from lb.kserve.stream_answers import error_answer
from lb.wire.grpc.cutter import MessageCutter
from lb.wire.grpc.message import frame_message
from lb.wire.memory_budget import MemoryBudget


class Stream:
    """Has debts that it closes when it is told to end."""

    def __init__(self, ceiling: int = 2**30) -> None:
        self.memory_budget = MemoryBudget(ceiling)
        self.pending_responses = PendingResponses(self, self.memory_budget, 2**20)

    def evict(self) -> None:
        self.pending_responses.close()


def make_pending_responses() -> PendingResponses:
    return Stream().pending_responses


def counted(name: bytes = b"1", model: bytes = b"seq") -> StreamMessage:
    return StreamMessage(model, id=name, has_one_answer=True)


def free(sequence: int = 0, name: bytes = b"1", **step: bool) -> StreamMessage:
    key = SequenceKey(b"free", sequence)
    return StreamMessage(b"free", id=name, step=SequenceStep(key, **step) if sequence else None)


def answer(model: str, name: str = "1") -> bytes:
    response = pb.ModelInferResponse(model_name=model, id=name)
    return frame_message(pb.ModelStreamInferResponse(infer_response=response).SerializeToString())


def test_with_one_kind_of_requests_nothing_is_looked_at() -> None:
    pending_responses = make_pending_responses()
    assert pending_responses.is_counted(b"") is False
    pending_responses.note(counted(), 0.0)
    assert pending_responses.is_counted(b"") is True
    pending_responses.answered(5)
    assert not pending_responses.counted
    pending_responses.note(free(), 0.0)
    assert pending_responses.is_counted(b"") is False
    assert not pending_responses.is_mixed


def test_of_two_kinds_the_model_tells() -> None:
    pending_responses = make_pending_responses()
    pending_responses.note(counted(b"a"), 0.0)
    pending_responses.note(free(name=b"b"), 0.0)
    assert pending_responses.is_mixed
    assert pending_responses.is_counted(answer("seq")) is True
    assert pending_responses.is_counted(answer("free")) is False
    assert pending_responses.is_counted(answer("free")[:6]) is None


def test_errors_without_a_model_are_told_apart_by_the_id() -> None:
    pending_responses = make_pending_responses()
    pending_responses.note(counted(b"a"), 0.0)
    pending_responses.note(free(name=b"b"), 0.0)
    assert pending_responses.is_counted(error_answer(b"a", "no")) is True
    assert pending_responses.is_counted(error_answer(b"b", "no")) is False
    pending_responses.counted[0] = Due(b"seq")
    assert pending_responses.is_counted(error_answer(b"b", "no")) is True


def last_answer(name: str, *, is_last: bool = True, tensor: int = 0) -> bytes:
    response = pb.ModelInferResponse(model_name="free", id=name)
    response.parameters["triton_final_response"].bool_param = is_last
    response.raw_output_contents.append(bytes(tensor))
    return frame_message(pb.ModelStreamInferResponse(infer_response=response).SerializeToString())


@pytest.mark.parametrize("size", [1, 7, 50, 100_000])
def test_free_requests_are_owed_answers_until_the_last_one_of_each(size: int) -> None:
    stream = Stream()
    pending_responses = stream.pending_responses
    answers = last_answer("a", is_last=False, tensor=9000) + last_answer("a", tensor=9000)
    answers += last_answer("") + error_answer(b"", "no") + error_answer(b"b", "no")
    pending_responses.follow_answers(MessageCutter(rest=3))
    for name in (b"a", b"a", b"", b"b", b"c"):
        assert pending_responses.note(free(name=name), 0.0)
    answers = b"end" + answers
    for at in range(0, len(answers), size):
        pending_responses.arrived(answers[at : at + size])
    assert pending_responses.unfinished == {(b"free", b"a"): 1, (b"free", b"c"): 1}
    pending_responses.arrived_whole(last_answer("a", is_last=False))
    pending_responses.arrived_whole(last_answer("a"))
    assert pending_responses.has_uncounted
    pending_responses.arrived_whole(compressed(last_answer("c")))
    assert not pending_responses.has_uncounted
    assert pending_responses.reserve(0)
    assert stream.memory_budget.held == 0


def compressed(answer: bytes) -> bytes:
    message = gzip.compress(answer[5:])
    return b"\1" + len(message).to_bytes(4, "big") + message


def test_of_too_many_free_requests_nobody_can_say_what_is_owed() -> None:
    pending_responses = make_pending_responses()
    for _ in range(UNFINISHED_REQUESTS):
        pending_responses.note(free(), 0.0)
    assert not pending_responses.is_unknown
    pending_responses.note(free(), 0.0)
    assert pending_responses.is_unknown


def test_more_answers_than_were_due_leave_pending_responses_unknown() -> None:
    pending_responses = make_pending_responses()
    pending_responses.note(counted(b"a"), 0.0)
    pending_responses.answered(1)
    assert not pending_responses.is_unknown
    pending_responses.answered(1)
    assert pending_responses.is_unknown


def test_answers_that_are_not_counted_are_no_more_than_were_due() -> None:
    pending_responses = make_pending_responses()
    pending_responses.note(free(1), 0.0)
    pending_responses.answered(3)
    assert not pending_responses.is_unknown


def test_of_free_sequences_the_last_request_is_remembered() -> None:
    pending_responses = make_pending_responses()
    pending_responses.note(free(1, b"a", is_start=True), 1.0)
    pending_responses.note(free(2, b"b"), 1.0)
    pending_responses.note(free(1, b"c", is_end=True), 2.0)
    assert pending_responses.sequences == {
        SequenceKey(b"free", 2): PendingSequence(b"b", 0.0, began_here=False),
        SequenceKey(b"free", 1): PendingSequence(b"c", 2.0, began_here=True),
    }


def test_sequences_that_ended_long_ago_are_forgotten() -> None:
    pending_responses = make_pending_responses()
    pending_responses.note(free(1, is_end=True), 1.0)
    pending_responses.note(free(2), 1.0 + ENDED_S)
    assert len(pending_responses.sequences) == 2
    pending_responses.note(free(3), 2.0 + ENDED_S)
    assert SequenceKey(b"free", 1) not in pending_responses.sequences


def test_a_sequence_is_over_some_time_after_its_end() -> None:
    assert not PendingSequence(b"", 0.0, began_here=True).is_over(1e9)
    assert not PendingSequence(b"", 5.0, began_here=True).is_over(5.0 + ENDED_S)
    assert PendingSequence(b"", 5.0, began_here=True).is_over(5.1 + ENDED_S)


def test_sequences_that_began_here_may_begin_elsewhere() -> None:
    pending_responses = make_pending_responses()
    pending_responses.note(free(1, is_start=True), 1.0)
    pending_responses.note(free(2), 1.0)
    start = SequenceStep(SequenceKey(b"seq", 3), is_start=True)
    pending_responses.note(StreamMessage(b"seq", step=start, has_one_answer=True), 1.0)
    pending_responses.note(StreamMessage(b"seq", step=start._replace(is_start=False)), 1.0)
    assert pending_responses.begun() == {SequenceKey(b"free", 1), SequenceKey(b"seq", 3)}


def test_what_clients_name_is_bounded() -> None:
    pending_responses = make_pending_responses()
    for number in range(OPEN_SEQUENCES + 10):
        pending_responses.note(free(number + 1), 1.0)
        pending_responses.note(StreamMessage(b"%d" % number), 1.0)
    assert len(pending_responses.sequences) == OPEN_SEQUENCES
    assert len(pending_responses.free_models) == FREE_MODELS


def test_of_long_names_of_models_little_is_kept() -> None:
    pending_responses = make_pending_responses()
    pending_responses.note(StreamMessage(b"x" * 30_000), 0.0)
    assert sum(map(len, pending_responses.free_models)) <= 1024


def traced(fill: Callable[[PendingResponses], None]) -> tuple[int, int]:
    """Bytes that debts take, and how many of them are in the memory budget."""
    stream = Stream()
    tracemalloc.start()
    try:
        fill(stream.pending_responses)
        return tracemalloc.get_traced_memory()[0], stream.memory_budget.held
    finally:
        tracemalloc.stop()


def ask_with_ids(pending_responses: PendingResponses) -> None:
    for number in range(2000):
        key = SequenceKey(b"seq%d" % number, f"\U0001f600{number}" + "x" * 100)
        message = StreamMessage(
            bytes(key.model),
            version=b"%256d" % number,
            id=b"%200d" % number,
            step=SequenceStep(key),
            regions=(b"%100d" % number,),
            has_one_answer=True,
        )
        assert pending_responses.note(message, 0.0)


def ask_of_sequences(pending_responses: PendingResponses) -> None:
    for number in range(2000):
        key = SequenceKey(b"free%d" % number, number + 2**40)
        assert pending_responses.note(
            StreamMessage(key.model, id=b"%200d" % number, step=SequenceStep(key)), 1
        )


def ask_of_models(pending_responses: PendingResponses) -> None:
    for number in range(FREE_MODELS):
        assert pending_responses.note(StreamMessage(b"%1000d" % number), 0.0)


def ask_alike(pending_responses: PendingResponses) -> None:
    due = Due(b"plain")
    for count in range(1, 201):
        pending_responses.counted.extend([due] * 64)
        assert pending_responses.reserve(64 * count)


@pytest.mark.parametrize("fill", [ask_with_ids, ask_of_sequences, ask_of_models, ask_alike])
def test_what_is_remembered_is_on_the_memory_budget(
    fill: Callable[[PendingResponses], None],
) -> None:
    size, held = traced(fill)
    assert size < held < 2 * size + 20_000


def test_what_is_answered_or_forgiven_is_off_the_memory_budget() -> None:
    stream = Stream()
    pending_responses = stream.pending_responses
    for number in range(10):
        pending_responses.note(counted(b"%5000d" % number), 0.0)
    pending_responses.reserve(5)
    assert stream.memory_budget.held > 50_000
    pending_responses.answered(4)
    pending_responses.forgive(6)
    pending_responses.reserve(0)
    assert not pending_responses.counted
    assert stream.memory_budget.held == 0
    pending_responses.forgive(1)
    assert stream.memory_budget.held == 0


def test_a_sequence_is_on_the_memory_budget_once() -> None:
    stream = Stream()
    stream.pending_responses.note(free(1, b"long" * 2000), 0.0)
    most = stream.memory_budget.held
    for _ in range(3):
        stream.pending_responses.note(free(1, b"long" * 2000), 0.0)
        assert stream.memory_budget.held == most
    stream.pending_responses.note(free(1, b"short"), 0.0)
    assert stream.memory_budget.held < most
    stream.pending_responses.close()
    assert stream.memory_budget.held == 0


@pytest.mark.parametrize(
    "message",
    [
        lambda number: counted(b"%d" % number),
        free,
        lambda number: StreamMessage(b"%1000d" % number),
    ],
)
def test_a_stream_that_owes_more_than_there_is_room_for_gives_way(
    message: Callable[[int], StreamMessage],
) -> None:
    stream = Stream(ceiling=20_000)
    assert not all(stream.pending_responses.note(message(number), 0.0) for number in range(1, 100))
    assert stream.memory_budget.evictions
    assert not stream.pending_responses.reserve(1000)
    assert stream.memory_budget.held == 0
    assert not stream.pending_responses.counted


def test_pending_responses_that_were_closed_hold_nothing_any_more() -> None:
    """Another part of their stream was the largest holder."""
    stream = Stream()
    stream.pending_responses.close()
    assert not stream.pending_responses.note(counted(b"x" * 5000), 0.0)
    assert stream.memory_budget.held == 0


def test_answers_of_a_model_are_owed_until_they_came() -> None:
    pending_responses = make_pending_responses()
    pending_responses.note(counted(model=b"a"), 0.0)
    pending_responses.note(counted(model=b"b"), 0.0)
    owed = [pending_responses.may_owe(model) for model in (b"a", b"b", b"c")]
    assert owed == [True, True, False]
    pending_responses.answered(1)
    assert [pending_responses.may_owe(model) for model in (b"a", b"b")] == [False, True]
    pending_responses.answered(1)
    assert not pending_responses.may_owe(b"b")


def test_who_cannot_tell_how_many_answers_come_owes_more() -> None:
    decoupled = make_pending_responses()
    decoupled.note(free(), 0.0)
    assert (decoupled.may_owe(b"free"), decoupled.may_owe(b"seq")) == (True, False)
    nameless = make_pending_responses()
    nameless.note(counted(model=b""), 0.0)
    assert nameless.may_owe(b"seq")
    too_many_answers = make_pending_responses()
    too_many_answers.note(counted(), 0.0)
    too_many_answers.answered(2)
    assert too_many_answers.may_owe(b"seq")
    too_many_models = make_pending_responses()
    for number in range(FREE_MODELS + 1):
        too_many_models.note(StreamMessage(b"free%d" % number), 0.0)
    assert too_many_models.may_owe(b"free%d" % FREE_MODELS)


def keeps(pending_responses: PendingResponses, *payloads: bytes) -> None:
    """Requests come that may be sent again."""
    for payload in payloads:
        pending_responses.expect(counted())
        pending_responses.keep_pieces((payload,), is_whole=True)


def test_requests_are_kept_until_they_are_answered() -> None:
    pending_responses = make_pending_responses()
    keeps(pending_responses, b"one", b"two", b"three")
    pending_responses.answered(1)
    assert pending_responses.unanswered() == [b"two", b"three"]
    assert pending_responses.unanswered(but=1) == [b"three"]
    pending_responses.first_answered()
    assert pending_responses.unanswered() == [b"three"]
    pending_responses.answered(1)
    assert pending_responses.unanswered() == []
    assert pending_responses.kept_size == 0


def test_a_request_that_is_not_kept_stands_in_the_way_until_it_is_answered() -> None:
    pending_responses = make_pending_responses()
    keeps(pending_responses, b"one")
    pending_responses.expect(counted())
    pending_responses.drop_kept()
    keeps(pending_responses, b"three")
    assert pending_responses.unanswered() is None
    pending_responses.answered(1)
    assert pending_responses.unanswered() is None
    pending_responses.answered(1)
    assert pending_responses.unanswered() == [b"three"]


def test_what_has_come_of_a_request_is_kept_and_joined_once_it_is_whole() -> None:
    pending_responses = make_pending_responses()
    keeps(pending_responses, b"one")
    pending_responses.expect(counted())
    pending_responses.keep_pieces((b"\0\0\0\0\x08tw", b"o"), is_whole=False)
    assert pending_responses.unanswered() == [b"one", b"\0\0\0\0\x08two"]
    pending_responses.keep_more(b"more", is_whole=True)
    assert pending_responses.unanswered() == [b"one", b"\0\0\0\0\x08twomore"]


def test_a_large_request_is_not_kept_even_where_its_prefix_does_not_say_so() -> None:
    pending_responses = make_pending_responses()
    for pieces in ((b"\0\0\x02\0\0",), (b"\0", bytes(70_000))):
        pending_responses.expect(counted())
        pending_responses.keep_pieces(pieces, is_whole=False)
        assert pending_responses.unanswered() is None
        pending_responses.answered(1)


def keep_crumbs(pending_responses: PendingResponses) -> None:
    """A request that is kept comes in very small pieces."""
    pending_responses.expect(counted())
    pending_responses.keep_pieces((b"\0\0\0\xff\0",), is_whole=False)
    for _ in range(10_000):
        pending_responses.keep_more(b"crumb", is_whole=False)


def test_a_request_that_comes_in_crumbs_takes_about_its_own_bytes() -> None:
    taken, _ = traced(keep_crumbs)
    assert taken < 2 * 50_005


def test_requests_are_not_kept_where_much_is_held() -> None:
    stream = Stream(ceiling=2**16)
    pending_responses = stream.pending_responses
    keeps(pending_responses, *[bytes(9000)] * 4)
    pending_responses.charge_kept()
    assert pending_responses.unanswered() is None
    assert stream.memory_budget.held < 2**13


def test_the_memory_budget_gets_its_bytes_back_with_the_last_answer() -> None:
    stream = Stream(ceiling=2**20)
    pending_responses = stream.pending_responses
    keeps(pending_responses, *[bytes(9000)] * 3)
    pending_responses.charge_kept()
    charged = stream.memory_budget.held
    slow = [pending_responses.drops_slowly]
    pending_responses.drop_answered(1)
    slow.append(pending_responses.drops_slowly)
    assert stream.memory_budget.held == charged > 27_000
    pending_responses.drop_answered(0)
    slow.append(pending_responses.drops_slowly)
    assert stream.memory_budget.held < 2**13
    assert slow == [True, True, False]


def test_an_answer_does_more_where_requests_before_the_first_kept_one_have_none() -> None:
    pending_responses = make_pending_responses()
    pending_responses.expect(counted())
    keeps(pending_responses, b"two")
    slow = [pending_responses.drops_slowly]
    pending_responses.drop_answered(1)
    slow.append(pending_responses.drops_slowly)
    assert slow == [True, False]
    assert list(pending_responses.kept) == [b"two"]
