"""The payload log is a sample, holds a bounded number of bytes, and counts what it drops."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lb.domain.backend import AppProtocol
from lb.kserve import inference_pb2 as pb
from lb.kserve.operations import MODEL_INFER, MODEL_STREAM_INFER
from lb.payloads.lines import REQUEST, STREAM_PATH, PayloadRecord
from lb.payloads.log import PayloadLog, StreamRecording, payload_rules
from lb.payloads.writer import PayloadWriter
from lb.proxy.exchange import Exchange
from lb.settings.reporting import PayloadLogSettings
from lb.wire.grpc.message import frame_message
from lb.wire.memory_budget import MemoryBudget
from tests.fakes.waiting import wait_until

BODY = b"[1]"


class Written:
    """Stands for the thread: holds records until they are written."""

    def __init__(self) -> None:
        self.bytes_per_second = 0
        self.queued: list[tuple[PayloadRecord, Callable[[PayloadRecord, bool], None]]] = []

    def put(self, record: PayloadRecord, written: Callable[[PayloadRecord, bool], None]) -> None:
        self.queued.append((record, written))

    def drop_queued(self) -> None:
        self.queued.clear()

    def write(self, *, fails: bool = False) -> list[str]:
        """Write all. Returns the ids."""
        done, self.queued = self.queued, []
        for record, written in done:
            written(record, not fails)
        return [record.id for record, _ in done]


class Log:
    """A payload log with a memory budget and a writer that waits to be told."""

    def __init__(self, *, ceiling: int = 1 << 20, writer: Any = None, **settings: Any) -> None:
        self.memory_budget = MemoryBudget(ceiling)
        self.now = 0.0
        self.writer = writer or Written()
        self.calls: deque[Callable[[], object]] = deque()
        """What the event loop is to do, by the wish of the thread."""
        self.log = PayloadLog(
            self.memory_budget,
            lambda call, *with_: self.calls.append(partial(call, *with_)),
            Random(1),
            clock=lambda: self.now,
        )
        self.configure(**settings)

    def settle(self) -> None:
        """Hear what the thread has said."""
        while self.calls:
            self.calls.popleft()()

    def write(self, *, fails: bool = False) -> list[str]:
        """Have the writer write all. Returns the ids."""
        written: list[str] = self.writer.write(fails=fails)
        self.settle()
        return written

    def configure(self, **settings: Any) -> None:
        given = PayloadLogSettings.model_validate(
            {"path": "/nowhere", "models": {"*": 1.0}, "memory_bytes": 4096, **settings}
        )
        self.log.configure(payload_rules(given), self.writer)

    def begin(self, model: bytes = b"m", request_id: bytes = b"one") -> Exchange:
        exchange = Exchange(AppProtocol.HTTP, MODEL_INFER, client="192.0.2.1", started_at=1.0)
        exchange.path, exchange.model = b"/v2/models/m/infer", model
        exchange.request_id = request_id
        if self.log.draw is not None and self.log.draw():
            self.log.sample(exchange)
        return exchange

    def infer(self, *, size: int = len(BODY), **how: Any) -> Exchange:
        """A whole inference with a request of `size` bytes."""
        exchange = self.begin(**how)
        recording = self.log.recording_of(exchange)
        if recording is not None:
            recording.add_request(b" " * (size - len(BODY)) + BODY)
            recording.begin_response()
            recording.add_response(BODY)
        self.log.finished(exchange)
        return exchange


def test_nothing_is_logged_by_default() -> None:
    assert payload_rules(PayloadLogSettings()) is None
    assert payload_rules(PayloadLogSettings(models={"m": 0.0})) is None


def test_an_inference_is_logged_when_it_is_over() -> None:
    log = Log()
    log.infer()
    assert log.memory_budget.held == log.log.held == 2 * len(BODY)
    [(record, _)] = log.writer.queued
    request, response = map(json.loads, record.lines().splitlines())
    assert (request["data"], response["data"]) == ([1], [1])
    log.write()
    assert log.memory_budget.held == len(log.memory_budget) == log.log.dropped == 0


def test_each_model_has_its_share() -> None:
    """Over gRPC the model is known only when the message has come."""
    log = Log(models={"often": 0.5, "never": 0.0, "*": 0.1}, memory_bytes="1MiB")
    counts = dict.fromkeys((b"often", b"never", b"other"), 0)
    for model in counts:
        for _ in range(2000):
            exchange = log.begin(b"")
            exchange.model = model
            log.log.finished(exchange)
        counts[model] = len(log.write())
    assert 900 < counts[b"often"] < 1100
    assert counts[b"never"] == 0
    assert 140 < counts[b"other"] < 260
    assert log.memory_budget.held == 0


def test_only_the_response_that_the_client_gets_is_logged() -> None:
    log = Log()
    exchange = log.begin()
    recording = log.log.recording_of(exchange)
    assert recording is not None
    recording.begin_response()
    recording.add_response(b"lost")
    recording.begin_response()
    recording.add_response(BODY)
    log.log.finished(exchange)
    assert log.writer.queued[0][0].response.pieces == (BODY,)
    assert log.memory_budget.held == len(BODY)


def test_a_payload_above_the_limit_leaves_the_rest() -> None:
    log = Log(max_payload_bytes=100)
    log.infer(size=101)
    [(record, _)] = log.writer.queued
    assert (record.request.pieces, record.response.pieces) == (None, (BODY,))
    assert (log.memory_budget.held, log.log.dropped) == (len(BODY), 0)


def test_what_does_not_fit_into_memory_is_dropped_and_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log()
    for number in range(10):
        log.infer(size=1000, request_id=b"%d" % number)
    assert log.memory_budget.held <= 4096
    assert log.log.dropped == 6
    assert [line.message for line in caplog.records] == ["payload log drops inferences"]
    assert len(log.write()) == 4
    assert log.memory_budget.held == 0
    log.now = 61.0
    log.infer(size=5000)
    assert len(caplog.records) == 2
    log.infer()
    assert log.write() == ["one"]


def test_payloads_leave_half_of_the_memory_to_requests() -> None:
    log = Log(ceiling=4000, memory_bytes="1MiB")
    log.infer(size=1500)
    log.infer(size=1500)
    assert (log.memory_budget.held, log.log.dropped) == (1500 + len(BODY), 1)


def test_payloads_go_first_when_a_request_needs_the_memory() -> None:
    class Request:
        held = 0

        def evict(self) -> None:
            raise AssertionError("payloads were to go first")

    log = Log(ceiling=4000, memory_bytes="1MiB")
    under_way = log.begin()
    recording = log.log.recording_of(under_way)
    assert recording is not None
    recording.add_request(bytes(500))
    log.infer(size=1400)
    [(begun, written)] = log.writer.queued
    request = Request()
    assert log.memory_budget.take(request, 1000)
    assert log.memory_budget.take(request, 2500)
    assert (log.log.held, log.log.dropped, log.memory_budget.held) == (0, 2, 3500)
    # What was under way or in the thread's hands ends without a trace.
    recording.add_request(BODY)
    log.log.finished(under_way)
    written(begun, True)
    log.settle()
    assert (log.log.held, log.log.dropped, log.writer.queued) == (0, 2, [])


def test_other_settings_forget_what_is_under_way() -> None:
    log = Log()
    exchange = log.begin()
    recording = log.log.recording_of(exchange)
    assert recording is not None
    recording.add_request(BODY)
    log.configure(models={})
    recording.add_request(BODY)
    log.log.finished(exchange)
    assert (log.memory_budget.held, log.writer.queued) == (0, [])
    assert log.log.sample(exchange) is None
    assert log.log.record(exchange, b"") is None


def test_the_same_settings_disturb_nothing() -> None:
    log = Log()
    exchange = log.begin()
    log.configure()
    log.log.finished(exchange)
    assert log.write() == ["one"]


def test_lines_that_cannot_be_written_are_counted() -> None:
    log = Log()
    log.infer()
    log.write(fails=True)
    assert (log.log.dropped, log.memory_budget.held) == (1, 0)


# The thread


def test_lines_reach_the_file_in_pairs(tmp_path: Path) -> None:
    writer = PayloadWriter(tmp_path / "log")
    log = Log(writer=writer, max_bytes_per_second="1GiB")
    for number in range(8):
        log.infer(request_id=b"%d" % number)
    writer.close(timeout_s=20.0)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [str(each // 2) for each in range(16)]
    assert (tmp_path / "log").stat().st_mode & 0o007 == 0


def test_a_full_disk_is_counted() -> None:
    writer = PayloadWriter(Path("/dev/full"))
    log = Log(writer=writer)
    log.infer()
    writer.close(timeout_s=20.0)
    log.settle()
    assert (log.log.dropped, log.memory_budget.held) == (1, 0)


def test_a_fifo_that_nobody_reads_costs_no_more_than_its_memory(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        writer = PayloadWriter(path)
        log = Log(writer=writer, memory_bytes=100_000)
        for _ in range(1000):
            log.infer(size=1000)
            log.settle()
        assert log.memory_budget.held <= 100_000
        assert log.log.dropped > 500
        writer.close(timeout_s=20.0)
    finally:
        os.close(reader)


def test_a_file_that_hangs_leaves_the_memory_to_the_one_after_it(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        hanging = PayloadWriter(path)
        log = Log(writer=hanging, memory_bytes="1MiB")
        for _ in range(1000):
            log.infer(size=1000)
        log.writer = PayloadWriter(tmp_path / "log")
        log.configure(memory_bytes="1MiB")
        hanging.close(timeout_s=0.0)

        def is_free() -> bool:
            log.settle()
            return log.memory_budget.held == 0

        wait_until(is_free)
        dropped = log.log.dropped
        assert dropped > 500
        log.infer(request_id=b"after")
        log.writer.close(timeout_s=20.0)
        log.settle()
        assert b"after" in (tmp_path / "log").read_bytes()
        assert log.log.dropped == dropped
    finally:
        os.close(reader)


def test_a_fifo_without_a_reader_fails_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="a FIFO that nobody reads"):
        PayloadWriter(tmp_path / "fifo")


def test_the_file_is_opened_anew_for_rotation(tmp_path: Path) -> None:
    path, moved = tmp_path / "log", tmp_path / "log.1"
    writer = PayloadWriter(path)
    log = Log(writer=writer)
    log.infer(request_id=b"before")
    wait_until(lambda: path.read_bytes().count(b"\n") == 2)
    path.rename(moved)
    writer.reopen()
    wait_until(path.exists)
    log.infer(request_id=b"after")
    writer.close(timeout_s=20.0)
    assert b"before" in moved.read_bytes()
    assert b"after" in path.read_bytes()


def test_the_file_grows_no_faster_than_allowed(tmp_path: Path) -> None:
    """At a kilobyte a second the second record waits for the first for a while."""
    path = tmp_path / "log"
    writer = PayloadWriter(path)
    log = Log(writer=writer, max_bytes_per_second=1024, memory_bytes="1MiB")
    for _ in range(100):
        log.infer(size=1000)
    wait_until(lambda: path.stat().st_size > 0)
    first = path.stat().st_size
    assert first < 10 * 1024  # of 150 KiB
    assert log.memory_budget.held > 50_000
    writer.close(timeout_s=20.0)  # what waits is written without a pause then
    assert path.read_bytes().count(b"\n") == 200


def test_a_record_that_cannot_be_made_into_lines_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = PayloadRecord.lines
    broken = threading.Event()

    def fail_once(record: PayloadRecord) -> bytes:
        if not broken.is_set():
            broken.set()
            raise RuntimeError("our bug")
        return lines(record)

    monkeypatch.setattr(PayloadRecord, "lines", fail_once)
    writer = PayloadWriter(tmp_path / "log")
    log = Log(writer=writer)
    log.infer()
    log.infer(request_id=b"two")
    writer.close(timeout_s=20.0)
    log.settle()
    assert log.log.dropped == 1
    assert b"two" in (tmp_path / "log").read_bytes()
    assert "payload cannot be logged" in caplog.text


def asked(model: str, number: str = "") -> bytes:
    return frame_message(pb.ModelInferRequest(model_name=model, id=number).SerializeToString())


def answered(model: str, number: str = "", error: str = "") -> bytes:
    answer = pb.ModelStreamInferResponse(error_message=error)
    answer.infer_response.model_name, answer.infer_response.id = model, number
    return frame_message(answer.SerializeToString())


def open_stream(log: Log) -> tuple[Exchange, StreamRecording]:
    exchange = Exchange(AppProtocol.GRPC, MODEL_STREAM_INFER, client="192.0.2.1", started_at=1.0)
    exchange.path, exchange.request_id = STREAM_PATH, b"stream"
    recording = log.log.sample_stream(exchange)
    assert recording is not None
    return exchange, recording


def lines_of(log: Log) -> list[dict[str, Any]]:
    """What the writer would write now, of which nothing is held then."""
    records = [record for record, _ in log.writer.queued]
    log.write()
    return [json.loads(record.lines()) for record in records]


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_each_message_of_a_stream_is_a_line_as_soon_as_it_is_whole(step: int) -> None:
    log = Log()
    exchange, recording = open_stream(log)
    requests = asked("m", "1") + asked("m", "2") + asked("m")
    answers = answered("m", "2") + answered("", "1", error="broken") + answered("m")
    for at in range(0, len(requests), step):
        recording.add_request(memoryview(requests)[at : at + step])
    first = lines_of(log)
    for at in range(0, len(answers), step):
        recording.add_response(answers[at : at + step])
    second = lines_of(log)
    assert [event["id"] for event in first] == ["stream/1", "stream/2", "stream"]
    assert {event["type"] for event in first} == {REQUEST}
    assert [event["id"] for event in second] == ["stream/2", "stream/1", "stream"]
    assert [event["status"] for event in second] == ["OK", "UNKNOWN", "OK"]
    assert second[1]["data"] == {"error": "broken", "id": "1"}
    log.log.finished(exchange)
    assert (log.memory_budget.held, len(log.memory_budget), log.log.dropped) == (0, 0, 0)


def test_each_message_of_a_stream_counts_for_its_own_model() -> None:
    log = Log(models={"often": 1.0, "never": 0.0})
    _, recording = open_stream(log)
    recording.add_request(asked("often") + asked("never"))
    recording.add_response(answered("never") + answered("often"))
    models = [event["inferenceservicename"] for event in lines_of(log)]
    assert models == ["often", "often"]
    assert log.memory_budget.held == 0


def test_a_stream_is_logged_again_once_there_is_room() -> None:
    log = Log(memory_bytes=1024)
    exchange, recording = open_stream(log)
    long = asked("m" * 900)
    recording.add_request(long + long + asked("m"))
    assert log.log.dropped == 1
    assert [event["inferenceservicename"] for event in lines_of(log)] == ["m" * 900, "m"]
    recording.add_request(long)
    recording.add_request(long[:100])
    assert len(lines_of(log)) == 1
    log.log.finished(exchange)
    assert (log.memory_budget.held, log.log.dropped) == (0, 1)


@pytest.mark.parametrize("models", [{"*": 0.5}, {}])
def test_streams_under_way_are_not_logged_by_other_rules(models: dict[str, float]) -> None:
    log = Log()
    exchange, recording = open_stream(log)
    recording.add_request(asked("m")[:-1])
    log.configure(models=models)
    recording.add_request(asked("m")[-1:] + asked("m"))
    log.log.finished(exchange)
    assert lines_of(log) == []
    assert log.memory_budget.held == 0


def test_a_long_message_that_came_in_pieces_is_a_line_of_its_model() -> None:
    log = Log(models={"m": 1.0}, memory_bytes=1 << 17)
    _, recording = open_stream(log)
    request = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(50_000)])
    request.inputs.add(name="IN", datatype="INT8", shape=[50_000])
    framed = frame_message(request.SerializeToString())
    for at in range(0, len(framed), 1_000):
        recording.add_request(framed[at : at + 1_000])
    [event] = lines_of(log)
    assert event["inferenceservicename"] == "m"
    assert event["data"]["inputs"][0]["shape"] == [50_000]


def test_a_message_that_is_too_large_is_a_line_without_data() -> None:
    log = Log(max_payload_bytes=64)
    _, recording = open_stream(log)
    recording.add_request(asked("m" * 100))
    [event] = lines_of(log)
    assert event["omitted"] == "too_large"
    assert log.memory_budget.held == 0
