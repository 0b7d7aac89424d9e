"""What our own load generators and stand-ins read and write, and what is read from others."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from benchmarks.load import payloads
from benchmarks.load.drivers import load_of, parse_h2load
from benchmarks.load.events_backend import EVENT_FIGURES, answer, event
from benchmarks.load.events_client import EventReader, StreamError
from benchmarks.load.events_client import run as read_events
from benchmarks.load.player import Player, grpc_call, http_call, mixed_calls
from benchmarks.load.processes import REPOSITORY, BenchError, Child, free_ports
from benchmarks.load.timer import Timer
from lb.kserve import inference_pb2 as pb

H2LOAD = """\
finished in 1.01s, 1980.20 req/s, 88.00KB/s
requests: 2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 2000 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 90.00KB (92160) total, 10.00KB (10240) headers (space savings 50.00%), 40.00KB (40000) data
"""


def test_what_h2load_prints_is_read() -> None:
    result = parse_h2load(H2LOAD, 2000, 20, ["300", "100", "200"])
    assert result["requests"] == 2000
    assert result["seconds"] == pytest.approx(1.01, rel=0.001)
    assert result["errors"] == 0
    assert result["p50_us"] == 200


def test_an_answer_without_its_bytes_is_an_error() -> None:
    result = parse_h2load(H2LOAD, 2000, 21, [])
    assert result["errors"] == 2000 - 40000 // 21
    with pytest.raises(BenchError, match="errors"):
        load_of(result)


def test_output_without_figures_is_refused() -> None:
    with pytest.raises(BenchError, match="no result"):
        parse_h2load("connect failed", 10, 20, [])


def test_events_are_found_at_every_split() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire = head + event(0, 11) + event(1, 22) + event(2, 33)
    for step in (1, 7, len(wire)):
        reader = EventReader()
        found = [
            sent
            for start in range(0, len(wire), step)
            for sent in reader.feed(wire[start : start + step])
        ]
        assert found == [11, 22, 33]
        assert (reader.next_number, reader.missed) == (3, 0)


def test_events_are_found_where_a_proxy_cuts_chunks_anew() -> None:
    text = b"".join(event(number, 5).split(b"\r\n")[1] for number in range(2))
    wire = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (text[:50], text[50:]))
    reader = EventReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + wire) == [5, 5]


def test_a_missing_event_is_counted_and_an_end_refused() -> None:
    reader = EventReader()
    reader.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    reader.feed(event(0, 1) + event(2, 3))
    assert reader.missed == 1
    with pytest.raises(StreamError, match="ended"):
        reader.feed(b"0\r\n\r\n")
    with pytest.raises(StreamError, match="not a stream"):
        EventReader().feed(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")


def test_an_event_carries_its_number_and_time() -> None:
    found = EVENT_FIGURES.search(event(7, 1234))
    assert found is not None
    assert (int(found[1]), int(found[2])) == (7, 1234)


def test_health_calls_of_the_events_backend_are_answered() -> None:
    for path in ("/v2/health/ready", "/v2/models/simple/ready"):
        assert answer(path).startswith(b"HTTP/1.1 200")
    assert b'"name":"simple"' in answer("/v2/models/simple/config")
    assert answer("/v2/repository/index").endswith(payloads.repository_index_json().encode())
    assert answer("/nothing").startswith(b"HTTP/1.1 404")


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Port of a stand-in that runs for the test; the parameter is its module."""
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", f"benchmarks.load.{request.param}", str(port)]
    core = min(os.sched_getaffinity(0))
    child = Child("backend", argv, core, tmp_path / "log", REPOSITORY)
    try:
        child.wait_until_listening(port)
        yield port
    finally:
        child.stop()


@pytest.mark.parametrize("backend", ["events_backend"], indirect=True)
def test_every_client_gets_events_until_it_goes(backend: int) -> None:
    for clients, enough in (2, 100), (1, 10):
        found = 0.0
        while found <= enough:  # how long that takes is the machine's affair
            found += read_events(backend, clients=clients, seconds=0.1)["requests"]


@pytest.mark.parametrize("backend", ["grpc_backend"], indirect=True)
def test_the_grpc_stand_in_answers_calls_and_messages_of_streams(backend: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{backend}") as channel:
        infer = channel.unary_unary(payloads.INFER_PATH)
        ready = channel.unary_unary(payloads.INFER_PATH.replace("ModelInfer", "ServerReady"))
        for _ in range(3):
            response = pb.ModelInferResponse.FromString(infer(b"", timeout=20))
            assert len(response.raw_output_contents[0]) == 16
            assert pb.ServerReadyResponse.FromString(ready(b"", timeout=20)).ready
        stream = channel.stream_stream(payloads.STREAM_PATH)
        message = payloads.small_grpc_request()[5:]
        answers = list(stream(iter([message, message]), timeout=20))
        assert [len(answer) for answer in answers] == [len(message)] * 2
        for answer in answers:
            assert pb.ModelStreamInferResponse.FromString(answer).infer_response.id
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/no.Such/Call")(b"", timeout=20)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("backend", ["grpc_backend"], indirect=True)
def test_the_player_keeps_calls_under_way_or_a_rate(backend: int) -> None:
    small = grpc_call(payloads.small_grpc_request())
    large = grpc_call(payloads.tensor_grpc_request(payloads.IMAGE_BYTES))
    player = Player([small, large], requests=40)
    player.open_grpc(backend, 2, 4, tls=False)
    closed = player.play_closed(8)
    assert (closed["requests"], closed["errors"]) == (40, 0)
    player = Player([small], requests=100)
    player.open_grpc(backend, 2, 4, tls=False)
    paced = player.play_paced(500.0)
    assert (paced["requests"], paced["errors"]) == (100, 0)
    assert paced["seconds"] >= 0.19


@pytest.mark.parametrize("backend", ["events_backend"], indirect=True)
def test_answers_that_are_not_200_are_errors(backend: int) -> None:
    player = Player([http_call("simple", payloads.small_http_request())], requests=10)
    player.open_http(backend, 2, tls=False)
    result = player.play_closed(2)
    assert (result["requests"], result["errors"]) == (0, 10)


def test_mixed_calls_are_70_percent_grpc_in_every_size_and_always_in_the_same_order() -> None:
    calls = mixed_calls()
    assert [call.head for call in calls] == [call.head for call in mixed_calls()]
    kinds = Counter(call.is_grpc for call in calls)
    assert kinds[True] == 700
    sizes = Counter(len(call.body) for call in calls if call.is_grpc)
    assert sorted(sizes.values()) == [7, 35, 98, 560]
    assert max(sizes) > payloads.LARGE_BYTES


def test_the_timer_expires_as_often_as_asked_and_can_be_stopped() -> None:
    timer = Timer()
    timer.set_rate(2000)
    os.set_blocking(timer.fd, True)
    counted = 0
    while counted < 20:
        counted += timer.expired()
    os.set_blocking(timer.fd, False)
    timer.set_rate(0)
    timer.expired()
    assert timer.expired() == 0
    timer.close()
