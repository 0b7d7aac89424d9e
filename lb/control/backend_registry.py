"""Who belongs to the pool, and who is on the way out of it.

A backend that is no longer wanted leaves: it gets nothing new, and goes for good when its requests
and sequences are over, or when its time is. Until then it is like one that drains. One that has to
give its name to a successor at another address goes by that name with a number: `gpu-0~1`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final

from lb.control.record import BackendRecord, Member, PortRecord
from lb.domain.backend import SERVING_STATES, AdminState, AppProtocol

_log = logging.getLogger(__name__)

MOST_REMOVED: Final = 1000
"""Beyond that the first ones go at once: a source that keeps changing its mind must not fill the
memory."""
ENDED_AT_ONCE: Final = 32
"""Backends of which one loop iteration ends something: a thousand may leave at once, and each takes
a tenth of a millisecond, with lines of the log, loops and connections."""


class BackendRegistry:
    """All backends by name: the wanted ones in the order of their source, then those that leave."""

    def __init__(self) -> None:
        self.records: dict[str, BackendRecord] = {}
        """Changed in place."""
        self.news = logging.DEBUG
        """Level of lines about backends that are added."""
        self._untold: dict[BackendRecord, None] = {}
        """Backends that leave, about which there is no line yet."""

    def replace(self, members: Sequence[Member], now: float, limit_s: float) -> None:
        """Make `members` all that is wanted. A backend lives on while its name and addresses do.

        What the operator said about a name stays, even when its addresses change.

        Args:
            members: with names of their own.
            now: monotonic seconds.
            limit_s: how long what runs on the others may take.
        """
        before = dict(self.records)
        called: dict[str, list[BackendRecord]] = {}
        for record in before.values():
            called.setdefault(record.member.spec.name, []).append(record)
        wanted = {each.spec.name: self._kept_or_new(before, called, each, now) for each in members}
        staying = set(wanted.values())
        self.records.clear()
        self.records.update(wanted)
        unserved = frozenset(each for each in AppProtocol if _is_unserved(staying, each))
        for record in before.values():
            if record not in staying:
                missed = (each for each in unserved if _serves(record, each))
                stands_in = frozenset[AppProtocol]() if record.is_dismissed else frozenset(missed)
                if record.admin is not AdminState.REMOVING:
                    _let_go(record, now, limit_s, stands_in)
                    self._untold[record] = None
                record.backend.name = self._free_name(record.member.spec.name)
                self.records[record.backend.name] = record
        for protocol in AppProtocol:
            # One that was taken back may be up already.
            theirs = [record for record in staying if record.port(protocol) is not None]
            if not theirs or any(_serves(record, protocol) for record in theirs):
                self.relieve(protocol, now, limit_s)

    def removed(self) -> Iterator[BackendRecord]:
        """Those that nobody wants any more."""
        return (each for each in self.records.values() if each.admin is AdminState.REMOVING)

    def serving(self, protocol: AppProtocol) -> Iterator[tuple[BackendRecord, PortRecord]]:
        """Backends that may get requests over a protocol if their health lets them, and their
        ports: the enabled ones. A backend that leaves stands in for those that replace it until one
        of them has been up: there would be nobody."""
        for record in self.records.values():
            port = record.port(protocol)
            if port is None:
                continue
            is_stand_in = protocol in record.stands_in and port.health.state in SERVING_STATES
            if record.admin is AdminState.ENABLED or is_stand_in:
                yield record, port

    def relieve(self, protocol: AppProtocol, now: float, limit_s: float) -> None:
        """Let those leave that stood in over a protocol: another backend is up, or none is wanted.

        Args:
            protocol: in question.
            now: monotonic seconds.
            limit_s: how long what runs on the others may take.
        """
        for record in self.removed():
            if protocol in record.stands_in:
                record.stands_in -= {protocol}
                record.finish_by = now + limit_s

    def tell(self) -> bool:
        """Write lines about backends that leave, `ENDED_AT_ONCE` at most. Those that have nothing
        to finish get none.

        Returns:
            Whether there are more.
        """
        for record in tuple(islice(self._untold, ENDED_AT_ONCE)):
            del self._untold[record]
            fields = {
                "backend": record.backend.name,
                "requests": record.backend.in_flight,
                "sequences": record.backend.open_sequences,
                "stands_in": bool(record.stands_in),
            }
            _log.info("backend leaves", extra=fields)
        return bool(self._untold)

    def remove_finished(self, now: float) -> list[BackendRecord]:
        """Forget those that have finished, or had their time; returns them."""
        removed = list(self.removed())
        if not removed:
            return []
        surplus = len(removed) - MOST_REMOVED
        needed = {record for protocol in AppProtocol for record, _ in self.serving(protocol)}
        gone = [
            record
            for number, record in enumerate(removed)
            if (record.is_empty and record not in needed)
            or (record.is_overdue(now) and record not in needed)
            or number < surplus
        ]
        for record in gone:
            del self.records[record.backend.name]
            self._untold.pop(record, None)
        return gone

    def _kept_or_new(
        self,
        before: Mapping[str, BackendRecord],
        called: Mapping[str, Sequence[BackendRecord]],
        member: Member,
        now: float,
    ) -> BackendRecord:
        """The record of a member.

        Args:
            before: all, by the names that they go by.
            called: the same by the names that they had as members.
            member: in question.
            now: monotonic seconds.
        """
        spec = member.spec
        holder = before.get(spec.name)
        if (
            holder is not None
            and holder.member is member
            and holder.backend.name == spec.name
            and holder.admin is not AdminState.REMOVING
        ):
            return holder  # nearly always: a source repeats what it said before
        if holder is not None and holder.member.spec.name != spec.name:
            holder = None  # it leaves, and goes by a name with a number that is wanted now
        namesakes = called.get(spec.name, ())
        if holder is not None:
            namesakes = (holder, *namesakes)  # the one that still goes by the name is the first
        record = next((each for each in namesakes if each.is_at(spec)), None)
        admin = member.first_admin if holder is None else _word_for(holder, member)
        if record is None:
            record = BackendRecord(member, now)
            record.admin = admin
            if holder is not None:
                record.drained_models = holder.drained_models
            addresses = {each.protocol.label: str(each.port.address) for each in record.ports}
            _log.log(self.news, "backend added", extra={"backend": spec.name, **addresses})
            return record
        if record.admin is AdminState.REMOVING:
            record.admin, record.finish_by, record.empty_since = admin, None, None
            record.stands_in, record.is_dismissed = frozenset(), False
            self._untold.pop(record, None)
            _log.info("backend taken back", extra={"backend": spec.name})
        elif record.member != member:
            _log.info("backend changed", extra={"backend": spec.name})
        if record.admin is AdminState.STANDBY and member.standby is None:
            record.admin = AdminState.ENABLED
        if record.member != member or record.backend.name != spec.name:
            record.apply(member)
        return record

    def _free_name(self, name: str) -> str:
        number, found = 0, name
        while found in self.records:
            number += 1
            found = f"{name}~{number}"
        return found


def _word_for(holder: BackendRecord, member: Member) -> AdminState:
    """What was said of the one that has a name now, for who has it next."""
    word = holder.word
    return member.first_admin if word in (AdminState.ENABLED, AdminState.STANDBY) else word


def _serves(record: BackendRecord, protocol: AppProtocol) -> bool:
    port = record.port(protocol)
    is_enabled = record.admin is AdminState.ENABLED
    return is_enabled and port is not None and port.health.state in SERVING_STATES


def _is_unserved(wanted: AbstractSet[BackendRecord], protocol: AppProtocol) -> bool:
    """Whether backends are wanted over a protocol, and none of them serves."""
    theirs = [record for record in wanted if record.port(protocol) is not None]
    return bool(theirs) and not any(_serves(record, protocol) for record in theirs)


def _let_go(
    record: BackendRecord, now: float, limit_s: float, stands_in: frozenset[AppProtocol]
) -> None:
    """Let a backend finish what it has, and go on with what nobody else can take over."""
    record.admin_before = record.admin
    record.admin = AdminState.REMOVING
    record.stands_in = stands_in
    record.finish_by = now + limit_s
    record.empty_since = None
    record.settle(now)
