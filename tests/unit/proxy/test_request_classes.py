"""What holds for requests of a scheduled model is looked up once per pool."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from lb.balancing.least_loaded import LeastLoaded
from lb.balancing.trial import TrialPicker
from lb.domain.backend import AppProtocol, Backend
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, Placement, PoolRef
from lb.domain.schedule import QueuePlan
from lb.domain.trial import Trial
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.request_classes import RequestClasses
from tests.fakes.backends import make_backends
from tests.fakes.records import INFER
from tests.fakes.relay import snapshot_of

FACTS = ModelFacts(is_stateful=False, is_decoupled=False, instances=1)
POLICY = LeastLoaded(Random(1))


def placement_of(*backends: Backend) -> Placement:
    return Placement(backends, POLICY.build(backends) if backends else None, POLICY)


class Bench:
    """A pool with one model, and who is asked where its requests may go."""

    def __init__(self) -> None:
        self.asked = 0
        self.placement = placement_of(*make_backends(0, 0))
        self.route = ModelRoute(facts=FACTS, plan=QueuePlan(limits={}))
        self.ref = PoolRef(self.snapshot())
        self.book = RequestClasses(self.ref, self.place, lambda _: None)

    def snapshot(self) -> object:
        return replace(snapshot_of(self.placement.eligible), routes={b"m": self.route})

    def place(self, _: Exchange) -> Placement:
        self.asked += 1
        return self.placement

    def find(self, version: bytes = b"", protocol: AppProtocol = AppProtocol.GRPC) -> object:
        exchange = Exchange(protocol, INFER, "10.0.0.9:4711", 1.0)
        exchange.model = b"m"
        exchange.hints = RoutingHints(version, 1)
        return self.book.find(exchange, exchange.hints)


def test_versions_and_protocols_have_their_own() -> None:
    bench = Bench()
    found = [bench.find(), bench.find(b"2"), bench.find(protocol=AppProtocol.HTTP)]
    assert len({id(each) for each in found}) == 3
    assert found[0].waits is found[1].waits is found[2].waits is bench.book.waits[b"m"]


def test_whoever_names_the_only_version_means_what_others_mean_who_do_not() -> None:
    bench = Bench()
    bench.route = replace(bench.route, ready_versions=frozenset({b"3"}))
    bench.ref.publish(bench.snapshot())
    assert bench.find().version == bench.find(b"3").version == b"3"
    bench.route = replace(bench.route, ready_versions=frozenset({b"3", b"4"}))
    bench.ref.publish(bench.snapshot())
    assert [bench.find(asked).version for asked in (b"", b"3", b"4")] == [b"", b"3", b"4"]


def test_a_version_that_nobody_has_is_not_scheduled() -> None:
    bench = Bench()
    bench.route = replace(bench.route, ready_versions=frozenset({b"3"}))
    bench.ref.publish(bench.snapshot())
    assert bench.find(b"5") is None
    bench.route = replace(bench.route, ready_versions=frozenset({b"3", b""}))
    bench.ref.publish(bench.snapshot())
    assert bench.find(b"3").version == b"3"
    assert bench.find(b"5").version == b""  # somebody does not tell


def test_another_pool_has_other_request_class_at_once() -> None:
    bench = Bench()
    before = bench.find()
    bench.placement = placement_of(*make_backends(0))
    bench.ref.current = bench.snapshot()  # before anybody is told
    after = bench.find()
    assert after is not before
    assert len(after.eligible) == 1


@pytest.mark.parametrize("change", ["no plan", "no model", "no backend"])
def test_what_is_not_scheduled_has_none(change: str) -> None:
    bench = Bench()
    if change == "no plan":
        bench.route = replace(bench.route, plan=None)
    if change == "no backend":
        bench.placement = placement_of()
    bench.ref.publish(bench.snapshot())
    if change == "no model":
        bench.ref.publish(snapshot_of(bench.placement.eligible))
    assert bench.find() is None


def test_what_names_regions_has_request_class_of_its_own() -> None:
    bench = Bench()
    exchange = Exchange(AppProtocol.GRPC, INFER, "10.0.0.9:4711", 1.0)
    exchange.model = b"m"
    exchange.hints = hints = RoutingHints(b"", 1)
    hints.regions = (b"r",)
    request_class = bench.book.find(exchange, hints)
    assert bench.book.find(exchange, hints) is not request_class
    assert bench.find() is not request_class


def test_a_trial_is_known() -> None:
    bench = Bench()
    assert bench.find().trial is None
    backend = bench.placement.eligible[0]
    picker = TrialPicker(Trial(backend), POLICY.build(bench.placement.eligible))
    bench.placement = Placement(bench.placement.eligible, picker, POLICY)
    bench.ref.publish(bench.snapshot())
    assert bench.find().trial is picker


def test_versions_that_clients_make_up_do_not_pile_up() -> None:
    bench = Bench()
    for number in range(3000):
        assert bench.find(b"%d" % number) is not None
    assert sum(len(each) for each in bench.book._known) <= 1024


@pytest.mark.parametrize("ready", [(), (b"",), (b"", b"x")], ids=["nobody", "untold", "some"])
def test_versions_that_nobody_is_known_to_have_are_scheduled_as_one(
    ready: tuple[bytes, ...],
) -> None:
    bench = Bench()
    bench.route = replace(bench.route, ready_versions=frozenset(ready))
    bench.ref.publish(bench.snapshot())
    asked = [b"", *(b"%d" % number for number in range(3000))]
    assert {bench.find(version).version for version in asked} == {b""}


def shared(bench: Bench) -> RoutingHints:
    exchange = Exchange(AppProtocol.GRPC, INFER, "10.0.0.9:4711", 1.0)
    exchange.model = b"m"
    exchange.hints = hints = RoutingHints(rows=1)
    hints.is_shared = True
    bench.book.find(exchange, hints)  # makes the terms
    bench.book.find(exchange, hints)
    return hints


def test_hints_that_requests_share_know_their_request_class() -> None:
    bench = Bench()
    assert shared(bench).request_class is bench.find()
    assert shared(bench).request_class is bench.find()


@pytest.mark.parametrize("change", ["pool", "options"])
def test_old_request_class_are_not_held_by_hints(change: str) -> None:
    bench = Bench()
    hints = shared(bench)
    before = hints.request_class
    if change == "pool":
        bench.ref.current = bench.snapshot()
    else:
        bench.book.forget()
    assert bench.find() is not before
    assert hints.request_class is None


def test_hints_do_not_know_request_class_with_a_trial() -> None:
    bench = Bench()
    backend = bench.placement.eligible[0]
    picker = TrialPicker(Trial(backend), POLICY.build(bench.placement.eligible))
    bench.placement = Placement(bench.placement.eligible, picker, POLICY)
    bench.ref.publish(bench.snapshot())
    assert shared(bench).request_class is None


def test_hints_that_know_request_class_are_bounded() -> None:
    bench = Bench()
    every = [shared(bench) for _ in range(1100)]
    assert sum(each.request_class is not None for each in every) <= 1024
