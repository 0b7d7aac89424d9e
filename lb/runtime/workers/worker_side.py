"""The control process as a worker sees it: snapshots come in, reports and counts go out.

While there is no connection the worker goes by the last snapshot, and reports are lost: the next
control process finds out by itself what they said. It is told which sequences are open.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from lb.balancing.scheduler import Scheduler
from lb.domain.backend import AppProtocol, Backend
from lb.domain.control import Reach
from lb.domain.fault import Fault
from lb.domain.load import DeviceLoad, LoadReport, Measured, ModelLoad
from lb.domain.names import to_bytes, to_text
from lb.domain.operation import Operation
from lb.domain.outcome import Outcome
from lb.domain.pool import PoolRef
from lb.domain.roles import ControlSide
from lb.net.process_parts import ProcessParts
from lb.proxy.placement import nobody_loads
from lb.proxy.queue import Queue
from lb.runtime.predecessor import line
from lb.runtime.relay_host import RelayHost
from lb.runtime.sequence_news import Questions, Row, RowKey, SequenceNews, is_over, row_key
from lb.runtime.workers.counts import (
    Path,
    Value,
    changed,
    kept_counts,
    read_backend_counts,
    read_counts,
    read_gauges,
)
from lb.runtime.workers.pool_messages import PoolReader
from lb.runtime.workers.seat import LINE_BYTES, Seat
from lb.settings.choices import LogLevel
from lb.settings.model import Settings

_log = logging.getLogger(__name__)

_ALL_TICKS: Final = 5
"""All counts are told once in so many ticks: what an operator sees is half a second old. More often
costs a worker more than all else that it does without requests."""
_TELLING_SHARE: Final = 0.05
"""Part of its time that a worker tells counts at most: with very many backends they are older."""
_AGAIN_S: Final = 0.2
"""Between two attempts to reach the control process."""
_SETTLE_S: Final = 1.0
"""See `ControlNews.settled`."""
_VIEWED: Final = ("in_flight", "limit", "expected_s", "row_s", "learnt", "slowed")
"""What is told of a `ModelBackendView` beside its names."""
_ENDED_S: Final = 15.0
"""How long it is remembered that a sequence has ended. A control process that dies may not have
read that: it is killed after 10 s in which it reads nothing (`HUNG_S` of the supervisor)."""
_MOST_ENDED: Final = 20_000
"""Sequences that ended lately, or while the control process was away: beyond that the first ones
are forgotten. Others may keep those open until their lifetime has passed."""
_ANSWER_S: Final = 10.0
"""How long a step waits for news of its sequence: as long as a control process lives that stands
still, and longer than it takes to start the next one."""
_TOLD_AGAIN: Final = frozenset({"sequences", "sequences_asked"})
"""Messages that are made up for when the control process has not read."""
_MOST_UNSENT: Final = 4 << 20
"""Bytes that the control process has not read: beyond that reports are dropped and counts wait."""


class WorkerSide:
    """Implements `OutcomeSink`, `PassiveHealthSink` and `ControlNews` for a worker's relay."""

    def __init__(self, seat: Seat, configure: Callable[[Settings, str], None]) -> None:
        """
        Args:
            seat: of this worker.
            configure: told of other settings that are in force, and the digest of their text.
        """
        self._seat = seat
        self._configure = configure
        self._reader = PoolReader(Random())
        self._pool = PoolRef(self._reader.empty())
        self._roster: tuple[Reach, ...] = ()
        self._host: RelayHost | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reports: list[list[Any]] = []
        """To be sent at the end of this loop iteration."""
        self._told: dict[Path, Value] = {}
        """Counters as they were told last over this connection."""
        self._busy_told: list[Any] = []
        """Scheduled requests in flight, likewise."""
        self._queue_told: dict[str, Any] = {}
        self._heard_told: dict[tuple[int, int], float] = {}
        """When each port of a backend was heard from last, likewise."""
        self._deaths: dict[Backend, int] = {}
        self._settled: dict[int, asyncio.Event] = {}
        self._questions = 0
        self._ticks = 0
        """How often something was told by `tick`."""
        self._rests_until = 0.0
        """When `tick` tells something again, so that it takes no larger part of the time."""
        self._news: SequenceNews | None = None
        self._asked = Questions(partial(self._say, "sequences_asked"), _ANSWER_S)
        """About sequences. While there is no connection they wait for the next one."""
        self._ended: dict[RowKey, float] = {}
        """Sequences that have ended lately, and when; the oldest first."""
        self._owes_sequences = True
        """News of sequences, or a question about them, may have been lost: the control process is
        to hear of all."""
        self._is_away = False
        """The control process is away, and the log says so."""
        self.ready = asyncio.Event()
        """There is a snapshot."""

    def make(self, parts: ProcessParts) -> ControlSide:
        """Make what a relay has of the control role."""
        del parts  # it has connections of its own
        return ControlSide(
            pool=self._pool,
            roster=lambda: self._roster,
            outcomes=self,
            passive_health=self,
            misplaced=self._misplaced,
            news=self,
            wanted=nobody_loads,
        )

    def attach(self, host: RelayHost) -> None:
        """Serve this process."""
        self._host = host
        self._news = SequenceNews(host.relay.dispatcher.steps.table, self._backends)
        self._news.follow(self._tell_sequences, self._asked.ask)

    def use_policy(self, name: str) -> None:
        """Choose backends by another policy from the next snapshot on."""
        self._reader.use_policy(name)

    async def run(self) -> None:
        """Stay connected with the control process."""
        while True:
            try:
                await self._converse()
            except OSError as error:
                if not self._is_away:
                    _log.warning("control process is away", extra={"why": str(error)})
                self._is_away = True
            except Exception:
                _log.exception("conversation with the control process failed, it begins anew")
            await asyncio.sleep(_AGAIN_S)

    def tick(self) -> None:
        """Tell what is in flight, and all counts at times. To be called ten times a second: what a
        drain waits for is so old, and what probes that time out are compared with."""
        self._tell_heard()
        began = time.perf_counter()
        if began < self._rests_until:
            return
        if self._ticks % _ALL_TICKS:
            self._tell_in_flight()
        else:
            self.tell_counts()
            self._tell_recent()
        self._ticks += 1
        writer = self._writer
        if self._owes_sequences and self._can_tell and self._host and writer:
            self._host.parts.tasks.spawn(self._tell_all_sequences(writer), name="sequences")
        self._rests_until = began + (time.perf_counter() - began) / _TELLING_SHARE

    # The conversation

    async def _converse(self) -> None:
        """Connect, and act on what the control process says until it has gone."""
        loop, client = asyncio.get_running_loop(), socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        try:
            await loop.sock_connect(client, "\0" + self._seat.hub)
        except OSError:
            client.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=client, limit=LINE_BYTES * 4)
        try:
            hello = {
                "token": self._seat.token,
                "index": self._seat.index,
                "start": self._seat.start,
                "pid": os.getpid(),
            }
            writer.write(line("hello", hello))
            while message := await _read_message(reader):
                for event, value in message.items():
                    self._hear(event, value)
                    if event == "pool" and self._writer is None:
                        # Numbers of backends mean something from now on.
                        self._told, self._queue_told, self._busy_told = {}, {}, []
                        self._heard_told = {}
                        self._writer = writer
                        self._is_away = False
                    if event == "pool":
                        self.tell_counts()
                        if self._owes_sequences:
                            await self._tell_all_sequences(writer)
                        self._say_now("follows", value["generation"])
            raise ConnectionError("it closed the connection")
        finally:
            self._writer = None
            self._owes_sequences = True  # it may not have read the last news
            for event_ in self._settled.values():
                event_.set()
            writer.close()

    def _hear(self, event: str, value: Any) -> None:
        host, reader = self._host, self._reader
        assert host is not None
        relay = host.relay
        match event:
            case "pool":
                snapshot, self._roster = reader.read(value)
                self._deaths = {
                    each: count for each, count in self._deaths.items() if each in snapshot.backends
                }
                self._told = kept_counts(self._told, reader.backends)
                self._pool.publish(snapshot)
                self.ready.set()
            case "states":
                # Of a backend that the snapshot brings they come after it, so relays look again.
                news = [self._take_state(*row) for row in value]
                if any(news):
                    self._pool.announce()
            case "probed":
                for number, *times in value:
                    if (backend := reader.backends.get(number)) is not None:
                        for port, at in zip(backend.ports, times, strict=True):
                            if port is not None:
                                port.probed_at = at
            case "settings":
                self._configure(Settings.model_validate(value["settings"]), value["digest"])
            case "cut" | "renew" as ask:
                if (backend := reader.backends.get(value)) is not None:
                    (relay.cut if ask == "cut" else relay.renew)(backend)
            case "load":
                if (backend := reader.backends.get(value[0])) is not None:
                    relay.on_load_report(backend, read_load(value[1]))
            case "measured":
                if (backend := reader.backends.get(value[0])) is not None:
                    relay.on_measured(
                        backend,
                        {
                            (to_bytes(model), to_bytes(version)): Measured(**rest)
                            for model, version, rest in value[1]
                        },
                    )
            case "sequences":
                assert self._news is not None
                self._news.hear(value, self._tell_sequences)
            case "sequences_asked":
                self._say("sequences_answered", value)  # behind all news so far
            case "sequences_answered":
                self._asked.answered(value)
            case "variants":
                relay.dispatcher.variants.follow(value)
            case "settled":
                if value in self._settled:
                    self._settled[value].set()
            case "use":
                self._say("use", [self._use(*each) for each in value])
            case "log_level":
                host.logs.application.override(None if value is None else LogLevel(value))

    def _use(self, number: int, model: str) -> list[Any]:
        """What of a model runs on a backend."""
        assert self._host is not None
        backend = self._reader.backends.get(number)
        used = 0
        if backend is not None:
            use = self._host.relay.model_use(backend, to_bytes(model))
            used = use.in_flight + use.idle_streams
        return [number, model, used]

    def _take_state(
        self,
        number: int,
        share: float,
        deaths: int,
        due: int,
        ports: Sequence[Sequence[Any] | None],
    ) -> bool:
        """What the control process writes into the record of a backend. Returns whether a port of
        it hangs or is given up since then: what is under way there may leave it, or is to end."""
        backend = self._reader.backends.get(number)
        if backend is None:
            return False
        if backend.share != share:
            backend.set_share(share)
        for _ in range(self._deaths.get(backend, deaths), deaths):
            backend.died()
        self._deaths[backend] = deaths
        backend.reports_due = max(backend.reports_due, due)
        is_silent = False
        for port, row in zip(backend.ports, ports, strict=True):
            if port is not None and row is not None:
                is_silent |= row[0] and [port.is_hung, port.is_given_up] != row[:2]
                is_silent |= [port.left_before, port.lost_before] != row[2:4]
                port.is_hung, port.is_given_up, port.left_before, port.lost_before = row[:4]
                port.ready_through = tuple(each.encode() for each in row[4])
        return is_silent

    # Reports

    def report(self, backend: Backend, protocol: AppProtocol, outcome: Outcome, now: float) -> None:
        """See `OutcomeSink`."""
        self._report("attempt", backend, int(protocol), outcome.value, now)

    def answered(self, backend: Backend, model: bytes, took_s: float, now: float) -> None:
        """See `PassiveHealthSink`."""
        backend.reports_due = max(backend.reports_due - 1, 0)
        self._report("answered", backend, to_text(model), took_s, now)

    def failed(
        self, backend: Backend, model: bytes, fault: Fault, took_s: float, now: float
    ) -> None:
        """See `PassiveHealthSink`."""
        self._report("failed", backend, to_text(model), fault.value, took_s, now)

    def abandoned(self, backend: Backend, model: bytes, waited_s: float, now: float) -> None:
        """See `PassiveHealthSink`."""
        self._report("abandoned", backend, to_text(model), waited_s, now)

    def control_done(
        self, operation: Operation, model: bytes, backends: tuple[Backend, ...]
    ) -> None:
        """See `ControlNews`."""
        numbers = [self._number(each) for each in backends]
        self._say("control", [operation.name, to_text(model), numbers])

    async def settled(self, backends: tuple[Backend, ...]) -> None:
        """See `ControlNews`: also the snapshot that came of it is here then."""
        if self._writer is None:
            return
        self._questions += 1
        question, event = self._questions, asyncio.Event()
        self._settled[question] = event
        self._say("settle", [question, [self._number(each) for each in backends]])
        try:
            async with asyncio.timeout(_SETTLE_S):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            del self._settled[question]

    def _misplaced(self, backend: Backend, model: bytes, version: bytes | None) -> None:
        told = None if version is None else to_text(version)
        self._report("misplaced", backend, to_text(model), told)

    def _number(self, backend: Backend) -> int | None:
        return self._reader.number(backend)

    def _report(self, kind: str, backend: Backend, *rest: Any) -> None:
        number = self._number(backend)
        if number is not None:
            self._say("report", [kind, number, *rest])

    def _say(self, event: str, value: Any) -> None:
        """Send a message with all others of this loop iteration."""
        if self._writer is None:
            return
        if not self._reports:
            asyncio.get_running_loop().call_soon(self._flush)
        self._reports.append([event, value])

    def _say_now(self, event: str, value: Any) -> None:
        self._flush()
        self._write(event, value)

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        if not reports:
            return
        if self._is_behind:
            lost = {event for event, _ in reports}
            self._owes_sequences |= not lost.isdisjoint(_TOLD_AGAIN)
        else:
            self._write("news", reports)

    def _write(self, event: str, value: Any) -> None:
        """Send a message if there is a connection. One that was lost in this loop iteration is
        closed already, while `_converse` hears of it in the next one."""
        writer = self._writer
        if writer is not None and not writer.is_closing():
            writer.write(line(event, value))

    @property
    def _is_behind(self) -> bool:
        """Whether the control process does not read."""
        writer = self._writer
        return writer is None or writer.transport.get_write_buffer_size() > _MOST_UNSENT

    def say_applied(self, digest: str) -> None:
        """These settings are in force here."""
        self._say_now("applied", digest)

    # Sequences

    def _backends(self) -> dict[str, Backend]:
        return {backend.name: backend for backend in self._reader.backends.values()}

    def _tell_sequences(self, rows: Sequence[Row]) -> None:
        """Sequences began, went on or ended here."""
        self._note_ended(rows)
        if self._writer is None:
            self._owes_sequences = True
        else:
            self._say("sequences", rows)

    def _note_ended(self, rows: Sequence[Row]) -> None:
        ended, now = self._ended, time.monotonic()
        for row in rows:
            ended.pop(row_key(row), None)
            if is_over(row):
                ended[row_key(row)] = now
        while ended:
            first = next(iter(ended))
            is_old = not self._owes_sequences and ended[first] < now - _ENDED_S
            if not is_old and len(ended) <= _MOST_ENDED:
                return
            del ended[first]

    async def _tell_all_sequences(self, writer: asyncio.StreamWriter) -> None:
        """Tell which sequences have ended lately, and then which are open: other processes may have
        missed news, and the question that is under way."""
        assert self._news is not None
        self._owes_sequences = False
        if self._ended:
            self._say_now("ended", [[*key, at] for key, at in self._ended.items()])
        for rows in self._news.timed_parts():
            self._say_now("open_sequences", rows)
            try:
                await writer.drain()
            except OSError:
                return  # whoever connects next hears of all
            await asyncio.sleep(0)
        self._asked.ask_again()

    # Counts

    def tell_counts(self) -> None:
        """Tell all that has changed."""
        host, reader = self._host, self._reader
        if host is None or not self._can_tell:
            return
        lines = host.dropped_lines()
        now = dict(read_counts(host.relay, host.loop_lag, lines, reader.number))
        now["cpu",] = time.process_time()
        for number, backend in reader.backends.items():
            now.update(read_backend_counts(backend, number))
        self._tell(now)
        self._tell_queue(host.relay.dispatcher.queue.scheduler, host.relay.dispatcher.queue)
        self._tell_in_flight()

    def _tell_recent(self) -> None:
        """Tell what variants are judged by. What nobody hears is not kept."""
        if self._host is not None and (
            recent := self._host.relay.dispatcher.variants.take_recent()
        ):
            self._say("variants", recent)

    def _tell_heard(self) -> None:
        """Tell when live traffic last brought a byte from each port."""
        if not self._can_tell:
            return
        heard = {
            (number, protocol): port.last_byte_at
            for number, backend in self._reader.backends.items()
            for protocol, port in enumerate(backend.ports)
            if port is not None and port.last_byte_at
        }
        before, self._heard_told = self._heard_told, heard
        if rows := [[*path, at] for path, at in heard.items() if before.get(path) != at]:
            self._write("heard", rows)

    def _tell_in_flight(self) -> None:
        """Tell what the control process decides by, if it has changed."""
        host, reader = self._host, self._reader
        if host is None or not self._can_tell:
            return
        self._tell(dict(read_gauges(host.relay, reader.backends)))
        scheduler = host.relay.dispatcher.queue.scheduler
        busy = []
        for number, backend in reader.backends.items():
            if backend.in_flight:
                models = scheduler.in_flight_by_model(backend)
                busy.append([number, [[to_text(model), n] for model, n in models.items() if n]])
        if busy != self._busy_told:
            self._busy_told = busy
            self._write("in_flight", busy)
        for number, trial in reader.trials.items():
            if not trial.is_open:
                self._say("taken", number)

    @property
    def _can_tell(self) -> bool:
        return self._writer is not None and not self._is_behind

    def _tell(self, now: dict[Path, Value]) -> None:
        """Tell which of these numbers have changed."""
        rows = changed(self._told, now)
        if rows:
            self._told |= now
            self._write("counts", rows)

    def _tell_queue(self, scheduler: Scheduler, queue: Queue) -> None:
        """Tell what there is of requests that wait, if that has changed."""
        backends = []
        for view in scheduler.model_backends():
            number = self._number(view.backend)
            if number is not None:
                names = {"model": to_text(view.model), "version": to_text(view.version)}
                rest = {name: getattr(view, name) for name in _VIEWED}
                backends.append([number, names | rest])
        queues = [
            [to_text(v.model), to_text(v.version), list(v.waiting.items()), round(v.oldest_s, 1)]
            for v in scheduler.model_queues(time.monotonic())
        ]
        status = {"queues": queues, "backends": backends, "unplaced": queue.unplaced}
        if status != self._queue_told:
            self._queue_told = status
            self._write("queue", status)


async def _read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Read one message of the control process; empty when it has gone.

    Raises:
        ConnectionError: it is no message.
    """
    try:
        text = await reader.readline()
        message = json.loads(text) if text.endswith(b"\n") else {}
    except ValueError as error:
        raise ConnectionError(f"it is not understood: {error}") from error
    if not isinstance(message, dict):
        raise ConnectionError(f"it is not understood: {text[:80]!r}")
    return message


def read_load(value: dict[str, Any]) -> LoadReport:
    """A load report from its message."""
    return LoadReport(
        at=value["at"],
        models={to_bytes(name): ModelLoad(**load) for name, load in value["models"].items()},
        devices=tuple(
            DeviceLoad(**{**each, "device": to_bytes(each["device"])}) for each in value["devices"]
        ),
        others=value["others"],
        in_flight={to_bytes(name): count for name, count in value["in_flight"].items()},
    )
