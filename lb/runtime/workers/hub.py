"""The workers as the control process sees them: snapshots go out, reports and counts come in.

To the control role this is the relay (`RelaySide`), to everything that shows counts it is what
keeps those of the control process's own idle relay up to date (`Sums`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from lb.domain.backend import AppProtocol, Backend
from lb.domain.fault import Fault
from lb.domain.load import LoadReport, LoadSample, Measured
from lb.domain.model import ModelUse
from lb.domain.names import to_bytes, to_text
from lb.domain.operation import Operation
from lb.domain.outcome import Outcome
from lb.domain.pool import PoolSnapshot
from lb.domain.schedule import ModelBackendView, ModelQueueView
from lb.health.models import Version
from lb.kserve.operations import GRPC_OPERATIONS
from lb.runtime.handover import sequence_news
from lb.runtime.predecessor import line
from lb.runtime.sequence_news import Questions, Row, RowKey, ask_all, end_row, is_over, row_key
from lb.runtime.wiring import LoadBalancer
from lb.runtime.workers.counts import Sums
from lb.runtime.workers.pool_messages import PoolWriter
from lb.runtime.workers.seat import LINE_BYTES, Seat
from lb.settings.model import Settings
from lb.settings.plain import plain
from lb.telemetry.counts import WorkerStatus
from lb.telemetry.queue import QueueStatus

_log = logging.getLogger(__name__)

_TICK_S: Final = 0.1
"""How often it is seen what has changed beside snapshots."""
_STEP_S: Final = 0.02
"""How often it is seen whether workers have followed other settings."""
_ACKNOWLEDGE_S: Final = 2.0
"""How long a worker may take to follow a snapshot. A backend that drains does not count as empty
before, since requests may still begin there."""
_USE_S: Final = 1.0
"""How old a worker's answer may be to what of a model runs on a backend."""
_ASKED_S: Final = 3.0
"""How long workers are asked again about that, after somebody wanted to know it."""
_TOLD_S: Final = 3.0
"""How long readers of counters wait for workers to tell theirs. Those that run take a fifth of a
second; the rest is for a machine without free cores."""
_ENDED_S: Final = 10.0
"""How long it is remembered that a sequence has ended. A worker that connects again may not know
that, and would have all others take it for open again."""
_MOST_UNSENT: Final = 64 << 20
"""Bytes that a worker has not read: beyond that it is disconnected, and begins anew later."""
_CREDENTIALS: Final = struct.Struct("3i")
"""Of a peer: process, user, group (unix(7), SO_PEERCRED)."""
_USE_UP: Final = frozenset({"answered", "failed"})
"""Reports that count toward `Backend.reports_due`."""
Say = Callable[[str, Any], None]
"""Sends another service a message."""
_OPERATIONS: Final[Mapping[str, Operation]] = {each.name: each for each in GRPC_OPERATIONS.values()}


class _Link:
    """The connection of one worker."""

    def __init__(self, index: int, start: int, pid: int, writer: asyncio.StreamWriter) -> None:
        self.index = index
        self.start = start
        self.pid = pid
        self._writer = writer
        self.questions = Questions(partial(self.say, "sequences_asked"))
        self.generation = -1
        """Of the snapshot that the worker follows."""
        self.digest: str | None = ""
        """Of the settings that it goes by; None while it is to go by others."""
        self.connected_at = self.heard_at = time.monotonic()
        self.in_flight: dict[int, dict[bytes, int]] = {}
        """Of scheduled requests, by backend and model."""
        self.queues: list[ModelQueueView] = []
        self.model_backends: list[tuple[int, dict[str, Any]]] = []
        """By the number of the backend: the fields of a `ModelBackendView` beside it."""
        self.unplaced = 0
        self.used: dict[tuple[int, str], tuple[int, float]] = {}
        """By backend and model: how many requests are under way there, and when that was told."""

    def say(self, event: str, value: Any) -> None:
        """Send a message."""
        self.write(line(event, value))

    def write(self, text: bytes) -> None:
        """Send what `line` made."""
        if self._writer.is_closing():
            return
        self._writer.write(text)
        if self._writer.transport.get_write_buffer_size() > _MOST_UNSENT:
            self._writer.transport.abort()

    def close(self) -> None:
        """End the connection."""
        self.questions.close()
        self._writer.close()


class _Service:
    """Another service, during an upgrade."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.questions = Questions(partial(say, "sequences_asked"))
        self.is_heard = False
        """It has said something, so it answers. Before that it starts, and has no clients."""


def _both_queues(one: ModelQueueView, other: ModelQueueView) -> ModelQueueView:
    """One model queue of two workers as one."""
    waiting = dict(one.waiting)
    for priority, count in other.waiting.items():
        waiting[priority] = waiting.get(priority, 0) + count
    return replace(one, waiting=waiting, oldest_s=max(one.oldest_s, other.oldest_s))


def _both_backends(one: ModelBackendView, other: ModelBackendView) -> ModelBackendView:
    """One model backend of two workers as one: what the one that has learnt more expects. A limit
    is for all of them."""
    known = one if one.learnt >= other.learnt else other
    limit = max(one.limit, other.limit) if one.limit and other.limit else 0
    return replace(
        known,
        learnt=one.learnt + other.learnt,
        in_flight=one.in_flight + other.in_flight,
        limit=limit,
    )


def _probed_at(backend: Backend) -> list[float]:
    """When each port of a backend last answered a probe; 0.0 for a port that it has not."""
    return [0.0 if port is None else port.probed_at for port in backend.ports]


class Hub:
    """Implements `RelaySide` and `QueueReader`."""

    def __init__(self, seat: Seat, balancer: LoadBalancer, keep_counts: Callable[[], None]) -> None:
        """
        Args:
            seat: of this process.
            balancer: its relay serves nobody.
            keep_counts: called when `absent_counts` have changed.
        """
        self._seat = seat
        self._keep_counts = keep_counts
        self._balancer = balancer
        self._writer = PoolWriter(f"{os.getpid()}-{secrets.token_hex(4)}")
        self._links: dict[int, _Link] = {}
        self._numbers: dict[int, Backend] = {}
        self._sums = Sums(
            balancer.relay, balancer.loop_lag, lambda number: self._numbers.get(number)
        )
        self._is_due = False
        self._roster: list[list[Any]] = []
        self._states: dict[Backend, list[Any]] = {}
        """As they were told last."""
        self._probed: dict[Backend, list[float]] = {}
        """When ports last answered a probe, as it was told last."""
        self._measured: dict[Backend, Mapping[Version, Measured]] = {}
        self._asked: dict[tuple[int, str], float] = {}
        """What of a model runs on a backend: when somebody asked last."""
        self._holds: list[tuple[int, float, Backend]] = []
        """Backends that must not count as empty until workers follow a generation, or a time."""
        self._parting: frozenset[Backend] = frozenset()
        self._variants = ""
        self._log_level = balancer.logs.application.level
        self._server: asyncio.Server | None = None
        self._has_begun = False
        """Workers are let in, or soon."""
        self._began_at = time.monotonic()
        self._lost_at = dict.fromkeys(range(seat.count), self._began_at)
        """When the connection of each worker ended, or this process began."""
        self._all_told = asyncio.Event()
        if seat.start == 1:
            self._all_told.set()  # no worker has counted anything
        self._news = sequence_news(balancer)
        self._sequences: list[tuple[int, Row]] = []
        """News of sequences of this loop iteration, and from which worker."""
        self._ended: OrderedDict[RowKey, tuple[float, float]] = OrderedDict()
        """Sequences of whose end this process has heard in the last seconds: when it has, and when
        that was; the oldest first."""
        self._services: dict[str, _Service] = {}
        """Other services that hear of sequences, by name."""
        balancer.worker_statuses = self.statuses
        balancer.queues = self
        balancer.control.attach(self)
        balancer.side.pool.subscribe(self._on_snapshot)

    async def start(self) -> None:
        """Let workers in: what is known of backends is worth following. Other services have told
        what they know by then, and know that there is somebody to be asked here."""
        self._has_begun = True
        told = asyncio.Event()
        ask_all([each.questions.ask for each in self._services.values()]).when_over(told.set)
        await told.wait()
        self._balancer.parts.tasks.spawn(self._run(), name="workers")
        self._is_due = True
        self._flush()  # so that backends have numbers
        self._sums.resume(self._seat.counts, {e.name: n for n, e in self._numbers.items()})
        assert self._seat.hub_socket is not None
        self._seat.hub_socket.setblocking(False)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=self._seat.hub_socket, limit=LINE_BYTES
        )
        self._balancer.parts.timers.after(_TOLD_S, self._all_told.set)

    def close(self) -> None:
        """Let no more workers in, and leave those that are there."""
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.close()

    @property
    def connected(self) -> int:
        """Workers that are connected."""
        return len(self._links)

    def absent_counts(self) -> list[list[Any]]:
        """What the next control process needs for its sums, and no worker will tell it."""
        return self._sums.export_absent()

    async def counts_told(self) -> bool:
        """Whether all workers have told what they have counted. Waits for that, but not long.

        Workers are not waited for that have said nothing `_TOLD_S` after they were let in: they
        cannot be started, or stand still.
        """
        try:
            async with asyncio.timeout(_TOLD_S):
                await self._all_told.wait()
        except TimeoutError:
            return False
        return True

    def statuses(self) -> list[WorkerStatus]:
        """The workers, for people."""
        now = time.monotonic()
        found = []
        for index in range(self._seat.count):
            link, sums = self._links.get(index), self._sums
            connections = [
                sums.of(index, ("traffic", protocol, "connections")) for protocol in (0, 1)
            ]
            found.append(
                WorkerStatus(
                    index=index,
                    pid=0 if link is None else link.pid,
                    starts=sums.starts(index),
                    connections=int(sum(connections)),
                    requests=sums.requests(index),
                    cpu_s=sums.of(index, ("cpu",)),
                    silent_s=now - (self._began_at if link is None else link.heard_at),
                    in_flight=int(sums.of(index, ("open",))),
                    since_s=now - (self._lost_at[index] if link is None else link.connected_at),
                )
            )
        return found

    def queue_status(self) -> QueueStatus:
        """See `QueueReader`: what there is of requests that wait in all workers."""
        own = self._balancer.relay.queue_status()
        return replace(
            own,
            model_queues=tuple(self.model_queues(time.monotonic())),
            model_backends=tuple(self.model_backends(None)),
            unplaced=sum([link.unplaced for link in self._links.values()]),
        )

    def queued(self) -> int:
        """See `QueueReader`."""
        return sum(
            [
                link.unplaced + sum([sum(view.waiting.values()) for view in link.queues])
                for link in self._links.values()
            ]
        )

    def oldest_s(self, now: float) -> float:
        """See `QueueReader`. As the workers have told it, which they do every tenth of a second."""
        views = self.model_queues(now)
        return max([view.oldest_s for view in views if view.waiting], default=0.0)

    def model_queues(self, now: float) -> Iterable[ModelQueueView]:
        """See `QueueReader`."""
        del now  # ages are those that the workers have told
        queues: dict[tuple[bytes, bytes], ModelQueueView] = {}
        for link in self._links.values():
            for view in link.queues:
                key = (view.model, view.version)
                queues[key] = _both_queues(queues[key], view) if key in queues else view
        return queues.values()

    def models_awaited(self) -> Mapping[bytes, float]:
        """See `RelaySide`: workers do not wait for loads."""
        return {}

    def models_streamed(self) -> Collection[bytes]:
        """See `RelaySide`: there are no models on demand."""
        return ()

    def model_backends(self, models: Collection[bytes] | None) -> Iterable[ModelBackendView]:
        """See `RelaySide`: those of all workers together. None: of all models."""
        backends: dict[tuple[bytes, bytes, Backend], ModelBackendView] = {}
        for link in self._links.values():
            for number, row in link.model_backends:
                backend = self._numbers.get(number)
                if backend is None or (models is not None and row["model"] not in models):
                    continue
                at = ModelBackendView(**{**row, "backend": backend})
                here = (at.model, at.version, backend)
                backends[here] = _both_backends(backends[here], at) if here in backends else at
        return backends.values()

    async def apply(self, settings: Settings, digest: str, limit_s: float) -> list[int]:
        """Have the workers go by other settings.

        Args:
            settings: those.
            digest: of their text.
            limit_s: how long to wait for the workers.

        Returns:
            Workers that have not followed by then. They will as soon as they go on.
        """
        self._say_all("settings", {"settings": plain(settings), "digest": digest})
        waiting = list(self._links.values())
        for link in waiting:
            link.digest = None
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            waiting = [each for each in waiting if each.digest is None and self._has(each)]
            if not waiting:
                break
            await asyncio.sleep(_STEP_S)
        return [each.index for each in waiting]

    def _has(self, link: _Link) -> bool:
        return self._links.get(link.index) is link

    # What the control role asks for: see `RelaySide`

    def cut(self, backend: Backend) -> None:
        """See `RelaySide`. What has left the pool is cut by `_flush`."""
        if backend in self._parting:
            self._say_all("cut", self._writer.number(backend))

    def renew(self, backend: Backend) -> None:
        """See `RelaySide`."""
        self._say_all("renew", self._writer.number(backend))

    def model_use(self, backend: Backend, model: bytes) -> ModelUse:
        """See `RelaySide`. Until all workers have answered, everything that runs on the backend
        counts, and one request more: it is not known to be empty."""
        number, now = self._writer.number(backend), time.monotonic()
        key = (number, to_text(model))
        is_new = key not in self._asked
        self._asked[key] = now
        if is_new:
            self._say_all("use", [key])
        sequences = self._balancer.relay.dispatcher.steps.table.open_on(model, backend)
        answers = [link.used.get(key, (0, 0.0)) for link in self._links.values()]
        if any(now - at > _USE_S for _, at in answers):
            return ModelUse(backend.in_flight + 1, sequences)
        return ModelUse(sum(used for used, _ in answers), sequences)

    def leave_streams(self, backend: Backend, model: bytes) -> None:
        """See `RelaySide`: there are no models on demand."""

    def in_flight_by_model(self, backend: Backend) -> Mapping[bytes, int]:
        """See `RelaySide`."""
        number, found = self._writer.number(backend), dict[bytes, int]()
        for link in self._links.values():
            for model, count in link.in_flight.get(number, {}).items():
                found[model] = found.get(model, 0) + count
        return found

    def on_load_report(self, backend: Backend, report: LoadReport) -> None:
        """See `RelaySide`."""
        message = {
            "at": report.at,
            "models": {to_text(name): asdict(load) for name, load in report.models.items()},
            "devices": [asdict(e) | {"device": to_text(e.device)} for e in report.devices],
            "others": report.others,
            "in_flight": {to_text(name): count for name, count in report.in_flight.items()},
        }
        self._say_all("load", [self._writer.number(backend), message])

    def on_measured(self, backend: Backend, measured: Mapping[Version, Measured]) -> None:
        """See `RelaySide`."""
        self._measured[backend] = measured
        self._say_all("measured", self._measured_row(backend))

    def load_sample(self) -> LoadSample:
        """See `RelaySide`."""
        return self._balancer.relay.load_sample()

    # To the workers

    def _say_all(self, event: str, value: Any, but: int = -1) -> None:
        text = line(event, value)
        for link in self._links.values():
            if link.index != but:
                link.write(text)

    def _on_snapshot(self, snapshot: PoolSnapshot) -> None:
        new = snapshot.parting - self._parting
        self._parting = snapshot.parting
        if self._links:
            until = time.monotonic() + _ACKNOWLEDGE_S
            for backend in new:
                backend.in_flight += 1
                self._holds.append((snapshot.generation, until, backend))
        if not self._is_due:
            self._is_due = True
            self._balancer.parts.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send the newest snapshot, unless the workers have it."""
        if not self._is_due:
            return
        self._is_due = False
        snapshot = self._balancer.side.pool.current
        roster = self._balancer.side.roster()
        present = frozenset(snapshot.backends)
        for number, backend in self._numbers.items():
            if backend not in present:  # the last message by which workers know the number
                self._say_all("cut", number)
        message = self._writer.write(snapshot, roster, is_whole=False)
        self._numbers = self._writer.backends()
        self._roster = message["roster"]
        self._sums.keep_only(self._numbers)
        self._measured = {b: each for b, each in self._measured.items() if b in present}
        self._states = {b: each for b, each in self._states.items() if b in present}
        self._probed = {b: each for b, each in self._probed.items() if b in present}
        self._say_all("pool", message)
        self._say_states()

    def _say_states(self) -> None:
        """Tell what has changed in records of backends beside snapshots. Times of probes are news
        of their own: each backend has some every second, and nothing else most of the time."""
        rows, probed = [], []
        for number, backend in self._numbers.items():
            state = self._state(backend)
            if self._states.get(backend) != state:
                self._states[backend] = state
                rows.append([number, *state])
            times = _probed_at(backend)
            if self._probed.get(backend) != times:
                self._probed[backend] = times
                probed.append([number, *times])
        if rows:
            self._say_all("states", rows)
        if probed:
            self._say_all("probed", probed)

    def _state(self, backend: Backend) -> list[Any]:
        workers = max(1, len(self._links))
        ports = [
            None
            if port is None
            else [
                port.is_hung,
                port.is_given_up,
                port.left_before,
                port.lost_before,
                [each.decode() for each in port.ready_through],
            ]
            for port in backend.ports
        ]
        due = -(-backend.reports_due // workers)
        return [backend.share, backend.deaths, due, ports]

    def _measured_row(self, backend: Backend) -> list[Any]:
        rows = [
            [to_text(name), to_text(version), asdict(measured)]
            for (name, version), measured in self._measured[backend].items()
        ]
        return [self._writer.number(backend), rows]

    def _settings(self) -> dict[str, Any]:
        balancer = self._balancer
        return {"settings": plain(balancer.settings), "digest": balancer.reloads.digest}

    async def _run(self) -> None:
        """See what has changed, again and again."""
        while True:
            await asyncio.sleep(_TICK_S)
            self._tick(time.monotonic())

    def _tick(self, now: float) -> None:
        balancer = self._balancer
        roster = [[self._writer.number(e.backend), *e.open] for e in balancer.side.roster()]
        if roster != self._roster:
            self._is_due = True
        self._flush()
        self._say_states()
        self._release(now)
        self._asked = {key: at for key, at in self._asked.items() if now - at < _ASKED_S}
        for link in self._links.values():
            link.used = {key: used for key, used in link.used.items() if key in self._asked}
        while self._ended and now - next(iter(self._ended.values()))[0] > _ENDED_S:
            self._ended.popitem(last=False)
        if self._asked:
            self._say_all("use", list(self._asked))
        variants = balancer.relay.dispatcher.variants.export()
        if variants and (text := json.dumps(variants, sort_keys=True)) != self._variants:
            self._variants = text
            self._say_all("variants", variants)
        application = balancer.logs.application
        if application.level is not self._log_level:
            self._log_level = application.level
            self._say_all("log_level", self._log_level.value)

    def _release(self, now: float) -> None:
        """Let backends count as empty once all workers follow the snapshot that says so."""
        oldest = min((link.generation for link in self._links.values()), default=1 << 62)
        kept = []
        for generation, until, backend in self._holds:
            if generation <= oldest or now >= until:
                backend.in_flight -= 1
            else:
                kept.append((generation, until, backend))
        self._holds = kept

    # From the workers

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear one worker until it has gone."""
        link = None
        try:
            link = await self._welcome(reader, writer)
            while link is not None and (text := await reader.readline()).endswith(b"\n"):
                link.heard_at = time.monotonic()
                for event, value in json.loads(text).items():
                    self._hear(link, event, value)
        except OSError:
            pass  # it has gone
        except (ValueError, LookupError, TypeError) as error:
            _log.warning("worker is not understood", extra={"why": str(error)})
        finally:
            if link is not None:
                link.questions.close()
            if link is not None and self._has(link):
                del self._links[link.index]
                self._lost_at[link.index] = time.monotonic()
                self._sums.end(link.index)
                self._keep_counts()
                self._release(time.monotonic())
                _log.info("worker disconnected", extra={"worker": link.index, "pid": link.pid})
            writer.close()

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Link | None:
        """Tell a worker all that is known. None: it is none of ours."""
        peer = writer.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] != os.getuid():
            return None
        hello = json.loads(await reader.readline())["hello"]
        if not secrets.compare_digest(hello["token"], self._seat.token):
            return None
        link = _Link(hello["index"], hello["start"], hello["pid"], writer)
        before = self._links.get(link.index)
        if before is not None:
            before.close()
        if self._sums.meet(link.index, link.start):
            self._keep_counts()
        balancer = self._balancer
        link.say("settings", self._settings())
        link.say("variants", balancer.relay.dispatcher.variants.export())
        self._flush()
        snapshot, roster = balancer.side.pool.current, balancer.side.roster()
        link.say("pool", self._writer.write(snapshot, roster, is_whole=True))
        self._numbers = self._writer.backends()
        link.say("states", [[n, *self._state(each)] for n, each in self._numbers.items()])
        link.say("probed", [[n, *_probed_at(each)] for n, each in self._numbers.items()])
        for backend in self._measured:
            link.say("measured", self._measured_row(backend))
        for rows in self._news.parts():
            link.say("sequences", rows)
        self._links[link.index] = link
        _log.info("worker connected", extra={"worker": link.index, "pid": link.pid})
        return link

    def _hear(self, link: _Link, event: str, value: Any) -> None:
        match event:
            case "news":
                for kind, each in value:
                    self._take(link, kind, each)
            case "counts":
                self._sums.take(link.index, value)
            case "heard":
                for number, protocol, at in value:
                    backend = self._numbers.get(number)
                    port = None if backend is None else backend.ports[protocol]
                    if port is not None:
                        port.last_byte_at = max(port.last_byte_at, at)
            case "in_flight":
                link.in_flight = {
                    number: {to_bytes(model): count for model, count in rows}
                    for number, rows in value
                }
            case "queue":
                link.unplaced = value["unplaced"]
                link.queues = [
                    ModelQueueView(
                        model=to_bytes(model),
                        version=to_bytes(version),
                        waiting=dict(waiting),
                        oldest_s=oldest_s,
                    )
                    for model, version, waiting, oldest_s in value["queues"]
                ]
                link.model_backends = [
                    (number, row | {n: to_bytes(row[n]) for n in ("model", "version")})
                    for number, row in value["backends"]
                ]
            case "open_sequences":
                self._take_open(link, value)
            case "ended":
                self._take_ended(value)
            case "applied":
                link.digest = value
                # With other settings it begins with the shares of the file.
                link.say("variants", self._balancer.relay.dispatcher.variants.export())
            case "follows":  # it has told all its counts before
                link.generation = value
                followed = [each for each in self._links.values() if each.generation >= 0]
                if len(followed) == self._seat.count:
                    self._all_told.set()
                self._release(time.monotonic())

    def _take(self, link: _Link, kind: str, value: Any) -> None:
        side = self._balancer.side
        match kind:
            case "report":
                self._report(*value)
            case "control":
                name, model, numbers = value
                side.news.control_done(_OPERATIONS[name], to_bytes(model), self._backends(numbers))
            case "settle":
                question, numbers = value
                work = self._settle(link, question, self._backends(numbers))
                self._balancer.parts.tasks.spawn(work, name="settle")
            case "use":
                now = time.monotonic()
                for number, model, used in value:
                    link.used[number, model] = (used, now)
            case "variants":
                self._balancer.relay.dispatcher.variants.add_recent(value)
            case "taken":
                if (trial := self._writer.trials().get(value)) is not None:
                    trial.is_open = False
            case "sequences":
                if not self._sequences:
                    self._balancer.parts.loop.call_soon(self._pass_sequences)
                self._sequences += [(link.index, row) for row in value]
                self._note_ended(value)
            case "sequences_asked":
                self._answer(partial(link.say, "sequences_answered", value), link)
            case "sequences_answered":
                link.questions.answered(value)

    def _report(self, kind: str, number: int, *rest: Any) -> None:
        """An attempt at a backend ended, or fared well or badly."""
        backend = self._numbers.get(number)
        if backend is None:
            return
        side = self._balancer.side
        if kind in _USE_UP:
            # What is due is told anew, even if it is as much again: that worker has used it up.
            self._states.pop(backend, None)
        match kind:
            case "attempt":
                protocol, outcome, now = rest
                side.outcomes.report(backend, AppProtocol(protocol), Outcome(outcome), now)
            case "answered":
                model, took_s, now = rest
                side.passive_health.answered(backend, to_bytes(model), took_s, now)
            case "failed":
                model, fault, took_s, now = rest
                side.passive_health.failed(backend, to_bytes(model), Fault(fault), took_s, now)
            case "abandoned":
                model, waited_s, now = rest
                side.passive_health.abandoned(backend, to_bytes(model), waited_s, now)
            case "misplaced":
                model, version = rest
                told = None if version is None else to_bytes(version)
                side.misplaced(backend, to_bytes(model), told)

    def _backends(self, numbers: Sequence[int | None]) -> tuple[Backend, ...]:
        found = (self._numbers.get(each) for each in numbers if each is not None)
        return tuple([each for each in found if each is not None])

    async def _settle(self, link: _Link, question: int, backends: tuple[Backend, ...]) -> None:
        await self._balancer.side.news.settled(backends)
        self._flush()
        link.say("settled", question)

    def _note_ended(self, rows: Iterable[Row]) -> None:
        """Remember which sequences have ended."""
        now = time.monotonic()
        for row in rows:
            self._ended.pop(row_key(row), None)
            if is_over(row):
                self._ended[row_key(row)] = now, row[4] if row[4:] else now

    def _pass_sequences(self) -> None:
        """Tell all workers what one of them told of sequences, and take note of it here."""
        news, self._sequences = self._sequences, []
        if not news:
            return
        self._news.hear([row for _, row in news])
        self._tell_services([row for _, row in news])
        for link in self._links.values():
            rows = [row for index, row in news if index != link.index]
            if rows:
                link.say("sequences", rows)

    # Other services, during an upgrade

    def open_sequences(self) -> Iterator[list[Row]]:
        """All open sequences, in parts; between two of them the loop may turn."""
        return self._news.parts()

    def tell_service(self, name: str, say: Say) -> None:
        """Tell another service of sequences that begin or end from now on.

        Args:
            name: that `hear_service` will be called with.
            say: called with messages (`lb.runtime.sequence_news`).
        """
        self.forget_service(name)
        self._services[name] = service = _Service(say)
        if self._has_begun:
            service.questions.ask()  # the answer shows that it can be asked

    def forget_service(self, name: str) -> None:
        """Tell it no more."""
        service = self._services.pop(name, None)
        if service is not None:
            service.questions.close()

    def hear_service(self, name: str, event: str, value: Any) -> None:
        """Another service has a message about sequences."""
        service = self._services.get(name)
        if service is not None:
            service.is_heard = True
        match event:
            case "sequences":
                self._pass_sequences()
                self._news.hear(value)
                self._note_ended(value)
                self._say_all("sequences", value)
                self._tell_services(value, but=name)
            case "sequences_asked":
                if service is not None:
                    self._answer(partial(service.say, "sequences_answered", value), service)
            case "sequences_answered":
                if service is not None:
                    service.questions.answered(value)

    def _tell_services(self, rows: Sequence[Row], but: str = "") -> None:
        for name, service in self._services.items():
            if name != but:
                service.say("sequences", rows)

    def _answer(self, answer: Callable[[], None], asker: _Link | _Service) -> None:
        """Somebody asks what is known of sequences: answer behind all that others had told before.

        What they have written may not be read yet: sockets are read in no order, and in parts. So
        they are asked, and their answers come behind it. Workers that have not come back yet since
        this process was started are waited for.

        Args:
            answer: tells the asker that this is all.
            asker: is not asked.
        """
        if not self._all_told.is_set():
            work = self._answer_when_told(answer, asker)
            self._balancer.parts.tasks.spawn(work, name="sequences")
            return
        services = [each for each in self._services.values() if each.is_heard]
        others: list[_Link | _Service] = [*self._links.values(), *services]
        asks = [each.questions.ask for each in others if each is not asker]

        def pass_and_answer() -> None:
            self._pass_sequences()
            answer()

        ask_all(asks).when_over(pass_and_answer)

    async def _answer_when_told(self, answer: Callable[[], None], asker: _Link | _Service) -> None:
        await self._all_told.wait()
        self._answer(answer, asker)

    def _take_open(self, link: _Link, rows: Sequence[Row]) -> None:
        """A worker that has just connected tells which sequences are open, as far as it knows. What
        is known here is newer."""
        self._pass_sequences()
        over = [row for row in rows if self._has_ended(row)]
        if over:
            link.say("sequences", [end_row(row_key(row)) for row in over])
        new = [row for row in rows if not (self._has_ended(row) or self._news.is_known(row))]
        if new:
            self._news.hear(new)
            self._say_all("sequences", new, but=link.index)
            self._tell_services(new)

    def _has_ended(self, row: Row) -> bool:
        """Whether a sequence that a worker takes for open has ended since its last step there."""
        ended = self._ended.get(row_key(row))
        return ended is not None and ended[1] >= row[4]

    def _take_ended(self, rows: Sequence[tuple[str, int | str, float]]) -> None:
        """A worker that has just connected tells which sequences have ended lately, and when: the
        control process before this one may not have passed that on. That worker hears of it, too,
        since it was told what others take for open. What was started again later goes on."""
        self._pass_sequences()
        over = [[*end_row((model, sequence_id)), at] for model, sequence_id, at in rows]
        self._news.hear(over)
        self._note_ended(over)
        self._say_all("sequences", over)
        self._tell_services(over)
