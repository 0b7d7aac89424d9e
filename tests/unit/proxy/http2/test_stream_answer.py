"""The first answer of a stream, where it is an error; and what errors tell of a backend."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lb.domain.fault import Fault
from lb.domain.outcome import Outcome
from lb.kserve import inference_pb2 as pb
from lb.wire.grpc.message import frame_message
from tests.fakes.paper_streams import PaperStreams, request, result
from tests.fakes.passive_health import Reports
from tests.wire.frames import DATA, HEADERS, OK_TRAILERS, RESPONSE_FIELDS, RST_STREAM, data, headers

_BROKEN = "CUDA error: device-side assert triggered"
_HEAD = headers(1, RESPONSE_FIELDS)


def error(text: str, name: str = "1") -> bytes:
    """An answer that is an error, with its prefix."""
    response = pb.ModelInferResponse(id=name)
    answer = pb.ModelStreamInferResponse(error_message=text, infer_response=response)
    return frame_message(answer.SerializeToString())


def streams(backends: int = 2) -> tuple[PaperStreams, Reports]:
    paper = PaperStreams(backends=backends)
    passive_health = paper.bench.judge = Reports()
    for backend in paper.bench.backends:
        backend.reports_due = 100
    return paper, passive_health


def went(paper: PaperStreams, number: int) -> list[str]:
    """What a backend got, once requests that may have run are sent again."""
    paper.bench.loop.advance(0.1)
    paper.bench.relay.flush()
    return paper.requests(number)


@pytest.mark.parametrize("cuts", [(), (3,), (5,), (20,), (2, 5, 30)])
@pytest.mark.parametrize(
    ("text", "outcome"),
    [(_BROKEN, Outcome.BROKEN), ("Exceeds maximum queue size", Outcome.NOT_HERE)],
)
async def test_an_error_that_comes_first_sends_the_stream_elsewhere(
    text: str, outcome: Outcome, cuts: tuple[int, ...]
) -> None:
    paper, passive_health = streams()
    paper.send(request("plain", name="1"), request("plain", name="2"))
    assert paper.requests(0) == ["1", "2"]
    message = error(text)
    marks = (0, *cuts, len(message))
    pieces = [message[at:to] for at, to in pairwise(marks)]
    paper.backends[0].sends(_HEAD, data(1, pieces[0]))
    for piece in pieces[1:]:
        await paper.turn()  # the head waits for the rest of the error
        paper.backends[0].sends(data(1, piece))
    assert paper.looks() == []
    assert [frame.kind for frame in paper.backends[0].gets()] == [RST_STREAM]
    assert went(paper, 1) == ["1", "2"]
    paper.send(request("plain", name="3"), end=True)
    assert paper.requests(1) == ["3"]
    paper.backends[1].sends(_HEAD, *(data(1, result("plain", name)) for name in "123"))
    paper.end(1)
    assert paper.ids() == ["1", "2", "3"]
    assert paper.status() == 0
    assert paper.bench.outcomes.seen == [("b0", outcome)]
    assert passive_health.told[-1][:3] == ("answered", "b1", b"plain")
    broken = ("failed", "b0", b"plain", Fault.DEVICE) in passive_health.told
    assert broken is (outcome is Outcome.BROKEN)
    (record,) = paper.bench.finished.records
    assert record.attempts == 2
    assert paper.bench.dispatcher.reruns.count == (outcome is Outcome.BROKEN)
    assert paper.bench.is_clean()


@pytest.mark.parametrize(
    "text", ["Request timeout expired", "unexpected shape", "the model failed", "x" * 20_000]
)
async def test_other_errors_are_the_clients(text: str) -> None:
    paper, _ = streams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(_HEAD, data(1, error(text)), data(1, result("plain", "2")))
    assert [answer.error_message for answer in paper.answers()] == [text, ""]
    assert went(paper, 1) == []


async def test_the_error_of_the_last_backend_is_the_clients() -> None:
    paper, _ = streams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(_HEAD, data(1, error("Exceeds maximum queue size")))
    assert went(paper, 1) == ["1"]
    paper.backends[1].sends(_HEAD, data(1, error("Exceeds maximum queue size")))
    assert [answer.error_message for answer in paper.answers()] == ["Exceeds maximum queue size"]
    paper.send(request("plain", name="2"))
    assert paper.requests(1) == ["2"]


async def test_an_error_behind_a_good_answer_is_the_clients() -> None:
    paper, passive_health = streams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(_HEAD, data(1, result("plain", "1")))
    paper.send(request("plain", name="2"))
    paper.backends[0].sends(data(1, error(_BROKEN)))
    assert [answer.error_message for answer in paper.answers()] == ["", _BROKEN]
    assert went(paper, 1) == []
    good, bad = passive_health.told
    assert good[:3] == ("answered", "b0", b"plain")
    assert bad == ("failed", "b0", b"plain", Fault.DEVICE)


async def test_good_answers_between_errors_are_told_of() -> None:
    paper, passive_health = streams()
    paper.send(request("plain", name="1"))
    good, bad = result("plain", "1"), error(_BROKEN)
    paper.backends[0].sends(_HEAD, data(1, good))
    for answer in (bad, bad, good, good, error("the model failed"), good, bad):
        paper.backends[0].sends(data(1, answer))
    kinds = [kind for kind, *_ in passive_health.told]
    assert kinds == ["answered", "failed", "failed", "answered", "answered", "failed"]


async def test_a_head_goes_on_before_an_error_that_sends_the_stream_elsewhere() -> None:
    paper, _ = streams()
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(_HEAD)
    assert paper.looks() == []
    await paper.turn()
    assert [frame.kind for frame in paper.looks()] == [HEADERS]
    paper.backends[0].sends(data(1, error("Exceeds maximum queue size")))
    assert went(paper, 1) == ["1"]
    paper.backends[1].sends(_HEAD, data(1, result("plain", "1")))
    assert [frame.kind for frame in paper.looks()] == [DATA], "it has a head"


async def test_a_stream_that_ends_within_its_first_error_is_passed_on_as_it_is() -> None:
    paper, _ = streams()
    paper.send(request("plain", name="1"), end=True)
    paper.backends[0].sends(_HEAD, data(1, error("Exceeds maximum queue size")[:20]))
    paper.backends[0].sends(headers(1, OK_TRAILERS, end=True))
    assert [frame.kind for frame in paper.looks()] == [HEADERS, DATA, HEADERS]
    assert paper.bench.is_clean()


@pytest.mark.parametrize("lost", [True, False])
async def test_nothing_is_left_of_an_answer_that_is_held(lost: bool) -> None:
    paper, _ = streams(1)
    paper.send(request("plain", name="1"))
    paper.backends[0].sends(_HEAD, data(1, error("Exceeds maximum queue size")[:20]))
    (paper.backends[0] if lost else paper.client).goes()
    await paper.turn()
    assert (paper.status() == 14) is lost
    assert paper.bench.is_clean()


async def test_a_sequence_that_could_not_begin_begins_elsewhere() -> None:
    paper, _ = streams()
    paper.send(request("seq", 1, "1", start=True), request("seq", 1, "2"))
    assert paper.requests(0) == ["1", "2"]
    paper.backends[0].sends(_HEAD, data(1, error("Exceeds maximum queue size")))
    assert went(paper, 1) == ["1", "2"]


@pytest.mark.parametrize(
    "more",
    [request("seq", 2, "2", start=True), request("free", 1, "2"), request("plain", name="2")],
    # protobuf writes the parameters of a message in another order in every process.
    ids=["another sequence", "another model", "no sequence"],
)
@pytest.mark.parametrize("text", [_BROKEN, "Exceeds maximum queue size"])
async def test_what_may_have_begun_on_a_stream_stays(more: bytes, text: str) -> None:
    paper, _ = streams(1)
    paper.bench.run_once(b"plain")
    paper.send(request("seq", 1, "1", start=True), more)
    paper.backends[0].sends(_HEAD, data(1, error(text)))
    assert [answer.error_message for answer in paper.answers()] == [text]


async def test_errors_of_one_of_several_backends_are_told_of() -> None:
    paper, passive_health = streams()
    paper.begin_two()
    passive_health.told.clear()
    paper.send(request("seq", 1, "3"), request("seq", 2, "4"))
    paper.backends[1].sends(data(1, error("the model failed")), data(1, error(_BROKEN)))
    assert passive_health.told == []
    paper.backends[0].sends(data(1, result("seq", "3")))
    assert passive_health.told == [("failed", "b1", b"seq", Fault.DEVICE)]
