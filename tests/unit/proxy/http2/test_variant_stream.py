"""Streams with names that variants serve, frame by frame: cut anywhere, compressed, cut short."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.kserve import inference_pb2 as pb
from tests.fakes.http2_connections import GREETING, PaperRelay
from tests.wire import frames as f

NAME, FIRST, SECOND = b"detector", b"detector_of_the_first_generation", b"v2"
PATH = b"/inference.GRPCInferenceService/ModelStreamInfer"
WINDOW = {f.INITIAL_WINDOW_SIZE: 2**20}


def request(ident: str, name: bytes = NAME, *, size: int = 40, version: str = "") -> bytes:
    made = pb.ModelInferRequest(model_name=name.decode(), model_version=version, id=ident)
    made.inputs.add(name="X", datatype="UINT8", shape=[1, size])
    made.raw_input_contents.append(b"x" * size)
    return made.SerializeToString()


def result(ident: str, name: bytes = FIRST, *, size: int = 40, error: str = "") -> bytes:
    made = pb.ModelStreamInferResponse(error_message=error)
    made.infer_response.model_name = name.decode()
    made.infer_response.id = ident
    made.infer_response.raw_output_contents.append(b"y" * size)
    return made.SerializeToString()


def messages(found: Iterable[f.Frame]) -> list[bytes]:
    """Whole messages in frames, without prefixes."""
    body = b"".join(each.payload for each in found if each.kind == f.DATA)
    texts = []
    while body:
        stop = 5 + int.from_bytes(body[1:5], "big")
        assert len(body) >= stop
        texts.append(gzip.decompress(body[5:stop]) if body[0] else body[5:stop])
        body = body[stop:]
    return texts


class Bench:
    """A stream of a client, and a backend. The first variant gets all, unless `weights` differ."""

    def __init__(
        self, weights: tuple[int, int] = (1, 0), *, ceiling: int = 2**24, **options: object
    ) -> None:
        values = {"variant_names": frozenset({NAME}), **options}
        self.paper = PaperRelay(options=values, ceiling=ceiling)
        first = {"name": "stable", "model": FIRST, "weight": weights[0]}
        second = {"name": "next", "model": SECOND, "weight": weights[1]}
        self.paper.use_variants(NAME, first, second)
        self.backend = self.paper.backend(0, f.settings(WINDOW) + GREETING)
        self.client = self.paper.client(f.settings(WINDOW) + GREETING)
        self.client.sends(f.headers(1, f.request_fields(path=PATH)))

    def sends(self, *parts: bytes, end: bool = False) -> None:
        """Parts of the request, each in a read of its own."""
        for part in parts:
            self.client.sends(f.data(1, part))
        if end:
            self.client.sends(f.data(1, end=True))

    def asked(self) -> list[tuple[str, str]]:
        """The model and the id of each new request that the backend has got."""
        found = [pb.ModelInferRequest.FromString(each) for each in messages(self.backend.gets())]
        return [(each.model_name, each.id) for each in found]

    def answers(self, *parts: bytes, head: bool = True, end: bool = True) -> None:
        """The backend answers, each part in a read of its own."""
        if head:
            self.backend.sends(f.headers(1, f.RESPONSE_FIELDS))
        for part in parts:
            self.backend.sends(f.data(1, part))
        if end:
            self.backend.sends(f.headers(1, f.OK_TRAILERS, end=True))

    def shown(self) -> list[tuple[str, str, int]]:
        """Name, id and size of each answer that the client has got."""
        found = [
            pb.ModelStreamInferResponse.FromString(each).infer_response
            for each in messages(self.client.gets())
        ]
        sizes = [len(each.raw_output_contents[0]) for each in found]
        return [(each.model_name, each.id, size) for each, size in zip(found, sizes, strict=True)]


ASKED = [(FIRST.decode(), "a"), ("other", "b"), (FIRST.decode(), "c")]
SENT = b"".join(
    map(f.message, (request("a"), request("b", b"other", size=3), request("c", size=300)))
)


async def test_requests_and_answers_are_the_same_wherever_they_are_cut() -> None:
    replies = b"".join(map(f.message, (result("a"), result("b", b"other"), result("c", size=300))))
    for cut in range(1, len(SENT), 3):
        bench = Bench()
        bench.sends(SENT[:cut], SENT[cut:], end=True)
        assert bench.asked() == ASKED, cut
        place = min(cut, len(replies) - 1)
        bench.answers(replies[:place], replies[place:])
        assert bench.shown() == [("detector", "a", 40), ("other", "b", 40), ("detector", "c", 300)]
        assert bench.paper.is_clean()
        assert bench.paper.variant_counts() == [(2, 0), (0, 0)]


async def test_the_record_of_a_stream_names_the_variant_that_served_it_last() -> None:
    bench = Bench()
    bench.sends(f.message(request("a")), end=True)
    bench.answers(f.message(result("a")))
    (record,) = bench.paper.finished.records
    assert record.variant == "detector/stable"


async def test_long_messages_pass_in_pieces() -> None:
    bench = Bench()
    sent = f.message(request("a", size=90_000))
    bench.sends(*[sent[at : at + 9000] for at in range(0, len(sent), 9000)], end=True)
    assert bench.asked() == [(FIRST.decode(), "a")]
    reply = f.message(result("a", size=90_000))
    bench.answers(*[reply[at : at + 9000] for at in range(0, len(reply), 9000)])
    assert bench.shown() == [("detector", "a", 90_000)]


@pytest.mark.parametrize("name", [NAME, b"other"])
async def test_compressed_messages_wait_until_they_are_whole(name: bytes) -> None:
    bench = Bench()
    sent = f.message(gzip.compress(request("a", name, size=900)), flag=1)
    bench.sends(sent[:3], sent[3:30])
    assert bench.asked() == []
    bench.sends(sent[30:], end=True)
    model = FIRST if name is NAME else name
    assert bench.asked() == [(model.decode(), "a")]
    reply = f.message(gzip.compress(result("a", model)), flag=1)
    bench.answers(reply)
    assert bench.shown() == [(model.decode(), "a", 40)], "compressed answers go on as they came"


def long_compressed(size: int = 100_000) -> bytes:
    """A compressed message for the name that is about as long as its tensor."""
    made = pb.ModelInferRequest(model_name=NAME.decode(), id="long")
    made.raw_input_contents.append(Random(1).randbytes(size))
    return f.message(gzip.compress(made.SerializeToString()), flag=1)


async def test_a_compressed_message_is_on_the_memory_budget_until_it_is_whole() -> None:
    bench = Bench()
    sent = long_compressed()
    bench.sends(*[sent[at : at + 9000] for at in range(0, 90_000, 9000)])
    assert bench.paper.memory_budget.held == 90_000
    bench.sends(sent[90_000:])
    assert bench.asked() == [(FIRST.decode(), "long")]
    bench.sends(sent[:50_000])
    bench.client.goes()
    assert bench.paper.is_clean()


async def test_a_compressed_message_for_which_memory_is_short_ends_its_stream() -> None:
    bench = Bench(ceiling=50_000)
    sent = long_compressed()
    bench.sends(*[sent[at : at + 9000] for at in range(0, 54_000, 9000)])
    assert [each.ends_stream for each in bench.client.gets() if each.kind == f.HEADERS] == [True]
    assert bench.paper.is_clean()


async def test_the_length_of_a_compressed_message_is_enough_to_refuse_it() -> None:
    bench = Bench()
    bench.sends(b"\1" + (5 << 20).to_bytes(4, "big"))
    end = bench.client.gets()[0]
    assert end.ends_stream
    assert b"4194304 bytes" in end.payload
    assert bench.paper.is_clean()


async def test_a_window_opens_for_a_compressed_message_and_for_no_more_than_that() -> None:
    size = 65_535
    bench = Bench(stream_window=size, stream_window_max=size)
    window = size
    parts = [f.message(request(str(number), size=9000)) for number in range(60)]
    for part in (parts[0], long_compressed(), *parts):
        for at in range(0, len(part), 9000):
            piece = part[at : at + 9000]
            window -= len(piece)
            assert window >= 0
            bench.sends(piece)
            updates = [each for each in bench.client.gets() if each.kind == f.WINDOW_UPDATE]
            window += sum(each.increment for each in updates if each.stream)
    assert [name for _, name in bench.asked()] == ["0", "long", *map(str, range(60))]
    assert size // 2 <= window <= size


async def test_a_message_for_a_version_means_the_model_of_that_name() -> None:
    bench = Bench()
    bench.sends(f.message(request("a")), f.message(request("b", version="3")), end=True)
    assert bench.asked() == [(FIRST.decode(), "a"), ("detector", "b")]


@pytest.mark.parametrize("cut", [1, 4, 5, 9, 30])
async def test_a_stream_that_ends_within_a_message_is_an_error(cut: int) -> None:
    bench = Bench()
    whole, rest = f.message(request("a")), f.message(request("b"))
    bench.client.sends(f.data(1, whole + rest[:cut], end=True))
    (end,) = bench.client.gets()
    assert end.ends_stream
    assert b"within a message" in end.payload
    assert bench.paper.is_clean()


async def test_answers_that_nobody_asked_for_pass_and_are_not_counted() -> None:
    bench = Bench()
    bench.sends(f.message(request("a")))
    bench.answers(f.message(result("a")), f.message(result("a")), end=False)
    assert [name for name, *_ in bench.shown()] == ["detector", "detector"]
    assert bench.paper.variant_counts() == [(1, 0), (0, 0)]


async def test_the_time_of_an_upload_does_not_count_for_a_variant() -> None:
    bench = Bench()
    facts = ModelFacts(is_stateful=False, is_decoupled=False, instances=1)
    pool = bench.paper.ref
    pool.publish(replace(pool.current, routes={FIRST: ModelRoute(facts=facts)}))
    text = f.message(request("a", size=2000))
    for part in (text[:300], text[300:600], text[600:]):
        bench.paper.loop.advance(5.0)
        bench.sends(part)
    bench.paper.loop.advance(0.25)
    bench.answers(f.message(result("a")), end=False)
    assert bench.shown() == [("detector", "a", 40)]
    assert bench.paper.variant_durations() == [250, 0]


async def test_an_error_counts_for_the_only_variant_of_a_stream() -> None:
    bench = Bench()
    bench.sends(f.message(request("a")), end=True)
    bench.answers(f.message(result("a", error="broken")))
    assert bench.shown() == [("detector", "a", 40)]
    assert bench.paper.variant_counts() == [(1, 1), (0, 0)]
    bench = Bench()
    bench.sends(f.message(request("a")), f.message(request("b", b"other")), end=True)
    bench.answers(f.message(result("b", b"other", error="whose?")))
    bench.client.gets()
    assert bench.paper.variant_counts() == [(0, 0), (0, 0)]
