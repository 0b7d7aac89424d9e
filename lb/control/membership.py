"""What the pool should be, out of everything that says so, and bringing the pool there live.

The configuration names backends, sources find some, the operator adds and removes others while we
run. Whoever comes first in that order keeps a name. What has changed is applied as a difference:
who stays is not disturbed, who is new gets requests once its probes say so, who is missing
finishes what it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Final

from lb.control.directory import BackendDirectory
from lb.control.record import Member
from lb.domain.backend import AdminState
from lb.domain.errors import LoadBalancerError
from lb.health.thresholds import Thresholds
from lb.probes.plan import ProbeChoice, ProbeKind
from lb.settings.backends import BackendSettings, GrpcProbe, HealthSettings
from lb.settings.shared_addresses import SharedAddress, shared_addresses

_log = logging.getLogger(__name__)

MOST_BACKENDS: Final = 1000
"""Unless told otherwise."""
CONFIGURATION: Final = "configuration"
OPERATOR: Final = "operator"
"""Names of origins; sources have others."""
_SAID: Final = frozenset({AdminState.DRAINING, AdminState.DISABLED})
"""What only an operator says."""


class MembershipError(LoadBalancerError):
    """What the operator asks for cannot be done; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Word:
    """What the operator said of a backend that is in the pool."""

    admin: AdminState = AdminState.ENABLED
    finish_by: float | None = None
    """When what still runs on one that drains is cut, in monotonic seconds; None: never."""
    drained_models: frozenset[bytes] = frozenset()


_NOTHING_SAID: Final = Word()


@dataclass(frozen=True, slots=True)
class RuntimeChanges:
    """What the operator changed while we ran."""

    added: tuple[BackendSettings, ...] = ()
    removed: frozenset[str] = frozenset()
    """Names of the configuration or of sources that are left out."""
    words: Mapping[str, Word] = field(default_factory=dict)
    """By the name of the backend."""


def member_of(entry: BackendSettings, health: HealthSettings, origin: str = "") -> Member:
    """A backend as a source says it should be.

    Args:
        entry: what the source says.
        health: the common settings of probes.
        origin: what names it, for people.
    """
    own = {name: getattr(entry.health, name) for name in entry.health.model_fields_set}
    rules = health.model_copy(update=own) if own else health
    return Member(
        entry.spec(),
        Thresholds(rules.interval, rules.timeout, rules.rise, rules.fall),
        ProbeChoice(
            kind=ProbeKind(rules.probe.value),
            http_path=rules.http_path,
            expected_status=rules.expected_status,
            grpc_health=rules.grpc_service is GrpcProbe.HEALTH,
            model=rules.model,
        ),
        origin,
        entry.standby_rule(),
    )


def _same(one: BackendSettings, other: BackendSettings) -> bool:
    """Whether two entries are equal; most are one object, which is seen at once."""
    return one is other or one == other


def name_of(entry: BackendSettings) -> str:
    """The name that an entry goes by."""
    return entry.known_as


class Membership:
    """Knows what is wanted, and keeps the directory in line with it."""

    def __init__(
        self,
        directory: BackendDirectory,
        *,
        clock: Callable[[], float] = monotonic,
        most: int = MOST_BACKENDS,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self.most = most
        """Backends in all; more are left out."""
        self._health = HealthSettings()
        self._configured: tuple[BackendSettings, ...] = ()
        self._found: dict[str, tuple[BackendSettings, ...] | None] = {}
        """By source, in their order; None: it has not said anything yet."""
        self._replaced: dict[str, tuple[BackendSettings, ...]] = {}
        """What sources have found that are not configured any more, until those that are have said
        what they find: a source that only got another name must not empty the pool."""
        self._unfinished: set[str] = set()
        """Sources that have said a part of what they have found so far."""
        self._most_applied = most
        self._members: dict[str, tuple[BackendSettings, Member]] = {}
        """By name: what its settings mean, which takes a while to find out."""
        self._added: dict[str, BackendSettings] = {}
        self._removed: set[str] = set()
        self._words: dict[str, Word] = {}
        """Said to the process before this one, of backends that nobody has named yet."""
        self._surplus = ""
        """The first name that was left out at the last look; empty: none was."""
        self._shared: frozenset[SharedAddress] = frozenset()
        """Backends at one address at the last look, so that each pair is told once."""

    # What others say

    def configure(
        self,
        entries: Sequence[BackendSettings],
        health: HealthSettings,
        sources: Sequence[str] = (),
    ) -> None:
        """Take over a configuration: the first one, or another one while we run.

        What the operator has added stays, except under a name that the configuration now has; what
        the operator has removed stays out as long as anybody names it.

        Args:
            entries: its backends.
            health: its common settings of probes.
            sources: names of its sources, in order. What others have found is forgotten once these
                have said what they find.
        """
        found = {name: self._found.get(name) for name in sources}
        # The order of sources decides who keeps a name.
        wanted = (tuple(entries), health, tuple(found.items()))
        now = (self._configured, self._health, tuple(self._found.items()))
        if wanted == now and self._most_applied == self.most:
            return
        if health != self._health:
            self._members.clear()
        before = {**self._replaced, **self._found}
        self._replaced = {
            name: known for name, known in before.items() if known and name not in found
        }
        self._configured, self._health, self._found = tuple(entries), health, found
        self._unfinished.intersection_update(found)
        self._apply()

    def found(
        self, source: str, entries: Sequence[BackendSettings], more_follow: bool = False
    ) -> None:
        """A source has found these, and no others any more. Ignored when it has been taken out of
        the configuration.

        Args:
            source: its name.
            entries: what it has found.
            more_follow: it has found others besides, which it says in a moment.
        """
        if source not in self._found:
            return
        was_unfinished = source in self._unfinished
        if more_follow:
            self._unfinished.add(source)
        else:
            self._unfinished.discard(source)
        if self._found[source] != tuple(entries) or was_unfinished != more_follow:
            self._found[source] = tuple(entries)
            self._apply()

    # What the operator says

    def add(self, entry: BackendSettings) -> str:
        """Add a backend until the process ends. Returns its name.

        Raises:
            MembershipError: its name or an address is taken, or there are too many backends.
        """
        name = name_of(entry)
        wanted = [each for _, each in self._wanted()]
        if name in map(name_of, wanted):
            raise MembershipError(f"there is a backend {name!r} already")
        for pair in shared_addresses([*wanted, entry]):
            if pair.backend == name:
                raise MembershipError(f"backend {pair.other!r} has the same address already")
        self._check_room(len(wanted))
        self._added[name] = entry
        self._apply()
        return name

    def take_back(self, name: str) -> None:
        """Let a backend in again that was removed and is still named.

        Raises:
            MembershipError: it was not removed, or there are too many backends.
        """
        if name not in self._removed:
            raise MembershipError(f"no backend {name!r} was removed; to add one, say its addresses")
        self._check_room(sum(1 for _ in self._wanted()))
        self._removed.discard(name)
        self._apply()

    def remove(self, name: str, limit_s: float | None = None) -> None:
        """Remove a backend: it finishes what it has, and is gone.

        One that the configuration or a source names stays out until the process ends, or until it
        is added again.

        Args:
            name: of the backend.
            limit_s: how long what runs on it may take; None: as long as is usual.

        Raises:
            LookupError: there is no such backend.
        """
        record = self._directory.find(name)
        if record.admin is not AdminState.REMOVING:
            self._added.pop(name, None)
            self._removed.add(name)  # which is forgotten where nobody names it
        self._directory.dismiss(record, self._clock())
        self._apply()
        if limit_s is not None:
            record.finish_by = self._clock() + limit_s

    @property
    def runtime_changes(self) -> RuntimeChanges:
        """What the operator has changed."""
        words = dict(self._words)
        for record in self._directory.records:
            said = record.admin if record.admin in _SAID else AdminState.ENABLED
            if record.admin is not AdminState.REMOVING and (
                said is not AdminState.ENABLED or record.drained_models
            ):
                words[record.backend.name] = Word(said, record.finish_by, record.drained_models)
        return RuntimeChanges(tuple(self._added.values()), frozenset(self._removed), words)

    def resume(self, changes: RuntimeChanges) -> None:
        """Take over what the operator changed in the process before this one. It may tell that
        again: what was said earlier and is not repeated has been taken back."""
        self._added = {name_of(entry): entry for entry in changes.added}
        self._removed = set(changes.removed)
        self._words = {**dict.fromkeys(self.runtime_changes.words, _NOTHING_SAID), **changes.words}
        self._apply()

    # What is wanted

    def _check_room(self, wanted: int) -> None:
        if wanted >= self.most:
            raise MembershipError(f"there are {self.most} backends already, and may be no more")

    def _named(self) -> Iterator[tuple[str, BackendSettings]]:
        """All that the configuration and sources name, with what names them."""
        for entry in self._configured:
            yield CONFIGURATION, entry
        for source, entries in self._found.items():
            for entry in entries or ():
                yield source, entry
        for source, replaced in self._replaced.items():
            for entry in replaced:
                yield source, entry

    @property
    def _are_all_named(self) -> bool:
        """Whether all sources have said all that they have found."""
        return not self._unfinished and None not in self._found.values()

    def _wanted(self) -> Iterator[tuple[str, BackendSettings]]:
        """All backends that the pool should have, each name once."""
        seen: set[str] = set()
        for origin, entry in self._named():
            name = name_of(entry)
            if name not in seen and name not in self._removed:
                seen.add(name)
                yield origin, entry
        for name, entry in self._added.items():
            if name not in seen:
                yield OPERATOR, entry

    def _surplus_name(self) -> str:
        """The first backend beyond those that there may be; empty if there is none."""
        return next((name_of(entry) for _, entry in islice(self._wanted(), self.most, None)), "")

    def _member(self, origin: str, entry: BackendSettings) -> Member:
        known = self._members.get(name_of(entry))
        if known is not None and known[1].origin == origin and _same(known[0], entry):
            return known[1]
        return member_of(entry, self._health, origin)

    def _apply(self) -> None:
        """Bring the directory in line with what is wanted."""
        if self._are_all_named:
            self._replaced.clear()
        named = set[str]()
        if self._removed or self._added:
            named = {name_of(entry) for _, entry in self._named()}
        if self._are_all_named:
            self._removed &= named
        for name in [each for each in self._added if each in named - self._removed]:
            del self._added[name]
            _log.info("backend is named by the configuration now", extra={"backend": name})
        # A source may name very many: no more of them are looked at than there may be.
        wanted = list(islice(self._wanted(), self.most))
        surplus = self._surplus_name() if len(wanted) == self.most else ""
        if surplus and not self._surplus:
            _log.warning("too many backends", extra={"most": self.most, "left_out": surplus})
        self._surplus = surplus
        shared = shared_addresses(entry for _, entry in wanted)
        for pair in shared:
            if pair not in self._shared:
                fields = {"backend": pair.backend, "other": pair.other}
                _log.warning("backends have the same address", extra=fields)
        self._shared = frozenset(shared)
        self._most_applied = self.most
        members = [self._member(origin, entry) for origin, entry in wanted]
        self._members = {
            member.spec.name: (entry, member)
            for (_, entry), member in zip(wanted, members, strict=False)
        }
        self._directory.replace(members, self._clock())
        self._repeat_words()

    def _repeat_words(self) -> None:
        """Say again what was said to the process before, once the backend is there."""
        now = self._clock()
        for name in [each for each in self._words if each in self._members]:
            word = self._words.pop(name)
            self._directory.set_admin(name, word.admin, now)
            record = self._directory.find(name)
            record.finish_by = word.finish_by
            for model in sorted(record.drained_models ^ word.drained_models):
                is_drained = model in word.drained_models
                self._directory.drain_model(name, model, is_drained=is_drained, now=now)
        if self._are_all_named:
            self._words.clear()  # nobody names those
