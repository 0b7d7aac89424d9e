from __future__ import annotations

from random import Random

import pytest

from lb.balancing.policies import make_policy
from lb.control.directory import BackendDirectory
from lb.control.membership import (
    CONFIGURATION,
    OPERATOR,
    Membership,
    MembershipError,
    RuntimeChanges,
    Word,
    member_of,
)
from lb.control.record import Member
from lb.domain.backend import AdminState, AppProtocol, Backend
from lb.health.port import Finding
from lb.health.thresholds import Thresholds
from lb.probes.plan import ProbeKind
from lb.probes.probe import ProbeResult
from lb.settings.backends import BackendSettings, HealthSettings


def entry(name: str, **settings: object) -> BackendSettings:
    return BackendSettings.model_validate({"name": name, "http": f"{name}:8000", **settings})


class Bench:
    def __init__(self, *configured: str, sources: tuple[str, ...] = (), most: int = 100) -> None:
        self.directory = BackendDirectory(make_policy("least_loaded", Random(1)))
        self.membership = Membership(self.directory, clock=lambda: 100.0, most=most)
        self.configure(*configured, sources=sources)

    def configure(self, *names: str, sources: tuple[str, ...] = ()) -> None:
        self.membership.configure([entry(name) for name in names], HealthSettings(), sources)

    def found(self, source: str, *names: str, more_follow: bool = False) -> None:
        self.membership.found(source, [entry(name) for name in names], more_follow)

    @property
    def names(self) -> list[str]:
        return [record.backend.name for record in self.directory.records]

    def eligible(self) -> tuple[Backend, ...]:
        return self.directory.ref.current.placement(AppProtocol.HTTP).eligible

    def origin(self, name: str) -> str:
        return self.directory.find(name).member.origin


def test_the_pool_is_what_the_configuration_the_sources_and_the_operator_name() -> None:
    bench = Bench("c", sources=("dns", "file"))
    bench.found("file", "f")
    bench.found("dns", "d1", "d2")
    assert bench.membership.add(entry("o")) == "o"
    assert bench.names == ["c", "d1", "d2", "f", "o"]
    origins = [bench.origin(name) for name in bench.names]
    assert origins == [CONFIGURATION, "dns", "dns", "file", OPERATOR]


def test_who_names_a_backend_first_keeps_the_name() -> None:
    bench = Bench("a", sources=("one", "two"))
    bench.found("two", "a", "b")
    bench.found("one", "b")
    assert bench.names == ["a", "b"]
    assert (bench.origin("a"), bench.origin("b")) == (CONFIGURATION, "one")
    bench.found("one")
    assert bench.origin("b") == "two"


def test_another_order_of_the_sources_has_another_one_keep_a_name() -> None:
    bench = Bench(sources=("one", "two"))
    bench.found("one", "a")
    bench.found("two", "a")
    bench.configure(sources=("two", "one"))
    assert bench.origin("a") == "two"


def test_the_same_again_changes_nothing() -> None:
    bench = Bench(sources=("dns",))
    bench.found("dns", "a")
    before = bench.directory.ref.current
    bench.found("dns", "a")
    assert bench.directory.ref.current is before


def test_a_source_that_is_not_configured_any_more_is_not_heard() -> None:
    bench = Bench("a", sources=("dns",))
    bench.found("dns", "d")
    bench.configure("a")
    assert bench.names == ["a"]
    bench.found("dns", "d")
    assert bench.names == ["a"]


def test_what_a_source_has_found_outlives_another_configuration() -> None:
    bench = Bench("a", sources=("dns",))
    bench.found("dns", "d")
    bench.configure("b", sources=("file", "dns"))
    assert bench.names == ["b", "d"]


def test_a_name_that_is_taken_cannot_be_added() -> None:
    bench = Bench("a")
    with pytest.raises(MembershipError, match="there is a backend 'a' already"):
        bench.membership.add(entry("a"))
    assert bench.membership.runtime_changes == RuntimeChanges()


def test_an_address_that_is_taken_cannot_be_added() -> None:
    bench = Bench("a", "b", sources=("dns",))
    bench.found("dns", "d")
    for other in ("b", "d"):
        with pytest.raises(
            MembershipError, match=f"backend '{other}' has the same address already"
        ):
            bench.membership.add(entry("x", http="x:1", grpc=f"{other}:8000"))
    bench.membership.remove("b")
    assert bench.membership.add(entry("x", http="b:8000")) == "x"


def test_what_was_removed_stays_out_until_it_is_taken_back() -> None:
    bench = Bench("a", "b", sources=("dns",))
    bench.found("dns", "d")
    for name in ("a", "d"):
        bench.membership.remove(name)
    assert bench.names == ["b"]
    bench.configure("a", "b", "c", sources=("dns",))
    bench.found("dns", "d", "e")
    assert bench.names == ["b", "c", "e"]
    bench.membership.take_back("a")
    bench.membership.take_back("d")
    assert bench.names == ["a", "b", "c", "d", "e"]


def test_a_removal_is_forgotten_once_nobody_names_the_backend() -> None:
    bench = Bench("a", "b")
    bench.membership.remove("a")
    bench.configure("b")
    assert bench.membership.runtime_changes == RuntimeChanges()
    bench.configure("a", "b")
    assert bench.names == ["a", "b"]


def test_what_was_added_stays_until_it_is_removed_or_configured() -> None:
    bench = Bench("a")
    bench.membership.add(entry("x"))
    bench.membership.add(entry("y"))
    bench.configure("a", "b")
    assert bench.names == ["a", "b", "x", "y"]
    bench.membership.remove("x")
    assert bench.names == ["a", "b", "y"]
    bench.configure("a", "b", "y")
    assert bench.origin("y") == CONFIGURATION
    bench.configure("a", "b")
    assert bench.names == ["a", "b"]


def test_another_backend_can_be_added_under_a_name_that_was_removed() -> None:
    bench = Bench("a")
    bench.membership.remove("a")
    bench.membership.add(entry("a", weight=3))
    assert bench.directory.find("a").backend.spec.weight == 3
    bench.configure("a")
    assert bench.directory.find("a").backend.spec.weight == 3
    bench.membership.remove("a")
    assert bench.names == []
    bench.membership.take_back("a")
    assert bench.directory.find("a").backend.spec.weight == 1


def changes(bench: Bench) -> list[tuple[str, str, str, str]]:
    """What has changed of whole backends, the oldest change first."""
    newest_first = bench.directory.changes.newest_first()
    return [(each.backend, each.before, each.after, each.why) for each in newest_first][::-1]


def test_the_changes_say_whether_the_operator_or_a_source_lets_a_backend_go_and_back() -> None:
    bench = Bench("a", "b")
    for name in ("a", "b"):
        bench.directory.find(name).backend.in_flight = 1
    before = len(changes(bench))
    bench.membership.remove("a")
    bench.membership.take_back("a")
    bench.configure("a")
    bench.configure("a", "b")
    assert changes(bench)[before:] == [
        ("a", "enabled", "removing", "operator"),
        ("a", "removing", "enabled", "operator"),
        ("b", "enabled", "removing", "its source"),
        ("b", "removing", "enabled", "its source"),
    ]


def test_the_changes_show_both_backends_of_a_name_whose_address_changes() -> None:
    bench = Bench("a")
    bench.directory.find("a").backend.in_flight = 1
    before = len(changes(bench))
    bench.membership.configure([entry("a", http="elsewhere:8000")], HealthSettings())
    assert changes(bench)[before:] == [
        ("a", "", "starting", "added: configuration"),
        ("a~1", "enabled", "removing", "its source"),
    ]


def test_only_what_was_removed_can_be_taken_back() -> None:
    with pytest.raises(MembershipError, match="no backend 'x' was removed"):
        Bench("a").membership.take_back("x")
    with pytest.raises(LookupError, match="there is no backend 'x'"):
        Bench("a").membership.remove("x")


def test_a_removal_may_have_a_limit_of_its_own_also_afterwards() -> None:
    bench = Bench("a", "b")
    record = bench.directory.find("a")
    record.backend.in_flight = 1
    bench.membership.remove("a")
    assert (record.admin, record.finish_by) == (AdminState.REMOVING, 400.0)
    bench.membership.remove("a", 5.0)
    assert record.finish_by == 105.0
    assert bench.names == ["b", "a"]


def test_there_are_only_so_many(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench("a", sources=("dns",), most=2)
    for found in (("d", "e"), ("d", "e", "f"), ("d", "f", "e")):
        bench.found("dns", *found)
        assert bench.names == ["a", "d"]
    told = [each for each in caplog.records if each.message == "too many backends"]
    assert [vars(each)["left_out"] for each in told] == ["e"], "once as long as there are"
    with pytest.raises(MembershipError, match="there are 2 backends already"):
        bench.membership.add(entry("x"))
    bench.membership.remove("a")
    assert bench.names == ["d", "f"]
    with pytest.raises(MembershipError, match="may be no more"):
        bench.membership.take_back("a")


def test_another_process_can_go_on_with_what_the_operator_changed() -> None:
    first = Bench("a", "b", sources=("dns",))
    first.found("dns", "d")
    first.membership.add(entry("x", weight=2))
    first.membership.remove("a")
    first.membership.remove("d")
    second = Bench("a", "b", sources=("dns",))
    second.membership.resume(first.membership.runtime_changes)
    second.found("dns", "d")
    assert second.names == first.names == ["b", "x"]
    assert second.directory.find("x").backend.spec.weight == 2


def test_what_the_operator_said_of_backends_holds_for_another_process_once_they_are_found() -> None:
    first = Bench("a", sources=("dns", "file"))
    first.found("dns", "d", "e", "f")
    first.directory.set_admin("a", AdminState.DISABLED, 100.0)
    first.directory.set_admin("d", AdminState.DRAINING, 100.0, limit_s=60.0)
    first.directory.drain_model("e", b"m", is_drained=True, now=100.0)
    second = Bench("a", sources=("dns", "file"))
    second.membership.resume(first.membership.runtime_changes)
    second.found("file")
    assert second.membership.runtime_changes == first.membership.runtime_changes
    second.found("dns", "d", "e", "f")
    assert second.membership.runtime_changes == first.membership.runtime_changes
    d, e, f = map(second.directory.find, "def")
    assert (d.admin, d.finish_by) == (AdminState.DRAINING, 160.0)
    assert (e.admin, e.drained_models) == (AdminState.ENABLED, {b"m"})
    assert (f.admin, f.drained_models) == (AdminState.ENABLED, frozenset())


def test_what_was_said_of_a_backend_that_no_source_names_any_more_is_forgotten() -> None:
    first = Bench(sources=("dns",))
    first.found("dns", "d")
    first.directory.set_admin("d", AdminState.DRAINING, 100.0)
    second = Bench(sources=("dns",))
    second.membership.resume(first.membership.runtime_changes)
    second.found("dns", "e")
    assert second.membership.runtime_changes == RuntimeChanges()
    second.found("dns", "d", "e")
    assert second.directory.find("d").admin is AdminState.ENABLED


def test_a_part_of_what_a_source_has_found_makes_nobody_forget_what_the_operator_said() -> None:
    said = RuntimeChanges((), frozenset("fg"), {name: Word(AdminState.DRAINING) for name in "eh"})
    bench = Bench(sources=("dns",))
    bench.membership.resume(said)
    bench.found("dns", "d", more_follow=True)
    assert bench.membership.runtime_changes == said
    bench.found("dns", "d", "e", "f")
    assert bench.names == ["d", "e"]
    # What no source names is forgotten once all have said everything.
    expected = RuntimeChanges((), frozenset("f"), {"e": Word(AdminState.DRAINING)})
    assert bench.membership.runtime_changes == expected
    bench.found("dns", "d", more_follow=True)
    bench.found("dns", "d")
    assert bench.membership.runtime_changes == RuntimeChanges()


def test_backends_of_a_source_that_got_another_name_stay_until_it_says_what_it_finds() -> None:
    bench = Bench("a", sources=("old", "dns"))
    bench.found("old", "b", "c")
    bench.found("dns", "d")
    bench.configure("a", sources=("new", "dns"))
    assert bench.names == ["a", "d", "b", "c"]
    bench.found("new", "c", more_follow=True)
    assert bench.names == ["a", "c", "d", "b"]
    bench.found("new", "c", "e")
    assert bench.names == ["a", "c", "e", "d"]
    bench.configure("a", sources=("dns",))
    assert bench.names == ["a", "d"], "all that is configured has said what it finds"


def test_settings_of_probes_are_the_common_ones_where_a_backend_has_none_of_its_own() -> None:
    health = HealthSettings.model_validate({"interval": "3s", "fall": 5, "probe": "tcp"})
    member = member_of(entry("a", health={"fall": 7}), health, "dns")
    assert member.thresholds == Thresholds(3.0, 2.0, 2, 7)
    assert (member.probe.kind, member.origin) == (ProbeKind.TCP, "dns")


def test_changed_common_settings_of_probes_reach_all_backends() -> None:
    bench = Bench("a")
    bench.membership.add(entry("x"))
    health = HealthSettings.model_validate({"interval": "9s"})
    bench.membership.configure([entry("a")], health)
    rules = [record.ports[0].health.rules.interval_s for record in bench.directory.records]
    assert rules == [9.0, 9.0]


def test_backends_at_one_address_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    a, b, c = (entry(name, http="10.0.0.1:8000") for name in "abc")
    bench.membership.configure([a, b], HealthSettings(), ["file"])
    bench.membership.found("file", [c])
    bench.membership.found("file", [c, b])
    told = [each for each in caplog.records if each.message == "backends have the same address"]
    assert [(each.__dict__["backend"], each.__dict__["other"]) for each in told] == [
        ("b", "a"),
        ("c", "a"),
    ]


def test_of_very_many_entries_no_more_are_looked_at_than_there_may_be() -> None:
    bench = Bench(sources=("file",), most=10)
    entries = [entry(f"b{number}") for number in range(5000)]
    seen: list[str] = []
    original = bench.membership._member

    def member(origin: str, one: BackendSettings) -> Member:
        seen.append(one.known_as)
        return original(origin, one)

    bench.membership._member = member  # type: ignore[method-assign]
    bench.membership.found("file", entries)
    assert seen == bench.names == [f"b{number}" for number in range(10)]
    bench.membership.remove("b3")
    assert bench.names == [f"b{number}" for number in range(11) if number != 3]


def test_what_the_operator_removes_does_not_stand_in_for_others() -> None:
    bench = Bench("a")
    for port in bench.directory.find("a").ports:
        for _ in range(3):
            bench.directory.probed(port, ProbeResult(Finding.READY), 100.0)
    bench.configure("c")
    assert [each.name for each in bench.eligible()] == ["a"]
    bench.membership.remove("a")
    assert bench.eligible() == ()
    bench.directory.check(100.1)
    assert bench.names == ["c"]
