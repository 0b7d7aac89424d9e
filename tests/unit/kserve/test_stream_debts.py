"""What a backend owes on a stream."""

from __future__ import annotations

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve import inference_pb2 as pb
from lb.kserve.stream_answers import error_answer
from lb.kserve.stream_debts import (
    ENDED_S,
    FREE_MODELS,
    OPEN_SEQUENCES,
    Debts,
    SequenceDebt,
    StreamMessage,
)
from lb.wire.grpc.message import frame_message


def counted(name: bytes = b"1", model: bytes = b"seq") -> StreamMessage:
    return StreamMessage(model, id=name, has_one_answer=True)


def free(sequence: int = 0, name: bytes = b"1", **step: bool) -> StreamMessage:
    key = SequenceKey(b"free", sequence)
    return StreamMessage(b"free", id=name, step=SequenceStep(key, **step) if sequence else None)


def answer(model: str, name: str = "1") -> bytes:
    response = pb.ModelInferResponse(model_name=model, id=name)
    return frame_message(pb.ModelStreamInferResponse(infer_response=response).SerializeToString())


def test_with_one_kind_of_requests_nothing_is_looked_at() -> None:
    debts = Debts()
    assert debts.is_counted(b"") is False
    debts.note(counted(), 0.0)
    assert debts.is_counted(b"") is True
    debts.answered(5)
    assert not debts.counted
    debts.note(free(), 0.0)
    assert debts.is_counted(b"") is False
    assert not debts.is_mixed


def test_of_two_kinds_the_model_tells() -> None:
    debts = Debts()
    debts.note(counted(b"a"), 0.0)
    debts.note(free(name=b"b"), 0.0)
    assert debts.is_mixed
    assert debts.is_counted(answer("seq")) is True
    assert debts.is_counted(answer("free")) is False
    assert debts.is_counted(answer("free")[:6]) is None


def test_errors_without_a_model_are_told_apart_by_the_id() -> None:
    debts = Debts()
    debts.note(counted(b"a"), 0.0)
    debts.note(free(name=b"b"), 0.0)
    assert debts.is_counted(error_answer(b"a", "no")) is True
    assert debts.is_counted(error_answer(b"b", "no")) is False
    debts.counted[0] = counted(b"")
    assert debts.is_counted(error_answer(b"b", "no")) is True


def test_a_free_request_without_a_sequence_leaves_its_debts_unknown() -> None:
    debts = Debts()
    debts.note(free(1), 0.0)
    assert not debts.is_unknown
    debts.note(free(), 0.0)
    assert debts.is_unknown


def test_of_free_sequences_the_last_request_is_remembered() -> None:
    debts = Debts()
    debts.note(free(1, b"a", is_start=True), 1.0)
    debts.note(free(2, b"b"), 1.0)
    debts.note(free(1, b"c", is_end=True), 2.0)
    assert debts.sequences == {
        SequenceKey(b"free", 2): SequenceDebt(b"b", 0.0, began_here=False),
        SequenceKey(b"free", 1): SequenceDebt(b"c", 2.0, began_here=True),
    }


def test_sequences_that_ended_long_ago_are_forgotten() -> None:
    debts = Debts()
    debts.note(free(1, is_end=True), 1.0)
    debts.note(free(2), 1.0 + ENDED_S)
    assert len(debts.sequences) == 2
    debts.note(free(3), 2.0 + ENDED_S)
    assert SequenceKey(b"free", 1) not in debts.sequences


def test_a_sequence_is_over_some_time_after_its_end() -> None:
    assert not SequenceDebt(b"", 0.0, began_here=True).is_over(1e9)
    assert not SequenceDebt(b"", 5.0, began_here=True).is_over(5.0 + ENDED_S)
    assert SequenceDebt(b"", 5.0, began_here=True).is_over(5.1 + ENDED_S)


def test_sequences_that_began_here_may_begin_elsewhere() -> None:
    debts = Debts()
    debts.note(free(1, is_start=True), 1.0)
    debts.note(free(2), 1.0)
    start = SequenceStep(SequenceKey(b"seq", 3), is_start=True)
    debts.note(StreamMessage(b"seq", step=start, has_one_answer=True), 1.0)
    debts.note(StreamMessage(b"seq", step=start._replace(is_start=False)), 1.0)
    assert debts.begun() == {SequenceKey(b"free", 1), SequenceKey(b"seq", 3)}


def test_what_clients_name_is_bounded() -> None:
    debts = Debts()
    for number in range(OPEN_SEQUENCES + 10):
        debts.note(free(number + 1), 1.0)
        debts.note(StreamMessage(b"%d" % number), 1.0)
    assert len(debts.sequences) == OPEN_SEQUENCES
    assert len(debts.free_models) == FREE_MODELS


def test_of_long_names_of_models_little_is_kept() -> None:
    debts = Debts()
    debts.note(StreamMessage(b"x" * 30_000), 0.0)
    assert sum(map(len, debts.free_models)) <= 1024
