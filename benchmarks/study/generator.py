"""The load generator, a process of its own: its argument is a job, it prints what became of it.

Open loop: requests are sent when they are due, whatever the answers do, and latency counts from
then. Closed loop: so many clients, each of which asks again when it was answered. A request with a
deadline is given up at it, as gRPC clients do.
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.load import payloads
from benchmarks.load.h2client import header_prefix
from benchmarks.load.timer import Timer
from benchmarks.study.gpus import COLUMNS
from benchmarks.study.trace import Arrival, Kind, arrivals
from benchmarks.study.wires import (
    LATE,
    NEVER,
    UNSENT,
    GrpcWire,
    HttpWire,
    Wire,
    grpc_timeout,
)
from tests.wire import frames

HTTP, GRPC = "http", "grpc"
_GRPC_WIRES = 8
_HTTP_WIRES = 32
"""Connections opened before the clock starts; more when that many requests are under way."""
_MOST = 6000
"""Requests under way at once; what is due beyond them is not sent."""
_KINDS = 2000
"""Requests of a closed loop after which the same kinds come again."""
DEADLINE_FIELD = "x-triton-lb-timeout"
"""Says over HTTP/1.1 what `grpc-timeout` says over gRPC."""


@dataclass(frozen=True)
class Job:
    """What to play: an open loop where `rate` is above 0, else a closed one of `clients`."""

    protocol: str
    port: int
    kinds: tuple[Kind, ...]
    seconds: float
    seed: int
    rate: float = 0.0
    clients: int = 0
    drain_s: float = 15.0
    """How long answers are waited for after the last request."""

    def as_json(self) -> str:
        """For the argument of the program."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """What `as_json` made."""
        said = json.loads(text)
        kinds = []
        for each in said.pop("kinds"):
            fields = tuple((name, value) for name, value in each.pop("fields"))
            kinds.append(Kind(**each, fields=fields))
        return cls(**said, kinds=tuple(kinds))


@dataclass(frozen=True)
class Outcome:
    """Of one request. Times are seconds since the run began; `due` is when it was to be sent."""

    kind: int
    due: float
    sent: float
    ended: float
    what: str


class Generator:
    """Plays one job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._poll = select.epoll()
        self._timer = Timer()
        self._poll.register(self._timer.fd, select.EPOLLIN)
        self._wires: dict[int, Wire] = {}
        self._free: list[HttpWire] = []
        self._grpc: list[GrpcWire] = []
        self._requests = [_request(job.protocol, each) for each in job.kinds]
        self._under_way: dict[int, tuple[int, float, float, Wire]] = {}
        """Number of a request: kind, when it was due, when it was sent, its wire."""
        self._deadlines: list[tuple[float, int]] = []
        self._outcomes: list[Outcome] = []
        self._next = 0
        self._begun = 0.0
        self._idle = 0
        """Clients of a closed loop that have nothing under way."""

    def play(self) -> list[Outcome]:
        """Send everything, and wait for the answers."""
        job = self._job
        # A closed loop takes the kinds of an open one, in turn.
        due = arrivals(job.rate or _KINDS / job.seconds, job.seconds, job.kinds, job.seed)
        self._open()
        gc.collect()
        gc.disable()
        self._begun = time.perf_counter()
        if job.rate:
            self._play_open(due)
        else:
            self._play_closed([each.kind for each in due] or [0])
        for number in list(self._under_way):
            self._end(number, NEVER)
        return self._outcomes

    def _open(self) -> None:
        if self._job.protocol == GRPC:
            self._grpc = [GrpcWire(self._job.port, self._ended) for _ in range(_GRPC_WIRES)]
        else:
            self._free = [HttpWire(self._job.port, self._ended) for _ in range(_HTTP_WIRES)]
        for wire in (*self._grpc, *self._free):
            self._watch(wire)

    def _watch(self, wire: Wire) -> None:
        self._wires[wire.fd] = wire
        self._poll.register(wire.fd, select.EPOLLIN)

    def _play_open(self, due: Sequence[Arrival]) -> None:
        place, count = 0, len(due)
        latest = self._job.seconds + self._job.drain_s
        while place < count or self._under_way:
            now = time.perf_counter() - self._begun
            while place < count and due[place].at <= now:
                self._send(due[place].kind, due[place].at)
                place += 1
            if now > latest:
                return
            self._turn(due[place].at if place < count else latest)

    def _play_closed(self, kinds: Sequence[int]) -> None:
        seconds = self._job.seconds
        self._idle = self._job.clients
        now, place = 0.0, 0
        while now < seconds or (self._under_way and now < seconds + self._job.drain_s):
            for _ in range(self._idle if now < seconds else 0):
                self._idle -= 1
                self._send(kinds[place % len(kinds)], time.perf_counter() - self._begun)
                place += 1
            self._turn(now + 0.5)
            now = time.perf_counter() - self._begun

    def _turn(self, until: float) -> None:
        """Wait for what comes first: `until`, a deadline, or bytes."""
        self._expire()
        if self._deadlines:
            until = min(until, self._deadlines[0][0])
        wait = until - (time.perf_counter() - self._begun)
        self._timer.set_rate(1.0 / max(wait, 2e-6))
        for fd, _ in self._poll.poll(1.0):
            if fd == self._timer.fd:
                self._timer.expired()
            elif (wire := self._wires.get(fd)) is not None:
                wire.receive()
                if wire.is_closed:
                    del self._wires[fd]

    def _expire(self) -> None:
        now = time.perf_counter() - self._begun
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            if number in self._under_way:
                wire = self._under_way[number][3]
                if isinstance(wire, GrpcWire):
                    wire.give_up(number)
                elif isinstance(wire, HttpWire):
                    wire.give_up()
                    self._wires.pop(wire.fd, None)
                self._end(number, LATE)

    def _send(self, kind: int, due: float) -> None:
        number = self._next
        self._next += 1
        now = time.perf_counter() - self._begun
        if len(self._under_way) >= _MOST:
            self._outcomes.append(Outcome(kind, due, now, now, UNSENT))
            return
        head, body = self._requests[kind]
        deadline = self._job.kinds[kind].deadline_ms / 1000
        if deadline:
            heapq.heappush(self._deadlines, (due + deadline, number))
        if self._job.protocol == GRPC:
            self._send_grpc(number, kind, due, now, (head, body, deadline))
            return
        wire = self._free_wire()
        self._under_way[number] = (kind, due, now, wire)
        said = b""
        if deadline:
            left = max(1, round((due + deadline - now) * 1000))
            said = b"%s: %dms\r\n" % (DEADLINE_FIELD.encode(), left)
        wire.ask(number, head + said + b"\r\n" + body)

    def _send_grpc(
        self, number: int, kind: int, due: float, now: float, call: tuple[bytes, bytes, float]
    ) -> None:
        head, body, deadline = call
        wire = self._grpc[number % _GRPC_WIRES]
        if wire.is_closed:
            wire = self._grpc[number % _GRPC_WIRES] = GrpcWire(self._job.port, self._ended)
            self._watch(wire)
        self._under_way[number] = (kind, due, now, wire)
        if deadline:
            left = grpc_timeout(due + deadline - now)
            head += frames.literal(b"grpc-timeout", left)
        wire.ask(number, head, body)

    def _free_wire(self) -> HttpWire:
        while self._free:
            wire = self._free.pop()
            if not wire.is_closed:
                return wire
        wire = HttpWire(self._job.port, self._ended)
        self._watch(wire)
        return wire

    def _ended(self, wire: Wire, number: int, what: str) -> None:
        self._end(number, what)
        if isinstance(wire, HttpWire) and not wire.is_closed:
            self._free.append(wire)

    def _end(self, number: int, what: str) -> None:
        kind, due, sent, _ = self._under_way.pop(number)
        now = time.perf_counter() - self._begun
        self._outcomes.append(Outcome(kind, due, sent, now, what))
        self._idle += 1


def _request(protocol: str, kind: Kind) -> tuple[bytes, bytes]:
    """Head and body; the head of HTTP/1.1 lacks its empty line, since fields may follow."""
    raw = bytes(4 * COLUMNS * kind.rows)
    if protocol == GRPC:
        message = payloads.infer_request(kind.model, "FP32", [kind.rows, COLUMNS], raw)
        head = header_prefix(payloads.INFER_PATH)
        for name, value in kind.fields:
            head += frames.literal(name.encode(), value.encode())
        return head, payloads.grpc_message(message)
    asked = {
        "inputs": [
            {
                "name": "INPUT0",
                "shape": [kind.rows, COLUMNS],
                "datatype": "FP32",
                "parameters": {"binary_data_size": len(raw)},
            }
        ],
        "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
    }
    json_head = json.dumps(asked).encode()
    body = json_head + raw
    fields = "".join(f"{name}: {value}\r\n" for name, value in kind.fields)
    head_text = (
        f"POST /v2/models/{kind.model}/infer HTTP/1.1\r\nHost: triton.example:8000\r\n"
        f"Inference-Header-Content-Length: {len(json_head)}\r\n"
        f"Content-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n{fields}"
    )
    return head_text.encode(), body


def main() -> None:
    job = Job.from_json(sys.argv[1])
    outcomes = Generator(job).play()
    lines = [[each.kind, each.due, each.sent, each.ended, each.what] for each in outcomes]
    json.dump(lines, sys.stdout)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
