"""Reflection frame by frame: questions that come in pieces, and what is no question."""

from __future__ import annotations

import pytest
from grpc_reflection.v1alpha import reflection_pb2 as pb

from tests.fakes.http2_connections import PaperRelay
from tests.wire import frames as f

PATH = b"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
QUESTION = f.message(pb.ServerReflectionRequest(list_services="*").SerializeToString())
UNIMPLEMENTED, INTERNAL = b"12", b"13"


class Bench:
    """A client of a relay without backends, which has begun a stream."""

    def __init__(self, *, end: bool = False) -> None:
        self.paper = PaperRelay(backends=0)
        self.client = self.paper.client()
        self.client.sends(f.headers(1, f.request_fields(path=PATH), end=end))

    def sends(self, *parts: bytes, end: bool = True) -> None:
        for part in parts:
            self.client.sends(f.data(1, part))
        if end:
            self.client.sends(f.data(1, end=True))

    def answers(self) -> tuple[int, f.Frame]:
        """How many answers have come, and the last frame but for the word that no more of the
        questions is needed."""
        found = [each for each in self.client.gets() if each.kind != f.RST_STREAM or each.code]
        body = b"".join(each.payload for each in found if each.kind == f.DATA)
        count = 0
        while body:
            size = 5 + int.from_bytes(body[1:5], "big")
            answer = pb.ServerReflectionResponse.FromString(body[5:size])
            assert answer.list_services_response.service
            body = body[size:]
            count += 1
        return count, found[-1]


async def test_a_stream_without_a_question_ends_well() -> None:
    count, last = Bench(end=True).answers()
    assert (count, last.ends_stream) == (0, True)
    assert b"grpc-status\x010" in last.payload


async def test_questions_are_answered_wherever_they_are_cut() -> None:
    for cut in range(1, len(QUESTION)):
        bench = Bench()
        bench.sends(QUESTION + QUESTION[:cut], QUESTION[cut:])
        count, last = bench.answers()
        assert count == 2
        assert b"grpc-status\x010" in last.payload
        assert bench.paper.is_clean()


async def test_trailers_end_a_stream() -> None:
    bench = Bench()
    bench.sends(QUESTION, end=False)
    bench.client.sends(f.headers(1, [(b"x-end", b"1")], end=True))
    count, last = bench.answers()
    assert (count, last.ends_stream) == (1, True)


@pytest.mark.parametrize(
    ("sent", "status"),
    [(f.message(b"any", flag=1), UNIMPLEMENTED), (QUESTION[:-1], INTERNAL), (b"\0\0", INTERNAL)],
)
async def test_what_is_no_question_is_an_error(sent: bytes, status: bytes) -> None:
    bench = Bench()
    bench.sends(sent)
    first = bench.client.gets()[0]
    assert (first.kind, first.ends_stream) == (f.HEADERS, True)
    assert status in first.payload
    assert bench.paper.is_clean()
    bench = Bench()
    bench.sends(QUESTION, sent)
    count, last = bench.answers()
    assert (count, last.kind, last.ends_stream) == (1, f.HEADERS, True)
    assert status in last.payload
    assert bench.paper.is_clean()
