"""Sequences over `ModelStreamInfer` with three real Tritons: a client cannot tell that it is not
one."""

from __future__ import annotations

import queue
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.server import RealTriton
from tests.triton.target import WAIT_S, Target

SEQUENCES = 1000
STEPS = 5
STREAMS = 10
KALDI_CHUNK = 8160
"""Samples of FP32, 32 KB, as NVIDIA's client sends them."""
MOST = 2.0
"""Times its even share that a backend may have of the open sequences.

Placement goes by learned times, which differ between equal Tritons on a busy machine. How even
it is with equal times is asserted in tests/property/test_sequence_work.py and, over streams, in
tests/integration/test_stream_sequences.py.
"""


class SequenceStream:
    """One stream of NVIDIA's client, as a queue of answers."""

    def __init__(self, client: grpcclient.InferenceServerClient) -> None:
        self._arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client = client
        client.start_stream(lambda result, error: self._arrived.put((result, error)))

    def send(
        self,
        model: str,
        inputs: list[Any],
        sequence: int | str,
        *,
        start: bool = False,
        end: bool = False,
        name: str = "",
    ) -> None:
        self._client.async_stream_infer(
            model,
            inputs,
            request_id=name or str(sequence),
            sequence_id=sequence,
            sequence_start=start,
            sequence_end=end,
        )

    def result(self) -> Any:
        """The next answer, which must not be an error."""
        result, error = self._arrived.get(timeout=WAIT_S)
        assert error is None, error
        return result

    def error(self) -> str:
        """The text of the next answer, which must be an error."""
        result, error = self._arrived.get(timeout=WAIT_S)
        assert result is None
        return str(error)


@contextmanager
def streams(target: Target, count: int, connections: int = 2) -> Iterator[list[SequenceStream]]:
    """So many streams on so few connections: clients with equal arguments share channels."""
    clients = [
        grpcclient.InferenceServerClient(
            target.grpc, channel_args=[("lb.connection", number % connections)]
        )
        for number in range(count)
    ]
    try:
        yield [SequenceStream(client) for client in clients]
        for client in clients:
            client.stop_stream()
    finally:
        for client in clients:
            client.close()


def number(value: int, kind: Any = grpcclient) -> list[Any]:
    tensor = kind.InferInput("VALUE", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[value]], dtype=np.int32))
    return [tensor]


def sound() -> list[Any]:
    tensor = grpcclient.InferInput("WAVE", [1, KALDI_CHUNK], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, KALDI_CHUNK), dtype=np.float32))
    return [tensor]


def server(result: Any) -> bytes:
    name: bytes = result.as_numpy("SERVER").item()
    return name


def total(result: Any) -> int:
    value: int = result.as_numpy("SUM").item()
    return value


def open_sequences(balancer: RunningBalancer) -> list[int]:
    return [view.open_sequences for view in balancer.backends().values()]


def test_a_sequence_may_change_streams_and_end_by_a_unary_call(target: Target) -> None:
    for sequence in (1077, "1077"):
        with streams(target, 2) as (first, second):
            first.send("accumulator", number(1), sequence, start=True)
            answers = [first.result()]
            second.send("accumulator", number(10), sequence)
            answers.append(second.result())
        with grpcclient.InferenceServerClient(target.grpc) as client:
            answers.append(
                client.infer("accumulator", number(100), sequence_id=sequence, sequence_end=True)
            )
        assert [total(answer) for answer in answers] == [1, 11, 111]
        assert len({server(answer) for answer in answers}) == 1


def test_a_sequence_begun_over_http_goes_on_over_a_stream(target: Target) -> None:
    with httpclient.InferenceServerClient(target.http) as client:
        first = client.infer(
            "accumulator", number(1, httpclient), sequence_id=1078, sequence_start=True
        )
    with streams(target, 1) as (stream,):
        stream.send("accumulator", number(10), 1078, end=True)
        last = stream.result()
    assert (total(first), total(last)) == (1, 11)
    assert server(first) == server(last)


def test_a_step_that_nobody_began_gets_tritons_own_error(target: Target) -> None:
    with streams(target, 1) as (stream,):
        stream.send("accumulator", number(1), 1079)
        assert "must specify the START flag" in stream.error()
        stream.send("accumulator", number(1), 1079, start=True, end=True)
        assert total(stream.result()) == 1


def test_sequences_of_one_stream_are_answered_in_the_order_of_their_requests(
    target: Target,
) -> None:
    with streams(target, 1) as (stream,):
        for value in range(5):
            for sequence in range(1, 31):
                stream.send(
                    "accumulator", number(value), sequence, start=value == 0, end=value == 4,
                    name=f"{sequence}.{value}",
                )  # fmt: skip
        for value in range(5):
            for sequence in range(1, 31):
                result = stream.result()
                assert result.get_response().id == f"{sequence}.{value}"
                assert total(result) == sum(range(value + 1))


def test_a_killed_backend_takes_only_its_own_sequences_along(
    balancer: RunningBalancer, tritons: tuple[RealTriton, ...]
) -> None:
    with streams(balancer.target, 1) as (stream,):
        homes = {}
        for sequence in range(1, 13):
            stream.send("accumulator", number(1), sequence, start=True)
            homes[sequence] = server(stream.result())
        victim = next(triton for triton in tritons if triton.name.encode() == homes[1])
        victim.kill9()
        wait_until(
            lambda: balancer.backends()[victim.name].is_out, timeout_s=WAIT_S, what="it is out"
        )
        try:
            for sequence, home in homes.items():
                stream.send("accumulator", number(1), sequence, end=home != homes[1])
                if home == homes[1]:
                    assert f"sequence {sequence} of model accumulator is lost" in stream.error()
                    stream.send("accumulator", number(5), sequence, start=True, end=True)
                    assert total(stream.result()) == 5
                else:
                    result = stream.result()
                    assert (total(result), server(result)) == (2, home)
        finally:
            victim.restart()
            victim.wait_ready()
            wait_until(balancer.all_in_rotation, timeout_s=WAIT_S, what="it is back")


def run_thousand(target: Target, model: str, at_step: dict[int, Any]) -> dict[int, set[bytes]]:
    """Many sequences over ten streams, interleaved. The servers that each of them met."""
    met: dict[int, set[bytes]] = defaultdict(set)
    with streams(target, STREAMS) as all_streams:
        for step in range(STEPS):
            for sequence in range(1, SEQUENCES + 1):
                all_streams[sequence % STREAMS].send(
                    model,
                    sound() if model == "recognizer" else number(sequence),
                    sequence,
                    start=step == 0,
                    end=step == STEPS - 1,
                )
            answers = 2 if model == "recognizer" and step == STEPS - 1 else 1
            for stream in all_streams:
                for _ in range(answers * SEQUENCES // STREAMS):
                    result = stream.result()
                    sequence = int(result.get_response().id)
                    met[sequence].add(server(result))
                    if model == "recognizer":
                        assert result.as_numpy("CHUNKS").item() == step + 1
                    else:
                        assert total(result) == sequence * (step + 1)
            if step in at_step:
                at_step[step]()
    return met


def check_spread(balancer: RunningBalancer) -> None:
    counts = open_sequences(balancer)
    assert sum(counts) == SEQUENCES
    assert max(counts) <= MOST * SEQUENCES / len(counts)


@pytest.mark.parametrize("model", ["accumulator", "recognizer"])
def test_a_thousand_interleaved_sequences_use_every_backend_and_stay(
    balancer: RunningBalancer, model: str
) -> None:
    met = run_thousand(balancer.target, model, {0: lambda: check_spread(balancer)})
    assert {len(servers) for servers in met.values()} == {1}
    places = Counter(next(iter(servers)) for servers in met.values())
    assert len(places) == 3
    assert max(places.values()) <= MOST * SEQUENCES / 3
    wait_until(lambda: open_sequences(balancer) == [0, 0, 0], timeout_s=WAIT_S, what="all ended")
    wait_until(lambda: balancer.in_flight() == 0, timeout_s=WAIT_S, what="all streams ended")


def test_a_drain_in_the_middle_moves_no_sequence(balancer: RunningBalancer) -> None:
    name = "triton-1"
    later = range(5001, 5031)

    def drain() -> None:
        balancer.command(name, "drain")

    def begin_more() -> None:
        with streams(balancer.target, 1) as (stream,):
            for sequence in later:
                stream.send("accumulator", number(1), sequence, start=True, end=True)
            assert name.encode() not in {server(stream.result()) for _ in later}

    try:
        met = run_thousand(balancer.target, "accumulator", {1: drain, 3: begin_more})
    finally:
        balancer.command(name, "enable")
    assert {len(servers) for servers in met.values()} == {1}
    assert len(set.union(*met.values())) == 3
    wait_until(balancer.all_in_rotation, timeout_s=WAIT_S, what=f"{name} is back")
