"""Batches that run as several calls, frame by frame: requests that cannot be cut, and answers to
parts that come in pieces, break a rule, or say nothing."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pytest

from lb.domain.hedge import HedgeRules
from lb.kserve import inference_pb2 as pb
from lb.proxy.attempt_timeout import AttemptTimeout, AttemptTimes
from tests.fakes.http2_connections import GREETING, PaperRelay
from tests.wire import frames as f
from tests.wire.waiting import eventually

ROWS = 6
LIMIT = 4
"""Rows of an execution: a batch of six has two parts of three."""
SMALL_WINDOW = 2048
INTERNAL, UNAVAILABLE, TOO_MUCH, UNKNOWN = 13, 14, 8, 2


def batch(rows: int = ROWS, size: int = 4, **others: list[int]) -> bytes:
    """A message without prefix: a tensor of so many rows of `size` bytes, and others by shape."""
    request = pb.ModelInferRequest(model_name="m")
    for name, shape in {"IN": [rows, size], **others}.items():
        request.inputs.add(name=name, datatype="UINT8", shape=shape)
        request.raw_input_contents.append(
            b"".join(bytes([row]) * shape[1] for row in range(shape[0]))
        )
    return request.SerializeToString()


def reply(body: bytes, *, drop: int = 0) -> bytes:
    """The answer to a part: its rows, but for as many as are to be left out."""
    asked = pb.ModelInferRequest.FromString(body[5:])
    rows, size = asked.inputs[0].shape
    answer = pb.ModelInferResponse(model_name="m")
    answer.outputs.add(name="OUT", datatype="UINT8", shape=[rows - drop, size])
    answer.raw_output_contents.append(asked.raw_input_contents[0][drop * size :])
    return answer.SerializeToString()


def strings(rows: int, each: int) -> bytes:
    """A message without prefix: typed contents, short on the wire and long once parsed."""
    request = pb.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="IN", datatype="BYTES", shape=[rows, each])
    tensor.contents.bytes_contents.extend([b"x"] * (rows * each))
    return request.SerializeToString()


def strings_reply(body: bytes) -> bytes:
    """The answer to a part of `strings`: a number for each row."""
    rows = pb.ModelInferRequest.FromString(body[5:]).inputs[0].shape[0]
    answer = pb.ModelInferResponse(model_name="m")
    answer.outputs.add(name="OUT", datatype="UINT8", shape=[rows, 1])
    answer.raw_output_contents.append(bytes(rows))
    return answer.SerializeToString()


class Bench:
    """A client, and two backends with a connection each."""

    def __init__(self, *, window: int = 2**24, max_bytes: int = 2**22, **options: object) -> None:
        self.paper = PaperRelay(backends=2, options=options)
        self.paper.max_attempts = 1
        self.paper.split(b"m", LIMIT, max_bytes=max_bytes)
        greeting = f.settings({f.INITIAL_WINDOW_SIZE: window}) + GREETING
        self.backends = [self.paper.backend(number, greeting) for number in range(2)]
        self.client = self.paper.client(f.settings({f.INITIAL_WINDOW_SIZE: 2**24}) + GREETING)

    def begins(self, *more: f.FieldPair) -> None:
        self.client.sends(f.headers(1, f.request_fields(*more)))

    def asks(self, message: bytes | None = None, *cuts: int, flag: int = 0) -> None:
        """Send a request, each piece of it in a read of its own."""
        body = f.message(batch() if message is None else message, flag)
        self.begins()
        for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
            self.client.sends(f.data(1, body[start:stop], end=stop == len(body)))

    def part(self, number: int, stream: int = 1) -> bytes:
        """The body that a backend has got."""
        found = [each for each in self.backends[number].gets() if each.stream == stream]
        return b"".join(each.payload for each in found if each.kind == f.DATA)

    def answers(self, number: int, make: Callable[[bytes], bytes] = reply) -> None:
        """A backend answers its part."""
        self.backends[number].sends(f.answer(1, f.message(make(self.part(number)))))

    async def outcome(self) -> tuple[int, bytes]:
        """The status of the call, and its body or its error; nothing is left behind."""
        await eventually(lambda: bool(self.paper.finished.records))
        self.paper.flush()
        found = [each for each in self.client.gets() if each.stream and each.kind < f.RST_STREAM]
        assert found[-1].ends_stream
        await eventually(self.paper.is_clean)
        (record,) = self.paper.finished.records
        body = b"".join(each.payload for each in found if each.kind == f.DATA)
        return record.grpc_status, body or found[-1].payload

    async def is_right(self, rows: int = ROWS, size: int = 4) -> bool:
        """Whether the client has got all rows in their order."""
        status, body = await self.outcome()
        assert status == 0, body
        answer = pb.ModelInferResponse.FromString(body[5:])
        wanted = b"".join(bytes([row]) * size for row in range(rows))
        return list(answer.raw_output_contents) == [wanted]


def goes_whole(bench: Bench, sent: bytes) -> bool:
    """Whether the request goes on to one backend as it came."""
    bodies = [bench.part(number) for number in range(2)]
    return sorted(bodies) == sorted([b"", sent])


async def test_a_request_is_cut_the_same_however_it_comes() -> None:
    size = len(f.message(batch()))
    for cut in range(1, size):
        bench = Bench()
        bench.asks(None, cut)
        bench.answers(0)
        bench.answers(1)
        assert await bench.is_right(), cut


async def test_a_compressed_request_is_cut_and_compressed_answers_are_joined() -> None:
    bench = Bench()
    bench.asks(gzip.compress(batch(ROWS, 5000)), 3, 60, flag=1)
    for number in range(2):
        body = gzip.compress(reply(bench.part(number)))
        bench.backends[number].sends(f.answer(1, f.message(body, flag=1)))
    assert await bench.is_right(ROWS, 5000)


async def test_long_parts_follow_the_windows_of_their_backends() -> None:
    bench = Bench(window=SMALL_WINDOW)
    bench.asks(batch(ROWS, 5000), 20, 9000)
    await eventually(lambda: bench.paper.in_flight == 2)
    bench.paper.flush()
    for backend in bench.backends:
        body = b""
        for _ in range(100):
            found = [each for each in backend.gets() if each.kind == f.DATA]
            if not found:
                break
            assert sum(len(each.payload) for each in found) <= SMALL_WINDOW
            body += b"".join(each.payload for each in found)
            if found[-1].ends_stream:
                backend.sends(f.answer(1, f.message(reply(body))))
                break
            backend.sends(f.window_update(1, SMALL_WINDOW))
    assert await bench.is_right(ROWS, 5000)


async def test_answers_to_parts_come_in_pieces_and_are_credited() -> None:
    bench = Bench(answer_window=SMALL_WINDOW)
    bench.asks(batch(ROWS, 1000))
    for number, backend in enumerate(bench.backends):
        body = f.message(reply(bench.part(number)))
        backend.sends(f.headers(1, [(b":status", b"103")]))
        backend.sends(f.headers(1, f.RESPONSE_FIELDS))
        credited = 0
        for start in range(0, len(body), 500):
            backend.sends(f.data(1, body[start : start + 500]))
            found = [each for each in backend.gets() if each.kind == f.WINDOW_UPDATE]
            credited += sum(each.increment for each in found if each.stream == 1)
        backend.sends(f.headers(1, f.OK_TRAILERS, end=True))
        assert credited >= len(body) - SMALL_WINDOW
    assert await bench.is_right(ROWS, 1000)


TWO = f.message(batch()) + f.message(batch())
NOT_CUT = {
    "inputs of other rows": f.message(batch(ROWS, 4, OTHER=[3, 4])),
    "two messages": TWO,
    "broken compression": f.message(b"\x1f\x8b" + batch(), flag=1),
    "few rows": f.message(batch(LIMIT)),
    "no message": b"",
}
CUT_SHORT = {"part of a prefix": b"\0\0", "part of a batch": f.message(batch())[:-1]}


@pytest.mark.parametrize("sent", NOT_CUT.values(), ids=NOT_CUT)
@pytest.mark.parametrize("cuts", [(), (1,)], ids=["at once", "in pieces"])
async def test_what_cannot_be_cut_goes_on_as_it_came(sent: bytes, cuts: tuple[int, ...]) -> None:
    bench = Bench()
    bench.begins()
    for start, stop in zip([0, *cuts], [*cuts, None], strict=True):
        bench.client.sends(f.data(1, sent[start:stop], end=stop is None))
    assert goes_whole(bench, sent)


@pytest.mark.parametrize("sent", CUT_SHORT.values(), ids=CUT_SHORT)
@pytest.mark.parametrize("cuts", [(), (1,), (40,)], ids=["at once", "in pieces", "late"])
@pytest.mark.parametrize("with_trailers", [False, True])
async def test_what_ends_within_a_batch_is_refused(
    sent: bytes, cuts: tuple[int, ...], *, with_trailers: bool
) -> None:
    bench = Bench()
    bench.begins()
    for start, stop in zip([0, *cuts], [*cuts, None], strict=True):
        bench.client.sends(f.data(1, sent[start:stop], end=stop is None and not with_trailers))
    if with_trailers:
        bench.client.sends(f.headers(1, [(b"x-end", b"1")], end=True))
    assert b"Unable to parse request" in bench.client.gets()[-1].payload
    assert bench.paper.is_clean()


async def test_trailers_end_a_batch() -> None:
    bench = Bench()
    bench.begins()
    bench.client.sends(f.data(1, f.message(batch())))
    bench.client.sends(f.headers(1, [(b"x-end", b"1")], end=True))
    bench.answers(0)
    bench.answers(1)
    assert await bench.is_right()


async def test_parts_that_nobody_waits_for_run_on_where_tritons_are_not_told() -> None:
    bench = Bench(withholds_cancellation=True)
    bench.asks()
    body = bench.part(1)
    bench.answers(0)
    bench.client.sends(f.rst(1))
    assert f.RST_STREAM not in [each.kind for each in bench.backends[1].gets()]
    assert [backend.in_flight for backend in bench.paper.backends] == [0, 1]
    bench.backends[1].sends(f.answer(1, f.message(reply(body))))
    assert bench.paper.is_clean()


@pytest.mark.parametrize("limits", [{"message_size": 2000}, {"max_bytes": 2000}])
async def test_a_batch_that_is_too_long_is_refused_while_it_comes(limits: dict[str, int]) -> None:
    bench = Bench(**limits)  # type: ignore[arg-type]
    bench.begins()
    body = f.message(batch(ROWS, 1000))
    for start in range(0, len(body), 700):
        bench.client.sends(f.data(1, body[start : start + 700], end=start + 700 >= len(body)))
    assert [bench.part(number) for number in range(2)] == [b"", b""]
    assert (await bench.outcome())[0] == TOO_MUCH


def data_first(_: bytes) -> bytes:
    return f.data(1, f.message(b"x"), end=True)


def second_head(body: bytes) -> bytes:
    return (
        f.headers(1, f.RESPONSE_FIELDS) + f.data(1, reply(body)) + f.headers(1, f.RESPONSE_FIELDS)
    )


BROKEN: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "no head": (data_first, INTERNAL),
    "two heads": (second_head, INTERNAL),
    "no whole message": (lambda body: f.answer(1, reply(body)), INTERNAL),
    "nothing": (lambda _: f.answer(1, b""), INTERNAL),
    "a page": (
        lambda _: f.headers(1, [(b":status", b"200"), (b"content-type", b"text/html")], end=True),
        UNKNOWN,
    ),
    "an HTTP status": (lambda _: f.headers(1, [(b":status", b"403")], end=True), 7),
    "no status": (
        lambda body: f.headers(1, f.RESPONSE_FIELDS) + f.data(1, f.message(reply(body)), end=True),
        UNKNOWN,
    ),
    "rows are missing": (lambda body: f.answer(1, f.message(reply(body, drop=1))), INTERNAL),
    "broken compression": (
        lambda _: f.answer(1, f.message(b"\x1f\x8bnonsense", flag=1)),
        UNAVAILABLE,
    ),
}


@pytest.mark.parametrize(("make", "status"), BROKEN.values(), ids=BROKEN)
async def test_an_answer_to_a_part_that_is_none_ends_the_call(
    make: Callable[[bytes], bytes], status: int
) -> None:
    bench = Bench()
    bench.asks()
    bench.answers(0)
    bench.backends[1].sends(make(bench.part(1)))
    assert (await bench.outcome())[0] == status


async def test_the_first_error_of_a_part_is_that_of_the_call() -> None:
    bench = Bench()
    bench.asks()
    bodies = [bench.part(number) for number in range(2)]
    assert all(bodies)
    error = [*f.RESPONSE_FIELDS, (b"grpc-status", b"3"), (b"grpc-message", b"bad rows")]
    bench.backends[0].sends(f.headers(1, error, end=True))
    bench.backends[1].sends(f.headers(1, error, end=True))
    status, block = await bench.outcome()
    assert status == 3
    assert b"bad rows" in block


async def test_a_client_that_leaves_ends_all_parts() -> None:
    bench = Bench()
    bench.asks()
    bench.answers(0)
    bench.client.sends(f.rst(1))
    assert [each.kind for each in bench.backends[1].gets()][-1] == f.RST_STREAM
    assert bench.paper.is_clean()


@pytest.mark.parametrize("limits", [{"message_size": 2000}, {"max_bytes": 2000}])
async def test_what_comes_behind_a_batch_counts_for_its_limits(limits: dict[str, int]) -> None:
    bench = Bench(**limits)  # type: ignore[arg-type]
    bench.begins()
    bench.client.sends(f.data(1, f.message(batch())))
    bench.client.sends(f.data(1, f.message(bytes(3000))[:3000]))
    assert (await bench.outcome())[0] == TOO_MUCH


async def test_a_part_that_is_late_is_tried_elsewhere() -> None:
    bench = Bench()
    bench.paper.max_attempts = 3
    bench.paper.limit_attempts(1.0)
    bench.asks()
    bodies = [bench.part(number) for number in range(2)]
    bench.backends[1].sends(f.answer(1, f.message(reply(bodies[1]))))
    bench.paper.loop.advance(2.0)
    bench.paper.flush()
    again = b"".join(each.payload for each in bench.backends[1].gets() if each.kind == f.DATA)
    assert again == bodies[0]
    assert f.RST_STREAM in [each.kind for each in bench.backends[0].gets()]
    bench.backends[1].sends(f.answer(3, f.message(reply(again))))
    assert await bench.is_right()


async def test_a_part_whose_answer_has_begun_is_not_late() -> None:
    bench = Bench()
    bench.paper.max_attempts = 3
    bench.paper.check_attempts(AttemptTimeout(AttemptTimes(common=1.0)))
    bench.asks()
    answers = [f.message(reply(bench.part(number))) for number in range(2)]
    for backend, answer in zip(bench.backends, answers, strict=True):
        backend.sends(f.headers(1, f.RESPONSE_FIELDS), f.data(1, answer[:10]))
    bench.paper.loop.advance(5.0)
    for backend, answer in zip(bench.backends, answers, strict=True):
        backend.sends(f.data(1, answer[10:]), f.headers(1, f.OK_TRAILERS, end=True))
    assert await bench.is_right()
    assert bench.paper.outcomes.seen == []


async def test_a_part_that_its_hedge_answers_leaves_nothing_of_its_first_attempt() -> None:
    bench = Bench()
    bench.asks()
    bodies = [bench.part(number) for number in range(2)]
    hedges = bench.paper.hedge(HedgeRules(least_s=0.05))
    hedges.learn(b"m", 0.05, 30)
    bench.backends[1].sends(f.answer(1, f.message(reply(bodies[1]))))
    bench.paper.loop.advance(1.0)
    bench.paper.flush()
    assert hedges.count == 1
    # The first attempt ends within its answer.
    held = bench.paper.memory_budget.held
    first = f.headers(1, f.RESPONSE_FIELDS) + f.data(1, f.message(reply(bodies[0]))[:-1])
    bench.backends[0].sends(first)
    assert bench.paper.memory_budget.held > held
    bench.backends[0].goes()
    assert bench.paper.memory_budget.held == held
    assert bench.part(1, 3) == bodies[0]
    bench.backends[1].sends(f.answer(3, f.message(reply(bodies[0]))))
    assert await bench.is_right()
    assert bench.paper.memory_budget.held == 0


async def test_what_typed_contents_take_once_parsed_is_counted() -> None:
    message = strings(ROWS, 1000)
    bench = Bench()
    bench.asks(message)
    await eventually(lambda: bench.paper.in_flight == 2)
    # Their characters are there three times: as they came, parsed, and in the parts.
    assert bench.paper.memory_budget.held >= 40 * 1000 * ROWS + 3 * len(message) - 1000
    bench.paper.flush()
    for number in range(2):
        bench.answers(number, strings_reply)
    status, body = await bench.outcome()
    assert status == 0, body
    assert bench.paper.memory_budget.held == 0


async def test_a_batch_that_takes_more_than_there_is_once_parsed_is_refused() -> None:
    message = strings(ROWS, 1000)
    bench = Bench()
    bench.paper.memory_budget.resize(4 * len(message))
    bench.asks(message)
    status, body = await bench.outcome()
    assert status == TOO_MUCH, body
    assert bench.paper.memory_budget.held == 0


async def test_a_batch_whose_answers_need_all_memory_gives_way_before_others_are_refused() -> None:
    bench = Bench()
    bench.asks()
    await eventually(lambda: bench.paper.in_flight == 2)
    budget = bench.paper.memory_budget
    budget.resize(100_000)
    budget.relayed_at_most = 10_000
    for backend in bench.backends:
        backend.sends(f.headers(1, f.RESPONSE_FIELDS), *[f.data(1, bytes(10_000))] * 6)
    status, text = await bench.outcome()
    assert status == TOO_MUCH, text
    assert (budget.held, budget.shortages) == (0, 0)


async def test_a_batch_whose_answers_are_longer_than_the_last_ones_gives_way_alone() -> None:
    bench = Bench()
    bench.asks()
    bench.answers(0)
    bench.answers(1)
    await eventually(bench.paper.is_clean)
    bench.client.sends(f.headers(3, f.request_fields()), f.data(3, f.message(batch()), end=True))
    await eventually(lambda: bench.paper.in_flight == 2)
    bench.paper.flush()
    budget = bench.paper.memory_budget
    budget.resize(8000)
    first, second = bench.backends
    first.sends(f.headers(3, f.RESPONSE_FIELDS), f.data(3, bytes(10_000)))
    assert bench.paper.finished.records[1].grpc_status == TOO_MUCH
    assert budget.held == 0
    bench.client.sends(f.call(5))
    assert any(each.stream == 5 for side in (first, second) for each in side.gets()), (
        "the connections to backends are as before"
    )


async def test_a_second_batch_waits_for_room_for_its_answers() -> None:
    bench = Bench()
    bench.asks()
    bench.client.sends(f.headers(3, f.request_fields()), f.data(3, f.message(batch()), end=True))
    assert bench.paper.split_counts.batches == 1
    for number in range(2):
        bench.answers(number)
    await eventually(lambda: bench.paper.split_counts.batches == 2)
    bench.paper.flush()
    for number in range(2):
        body = bench.part(number, 3)
        bench.backends[number].sends(f.answer(3, f.message(reply(body))))
    await eventually(bench.paper.is_clean)
    assert [record.grpc_status for record in bench.paper.finished.records] == [0, 0]


async def test_an_answer_that_its_client_does_not_read_gives_way_to_an_overdue_batch() -> None:
    bench = Bench()
    bench.client.pause()
    bench.asks(batch(ROWS, 1000))
    for number in range(2):
        bench.answers(number)
    budget = bench.paper.memory_budget
    await eventually(lambda: budget.held > ROWS * 1000)
    budget.resize(budget.held * 5 // 4)
    other = bench.paper.client(f.settings({f.INITIAL_WINDOW_SIZE: 2**24}) + GREETING)
    other.sends(f.headers(1, f.request_fields()), f.data(1, f.message(batch()), end=True))
    assert bench.paper.split_counts.batches == 1

    def has_begun() -> bool:
        bench.paper.loop.advance(0.1)
        return bench.paper.split_counts.batches == 2

    await eventually(has_begun)
    assert [record.grpc_status for record in bench.paper.finished.records] == [TOO_MUCH]
    assert budget.shortages == 0
