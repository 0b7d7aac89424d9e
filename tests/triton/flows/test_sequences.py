"""Sequences: every request of one must find the server that has its state, however it is sent."""

from __future__ import annotations

import itertools
import queue
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.triton.flows.kit import Kit
from tests.triton.target import Target

VALUES = (11, 7, 5, 3, 2, 0, 1)
SequenceId = int | str
_numbers = itertools.count(7000)


def integer_id() -> int:
    """An id of its own for every sequence: what a failed test leaves open disturbs no other."""
    return next(_numbers)


def string_id() -> str:
    return str(uuid.uuid4())


def steps(values: Sequence[int]) -> Iterator[tuple[int, bool, bool]]:
    """Value, whether it starts the sequence, whether it ends it."""
    for index, value in enumerate(values):
        yield value, index == 0, index == len(values) - 1


def sums(values: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(values))


def marked(values: Sequence[int], at_end: int = 0) -> list[int]:
    """What the models of Triton's examples answer."""
    return [values[0] + 1, *values[1:-1], values[-1] + at_end]


def send(kit: Kit, model: str, value: int, name: str, answer: str, **sequence: Any) -> int:
    """One request of a sequence, and the number that comes back."""
    result = kit.client.infer(model, [kit.number(name, value)], **sequence)
    number: int = result.as_numpy(answer).item()
    return number


def accumulate(kit: Kit, value: int, **sequence: Any) -> int:
    return send(kit, "accumulator", value, "VALUE", "SUM", **sequence)


@pytest.mark.parametrize("new_id", [integer_id, string_id])
def test_two_sequences_side_by_side(kit: Kit, new_id: Any) -> None:
    up, down = new_id(), new_id()
    received: dict[SequenceId, list[int]] = {up: [], down: []}
    for value, start, end in steps(VALUES):
        for name, sign in ((up, 1), (down, -1)):
            flags = {"sequence_id": name, "sequence_start": start, "sequence_end": end}
            number = send(kit, "simple_sequence", sign * value, "INPUT", "OUTPUT", **flags)
            received[name].append(number)
    assert received == {up: marked(VALUES), down: marked([-value for value in VALUES])}


@pytest.mark.parametrize("new_id", [integer_id, string_id])
def test_models_see_the_id_that_the_client_chose(kit: Kit, new_id: Any) -> None:
    name = new_id()
    received = [
        send(
            kit,
            "simple_dyna_sequence",
            value,
            "INPUT",
            "OUTPUT",
            sequence_id=name,
            sequence_start=start,
            sequence_end=end,
        )
        for value, start, end in steps(VALUES)
    ]
    assert received == marked(VALUES, len(name) if isinstance(name, str) else name)


def test_many_open_sequences_keep_their_sums(kit: Kit) -> None:
    names: list[SequenceId] = [maker() for _ in range(20) for maker in (integer_id, string_id)]
    received: dict[SequenceId, list[int]] = {name: [] for name in names}
    for value, start, end in steps(VALUES):
        for offset, name in enumerate(names):
            flags = {"sequence_id": name, "sequence_start": start, "sequence_end": end}
            received[name].append(accumulate(kit, value + offset, **flags))
    for offset, name in enumerate(names):
        assert received[name] == sums([value + offset for value in VALUES])


def test_a_number_and_a_string_of_the_same_digits_are_two_sequences(kit: Kit) -> None:
    number = integer_id()
    for name, first in ((number, 100), (str(number), 200)):
        assert accumulate(kit, first, sequence_id=name, sequence_start=True) == first
    for name, total in ((number, 101), (str(number), 201)):
        assert accumulate(kit, 1, sequence_id=name, sequence_end=True) == total


def test_one_request_may_be_a_whole_sequence(kit: Kit) -> None:
    name = integer_id()
    for value in (4, 5):
        flags = {"sequence_id": name, "sequence_start": True, "sequence_end": True}
        assert accumulate(kit, value, **flags) == value


def test_a_start_in_the_middle_begins_anew(kit: Kit) -> None:
    name = integer_id()
    assert accumulate(kit, 5, sequence_id=name, sequence_start=True) == 5
    assert accumulate(kit, 6, sequence_id=name, sequence_start=True) == 6
    assert accumulate(kit, 1, sequence_id=name, sequence_end=True) == 7


def test_ids_may_be_as_large_as_64_bits(kit: Kit) -> None:
    for name in (2**63 - 1, 1):
        total = 0
        for value, start, end in steps(VALUES):
            total += value
            flags = {"sequence_id": name, "sequence_start": start, "sequence_end": end}
            assert accumulate(kit, value, **flags) == total


def test_clients_learn_that_nobody_started_the_sequence(kit: Kit) -> None:
    name = integer_id()
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        accumulate(kit, 1, sequence_id=name)
    assert accumulate(kit, 1, sequence_id=name, sequence_start=True, sequence_end=True) == 1
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        accumulate(kit, 1, sequence_id=name)


def test_clients_learn_that_a_sequence_needs_an_id(kit: Kit) -> None:
    with pytest.raises(InferenceServerException, match="must specify a non-zero or non-empty"):
        accumulate(kit, 1)


@pytest.mark.parametrize("new_id", [integer_id, string_id])
def test_compressed_requests_find_their_sequence(kit: Kit, new_id: Any) -> None:
    how = "request_compression_algorithm" if kit.is_http else "compression_algorithm"
    name = new_id()
    total = 0
    for value, start, end in steps(VALUES):
        total += value
        flags = {"sequence_id": name, "sequence_start": start, "sequence_end": end}
        assert accumulate(kit, value, **flags, **{how: "gzip"}) == total


def test_json_requests_find_their_sequence(
    http_client: httpclient.InferenceServerClient,
) -> None:
    name = string_id()
    received = []
    for value, start, end in steps(VALUES):
        made = httpclient.InferInput("VALUE", [1, 1], "INT32")
        made.set_data_from_numpy(np.array([[value]], dtype=np.int32), binary_data=False)
        result = http_client.infer(
            "accumulator",
            [made],
            outputs=[httpclient.InferRequestedOutput("SUM", binary_data=False)],
            sequence_id=name,
            sequence_start=start,
            sequence_end=end,
        )
        received.append(result.as_numpy("SUM").item())
    assert received == sums(VALUES)


# Streams


class SequenceStream:
    """NVIDIA's callback API, answers by sequence (the request's id says which)."""

    def __init__(self, client: grpcclient.InferenceServerClient) -> None:
        self._arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client = client
        client.start_stream(lambda result, error: self._arrived.put((result, error)))

    def send(
        self, model: str, name: str, value: int, sequence_id: SequenceId, start: bool, end: bool
    ) -> None:
        made = grpcclient.InferInput(name, [1, 1], "INT32")
        made.set_data_from_numpy(np.array([[value]], dtype=np.int32))
        self._client.async_stream_infer(
            model,
            [made],
            request_id=str(sequence_id),
            sequence_id=sequence_id,
            sequence_start=start,
            sequence_end=end,
        )

    def receive(self, output: str) -> tuple[str, int]:
        result, error = self._arrived.get(timeout=60)
        assert error is None
        return result.get_response().id, result.as_numpy(output).item()


@pytest.mark.parametrize("model", ["simple_sequence", "simple_dyna_sequence"])
@pytest.mark.parametrize("new_id", [integer_id, string_id])
def test_two_sequences_share_a_stream_and_are_answered_in_order(
    grpc_client: grpcclient.InferenceServerClient, new_id: Any, model: str
) -> None:
    up, down = new_id(), new_id()
    stream = SequenceStream(grpc_client)
    for name, sign in ((up, 1), (down, -1)):
        for value, start, end in steps(VALUES):
            stream.send(model, "INPUT", sign * value, name, start, end)
    received = [stream.receive("OUTPUT") for _ in range(2 * len(VALUES))]
    expected = []
    for name, sign in ((up, 1), (down, -1)):
        weight = len(name) if isinstance(name, str) else name
        at_end = weight if model == "simple_dyna_sequence" else 0
        answers = marked([sign * value for value in VALUES], at_end)
        expected += [(str(name), number) for number in answers]
    assert received == expected


def test_several_streams_have_their_sequences(target: Target) -> None:
    with (
        grpcclient.InferenceServerClient(target.grpc) as first,
        grpcclient.InferenceServerClient(target.grpc) as second,
    ):
        streams = (SequenceStream(first), SequenceStream(second))
        names = [integer_id() for _ in range(16)]
        for value, start, end in steps(VALUES):
            for number, name in enumerate(names):
                streams[number % 2].send("accumulator", "VALUE", value, name, start, end)
        received: dict[str, list[int]] = {str(name): [] for name in names}
        for stream in streams:
            for _ in range(len(names) // 2 * len(VALUES)):
                name, total = stream.receive("SUM")
                received[name].append(total)
    assert received == {str(name): sums(VALUES) for name in names}


async def test_asyncio_streams_carry_sequences(target: Target) -> None:
    names: tuple[SequenceId, ...] = (integer_id(), string_id())

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for value, start, end in steps(VALUES):
            for name in names:
                made = grpcclient.InferInput("VALUE", [1, 1], "INT32")
                made.set_data_from_numpy(np.array([[value]], dtype=np.int32))
                yield {
                    "model_name": "accumulator",
                    "inputs": [made],
                    "request_id": str(name),
                    "sequence_id": name,
                    "sequence_start": start,
                    "sequence_end": end,
                }

    received: dict[str, list[int]] = {str(name): [] for name in names}
    async with grpcaio.InferenceServerClient(target.grpc) as client:
        async for result, error in client.stream_infer(requests()):
            assert error is None
            received[result.get_response().id].append(result.as_numpy("SUM").item())
    assert received == {str(name): sums(VALUES) for name in names}


@pytest.mark.parametrize("new_id", [integer_id, string_id])
def test_a_sequence_may_change_between_streams_and_protocols(target: Target, new_id: Any) -> None:
    name = new_id()
    with (
        grpcclient.InferenceServerClient(target.grpc) as first,
        grpcclient.InferenceServerClient(target.grpc) as second,
        httpclient.InferenceServerClient(target.http) as over_http,
    ):
        received = []
        for client, start in ((first, True), (second, False)):
            stream = SequenceStream(client)
            stream.send("accumulator", "VALUE", 10, name, start, False)
            received.append(stream.receive("SUM")[1])
        received.append(accumulate(Kit(httpclient, over_http), 5, sequence_id=name))
        received.append(accumulate(Kit(grpcclient, first), 1, sequence_id=name, sequence_end=True))
    assert received == [10, 20, 25, 26]


def test_errors_on_a_stream_leave_its_sequences_alone(
    grpc_client: grpcclient.InferenceServerClient,
) -> None:
    name, unknown = integer_id(), integer_id()
    stream = SequenceStream(grpc_client)
    stream.send("accumulator", "VALUE", 3, name, True, False)
    stream.send("accumulator", "VALUE", 3, unknown, False, False)
    stream.send("accumulator", "VALUE", 4, name, False, True)
    assert stream.receive("SUM") == (str(name), 3)
    _, error = stream._arrived.get(timeout=60)
    assert "must specify the START flag" in error.message()
    assert stream.receive("SUM") == (str(name), 7)
