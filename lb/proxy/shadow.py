"""Shadow traffic: copies of inferences for another model, after their clients have the answer.

What a client sends and gets is noted as the payload log does it. Once the exchange is over, the
copy goes to a backend that has nothing to do, as a call of our own. Its connection is kept for
further copies and carries nothing else. A copy is no attempt: nothing waits for it, and it takes no
part in limits, shares, health, learnt costs and latency. Whatever is short, copies are dropped
first. What came back goes with the answer that the client got to the process that compares
(`lb.comparison`).

One second in ten goes without copies, where their effect on latency is watched: a sequential test
compares both, and pauses the copies once they certainly make requests slower.
"""

from __future__ import annotations

import asyncio
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import count
from random import Random
from typing import Final

from lb.comparison.child import ComparisonProcess
from lb.comparison.pairs import ComparedAnswer, Pair, Rules
from lb.comparison.tally import Tally
from lb.domain.backend import LATENCY_BOUNDS_S, AppProtocol, Backend, Histogram
from lb.domain.errors import UpstreamError
from lb.domain.names import readable
from lb.domain.outcome import Outcome
from lb.domain.pool import PoolRef
from lb.health.rollback import Baseline, Counts, VariantJudge
from lb.kserve.inflation import GaveWay, inflated_in_steps
from lb.kserve.merge.steps import Steps
from lb.kserve.names import renamed_request
from lb.kserve.regions import KEY
from lb.net.ask.backend_client import BackendClient, Keep
from lb.net.ask.client_call import Fields
from lb.net.steps import between_others
from lb.net.tasks import TaskOwner
from lb.net.timers import TimerWheel
from lb.payloads.log import Recording
from lb.proxy.exchange import Exchange
from lb.proxy.fan_out.account import AnswerAccount
from lb.proxy.noise_budget import NoiseBudget
from lb.settings.model import Settings
from lb.telemetry.shadow import ShadowStatus, ShadowStatuses
from lb.wire.cache import HeadCache
from lb.wire.grpc.message import PREFIX_SIZE
from lb.wire.memory_budget import MemoryBudget
from lb.wire.rope import Rope

_log = logging.getLogger(__name__)

_COPIED: Final = "ModelInfer"
"""The operation that is copied."""
_PATH: Final = b"/inference.GRPCInferenceService/ModelInfer"
_COPIES_PER_NOISE_COPY: Final = 10
"""One in so many copied requests may go to the model in service again; see `NoiseBudget`."""
_CONTROL_PERIOD: Final = 10
"""One in so many seconds goes without copies, to compare latency with."""
_PAUSE_S: Final = 600.0
"""For so long nothing is copied that made requests slower."""
_FIRST_AVOIDED_S: Final = 1.0
"""For so long a backend gets no copies that has not answered one; doubled each time."""
_MAX_AVOIDED_S: Final = 60.0
_NOT_COPIED: Final = frozenset({
    b"accept-encoding", b"connection", b"content-encoding", b"content-length", b"expect",
    b"grpc-accept-encoding", b"grpc-encoding", b"grpc-timeout", b"host", b"keep-alive", b"te",
    b"traceparent", b"tracestate", b"transfer-encoding",
})  # fmt: skip
"""Fields of a request that concern its connection, its encoding, its client's patience or trace."""
_CONTENT_TYPE: Final = b"content-type"
_ENCODING: Final = b"content-encoding"
_INFLATED: Final = frozenset({b"deflate", b"gzip"})
_JSON_SIZE: Final = b"inference-header-content-length"
_ESCAPE: Final = b"\\u"
_LENGTH: Final = re.compile(rb"[0-9]{1,19}")
"""A number of bytes: longer ones cannot be sent, and very long ones not even be read."""


class Kind(Enum):
    """Whose answer is compared with the one that the client got."""

    SHADOW = "shadow"
    NOISE = "noise"
    """The model in service, asked again."""


class CopyFate(Enum):
    """What became of a copy."""

    ANSWERED = "answered"
    ERROR = "error"
    """Answered with an error."""
    FAILED = "failed"
    """There was no answer."""
    TIMEOUT = "timeout"
    BUSY = "busy"
    """No backend was idle, or requests were queued."""
    NOT_READY = "not_ready"
    """No backend has the model ready."""
    MEMORY = "memory"
    """There was no room for it: it is too large, or memory is short."""
    UNFIT = "unfit"
    """It must not run twice, names shared memory, or the model is stateful or decoupled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRules:
    """What is configured for one name."""

    model: bytes
    version: bytes
    share: float
    """Share of the inferences that is copied, 0 to 1."""
    max_concurrent: int
    timeout_s: float
    p99: float
    noise: bool
    compare: Rules | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOptions:
    """What a reload may change."""

    names: Mapping[bytes, ShadowRules]
    max_body_bytes: int = 0
    """Requests and answers up to so long are copied: as long as those kept for a retry."""


def shadow_options(settings: Settings) -> ShadowOptions:
    """Read from settings what is copied."""
    names = {}
    for name, own in settings.models.items():
        shadow = own.shadow
        if shadow is None:
            continue
        names[name.encode()] = ShadowRules(
            model=shadow.model.encode(),
            version=(shadow.version or "").encode(),
            share=shadow.percent / 100,
            max_concurrent=shadow.max_concurrent,
            timeout_s=shadow.timeout,
            p99=shadow.p99,
            noise=shadow.noise and shadow.compare,
            compare=Rules(
                atol=shadow.atol,
                rtol=shadow.rtol,
                top_k=shadow.top_k,
                examples=str(shadow.examples or ""),
            )
            if shadow.compare
            else None,
        )
    return ShadowOptions(names=names, max_body_bytes=settings.limits.retained_body_bytes)


class Shadow:
    """The copies of the requests for one name."""

    def __init__(self, number: int, name: bytes, rules: ShadowRules) -> None:
        self.number = number
        """No other shadow has it: what comes late about one that was replaced counts for none."""
        self.name = readable(name)
        self.rules = rules
        self.fates: dict[tuple[str, str], int] = {}
        """Counter by kind and fate."""
        self.durations = {each.value: Histogram() for each in Kind}
        """How long good answers to copies took, from the start of the call to the end."""
        self.first_durations = Histogram()
        """How long the copied requests took, as their clients saw them."""
        self.tallies = {each.value: Tally() for each in Kind}
        """What comparisons came to."""
        self.paused_until = 0.0
        self.why = ""
        """Why it was paused last."""
        self.copied = 0
        self.noise_budget = NoiseBudget()
        self.with_copies, self.without_copies = Counts(), Counts()
        self.baseline = Baseline()
        self.judge = VariantJudge(None, rules.p99)

    def count(self, kind: Kind, fate: CopyFate) -> None:
        """Count what became of a copy."""
        key = kind.value, fate.value
        self.fates[key] = self.fates.get(key, 0) + 1

    def check(self, now: float) -> None:
        """Pause if the copies of the last seconds certainly made requests slower."""
        off, on = self.without_copies, self.with_copies
        self.without_copies, self.with_copies = Counts(), Counts()
        self.baseline.add(off)
        if now >= self.paused_until and self.judge.verdict(on, off, self.baseline):
            self.paused_until = now + _PAUSE_S
            self.why = f"requests are slower by more than {self.rules.p99:g} times with copies"
            self.judge, self.baseline = VariantJudge(None, self.rules.p99), Baseline()
            fields = {"model": self.name, "pause_s": _PAUSE_S}
            _log.warning("shadow traffic paused: %s", self.why, extra=fields)


def _note(histogram: Histogram, took_s: float) -> None:
    histogram.counts[bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
    histogram.sum += took_s


class _Copy:
    """A request whose client has the answer, for the two calls that may be made of it."""

    __slots__ = (
        "answer", "backend", "body", "fields", "is_grpc", "protocol", "recording", "request_id",
        "status", "uses",
    )  # fmt: skip

    def __init__(
        self, exchange: Exchange, recording: Recording, fields: Fields, status: int
    ) -> None:
        self.protocol = exchange.protocol
        self.is_grpc = exchange.protocol is AppProtocol.GRPC
        self.backend = exchange.backend
        """Whose answer the client got."""
        self.request_id = readable(exchange.request_id)
        self.recording = recording
        self.fields = fields
        """Fields of the request, names in lower case."""
        self.status = status
        """HTTP or gRPC status of the answer."""
        self.body = b""
        """The request's body, plain, once it is open; with gRPC the message without its prefix."""
        self.answer = ComparedAnswer(status=status, body=b"")
        """What the client got, plain, once it is open."""
        self.uses = 0
        """Calls under way."""


class _Avoided:
    """A backend that gets no copies for a while."""

    __slots__ = ("pause_s", "until")

    def __init__(self) -> None:
        self.pause_s = _FIRST_AVOIDED_S
        self.until = 0.0


class Shadows:
    """Makes copies of requests. Implements `Recorder`, and is the `Holder` of what it keeps. To be
    used from one event loop."""

    def __init__(
        self,
        pool: PoolRef,
        memory_budget: MemoryBudget,
        backend_client: BackendClient,
        tasks: TaskOwner,
        rng: Random,
        *,
        clock: Callable[[], float],
        queued: Callable[[], int],
    ) -> None:
        """
        Args:
            pool: the published pool.
            memory_budget: has the bytes held.
            backend_client: makes the calls, over connections that it keeps.
            tasks: owns them.
            rng: draws the sample.
            clock: monotonic seconds.
            queued: counts requests that wait for a backend.
        """
        self.held = 0
        """For the memory budget, which writes it."""
        self.max_payload_bytes = 0
        """Bytes of one request or answer."""
        self.sets: dict[bytes, Shadow] = {}
        """By the name that clients use."""
        self.metadata: HeadCache[Fields] = HeadCache()
        """The metadata of calls by their header block."""
        self.process = ComparisonProcess(memory_budget, tasks, self._found, clock)
        self._pool = pool
        self._memory_budget = memory_budget
        memory_budget.spares += (self,)
        self._backend_client = backend_client
        self._tasks = tasks
        self._rng = rng
        self._clock = clock
        self._queued = queued
        self._recordings: dict[Exchange, tuple[Shadow, Recording]] = {}
        """Inferences under way."""
        self._running: dict[Backend, int] = {}
        """Copies under way."""
        self._copies: set[_Copy] = set()
        """Copies that are to be sent, or are under way."""
        self._opening = asyncio.Lock()
        """Held by the copy that is made plain: one at a time is not in the memory budget yet."""
        self._calls: set[asyncio.Task[None]] = set()
        self._avoided: dict[Backend, _Avoided] = {}
        self._seconds = 0
        self._numbers = count()

    def configure(self, options: ShadowOptions) -> None:
        """Copy by these rules from now on. Names whose rules stay the same keep their counts."""
        self.max_payload_bytes = options.max_body_bytes
        sets = {}
        for name, rules in options.names.items():
            before = self.sets.get(name)
            if before is None or before.rules != rules:
                before = Shadow(next(self._numbers), name, rules)
            sets[name] = before
        self.sets = sets

    def keep(self, timers: TimerWheel) -> None:
        """Watch the latency of requests once a second."""
        timers.every(1.0, self.check)

    def check(self) -> None:
        """Begin another second."""
        self._seconds += 1
        self._backend_client.sweep(self._clock())
        if self._seconds % _CONTROL_PERIOD == 0:
            now = self._clock()
            for each in self.sets.values():
                each.check(now)
            present = self._pool.current.backends
            self._avoided = {b: each for b, each in self._avoided.items() if b in present}

    def close_idle(self, backend: Backend) -> None:
        """Close the idle connections to a backend."""
        self._backend_client.close_idle(backend.spec)

    @property
    def _is_control_second(self) -> bool:
        """Whether this second goes without copies."""
        return self._seconds % _CONTROL_PERIOD == _CONTROL_PERIOD - 1

    # What the relays tell

    def record(self, exchange: Exchange, name: bytes, head: bytes = b"") -> Recording | None:
        """Begin to note an inference that is to be copied; `finished` is told of its end.

        Args:
            exchange: the inference.
            name: that its client asks for.
            head: of HTTP; empty for gRPC.
        """
        shadow = self.sets.get(name)
        if (
            shadow is None
            or exchange.operation.name != _COPIED
            or self._rng.random() >= shadow.rules.share
            or self._clock() < shadow.paused_until
            or self._is_control_second
        ):
            return None
        rules = shadow.rules
        places = self._places(rules.model, rules.version, exchange.protocol)
        if isinstance(places, CopyFate) or not self._with_room(places, rules):
            # Nothing is noted for a shadow that is dead, hangs or is behind.
            shadow.count(Kind.SHADOW, places if isinstance(places, CopyFate) else CopyFate.BUSY)
            return None
        recording = Recording(self, 0.0, head)
        self._recordings[exchange] = shadow, recording
        return recording

    def recording_of(self, exchange: Exchange) -> Recording | None:
        """Return that of an inference under way; None for those that are not copied."""
        found = self._recordings.get(exchange)
        return None if found is None else found[1]

    def forget(self, exchange: Exchange) -> None:
        """There is nothing to copy of an inference that may have been noted."""
        found = self._recordings.pop(exchange, None)
        if found is not None:
            found[1].forget()

    def answered(self, name: bytes, took_s: float) -> None:
        """A request for a name was answered well, copied or not."""
        shadow = self.sets.get(name)
        if shadow is not None:
            shadow.noise_budget.request()
            counts = shadow.without_copies if self._is_control_second else shadow.with_copies
            counts.add(took_s, is_error=False)

    def finished(
        self,
        exchange: Exchange,
        model: bytes,
        version: bytes,
        status: int,
        took_s: float,
        fields: Callable[[], Fields],
    ) -> None:
        """A request is over.

        Args:
            exchange: that was noted, or not.
            model: of the variant that served it.
            version: of that, as configured.
            status: of HTTP or gRPC.
            took_s: seconds from the request to the end of the answer.
            fields: returns those of the request, names in lower case.
        """
        found = self._recordings.pop(exchange, None)
        if found is None:
            return
        shadow, recording = found
        if recording.is_dropped:
            shadow.count(Kind.SHADOW, CopyFate.MEMORY)
            return
        rules = shadow.rules
        is_shadowed = (model, version) != (rules.model, rules.version)
        if exchange.backend is None or not is_shadowed:
            recording.forget()  # nothing to compare with
            return
        hints = exchange.hints
        if hints is not None and hints.step is not None:
            shadow.count(Kind.SHADOW, CopyFate.UNFIT)
            recording.forget()
            return
        copy = _Copy(exchange, recording, fields(), status)
        self._copies.add(copy)
        # Its attempt still counts on its backend: the task begins after that.
        work = self._send(shadow, copy, model, version, took_s)
        self._tasks.spawn(work, name="shadow: copy")

    async def _send(
        self, shadow: Shadow, copy: _Copy, model: bytes, version: bytes, took_s: float
    ) -> None:
        """Make the calls of a copy.

        Args:
            shadow: whose copy it is.
            copy: of the request.
            model: that served the request.
            version: of that, as configured.
            took_s: seconds that the request took.
        """
        async with self._opening:
            fate = await between_others(self._open(copy))
        if copy.recording.is_dropped:
            fate = CopyFate.MEMORY
        if fate is not None:
            shadow.count(Kind.SHADOW, fate)
            self._copies.discard(copy)
            copy.recording.forget()
            return
        rules = shadow.rules
        _note(shadow.first_durations, took_s)
        copy.uses = 1  # until all have begun
        self._begin(shadow, copy, Kind.SHADOW, rules.model, rules.version)
        shadow.copied += 1
        is_noise_due = shadow.copied % _COPIES_PER_NOISE_COPY == 0
        if rules.noise and is_noise_due and shadow.noise_budget.allows:
            self._begin(shadow, copy, Kind.NOISE, model, version)
        self._done_with(copy)

    def _open(self, copy: _Copy) -> Steps[CopyFate | None]:
        """Have a copy's request and answer plain: the copy goes out so, and what it asks for has to
        be looked into. Returns why it must not be sent, or None."""
        recording = copy.recording
        request, answer = recording.request.pieces, recording.response.pieces
        if request is None or answer is None:
            return CopyFate.MEMORY
        body = b"".join(request)
        encodings = [value.lower() for name, value in copy.fields if name == _ENCODING]
        is_compressed = bool(encodings)
        if is_compressed and not (len(encodings) == 1 and encodings[0] in _INFLATED):
            return CopyFate.UNFIT
        if copy.is_grpc:
            size = int.from_bytes(body[1:PREFIX_SIZE], "big")
            if len(body) != PREFIX_SIZE + size:
                return CopyFate.UNFIT
            is_compressed = bool(body[0])
            body = body[PREFIX_SIZE:]
        if is_compressed:
            opened = yield from self._inflated(body, recording)
            if opened is None:
                return CopyFate.UNFIT
            body = opened
            recording.replace_request(body)
        # An answer might go to memory of the client.
        if copy.is_grpc:
            if KEY in body:
                return CopyFate.UNFIT
            reply = yield from self._grpc_reply(copy.status, b"".join(answer), recording)
        else:
            json_size = _json_size(copy.fields)
            text = body if json_size < 0 else body[:json_size]
            if KEY in text or _ESCAPE in text:
                return CopyFate.UNFIT
            reply = _http_reply(copy.status, recording.response.head, b"".join(answer))
        if reply is None:
            return CopyFate.UNFIT
        copy.body, copy.answer = body, reply
        copy.fields = tuple(field for field in copy.fields if field[0] not in _NOT_COPIED)
        return None

    def _grpc_reply(
        self, status: int, body: bytes, recording: Recording
    ) -> Steps[ComparedAnswer | None]:
        """What a client got over gRPC, plain; None where it cannot be read, or is too long."""
        if status:
            return ComparedAnswer(status=status, body=b"")
        if len(body) < PREFIX_SIZE:
            return None
        message: bytes | None = body[PREFIX_SIZE:]
        if body[0]:
            message = yield from self._inflated(body[PREFIX_SIZE:], recording)
            if message is not None:
                recording.begin_response()
                recording.add_response(message)
        return None if message is None else ComparedAnswer(status=0, body=message)

    def _inflated(self, data: bytes, recording: Recording) -> Steps[bytes | None]:
        """Inflate a body or a message; None where it is broken, too long, or dropped meanwhile."""

        def hold(_: int) -> bool:
            return not recording.is_dropped

        try:
            found = yield from inflated_in_steps(Rope([data]), self.max_payload_bytes, hold)
        except GaveWay:
            return None
        return None if found is None else found.joined()

    # The calls

    def _begin(self, shadow: Shadow, copy: _Copy, kind: Kind, model: bytes, version: bytes) -> None:
        """Send a copy to a backend that is idle, or drop it."""
        backend = self._pick(shadow, copy, kind, model, version)
        if isinstance(backend, CopyFate):
            shadow.count(kind, backend)
            return
        self._running[backend] = self._running.get(backend, 0) + 1
        copy.uses += 1
        work = self._call(shadow, copy, kind, backend, model, version)
        call = self._tasks.spawn(work, name="shadow")
        self._calls.add(call)
        if kind is Kind.NOISE:
            shadow.noise_budget.begin()

        def over(call: asyncio.Task[None]) -> None:
            # Not in the task: one that is cancelled at once never runs.
            self._calls.discard(call)
            if call.cancelled():
                shadow.count(kind, CopyFate.MEMORY)
            left = self._running[backend] - 1
            if left:
                self._running[backend] = left
            else:
                del self._running[backend]
            if kind is Kind.NOISE:
                # It was idle before: these came while the copy ran.
                shadow.noise_budget.end(backend.in_flight)
            self._done_with(copy)

        call.add_done_callback(over)

    def _pick(
        self, shadow: Shadow, copy: _Copy, kind: Kind, model: bytes, version: bytes
    ) -> Backend | CopyFate:
        places = self._places(model, version, copy.protocol)
        if isinstance(places, CopyFate):
            return places
        if self._queued():
            return CopyFate.BUSY
        if kind is Kind.NOISE:
            places = tuple(each for each in places if each is not copy.backend) or places
        idle = [each for each in self._with_room(places, shadow.rules) if not each.in_flight]
        if not idle:
            return CopyFate.BUSY
        return min(idle, key=lambda each: self._running.get(each, 0))

    def _places(
        self, model: bytes, version: bytes, protocol: AppProtocol
    ) -> tuple[Backend, ...] | CopyFate:
        """The backends that a model may be copied to, or why there are none."""
        snapshot = self._pool.current
        route = snapshot.routes.get(model)
        placements = snapshot.placements
        if snapshot.is_served(model, version, protocol) is False:
            return CopyFate.NOT_READY
        if route is not None:
            if route.facts.is_stateful or route.facts.is_decoupled:
                return CopyFate.UNFIT
            placements = route.versions.get(version) or route.placements or placements
        return placements[protocol].eligible

    def _with_room(self, places: tuple[Backend, ...], rules: ShadowRules) -> list[Backend]:
        """Choose the places that answer copies, and have room for one more."""
        now = self._clock()
        found = []
        for each in places:
            avoided = self._avoided.get(each)
            if self._running.get(each, 0) < rules.max_concurrent and (
                avoided is None or now >= avoided.until
            ):
                found.append(each)
        return found

    async def _call(
        self,
        shadow: Shadow,
        copy: _Copy,
        kind: Kind,
        backend: Backend,
        model: bytes,
        version: bytes,
    ) -> None:
        memory_budget = self._memory_budget
        account = AnswerAccount(memory_budget)

        def keep(size: int) -> bool:
            has_room = memory_budget.held + size <= memory_budget.keep_up_to
            is_short = account.held + size <= self.max_payload_bytes
            return has_room and is_short and account.keep(size)

        began = self._clock()
        reply: ComparedAnswer | None = None
        try:
            reply = await self._ask(shadow.rules, copy, backend, model, version, keep)
        except UpstreamError as error:
            fate = CopyFate.FAILED
            if error.outcome is Outcome.CANCELLED:
                fate = CopyFate.MEMORY
            else:
                self._avoid(backend)
                if error.outcome is Outcome.DEADLINE:
                    fate = CopyFate.TIMEOUT
            shadow.count(kind, fate)
        except LookupError:  # it has no port for the protocol any more
            shadow.count(kind, CopyFate.NOT_READY)
        finally:
            if reply is not None and not copy.recording.is_dropped:
                self._on_reply(shadow, copy, kind, reply, self._clock() - began)
            account.close()
        if reply is not None:
            self._avoided.pop(backend, None)

    async def _ask(
        self,
        rules: ShadowRules,
        copy: _Copy,
        backend: Backend,
        model: bytes,
        version: bytes,
        keep: Keep,
    ) -> ComparedAnswer | None:
        """
        Raises:
            UpstreamError: there is no answer.
            LookupError: the backend has no such port.
        """
        if copy.is_grpc:
            message = renamed_request(copy.body, len(copy.body), model, version)
            fields = tuple(field for field in copy.fields if field[0] != _CONTENT_TYPE)
            said = await self._backend_client.grpc(
                backend.spec, _PATH, message, fields, timeout_s=rules.timeout_s, keep=keep
            )
            return ComparedAnswer(status=said.status, body=said.message)
        target = b"/v2/models/%b%b/infer" % (model, b"/versions/%b" % version if version else b"")
        answer = await self._backend_client.http(
            backend.spec,
            b"POST",
            target,
            copy.fields,
            copy.body,
            timeout_s=rules.timeout_s,
            keep=keep,
        )
        json_size = _json_size(answer.fields)
        return ComparedAnswer(status=answer.status, body=answer.body, json_size=json_size)

    def _avoid(self, backend: Backend) -> None:
        """It has not answered: leave it alone for a while."""
        avoided = self._avoided.setdefault(backend, _Avoided())
        now = self._clock()
        if now >= avoided.until:  # else others were under way at the same time
            avoided.until = now + avoided.pause_s
            avoided.pause_s = min(_MAX_AVOIDED_S, 2 * avoided.pause_s)

    def _on_reply(
        self, shadow: Shadow, copy: _Copy, kind: Kind, reply: ComparedAnswer, took_s: float
    ) -> None:
        is_good = not reply.status if copy.is_grpc else reply.status < 400
        shadow.count(kind, CopyFate.ANSWERED if is_good else CopyFate.ERROR)
        if is_good:
            _note(shadow.durations[kind.value], took_s)
        rules = shadow.rules.compare
        if rules is None:
            return
        pair = Pair(
            shadow=shadow.number,
            name=shadow.name,
            is_noise=kind is Kind.NOISE,
            id=copy.request_id,
            is_grpc=copy.is_grpc,
            rules=rules,
            first=copy.answer,
            second=reply,
            request=copy.body if rules.examples else b"",
        )
        self.process.offer(pair)

    def _done_with(self, copy: _Copy) -> None:
        copy.uses -= 1
        if not copy.uses:
            self._copies.discard(copy)
            copy.recording.forget()

    def _found(self, number: int, kind: str, tally: Tally) -> None:
        """The process that compares has found something."""
        for shadow in self.sets.values():
            if shadow.number == number:
                shadow.tallies[kind].add(tally)

    # Memory: see `Recorder` and `Holder`

    def take(self, size: int) -> bool:
        """See `Recorder`."""
        memory_budget = self._memory_budget
        return memory_budget.held + size <= memory_budget.keep_up_to and memory_budget.take(
            self, size
        )

    def release(self, size: int) -> None:
        """See `Recorder`."""
        if size:
            self._memory_budget.release(self, size)

    def drop(self, recording: Recording) -> None:
        """See `Recorder`."""
        recording.forget()

    def evict(self) -> None:
        """See `Holder`: what nobody waits for goes first."""
        for _, recording in self._recordings.values():
            recording.forget()
        for copy in self._copies:
            copy.recording.forget()
        for task in tuple(self._calls):
            task.cancel()

    @property
    def charged_to(self) -> None:
        """See `Holder`: no client waits for it."""
        return None

    # What people are shown

    def statuses(self) -> ShadowStatuses:
        """What the metrics say."""
        now = self._clock()
        return ShadowStatuses(
            names=[self._status(each, now) for each in self.sets.values()],
            dropped=self.process.dropped,
        )

    def _status(self, shadow: Shadow, now: float) -> ShadowStatus:
        return ShadowStatus(
            name=shadow.name,
            is_paused=now < shadow.paused_until,
            outcomes=shadow.fates,
            durations=shadow.durations,
            compared=dict(_results(shadow.tallies)),
        )

    def notes(self, shadow: Shadow) -> list[str]:
        """Why copies or comparisons of a name do not come about now; empty where they do."""
        rules, snapshot = shadow.rules, self._pool.current
        notes = []
        if self._clock() < shadow.paused_until:
            notes.append(f"paused: {shadow.why}")
        served = [snapshot.is_served(rules.model, rules.version, each) for each in AppProtocol]
        model = readable(rules.model)
        route = snapshot.routes.get(rules.model)
        if all(each is False for each in served):
            notes.append(f"no backend has {model} ready")
        if route is not None and route.facts.is_decoupled:
            notes.append(f"{model} is decoupled: nothing is copied")
        if route is not None and route.facts.is_stateful:
            notes.append(f"{model} is stateful: nothing is copied")
        if rules.compare is not None and self.process.why:
            notes.append(self.process.why)
        return notes


def _results(tallies: Mapping[str, Tally]) -> Iterable[tuple[tuple[str, str], int]]:
    for kind, tally in tallies.items():
        yield (kind, "same"), tally.same
        yield (kind, "different"), tally.compared - tally.same
        yield (kind, "unreadable"), tally.unreadable


def _http_reply(status: int, head: bytes, body: bytes) -> ComparedAnswer | None:
    """What a client got over HTTP; None where it cannot be read."""
    fields = head_fields(head)
    if any(name == _ENCODING for name, _ in fields):
        return None
    return ComparedAnswer(status=status, body=body, json_size=_json_size(fields))


def _json_size(fields: Fields) -> int:
    """How much of a body is JSON; -1: all of it, or it is not said."""
    value = next((value for name, value in fields if name == _JSON_SIZE), b"")
    return int(value) if _LENGTH.fullmatch(value) else -1


def head_fields(head: bytes) -> Fields:
    """The fields of a head of HTTP/1.1, names in lower case."""
    found = []
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            found.append((name.lower(), value.strip()))
    return tuple(found)
