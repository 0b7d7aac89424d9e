"""The directory: the single writer of the pool.

Everything here is synchronous and takes the time as an argument. Each method brings the records
in line with what happened, logs every change of state once, and publishes a new snapshot exactly
when that changes who may get requests, or a port that hangs is down: what it owes is to end.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from lb.control.backend_registry import ENDED_AT_ONCE, BackendRegistry
from lb.control.changes import StateChange
from lb.control.ejection import leave_out
from lb.control.model_drains import Drained, ModelDrains, OnDemands
from lb.control.narrowing import Narrow, Narrowing
from lb.control.passive import PassiveHealth
from lb.control.plans import Planner
from lb.control.record import NO_SETUP, BackendRecord, Member, PortRecord
from lb.control.routes import Candidate, RouteBuilder, Routing, Tiers
from lb.control.trials import Trials
from lb.domain.backend import (
    SERVING_STATES,
    WELL_STATES,
    AdminState,
    AppProtocol,
    Backend,
    BackendKind,
    BackendState,
)
from lb.domain.control import Reach
from lb.domain.errors import LoadBalancerError
from lb.domain.model import ModelFacts, ModelUse
from lb.domain.names import readable
from lb.domain.outcome import Outcome
from lb.domain.pool import OnDemand, Placement, Policy, PoolRef, PoolSnapshot
from lb.domain.retry import REPLAY_TABLE
from lb.health.configurations import ConfigurationBook
from lb.health.models import names_of
from lb.health.port import LEAVING_S, Finding
from lb.health.ramp import NO_RAMP, Ramps
from lb.probes.probe import ProbeResult

_log = logging.getLogger(__name__)

_SILENT: Final = "owes an answer and is silent"
_NOT_READY: Final = "its models are not ready"

_LATE_S: Final = 0.5
"""A look that comes this much after the one before comes from a busy event loop, which may not
have read yet what the backends sent."""
_CLOSED_S: Final = 5.0
"""A process that refuses connections and says nothing for so long may be gone. One that exits may
take longer to compute; then the request is computed twice."""
_SEARCH_S: Final = 1.0
"""Between two looks at backends for what their answers say of models."""
_ROUTED: Final = SERVING_STATES | {BackendState.UNREADY}
"""In these a backend is in some tier."""
_GONE: Final = (BackendState.STARTING, BackendState.DOWN, BackendState.UNREADY)
_MISSED: Final = (AdminState.ENABLED, AdminState.DRAINING, AdminState.DISABLED)
"""Whoever is in one of these belongs to the pool, and may serve its models again."""
_UNASKED: Final = (AdminState.DISABLED, AdminState.REMOVING)
REMOVAL_S: Final = 300.0
"""Unless told otherwise."""
_MOST_NAMED: Final = 8
"""How many backends a refusal names, so that it stays a short line."""


def _nobody_cuts(_backend: Backend) -> None:
    """There are no connections."""


def _nobody_waits() -> None:
    """Nothing waits for models."""


def _at_once(act: Callable[[], None]) -> None:
    """Puts nothing off."""
    act()


def _served(tiers: Tiers, drained: Drained) -> frozenset[bytes] | None:
    """Names of the models that candidates have ready; None: some may have any model."""
    found: set[bytes] = set()
    for each in (*tiers.for_models, *tiers.suspected):
        if each.ready is None:
            return None
        found.update(name for name, _ in each.ready if each.backend not in drained.get(name, ()))
    return frozenset(found)


def _no_use(_backend: Backend, _model: bytes) -> ModelUse:
    """There are no requests."""
    return ModelUse(0, 0)


class StillRemovingError(LoadBalancerError):
    """A backend was removed: all that can be done is to add it again."""


class BackendDirectory:
    """Knows every backend; publishes who may get requests. Implements `OutcomeSink`."""

    def __init__(self, policy: Policy) -> None:
        self._registry = BackendRegistry()
        self._records = self._registry.records
        self.removal_s = REMOVAL_S
        """How long what runs on a backend that was removed may take."""
        self.cut: Callable[[Backend], None] = _nobody_cuts
        """Closes all connections to a backend, whatever runs over them."""
        self.model_use: Callable[[Backend, bytes], ModelUse] = _no_use
        """Counts what of a model runs on a backend."""
        self.on_models: Callable[[], None] = _nobody_waits
        """Told that a backend has other models than before, or in other states."""
        self._looked_at: float | None = None
        self._search_due = 0.0
        """When all may be looked at again for a model that nobody is known to have."""
        self._facts: dict[bytes, ModelFacts] = {}
        self._listed: dict[int, frozenset[bytes]] = {}
        """All sets of names of models, by what they are: kept, so that no other is the same."""
        self._names: frozenset[bytes] = frozenset()
        """What is in them."""
        self._routes = RouteBuilder(policy)
        self._drains = ModelDrains()
        self._on_demand: OnDemands = {}
        self._on_standby: OnDemand | None = None
        self._standby_models: OnDemands = {}
        self._narrowing = Narrowing()
        self._trials = Trials()
        self.passive = PassiveHealth(None)
        """What live traffic says of backends; nothing unless it is told how to judge."""
        self.passive.changed = self._judged
        self.changes = self.passive.changes
        """The latest changes of state, for people."""
        self.ramps = Ramps(NO_RAMP)
        """Backends that have begun to serve of late."""
        self._ramped_at: float | None = None
        """When the newest of them began, until their shares are set."""
        self.passive.returned = self._begin_slowly
        self.configurations = ConfigurationBook()
        """How backends configure their models, as far as it was read."""
        nobody = Placement((), None, policy)
        self.ref = PoolRef(PoolSnapshot(0, (), (nobody, nobody), loadable=self._on_demand))
        """What the data plane reads."""
        self.put_off: Callable[[Callable[[], None]], object] = _at_once
        """Puts off to the end of an iteration of the loop what probes and lists have changed:
        hundreds may end in one turn, and to publish takes a millisecond then."""
        self._is_put_off = False
        self._is_port_to_leave = False
        """What is under way at some port is to leave it or to end, and relays were not told. Who
        gets requests may be as it was: that port got none before."""
        self._closed: dict[PortRecord, None] = {}
        """Ports that have begun to refuse connections, until what began before is given up."""
        self._gone: deque[BackendRecord] = deque()
        """Backends of which something is left, though they are not in the pool any more."""
        self._is_ending = False
        """The next of them have been put off."""
        self._news = logging.DEBUG
        """Level of lines about backends that are added and come up: the start-up line counts those
        that are there from the beginning."""

    def begin(self) -> None:
        """From now on a backend that is added or comes up is news."""
        self._news = self._registry.news = logging.INFO

    @property
    def records(self) -> tuple[BackendRecord, ...]:
        """All backends, in the order of their source; those that leave come last."""
        return tuple(self._records.values())

    def ports(self) -> Iterator[PortRecord]:
        """All ports of all backends."""
        for record in self._records.values():
            yield from record.ports

    def find(self, name: str) -> BackendRecord:
        """Return the backend called `name`.

        Raises:
            LookupError: there is none.
        """
        record = self._records.get(name)
        if record is None:
            raise LookupError(f"there is no backend {name!r}; {self._named()}")
        return record

    def _named(self) -> str:
        """The first backends by name, for whoever names another one."""
        names = list(self._records)
        more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
        return f"there are: {', '.join(names[:_MOST_NAMED] + more) or 'none'}"

    def roster(self) -> tuple[Reach, ...]:
        """Whom calls of our own can reach: all but those that are disabled or leave, in the order
        of the source."""
        return tuple(
            Reach(
                record.backend,
                (record.is_open(AppProtocol.HTTP), record.is_open(AppProtocol.GRPC)),
            )
            for record in self._records.values()
            if record.admin not in _UNASKED
        )

    @property
    def policy(self) -> Policy:
        """How backends are chosen."""
        return self._routes.policy

    def use_policy(self, policy: Policy, now: float) -> None:
        """Choose backends in another way from now on."""
        self._routes.policy = policy
        self._publish(now)

    @property
    def planner(self) -> Planner:
        """Says which models are scheduled, and how."""
        return self._routes.planner

    def use_planner(self, planner: Planner, now: float) -> None:
        """Schedule requests in another way from now on."""
        self._routes.planner = planner
        self._publish(now)

    def narrow(self, rules: Narrow, now: float) -> None:
        """Have only some backends serve some models."""
        if self._narrowing.configure(rules):
            self._publish(now)

    # Membership

    def replace(self, members: Sequence[Member], now: float) -> None:
        """Make `members` the whole pool. A backend lives on while its name and addresses do; one
        that is left out finishes what it has, within `removal_s`.

        What the operator said about a name stays, even when its addresses change.
        """
        before = {
            # A backend that the operator has dismissed is let go and taken back by nobody else.
            record: (record.admin, "operator" if record.is_dismissed else "its source")
            for record in self._records.values()
        }
        self._registry.replace(members, now, self.removal_s)
        for name, record in self._records.items():
            if record not in before:
                added = StateChange(
                    now, name, "", "", record.state.value, f"added: {record.member.origin}"
                )
                self.changes.add(added)
                continue
            admin, why = before[record]
            if record.admin is not admin:
                self._note_admin(record, admin, why, now)
        gone = self._registry.remove_finished(now)
        self._publish(now)
        self._forget(gone, now)

    def dismiss(self, record: BackendRecord, now: float) -> None:
        """The operator wants a backend gone: it never stands in for others. `replace` follows."""
        record.is_dismissed = True
        if record.stands_in:
            record.stands_in = frozenset()
            record.finish_by = now + self.removal_s

    def _forget(self, gone: Sequence[BackendRecord], now: float) -> None:
        """End what is left of backends that are not in the pool any more."""
        self._gone.extend(gone)
        if not self._is_ending:
            self._end_some(now)

    def _end_some(self, now: float) -> None:
        """Go on with that, and with lines about those that leave."""
        for _ in range(min(len(self._gone), ENDED_AT_ONCE)):
            record = self._gone.popleft()
            backend = record.backend
            fields = {"requests": backend.in_flight, "sequences": backend.open_sequences}
            level = logging.INFO if record.is_empty else logging.WARNING
            _log.log(level, "backend removed", extra={"backend": backend.name, **fields})
            self.changes.add(
                StateChange(
                    now, backend.name, "", record.state.value, "gone", "it has been removed"
                )
            )
            backend.died()  # for the sequences that it ran
            self.passive.removed(backend, record.since)
            self.ramps.end(backend)
            self.cut(backend)
        is_untold = self._registry.tell()
        self._is_ending = bool(is_untold or self._gone)
        if self._is_ending:
            self.put_off(partial(self._end_some, now))

    def set_admin(
        self, name: str, state: AdminState, now: float, limit_s: float | None = None
    ) -> None:
        """Enable, drain or disable a backend; the same again changes nothing but the limit.

        Args:
            name: of the backend.
            state: what it is to be.
            now: monotonic seconds.
            limit_s: how long what runs on one that drains may take, before the rest is cut and it
                is disabled; None: as long as it takes.

        Raises:
            LookupError: there is no such backend.
            StillRemovingError: it has been removed.
        """
        record = self.find(name)
        if record.admin is AdminState.REMOVING:
            raise StillRemovingError(f"backend {name} has been removed; add it again")
        if state is AdminState.ENABLED and record.admin is not AdminState.ENABLED:
            state = record.member.first_admin  # a standby backend serves when it is needed
        is_limited = state is AdminState.DRAINING and limit_s is not None
        record.finish_by = now + (limit_s or 0.0) if is_limited else None
        self._set_admin(record, state, "operator", now)

    def set_standby(self, record: BackendRecord, *, is_active: bool, why: str, now: float) -> None:
        """Let a standby backend serve, or have it finish what it has and get nothing new.

        Args:
            record: of the backend. Nothing happens if an operator says that it is not to serve.
            is_active: what it is to be.
            why: for people.
            now: monotonic seconds.
        """
        if record.admin not in (AdminState.ENABLED, AdminState.STANDBY):
            return
        if is_active and record.admin is AdminState.STANDBY:
            self._begin_slowly(record.backend, now)
        state = AdminState.ENABLED if is_active else AdminState.STANDBY
        self._set_admin(record, state, why, now)

    def hold_for_standby(self, general: OnDemand | None, models: OnDemands) -> None:
        """Have inferences wait for a standby backend.

        Args:
            general: what those wait for that find no backend at all; None: they do not wait.
            models: the same for models that only standby backends have.
        """
        if general != self._on_standby or models != self._standby_models:
            self._on_standby, self._standby_models = general, models
            self._publish_if_changed()

    def drain_model(self, name: str, model: bytes, *, is_drained: bool, now: float) -> None:
        """Drain a model on one backend, or let it get requests there again. A drain lasts until it
        is ended so, or the backend is removed.

        Args:
            name: of the backend.
            model: its name as it stands on the wire.
            is_drained: what it is to be.
            now: monotonic seconds.

        Raises:
            LookupError: there is no such backend.
            StillRemovingError: the backend has been removed.
        """
        record = self.find(name)
        if record.admin is AdminState.REMOVING:
            raise StillRemovingError(f"backend {name} has been removed; add it again")
        if (model in record.drained_models) is is_drained:
            return
        record.drained_models ^= {model}
        states = [AdminState.ENABLED.value, AdminState.DRAINING.value]
        before, after = states if is_drained else states[::-1]
        fields = {"backend": name, "model": readable(model), "from": before, "to": after}
        _log.info("model administered", extra={**fields, "why": "operator"})
        self.changes.add(StateChange(now, name, readable(model), before, after, "operator"))
        self._publish_if_changed()

    def evict(self, record: BackendRecord, models: frozenset[bytes]) -> None:
        """Send a backend no new requests for these models, and no others: they are about to be
        unloaded there, or it is not known yet how they are configured."""
        if record.evicted != models:
            record.evicted = models
            self._publish_if_changed()

    @property
    def loads_on_demand(self) -> bool:
        """Whether models are loaded where and when they are needed: backends differ on purpose."""
        return bool(self._on_demand)

    def load_on_demand(self, models: OnDemands) -> None:
        """Have inferences wait for these models, as far as they are loaded nowhere."""
        if models != self._on_demand:
            self._on_demand = models
            self._publish_if_changed()

    def _set_admin(self, record: BackendRecord, state: AdminState, why: str, now: float) -> None:
        if record.admin is state:
            return
        fields = {"backend": record.backend.name, "from": record.admin.value, "to": state.value}
        _log.info("backend administered", extra={**fields, "why": why})
        before, record.admin = record.admin, state
        self._note_admin(record, before, why, now)
        record.empty_since = None
        if state is AdminState.DISABLED:
            record.backend.died()  # its sequences get nothing more either
        self._relieve_by(record, now)
        record.settle(now)
        record.wake()
        self._publish_if_changed()

    def _note_admin(self, record: BackendRecord, before: AdminState, why: str, now: float) -> None:
        self.changes.add(
            StateChange(now, record.backend.name, "", before.value, record.admin.value, why)
        )

    # News of models

    def models_changed(self, record: BackendRecord, now: float) -> None:
        """What `record` is known to have has changed: its models or its regions."""
        if self._records.get(record.backend.name) is not record:
            return
        tried: set[tuple[int, int]] = set()
        for other in self._records.values():
            sets = (id(other.models.names), id(other.models.ready))
            # Most share theirs, so there are few to be compared with.
            if other is not record and sets not in tried:
                tried.add(sets)
                if record.models.share(other.models):
                    break
        for port in record.ports:
            before = port.health.state
            port.health.has_models = record.models.has_ready_models
            self._settle(port, before, port.why or _NOT_READY, now)
        self._publish_soon()
        self.on_models()

    def facts_changed(self, facts: Mapping[bytes, ModelFacts]) -> None:
        """What is known of the configuration of all models, by their names."""
        self._facts = dict(facts)
        self._publish_soon()

    def misplaced(self, backend: Backend, model: bytes, version: bytes | None, now: float) -> None:
        """A backend answered that it does not have a model ready.

        If it has no version of a model at all that it listed as ready, it is another process, or
        somebody has unloaded the model. It gets no requests for it until its next list, which is
        asked for at once.

        Without the version that was asked for, that may be one which nobody has: then only the
        backend's next list can tell, and it is asked for at once. So are those of all when nobody
        is known to have the model: one may have been told to load it, and not through us. All that
        is done once a second at most.

        Args:
            backend: that one.
            model: its name as it stands on the wire.
            version: that was asked for; empty: not known. None: it has no version of the model.
            now: monotonic seconds.
        """
        record = self._records.get(backend.name)
        if record is None or record.backend is not backend:
            return
        route = self.ref.current.routes.get(model)
        is_nowhere = route is None or not route.is_ready
        if is_nowhere and now >= self._search_due:
            # A client that asks for what nobody has must not keep all backends busy.
            self._search_due = now + _SEARCH_S
            for each in self._records.values():
                self._look_again(each, now)
        if version is None:
            is_news = record.models.lacks(model, now)
        else:
            is_news = bool(version) and record.models.contradicted((model, version), now)
        if is_news:
            fields = {"backend": backend.name, "model": readable(model)}
            _log.info("backend does not have a model that it listed", extra=fields)
            self.models_changed(record, now)
        if is_news and version is None:
            record.wake()
        elif is_news or not version:
            self._look_again(record, now)

    def _look_again(self, record: BackendRecord, now: float) -> None:
        """Ask for its list soon, but not for each request that a client may make."""
        if now >= record.look_due:
            record.look_due = now + _SEARCH_S
            record.wake()

    # News of the probes

    def probe_sent(self, port: PortRecord, now: float) -> None:
        """A probe of `port` goes out."""
        port.health.probe_sent(now)

    def probed(self, port: PortRecord, result: ProbeResult, now: float) -> None:
        """The last probe of `port` ended. Ignored when the port has left the pool meanwhile."""
        if not self._is_current(port):
            return
        port.last_result = result
        if result.finding is Finding.READY:
            port.port.probed_at = now
            port.port.ready_through = result.ready_through
        before, was_refusing = port.health.state, port.health.is_refusing
        port.health.probed(result.finding, port.port.last_byte_at)
        record = self.find(port.backend.name)
        was_dead = not record.lives
        record.note_death()
        if was_dead and record.lives:
            self._look_at_silent(record)
        if self._conclude(port, before, was_refusing, result.detail, now):
            self._publish_soon()
        elif before is BackendState.DOWN and result.detail:
            port.why = result.detail  # refused first, say, and then not ready

    def _look_at_silent(self, record: BackendRecord) -> None:
        """A backend is back: have its other ports probed soon, for which the pause may be long."""
        for port in record.ports:
            if port.health.is_silent and port.health.state is BackendState.DOWN:
                port.health.awaited()
                port.wake()

    def check(self, now: float) -> None:
        """Look for stalls and for backends that have become empty; due every 100 ms or so."""
        looked_at, self._looked_at = self._looked_at, now
        if looked_at is not None and now - looked_at > _LATE_S:
            return
        self.passive.judge((record.backend for record in self._records.values()), now)
        changed = False
        for record in self._records.values():
            for port in record.ports:
                if port.health.is_at_ease:
                    continue
                before = port.health.state
                port.health.check_stall(port.port.last_byte_at, now)
                is_silent = port.health.state is BackendState.SUSPECTED
                why = _SILENT if is_silent else _NOT_READY
                changed |= self._settle(port, before, why, now)
            self._note_empty(record, now)
        self._check_closed(now)
        changed |= self._is_port_to_leave
        gone = self._registry.remove_finished(now)
        if self.ramps.advance(self._serving(), now) or gone:
            self._publish(now)
        elif changed:
            self._publish_if_changed()
        self._forget(gone, now)

    def _check_closed(self, now: float) -> None:
        """Give up, in two steps, what was under way at processes that listen no more. One that is
        killed may leave its connections open to children of its own, which say nothing; one that
        exits finishes what it has."""
        for port in tuple(self._closed):
            if not self._is_current(port):
                del self._closed[port]
                continue
            closed_at, where = port.closed_at, port.port
            is_followed = not port.health.is_silent
            silent_s = now - (closed_at if is_followed else max(closed_at, where.last_byte_at))
            if where.left_before < closed_at and (is_followed or silent_s >= _CLOSED_S):
                where.left_before = closed_at
                self._is_port_to_leave = True
            if silent_s >= LEAVING_S:
                where.left_before = where.lost_before = closed_at
                self._is_port_to_leave = True
                del self._closed[port]

    def _note_empty(self, record: BackendRecord, now: float) -> None:
        if record.admin is AdminState.ENABLED or record.empty_since is not None:
            return
        if record.is_empty:
            record.empty_since = now
            if record.admin is AdminState.STANDBY:
                return  # which is its usual state
            fields = {"backend": record.backend.name, "admin": record.admin.value}
            _log.info("backend is empty", extra=fields)
        elif record.admin is AdminState.DRAINING and record.is_overdue(now):
            self._set_admin(record, AdminState.DISABLED, "it took too long to drain", now)
            self.cut(record.backend)

    # News of live traffic

    def report(self, backend: Backend, protocol: AppProtocol, outcome: Outcome, now: float) -> None:
        """Take note of a failed attempt: a refusal takes the port out, doubt asks for a probe.

        Failures alone never take a port out here: only a probe can tell a broken backend from a
        broken request.
        """
        record = self._records.get(backend.name)
        port = record.port(protocol) if record and record.backend is backend else None
        if record is None or port is None or not REPLAY_TABLE[outcome].counts_against_backend:
            return
        if outcome is Outcome.CONNECT_REFUSED:
            before, was_refusing = port.health.state, port.health.is_refusing
            port.health.refused()
            record.note_death()
            if self._conclude(port, before, was_refusing, "refused a connection", now):
                self._publish_if_changed()
        else:
            port.health.doubted()
            if outcome is Outcome.LOST and record.models.lists is not False:
                self._look_again(record, now)  # another process may be there already
        port.wake()

    # Conclusions

    def _conclude(
        self, port: PortRecord, before: BackendState, was_refusing: bool, why: str, now: float
    ) -> bool:
        """Draw what follows from news of a port for its backend. Whether that is to be published.

        Args:
            port: that one; its health has the news already.
            before: its state without them.
            was_refusing: whether it refused connections before.
            why: it is in its state now.
            now: monotonic seconds.
        """
        is_doubted = port.health.is_refusing and not was_refusing
        if is_doubted:
            port.closed_at = now
            self._closed[port] = None
            self._doubt_process(port, self.find(port.backend.name), now)
        is_changed = self._settle(port, before, why, now)
        if is_changed:
            self._tell_sibling(port, port.health.is_refusing, now)
        return is_changed or is_doubted or self._is_port_to_leave

    def _doubt_process(self, port: PortRecord, record: BackendRecord, now: float) -> None:
        """One port of a backend has begun to refuse connections: nobody listens there, so its
        process has ended, and the next answer of its other port may be of another process. Find
        that out soon, and rely on no list of models until there is a new one."""
        if record.models.lists is False or not record.answers:
            return
        record.models.doubt()
        for other in record.ports:
            if other is not port:
                before, other.health.has_models = other.health.state, False
                other.health.doubted()
                self._settle(other, before, "its models are not known", now)
                other.wake()
        record.wake()

    def _tell_sibling(self, port: PortRecord, is_closed: bool, now: float) -> None:
        """A Triton that exits closes HTTP before gRPC: prefer others for gRPC, too."""
        record = self.find(port.backend.name)
        sibling = record.port(AppProtocol.GRPC)
        if (
            sibling is None
            or port.protocol is not AppProtocol.HTTP
            or record.backend.spec.kind is not BackendKind.TRITON
        ):
            return
        before = sibling.health.state
        if port.health.state is BackendState.DOWN and is_closed:
            sibling.health.sibling_closed(now)
        elif port.health.state in (BackendState.UP, BackendState.PARTIAL):
            sibling.health.sibling_opened()
        if self._settle(sibling, before, "its HTTP port has closed", now):
            sibling.wake()

    def _is_current(self, port: PortRecord) -> bool:
        record = self._records.get(port.backend.name)
        return record is not None and record.backend is port.backend

    def _settle(self, port: PortRecord, before: BackendState, why: str, now: float) -> bool:
        """Note what became of `port`, and log and count its state; returns whether that changed."""
        state = port.health.state
        self._note_hang(port)
        if state is before:
            return False
        is_up = state is BackendState.UP
        port.since = now
        port.why = "" if is_up else why
        port.changes += 1
        record = self.find(port.backend.name)
        record.settle(now)
        if not record.answers:
            # It may be another process that answers next.
            self._forget_models(record)
            self.passive.forget(record.backend, now)
            self.ramps.end(record.backend)
        elif state in WELL_STATES and before in _GONE:
            self._begin_slowly(record.backend, now)
        self._relieve_by(record, now)
        record.wake()
        self.changes.add(
            StateChange(
                now,
                port.backend.name,
                port.protocol.label,
                before.value,
                state.value,
                port.why or "ready",
            )
        )
        level = self._news if is_up or record.admin is AdminState.STANDBY else logging.WARNING
        _log.log(
            level,
            "backend state changed",
            extra={
                "backend": port.backend.name,
                "protocol": port.protocol.label,
                "from": before.value,
                "to": state.value,
                "why": port.why or "ready",
            },
        )
        return True

    def _note_hang(self, port: PortRecord) -> None:
        """What is under way at a port that hangs may leave it, and ends once it is down as well."""
        where, state = port.port, port.health.state
        is_hung = port.health.is_hung and state is not BackendState.UP
        is_given_up = is_hung and state is BackendState.DOWN
        self._is_port_to_leave |= is_hung > where.is_hung or is_given_up > where.is_given_up
        where.is_hung, where.is_given_up = is_hung, is_given_up

    def _judged(self, now: float) -> None:
        """Live traffic says something else of backends than before."""
        reasons = self.passive.reasons()
        for record in self._records.values():
            record.outlier_reason = reasons.get(record.backend, "")
            record.is_ejected = record.backend in self.passive.out
            record.settle(now)
        self._publish_if_changed()

    def _relieve_by(self, record: BackendRecord, now: float) -> None:
        """Let those leave that stood in for a backend, if it is up."""
        if record.admin is AdminState.ENABLED:
            for port in record.ports:
                if port.health.state in WELL_STATES:
                    self._registry.relieve(port.protocol, now, self.removal_s)

    def _begin_slowly(self, backend: Backend, now: float) -> None:
        self.ramps.begin(backend, now)
        self._ramped_at = now  # hundreds may begin in one loop iteration

    def _serving(self) -> Iterator[Backend]:
        """Those that get requests, as far as probes and the operator say."""
        for record in self._records.values():
            if record.admin is AdminState.ENABLED and any(
                port.health.state in WELL_STATES for port in record.ports
            ):
                yield record.backend

    def _forget_models(self, record: BackendRecord) -> None:
        if record.models.lists is not False:
            record.models.forget()
        self.configurations.forget(record.backend, lambda _: True)
        record.learn(NO_SETUP)
        for port in record.ports:
            port.health.has_models = False

    def _publish(self, now: float) -> None:
        """Publish whatever has changed: weights and limits are read when pickers are built."""
        self._set_new_shares()
        for record in self._records.values():
            record.settle(now)
        self._routes.forget_pickers()
        self._publish_routing(self._route())

    def _publish_soon(self) -> None:
        if not self._is_put_off:
            self._is_put_off = True
            self.put_off(self._publish_put_off)

    def _publish_put_off(self) -> None:
        self._is_put_off = False
        self._publish_if_changed()

    def _set_new_shares(self) -> None:
        """Give those that have begun to serve the share that they begin with."""
        if self._ramped_at is not None:
            self.ramps.advance(self._serving(), self._ramped_at)
            self._ramped_at = None

    def _publish_if_changed(self) -> None:
        self._set_new_shares()
        routing = self._route()
        now = self.ref.current
        if (
            routing.placements != now.placements
            or self._parting != now.parting
            or routing.routes is not now.routes
            or routing.regions != now.regions
            or routing.partial != now.partial
            or routing.knows_all != now.knows_all
            or routing.only_unready != now.only_unready
            or self._on_standby != now.on_standby
            or self._on_demand is not now.loadable
            or self._is_port_to_leave
        ):
            self._publish_routing(routing)

    def _publish_routing(self, routing: Routing) -> None:
        self._is_port_to_leave = False
        self.ref.publish(
            PoolSnapshot(
                self.ref.current.generation + 1,
                tuple(record.backend for record in self._records.values()),
                routing.placements,
                routes=routing.routes,
                regions=routing.regions,
                partial=routing.partial,
                knows_all=routing.knows_all,
                only_unready=routing.only_unready,
                parting=self._parting,
                on_standby=self._on_standby,
                loadable=self._on_demand,
            )
        )

    @property
    def _parting(self) -> frozenset[Backend]:
        """Backends that are to become empty."""
        records = self._records.values()
        return frozenset(each.backend for each in records if each.admin is not AdminState.ENABLED)

    def _route(self) -> Routing:
        # Backends that list the same have the same set: it is looked at once.
        listed = {id(each.models.names): each.models.names for each in self._records.values()}
        if listed.keys() != self._listed.keys():
            self._listed, self._names = listed, frozenset[bytes]().union(*listed.values())
        known: dict[BackendRecord, Candidate] = {}
        tiers = [self._tiers(protocol, known) for protocol in AppProtocol]
        passive = self.passive
        if not passive.is_quiet:
            tiers = [leave_out(each, passive.out, passive.models, passive.least) for each in tiers]
        missed = self._missed_models(known)
        names = self._names | missed if missed else self._names
        routing = self._routes.build(tiers, names, self._facts, missed)
        drained, trials = self._drained(), passive.trials
        if drained and trials:
            trials = {
                model: trial
                for model, trial in trials.items()
                if trial.backend not in drained.get(model, ())
            }
        on_demand = self._on_demand
        if self._standby_models:
            on_demand = {**self._standby_models, **on_demand}
        served = tuple(_served(each, drained) for each in tiers) if on_demand else ()
        return self._trials.put(
            self._drains.put(self._narrowing.put(routing), drained, on_demand, served), trials
        )

    def _missed_models(self, known: Collection[BackendRecord]) -> frozenset[bytes]:
        """Names of the models that backends had ready which are no candidates now."""
        missed = {
            record.models.ready or record.models.had
            for record in self._records.values()
            if record.admin in _MISSED and record not in known
        }
        return frozenset[bytes]().union(*map(names_of, missed))

    def _drained(self) -> Drained:
        found: dict[bytes, frozenset[Backend]] = {}
        for record in self._records.values():
            for model in record.drained_models | record.evicted:
                found[model] = found.get(model, frozenset()) | {record.backend}
        return found

    def _tiers(self, protocol: AppProtocol, known: dict[BackendRecord, Candidate]) -> Tiers:
        """Backends that may serve, by the state of their port. A backend is the same candidate in
        both protocols."""
        up, partial, suspected, for_models, unready = [], [], [], [], []
        for record, port in self._registry.serving(protocol):
            state = port.health.state
            if state not in _ROUTED:
                continue  # there may be a thousand of them, and this is asked at each change
            candidate = known.get(record)
            if candidate is None:
                models = record.models
                candidate = known[record] = Candidate(
                    record.backend,
                    None if models.lists is False else models.ready,
                    is_known=models.lists is True,
                    regions=record.regions,
                )
            if state is BackendState.UP:
                up.append(candidate)
                for_models.append(candidate)
            elif state is BackendState.PARTIAL:
                partial.append(candidate)
                for_models.append(candidate)
            elif state is BackendState.SUSPECTED:
                suspected.append(candidate)
            elif state is BackendState.UNREADY:
                unready.append(candidate)
        return Tiers(*map(tuple, (up, partial, suspected, for_models, unready)))
