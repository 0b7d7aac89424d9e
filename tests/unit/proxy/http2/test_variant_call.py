"""Calls for a name that variants serve, frame by frame: cut anywhere, too long, refused."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from lb.access.gate import ControlRule, Gate, GateRules
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute
from lb.kserve import inference_pb2 as pb
from tests.fakes.http2_connections import GREETING, PaperRelay
from tests.fakes.relay import Options, snapshot_of
from tests.wire import frames as f

NAME, FIRST, SECOND = b"detector", b"detector_of_the_first_generation", b"v2"
MODEL_CONFIG = b"/inference.GRPCInferenceService/ModelConfig"
UNKNOWN_FACTS = ModelRoute(facts=ModelFacts())
"""Of a model that may have sequences, so that its requests are looked into."""


def infer(size: int = 40, **parameters: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(
        model_name=NAME.decode(), id="seven", raw_input_contents=[b"x" * size]
    )
    request.inputs.add(name="X", datatype="UINT8", shape=[1, size])
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    return request


class Bench:
    """A client and a backend, and between them `detector`, of which the first variant gets all."""

    def __init__(
        self,
        *,
        gate: Gate | None = None,
        first: bytes = FIRST,
        is_a_model: bool = False,
        has_regions: bool = False,
        **options: object,
    ) -> None:
        """
        Args:
            gate: who may do what.
            first: the model of the first variant.
            is_a_model: there is a model of that name, too.
            has_regions: the backend has a region of shared memory.
            options: of the relay.
        """
        values: Options = {"variant_names": frozenset({NAME}), **options}
        self.paper = PaperRelay(options=values, gate=gate)
        snapshot = snapshot_of(self.paper.backends, 2)
        routes = {FIRST: UNKNOWN_FACTS, SECOND: UNKNOWN_FACTS}
        if is_a_model:
            routes[NAME] = snapshot.routes[b"m"]
        regions = {b"r": snapshot.placements} if has_regions else {}
        self.paper.ref.publish(replace(snapshot, routes=routes, regions=regions))
        variant = {"name": "stable", "model": first, "weight": 1}
        following = {"name": "next", "model": SECOND, "weight": 0}
        self.paper.use_variants(NAME, variant, following, rollback=(2.0, 1.5, 1))
        self.backend = self.paper.backend(0, f.settings({f.INITIAL_WINDOW_SIZE: 2**20}) + GREETING)
        self.client = self.paper.client()
        self._stream = -1
        self._upstream = -1

    def begins(self, *more: f.FieldPair, path: bytes = f.METHOD_PATH) -> int:
        """The head of a call. Returns its stream."""
        self._stream += 2
        self.client.sends(f.headers(self._stream, f.request_fields(*more, path=path)))
        return self._stream

    def sends_in_pieces(self, body: bytes, *cuts: int) -> None:
        """Each piece comes in a read of its own."""
        ends = [*cuts, len(body)]
        for start, stop in zip([0, *cuts], ends, strict=True):
            piece = f.data(self._stream, body[start:stop], end=stop == len(body))
            self.client.sends(piece)

    def asked(self) -> bytes:
        """The body that the backend has got of the next call."""
        self._upstream += 2
        found = [each for each in self.backend.gets() if each.stream == self._upstream]
        assert found[0].kind == f.HEADERS
        assert found[-1].ends_stream
        return payload(found)

    def answers(self, *parts: bytes, status: bytes = b"0") -> None:
        """The backend answers that call, each part in a read of its own."""
        self.backend.sends(f.headers(self._upstream, f.RESPONSE_FIELDS))
        for part in parts:
            self.backend.sends(f.data(self._upstream, part))
        trailers = f.headers(self._upstream, [(b"grpc-status", status)], end=True)
        self.backend.sends(trailers)

    def answered(self) -> bytes:
        """The body of the answer that the client has got."""
        found = self.client.gets()
        assert found[-1].ends_stream
        return payload(found)

    def refused(self) -> bytes:
        """The trailers of a call that no backend has got."""
        found = self.client.gets()
        assert self.backend.gets() == []
        assert found[0].kind == f.HEADERS
        assert found[0].ends_stream
        assert self.paper.is_clean()
        return found[0].payload


def payload(found: list[f.Frame]) -> bytes:
    return b"".join(each.payload for each in found if each.kind == f.DATA)


def read_answer(body: bytes) -> pb.ModelInferResponse:
    assert int.from_bytes(body[1:5], "big") == len(body) - 5
    return pb.ModelInferResponse.FromString(body[5:])


def reply(size: int = 300) -> bytes:
    answer = pb.ModelInferResponse(model_name=FIRST.decode(), raw_output_contents=[b"y" * size])
    return f.message(answer.SerializeToString())


def is_for_first(body: bytes, sent: pb.ModelInferRequest) -> bool:
    got = pb.ModelInferRequest.FromString(body[5:])
    return int.from_bytes(body[1:5], "big") == len(body) - 5 and got == pb.ModelInferRequest(
        model_name=FIRST.decode(),
        id=sent.id,
        inputs=sent.inputs,
        parameters=sent.parameters,
        raw_input_contents=sent.raw_input_contents,
    )


@pytest.mark.parametrize("is_a_model", [False, True])
@pytest.mark.parametrize("parameters", [{}, {"priority": 3}])
async def test_a_request_is_the_same_wherever_it_is_cut(
    parameters: dict[str, int], is_a_model: bool
) -> None:
    bench = Bench(is_a_model=is_a_model)
    sent = infer(**parameters)
    body = f.message(sent.SerializeToString())
    for cut in range(1, len(body)):
        bench.begins()
        bench.sends_in_pieces(body, cut)
        assert is_for_first(bench.asked(), sent), cut
        bench.answers(reply())
        assert read_answer(bench.answered()).model_name == NAME.decode()
    assert bench.paper.is_clean()
    assert bench.paper.variant_counts() == [(len(body) - 1, 0), (0, 0)]


async def test_a_long_request_goes_on_in_the_pieces_in_which_it_comes() -> None:
    bench = Bench()
    sent = infer(100_000)
    body = f.message(sent.SerializeToString())
    bench.begins()
    bench.sends_in_pieces(body, 3, 30, 60, 1000, 20_000, 30_000, 40_000, 55_000, 70_000, 85_000)
    assert is_for_first(bench.asked(), sent)
    bench.answers(reply())
    assert read_answer(bench.answered()).model_name == NAME.decode()
    assert bench.paper.is_clean()


LOOKED_AT = 32 * 1024
"""Bytes of a request that are looked at for what decides where it goes."""


class Shorter(Bench):
    """As many bytes of a request have come as are looked at; fewer, with the name of the model."""

    def __init__(self, *more: f.FieldPair, **options: object) -> None:
        """
        Args:
            more: fields of its head.
            options: of the relay, or the gate.
        """
        super().__init__(first=b"v1", has_regions=True, **options)  # type: ignore[arg-type]
        self.sent = infer(100_000)
        self.body = f.message(self.sent.SerializeToString())
        self.begins(*more)
        self.client.sends(f.data(1, self.body[: LOOKED_AT + 2]))
        assert self.backend.gets() == [], "it is not placed yet"

    def goes_on(self, *, ends: bool = True) -> None:
        """The rest comes."""
        self.client.sends(f.data(1, self.body[LOOKED_AT + 2 : 50_000]))
        self.client.sends(f.data(1, self.body[50_000:], end=ends))

    def is_right(self) -> bool:
        """Whether the backend has got the whole request."""
        got = pb.ModelInferRequest.FromString(self.asked()[5:])
        return (got.model_name, got.raw_input_contents) == ("v1", self.sent.raw_input_contents)


@pytest.mark.parametrize("retained", [2**20, 0])
async def test_more_of_a_request_is_awaited_where_a_shorter_name_leaves_too_little(
    retained: int,
) -> None:
    bench = Shorter(retained_size=retained)
    bench.goes_on()
    assert bench.is_right()
    bench = Shorter(retained_size=retained)
    bench.goes_on(ends=False)
    bench.client.sends(f.headers(1, [(b"x-end", b"1")], end=True))
    assert bench.is_right()
    bench = Shorter(retained_size=retained)
    bench.client.sends(f.headers(1, [(b"x-end", b"1")], end=True))
    assert b"Unable to parse request" in bench.refused()


async def test_what_is_wrong_is_noticed_in_a_request_of_which_more_is_awaited() -> None:
    bench = Shorter(message_size=60_000)
    bench.goes_on()
    assert b"larger" in bench.refused()
    bench = Shorter((b"content-length", b"50000"))
    bench.goes_on()
    assert b"content-length" in bench.client.gets()[0].payload


async def test_an_answer_is_the_same_wherever_it_is_cut() -> None:
    bench = Bench()
    body = reply()
    for cut in range(1, 60):
        bench.begins()
        bench.sends_in_pieces(f.message(infer().SerializeToString()))
        bench.asked()
        bench.answers(body[:cut], body[cut:])
        answer = read_answer(bench.answered())
        assert answer.model_name == NAME.decode()
        assert answer.raw_output_contents == [b"y" * 300]
    assert bench.paper.is_clean()


async def test_a_compressed_answer_goes_on_as_it_came() -> None:
    bench = Bench()
    body = f.message(gzip.compress(reply()[5:]), flag=1)
    bench.begins()
    bench.sends_in_pieces(f.message(infer().SerializeToString()))
    bench.asked()
    bench.answers(body)
    assert bench.answered() == body


async def test_a_configuration_has_the_name_that_was_asked_for() -> None:
    bench = Bench()
    bench.begins(path=MODEL_CONFIG)
    asks = pb.ModelMetadataRequest(name=NAME.decode())  # as `ModelConfigRequest`
    bench.sends_in_pieces(f.message(asks.SerializeToString()))
    asked = pb.ModelMetadataRequest.FromString(bench.asked()[5:])
    assert asked.name == FIRST.decode()
    config = b"\x0a%c%b" % (len(FIRST), FIRST) + b"\x12\x04onnx"
    bench.answers(f.message(b"\x0a%c%b" % (len(config), config)))
    renamed = b"\x0a%c%b" % (len(NAME), NAME) + b"\x12\x04onnx"
    assert bench.answered() == f.message(b"\x0a%c%b" % (len(renamed), renamed))
    assert bench.paper.variant_counts() == [(0, 0), (0, 0)], "no inference"


@pytest.mark.parametrize("cut", [3, 30])
async def test_a_message_that_is_too_large_is_refused(cut: int) -> None:
    bench = Bench(message_size=64)
    bench.begins()
    body = f.message(infer(500).SerializeToString())
    bench.client.sends(f.data(1, body[:cut]))
    bench.client.sends(f.data(1, body[cut:]))
    assert b"8" in bench.refused()


async def test_a_request_of_another_length_than_its_head_says_is_an_error() -> None:
    bench = Bench()
    bench.begins((b"content-length", b"50000"))
    body = f.message(infer(20_000).SerializeToString())
    bench.sends_in_pieces(body, 10_000)
    (answer,) = bench.client.gets()
    assert answer.ends_stream
    assert b"content-length" in answer.payload, answer.payload
    assert not any(each.ends_stream for each in bench.backend.gets())
    bench.begins((b"content-length", b"%d" % len(body)))
    bench.backend.gets()
    bench.sends_in_pieces(body, 10_000)
    found = [each for each in bench.backend.gets() if each.kind == f.HEADERS]
    assert found
    assert b"content-length" not in found[0].payload


async def test_trailers_end_a_request_that_is_not_placed_yet() -> None:
    bench = Bench()
    bench.begins()
    sent = infer()
    bench.client.sends(f.data(1, f.message(sent.SerializeToString())))
    bench.client.sends(f.headers(1, [(b"x-end", b"1")], end=True))
    found = bench.backend.gets()
    assert is_for_first(payload(found), sent)
    assert found[-1].ends_stream


async def test_a_call_that_the_backend_cancels_counts_for_no_variant() -> None:
    bench = Bench()
    bench.begins()
    bench.sends_in_pieces(f.message(infer().SerializeToString()))
    bench.asked()
    bench.answers(status=b"1")
    bench.client.gets()
    assert bench.paper.variant_counts() == [(0, 0), (0, 0)]
    assert bench.paper.is_clean()


async def test_a_client_that_leaves_counts_for_no_variant_and_nothing_is_copied() -> None:
    bench = Bench()
    bench.paper.use_shadow(NAME, b"another", b"")
    bench.begins()
    bench.sends_in_pieces(f.message(infer().SerializeToString()))
    bench.asked()
    bench.client.sends(f.rst(1))
    assert [each.kind for each in bench.backend.gets()] == [f.RST_STREAM]
    assert bench.paper.variant_counts() == [(0, 0), (0, 0)]
    assert bench.paper.is_clean()


@pytest.mark.parametrize("cuts", [(), (9,), (120,)])
async def test_the_time_of_an_upload_does_not_count_for_a_variant(cuts: tuple[int, ...]) -> None:
    bench = Bench()
    bench.begins()
    body = f.message(infer(2000).SerializeToString())
    bench.paper.loop.advance(5.0)
    for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
        bench.client.sends(f.data(1, body[start:stop], end=stop == len(body)))
        bench.paper.loop.advance(5.0 if stop < len(body) else 0.25)
    bench.asked()
    bench.answers(reply())
    bench.answered()
    assert bench.paper.variant_durations() == [250, 0]


@pytest.mark.parametrize("end", ["deadline", "told", "left", "uploading", "answering", "early"])
async def test_a_client_that_gives_up_counts_by_how_long_it_waited(end: str) -> None:
    bench = Bench()
    bench.begins((b"grpc-timeout", b"3S"))
    bench.paper.loop.advance(1.0)
    body = f.message(infer().SerializeToString())
    if end == "uploading":
        bench.client.sends(f.data(1, body[:-1]))
    else:
        bench.sends_in_pieces(body)
        bench.asked()
    if end == "early":  # it says so though the deadline has not passed
        bench.answers(status=b"4")
    elif end == "answering":
        bench.backend.sends(f.headers(1, f.RESPONSE_FIELDS))
        bench.backend.sends(f.data(1, reply(9000)[:8000]))
    elif end == "left":
        bench.paper.loop.advance(1.0)
        bench.client.sends(f.rst(1))
    elif end == "told":
        bench.paper.loop._now += 2.0  # the timer of the call is late
        bench.answers(status=b"4")
    bench.paper.loop.advance(5.0)
    bench.client.gets()
    waited = {"deadline": [2000], "told": [2000], "left": [1000], "early": []}.get(end, [0])
    assert [round(each, -2) for each in bench.paper.variant_waits()] == waited
    assert bench.paper.variant_counts()[0] == ((0, 0) if end == "left" else (1, 1))
    assert bench.paper.is_clean()


@pytest.mark.parametrize("names_a_region", [False, True])
async def test_who_may_not_use_shared_memory_may_not_with_variants(names_a_region: bool) -> None:
    rules = GateRules(control=ControlRule(loopback=False), strict_shared_memory=True)
    bench = Bench(gate=Gate(rules))
    sent = infer(60_000)
    sent.inputs.add(name="Y", datatype="UINT8", shape=[1, 4])
    if names_a_region:
        sent.inputs[1].parameters["shared_memory_region"].string_param = "hers"
    bench.begins()
    bench.sends_in_pieces(f.message(sent.SerializeToString()), 2, 20, 200, 20_000, 40_000)
    if names_a_region:
        assert b"shared memory" in bench.refused()
    else:
        assert is_for_first(bench.asked(), sent)
