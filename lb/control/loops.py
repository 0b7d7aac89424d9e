"""Probe loops: one per port, and one look at all of them for stalls."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Final

from lb.control.backend_registry import ENDED_AT_ONCE
from lb.control.directory import BackendDirectory
from lb.control.record import Member, PortRecord
from lb.domain.backend import AppProtocol
from lb.domain.pool import PoolSnapshot
from lb.health.lateness import Lateness, is_excused
from lb.health.port import Finding
from lb.net.iteration import IterationBudget
from lb.net.steps import have_turn
from lb.net.tasks import TaskOwner
from lb.net.timeouts import fair_timeout
from lb.net.tls.client import ClientTlsBook
from lb.probes.plan import plan_probe
from lb.probes.probe import NetworkProbe, Probe, ProbeResult

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 0.1
"""How often stalls are looked for: what it adds to the time until a stall is noticed."""
_STEP_S: Final = 0.02
_STEP_SHARE: Final = 0.02
"""Probes begin at multiples of this much time, or of this share of their interval."""
_RESOLUTION_S: Final = 0.001
"""Of event loops' timers."""

_BEGUN_AT_ONCE: Final = 16
"""Loops that are started in one iteration of the event loop while requests are served: a
millisecond."""
_BETWEEN_S: Final = 0.005
_PROBE_UNITS: Final = 300
"""Units of `IterationBudget` that a probe takes, with what its answer costs later."""

_SILENT_PER_S: Final = 200.0
"""Probes in a second of all ports together that say nothing: about 2 % of a core. Up to so many
ports are each probed once a second."""

ProbeFactory = Callable[[Member, AppProtocol], Probe]


def network_probe(
    member: Member,
    protocol: AppProtocol,
    tls: ClientTlsBook | None = None,
    identity: bytes = b"",
    iteration: IterationBudget | None = None,
) -> Probe:
    """Make the probe of one port as its backend's settings ask for it; `identity` is ours, in the
    hop marker. Decrypting counts against `iteration`, see `dial`."""
    plan = plan_probe(member.spec, protocol, member.probe, identity)
    return NetworkProbe(plan, tls, iteration)


def _probed(member: Member) -> tuple[object, ...]:
    """What probes depend on."""
    spec = member.spec
    return (
        member.probe, member.thresholds, spec.kind, spec.http, spec.grpc, spec.tls, spec.headers,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Running:
    member: Member
    task: asyncio.Task[None]


class _Nap:
    """A pause that others may end early, at half of what an event under a time-out costs."""

    __slots__ = ("_end", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._end: asyncio.Future[None] | None = None

    def end(self) -> None:
        """End the pause, if there is one."""
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    async def take(self, pause_s: float) -> None:
        """Pause for so many seconds at most."""
        self._end = self._loop.create_future()
        timer = self._loop.call_later(pause_s, self.end)
        try:
            await self._end
        finally:
            timer.cancel()


class ProbeLoops:
    """Keeps one loop per port of the directory, whatever the pool becomes."""

    def __init__(
        self,
        directory: BackendDirectory,
        rng: Random,
        iteration: IterationBudget,
        *,
        make_probe: ProbeFactory = network_probe,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """
        Args:
            directory: whose ports are probed; it is told what is found.
            rng: spreads probes over their interval.
            iteration: the budget that probes share with other costly work.
            make_probe: makes the probe of a port.
            clock: monotonic seconds.
        """
        self._directory = directory
        self._rng = rng
        self._make_probe = make_probe
        self._clock = clock
        self._iteration = iteration
        self._lateness = Lateness(LOOK_INTERVAL_S, clock())
        self._tasks = TaskOwner()
        self._running: dict[PortRecord, _Running] = {}
        self._silent: set[PortRecord] = set()
        """Ports that said nothing at all when they were last probed."""
        self._unanswered: set[PortRecord] = set()
        """Ports whose first result is awaited by `first_round`."""
        self._all_answered = asyncio.Event()
        self._unsubscribe: Callable[[], None] | None = None
        self._is_following = False
        """More of what the pool has become is to be followed soon."""

    def start(self) -> None:
        """Begin to probe every port at once, and follow the pool from now on."""
        self._directory.put_off = asyncio.get_running_loop().call_soon
        self._unsubscribe = self._directory.ref.subscribe(self._follow)
        self._follow(self._directory.ref.current, at_once=sys.maxsize)
        self._unanswered = set(self._running)
        if not self._unanswered:
            self._all_answered.set()
        self._lateness.measure(self._clock())
        self._tasks.spawn(self._look(), name="health: look for stalls")

    async def first_round(self) -> None:
        """Return when every port has had its first result, or one probe time-out has passed."""
        limits = [port.health.rules.timeout_s for port in self._unanswered]
        try:
            async with fair_timeout(asyncio.get_running_loop(), max(limits, default=0.0)):
                await self._all_answered.wait()
        except TimeoutError:
            if self._unanswered:
                left = len(self._unanswered)
                _log.warning("not every backend has answered", extra={"ports": left})

    async def aclose(self) -> None:
        """End all loops."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        await self._tasks.aclose()
        self._running.clear()

    def _follow(self, _snapshot: PoolSnapshot, at_once: int = _BEGUN_AT_ONCE) -> None:
        """Start loops for new ports, end those of ports that left, restart those that are probed
        otherwise now. Of many, the rest has its turn later."""
        wanted = {
            port: record.member for record in self._directory.records for port in record.ports
        }
        over = [port for port in self._running if port not in wanted]
        for port in over[:ENDED_AT_ONCE]:
            self._running.pop(port).task.cancel()
            self._silent.discard(port)
            self._answered(port)
        if len(over) > ENDED_AT_ONCE:
            self._follow_soon()
        for port, member in wanted.items():
            before = self._running.get(port)
            if before is not None and (
                before.member is member or _probed(before.member) == _probed(member)
            ):
                continue
            if not at_once:
                self._follow_soon()
                break
            at_once -= 1
            if before is not None:
                before.task.cancel()
            name = f"health: {port.backend.name} {port.protocol.label}"
            probe = self._make_probe(member, port.protocol)
            task = self._tasks.spawn(self._probe_forever(port, probe), name=name)
            self._running[port] = _Running(member, task)

    def _follow_soon(self) -> None:
        if not self._is_following:
            self._is_following = True
            self._tasks.spawn(self._follow_on(), name="health: follow the pool")

    async def _follow_on(self) -> None:
        await asyncio.sleep(_BETWEEN_S)
        self._is_following = False
        self._follow(self._directory.ref.current)

    def _answered(self, port: PortRecord) -> None:
        self._unanswered.discard(port)
        if not self._unanswered:
            self._all_answered.set()

    async def _probe_forever(self, port: PortRecord, probe: Probe) -> None:
        nap = _Nap(asyncio.get_running_loop())
        port.wake = nap.end
        while True:
            # After a stall all are due at once.
            await have_turn(self._iteration, _PROBE_UNITS)
            sent_at = self._clock()
            late_before_s = self._lateness.total(sent_at)
            self._directory.probe_sent(port, sent_at)
            result = await self._check(port, probe)
            now = self._clock()
            late_s = self._lateness.total(now) - late_before_s
            if result.finding is Finding.TIMEOUT and is_excused(
                late_s, port.health.rules.timeout_s
            ):
                _log.warning(
                    "probe timed out while we were late ourselves",
                    extra={"backend": port.backend.name, "late_s": round(late_s, 3)},
                )
                port.health.excused()
                continue
            self._directory.probed(port, result, now)
            if port.health.is_silent:
                self._silent.add(port)
            else:
                self._silent.discard(port)
            self._answered(port)
            await self._until_due(port, nap)

    async def _check(self, port: PortRecord, probe: Probe) -> ProbeResult:
        try:
            return await probe.check(port.health.rules.timeout_s)
        except Exception:  # top frame: without its loop a port would keep its state for ever
            _log.exception("probe failed", extra={"port": repr(port)})
            return ProbeResult(Finding.ERROR, "the probe itself failed")

    async def _until_due(self, port: PortRecord, nap: _Nap) -> None:
        """Sleep until the next probe is due; a kick can only make that earlier."""
        due = self._due(port)
        while (left_s := due - self._clock()) > _RESOLUTION_S:
            await nap.take(left_s)
            due = min(due, self._due(port))

    def _due(self, port: PortRecord) -> float:
        """When to probe next: a little early, so that many probes share an iteration of the
        loop. Many ports that say nothing share what such probes may cost."""
        due = port.health.next_probe_at(self._rng, len(self._silent) / _SILENT_PER_S)
        return due - due % min(_STEP_S, port.health.rules.interval_s * _STEP_SHARE)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            now = self._clock()
            if self._lateness.measure(now) < LOOK_INTERVAL_S:
                # Otherwise answers may have come meanwhile and wait to be read.
                self._directory.check(now)
