"""Random joins, leaves, probes, requests and sequences: nothing goes where it must not, counts are
exact, and nothing is left of who has gone."""

from __future__ import annotations

from collections import Counter
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lb.control.directory import BackendDirectory, StillRemovingError
from lb.control.membership import Membership, MembershipError
from lb.control.record import PortRecord
from lb.domain.backend import AdminState, AppProtocol, Backend, BackendState
from lb.domain.sequence import SequenceKey, SequenceStep
from lb.health.port import Finding
from lb.probes.probe import ProbeResult
from lb.settings.backends import BackendSettings, HealthSettings
from tests.fakes.relay import Desk, Placed, named_policy

NAMES: Final = ("a", "b", "c", "a~1")
DRAIN_S: Final = 30.0
WORDS: Final = (AdminState.ENABLED, AdminState.DRAINING, AdminState.DISABLED)

entries = st.builds(
    lambda name, port, weight: BackendSettings.model_validate(
        {"name": name, "http": f"10.0.0.{port}:1", "grpc": f"10.0.0.{port}:2", "weight": weight}
    ),
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.sampled_from((1, 3)),
)
some_entries = st.lists(entries, max_size=4, unique_by=lambda entry: entry.name)
names = st.sampled_from(NAMES)
indices = st.integers(0, 1000)


class Pool(RuleBasedStateMachine):
    """The control plane and the dispatcher, without sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.directory = BackendDirectory(named_policy("least_loaded"))
        self.directory.removal_s = DRAIN_S
        self.directory.cut = self.cut_off
        self.membership = Membership(self.directory, clock=self.clock, most=6)
        self.membership.configure([], HealthSettings(), ["dns"])
        self.desk = Desk(self.directory.ref, self.directory, self.clock, max_sequences=100)
        self.running: list[Placed] = []
        self.sequences: dict[int, Backend] = {}

    def clock(self) -> float:
        return self.now

    def cut_off(self, backend: Backend) -> None:
        """As the relays do: what runs over its connections is lost."""
        for each in [each for each in self.running if each.backend is backend]:
            self.running.remove(each)
            self.desk.lose(each)

    # Who is wanted

    @rule(found=some_entries)
    def another_configuration(self, found: list[BackendSettings]) -> None:
        self.membership.configure(found, HealthSettings(), ["dns"])

    @rule(found=some_entries)
    def dns_finds(self, found: list[BackendSettings]) -> None:
        self.membership.found("dns", found)

    @rule(entry=entries)
    def operator_adds(self, entry: BackendSettings) -> None:
        try:
            self.membership.add(entry)
        except MembershipError:
            return
        assert self.directory.find(entry.spec().name).admin is not AdminState.REMOVING

    @rule(name=names, limit_s=st.sampled_from((None, 0.0, 5.0)))
    def operator_removes(self, name: str, limit_s: float | None) -> None:
        try:
            self.membership.remove(name, limit_s)
        except LookupError:
            return
        assert all(
            record.admin is AdminState.REMOVING
            for record in self.directory.records
            if record.backend.name == name
        )

    @rule(name=names)
    def operator_takes_back(self, name: str) -> None:
        try:
            self.membership.take_back(name)
        except MembershipError:
            return

    @rule(name=names, word=st.sampled_from(WORDS), limit_s=st.sampled_from((None, 5.0)))
    def operator_says(self, name: str, word: AdminState, limit_s: float | None) -> None:
        try:
            self.directory.set_admin(name, word, self.now, limit_s)
        except (LookupError, StillRemovingError):
            return

    # Time and health

    @rule(seconds=st.sampled_from((0.1, 1.0, 10.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(2):  # one look that comes late is none
            self.now += 0.1
            self.directory.check(self.now)

    @rule(at=indices, finding=st.sampled_from((Finding.READY, Finding.REFUSED)))
    def a_probe_ends(self, at: int, finding: Finding) -> None:
        ports = list(self.directory.ports())
        if ports:
            self._probe(ports[at % len(ports)], finding)

    @rule()
    def all_are_well(self) -> None:
        for port in tuple(self.directory.ports()):
            for _ in range(2):
                self._probe(port, Finding.READY)

    def _probe(self, port: PortRecord, finding: Finding) -> None:
        self.directory.probe_sent(port, self.now)
        self.directory.probed(port, ProbeResult(finding), self.now)

    # Requests

    @rule(protocol=st.sampled_from(AppProtocol))
    def a_request_begins(self, protocol: AppProtocol) -> None:
        may = self._may_get_new(protocol)
        placed = self.desk.begin(protocol)
        if placed is None:
            assert not may
            return
        assert placed.backend in may
        self.running.append(placed)

    def _may_get_new(self, protocol: AppProtocol) -> set[Backend]:
        """Written anew, plainly: the enabled ones that are up, and where there are none those that
        leave and stand in for them."""
        enabled, leaving = [], []
        for record in self.directory.records:
            port = record.port(protocol)
            assert port is not None
            if record.admin is AdminState.ENABLED:
                enabled.append((record.backend, port.health.state))
            elif protocol in record.stands_in:
                leaving.append((record.backend, port.health.state))
        good = {backend for backend, state in enabled if state is BackendState.UP}
        suspected = {backend for backend, state in enabled if state is BackendState.SUSPECTED}
        if good or suspected:
            return good or suspected
        up = {backend for backend, state in leaving if state is BackendState.UP}
        return up or {backend for backend, state in leaving if state is BackendState.SUSPECTED}

    @precondition(lambda self: self.running)
    @rule(at=indices)
    def a_request_ends(self, at: int) -> None:
        self.desk.answer(self.running.pop(at % len(self.running)))

    # Sequences; each step is answered at once

    @rule(number=st.integers(1, 5), is_end=st.booleans())
    def a_step(self, number: int, is_end: bool) -> None:
        home = self.sequences.get(number)
        is_start = home is None
        key = SequenceKey(b"m", number)
        deaths = 0 if home is None else home.deaths
        backend = self.desk.step(SequenceStep(key, is_start=is_start, is_end=is_end))
        if backend is None:
            if home is not None:
                assert self.desk.home_of(key) is None, "it was lost"
                del self.sequences[number]
            return
        if home is not None:
            assert (backend, home.deaths) == (home, deaths)
        if is_end:
            self.sequences.pop(number, None)
        else:
            self.sequences[number] = backend

    # What always holds

    @invariant()
    def names_are_distinct_and_lead_to_their_records(self) -> None:
        for record in self.directory.records:
            assert self.directory.find(record.backend.name) is record
        found = [record.backend.name for record in self.directory.records]
        assert len(set(found)) == len(found)

    @invariant()
    def the_snapshot_says_what_the_directory_knows(self) -> None:
        backends = tuple(record.backend for record in self.directory.records)
        assert self.directory.ref.current.backends == backends

    @invariant()
    def requests_under_way_are_counted_exactly(self) -> None:
        counts = Counter(id(each.backend) for each in self.running)
        for record in self.directory.records:
            backend = record.backend
            assert backend.in_flight == counts.pop(id(backend), 0)
            assert backend.in_flight == sum(port.port.in_flight for port in record.ports)
        assert not counts, "a backend with requests is not forgotten"

    @invariant()
    def who_stands_in_leaves_and_nobody_else_is_up(self) -> None:
        for record in self.directory.records:
            assert not record.stands_in or record.admin is AdminState.REMOVING
            assert not record.stands_in or record.word is AdminState.ENABLED
            assert not (record.stands_in and record.is_dismissed)
            for protocol in record.stands_in:
                wanted = [
                    (other, other.port(protocol))
                    for other in self.directory.records
                    if other.admin is not AdminState.REMOVING
                ]
                assert wanted, "there is somebody to stand in for"
                assert not any(
                    port is not None and port.health.state is BackendState.UP
                    for other, port in wanted
                    if other.admin is AdminState.ENABLED
                )

    @invariant()
    def who_leaves_has_a_reason_to_be_there(self) -> None:
        for record in self.directory.records:
            if record.admin is AdminState.REMOVING:
                assert record.finish_by is not None
                assert record.finish_by <= self.now + DRAIN_S

    def teardown(self) -> None:
        for each in self.running:
            self.desk.answer(each)
        self.running.clear()
        self.membership.configure([], HealthSettings(), [])
        for name in [entry.spec().name for entry in self.membership.runtime_changes.added]:
            self.membership.remove(name)
        self.time_passes(DRAIN_S)
        assert self.directory.records == ()
        assert self.directory.ref.current.backends == ()
        assert self.desk.open_requests == 0


PoolTest = Pool.TestCase
PoolTest.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
