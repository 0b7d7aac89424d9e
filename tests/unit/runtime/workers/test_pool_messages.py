"""Snapshots as messages: what a worker reads is what the control process wrote."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from lb.balancing.policies import make_policy
from lb.balancing.trial import TrialPicker
from lb.domain.backend import Address, AppProtocol, Backend, BackendPort, BackendSpec, BackendTls
from lb.domain.control import Reach
from lb.domain.model import ModelFacts
from lb.domain.pool import ModelRoute, Placement, Placements, PoolSnapshot
from lb.domain.schedule import Capacity, Order, QueuePlan, QueueRules
from lb.domain.trial import Trial
from lb.runtime.workers.pool_messages import PoolReader, PoolWriter

POLICY = make_policy("least_loaded", Random(1))
ODD = b"caf\xe9 \xff"
"""No UTF-8."""


def backend(name: str, **more: Any) -> Backend:
    spec = BackendSpec(name=name, http=Address("h", 1), grpc=Address("h", 2), **more)
    return Backend(spec)


def placed(*backends: Backend, trial: Trial | None = None) -> Placements:
    picker = POLICY.build(backends) if backends else None
    if trial is not None:
        one = Placement(backends, TrialPicker(trial, picker), POLICY)
        return one, one
    return Placement(backends, picker, POLICY), Placement(backends, picker, POLICY)


def roster(*backends: Backend) -> tuple[Reach, ...]:
    return tuple(Reach(each, (True, False)) for each in backends)


def snapshot(
    *backends: Backend, routes: dict[bytes, ModelRoute] | None = None, **more: Any
) -> PoolSnapshot:
    return PoolSnapshot(3, backends, placed(*backends), routes=routes or {}, **more)


def passed(
    writer: PoolWriter,
    reader: PoolReader,
    written: PoolSnapshot,
    *,
    is_whole: bool = False,
) -> PoolSnapshot:
    message = writer.write(written, roster(*written.backends), is_whole=is_whole)
    return reader.read(json.loads(json.dumps(message)))[0]


def names(placements: Placements | None) -> list[list[str]] | None:
    if placements is None:
        return None
    return [[each.name for each in placement.eligible] for placement in placements]


@pytest.fixture
def reader() -> PoolReader:
    return PoolReader(Random(2))


def test_everything_of_a_snapshot_arrives(reader: PoolReader) -> None:
    tls = BackendTls(ports=frozenset({BackendPort.HTTP}), ca="/ca", server_name="s")
    a = backend("a", weight=2.5, max_in_flight=3, headers=(("x", "y"),), tls=tls)
    b = backend("b", concurrency=4)
    rules = QueueRules(
        max_waiting=5, order=Order.WEIGHTED, weights={0: 2.0, 3: 1.0}, tenant_weights={"t": 2.0}
    )
    capacity = Capacity(4, is_auto=True, instances=2, max_batch=8)
    plan = QueuePlan(limits={b: Capacity(4)}, default=capacity, rules=rules)
    facts = ModelFacts(is_stateful=False, instances=2, max_batch=8, preferred=(4, 8))
    routes = {
        b"m": ModelRoute(
            facts=facts, placements=placed(b), ready_versions=frozenset({b"1"}), plan=plan
        ),
        ODD: ModelRoute(facts=facts, versions={b"2": placed(a)}, is_uniform=True, is_plain=True),
    }
    more: dict[str, Any] = {
        "regions": {b"r": placed(a)},
        "partial": ((b,), ()),
        "knows_all": True,
        "only_unready": (True, False),
        "parting": frozenset({a}),
    }
    written = snapshot(a, b, routes=routes, **more)
    read = passed(PoolWriter("e"), reader, written)

    assert [each.spec for each in read.backends] == [a.spec, b.spec]
    assert read.generation == 3
    assert names(read.placements) == [["a", "b"]] * 2
    assert read.routes.keys() == routes.keys()
    m = read.routes[b"m"]
    assert names(m.placements) == [["b"]] * 2
    assert m.facts == facts
    assert m.ready_versions == {b"1"}
    assert m.plan is not None
    assert (m.plan.rules, m.plan.default) == (rules, capacity)
    assert m.plan.limits == {read.backends[1]: Capacity(4)}
    odd = read.routes[ODD]
    assert (odd.is_uniform, odd.is_plain, odd.plan) == (True, True, None)
    assert names(odd.versions[b"2"]) == [["a"]] * 2
    assert names(read.regions[b"r"]) == [["a"]] * 2
    assert [[each.name for each in part] for part in read.partial] == [["b"], []]
    assert (read.knows_all, read.only_unready) == (True, (True, False))
    assert read.parting == {read.backends[0]}


def test_what_has_not_changed_is_the_same_object(reader: PoolReader) -> None:
    a, b = backend("a"), backend("b")
    writer = PoolWriter("e")
    plan = QueuePlan(limits={})
    routes = {b"m": ModelRoute(facts=ModelFacts(), placements=placed(a), plan=plan)}
    before = passed(writer, reader, snapshot(a, b, routes=routes))
    after = passed(writer, reader, snapshot(a, b, routes=dict(routes), knows_all=True))

    assert after.backends[0] is before.backends[0]
    assert after.placements[AppProtocol.HTTP] is before.placements[AppProtocol.HTTP]
    assert after.routes[b"m"].plan is before.routes[b"m"].plan


def test_a_changed_weight_counts_in_new_pickers(reader: PoolReader) -> None:
    a = backend("a")
    writer = PoolWriter("e")
    before = passed(writer, reader, snapshot(a))
    a.apply(BackendSpec(name="a", http=Address("h", 1), grpc=Address("h", 2), weight=7.0))
    after = passed(writer, reader, snapshot(a))

    assert after.backends[0] is before.backends[0]
    assert after.backends[0].spec.weight == 7.0
    assert after.placements[0].picker is not before.placements[0].picker


def test_another_control_process_means_the_same_backends(reader: PoolReader) -> None:
    before = passed(PoolWriter("e"), reader, snapshot(backend("x"), backend("a"), backend("b")))
    moved = Backend(BackendSpec(name="b", http=Address("h", 9), grpc=Address("h", 2)))
    after = passed(PoolWriter("f"), reader, snapshot(backend("a"), moved), is_whole=True)

    assert after.backends[0] is before.backends[1]
    assert after.backends[1] is not before.backends[2]


def test_a_trial_is_given_once(reader: PoolReader) -> None:
    a, b = backend("a"), backend("b")
    trial = Trial(b)
    routes = {b"m": ModelRoute(facts=ModelFacts(), placements=placed(a, trial=trial))}
    writer = PoolWriter("e")
    first = passed(writer, reader, snapshot(a, b, routes=routes)).routes[b"m"]
    assert first.placements is not None
    assert first.placements[0].picker is not None
    found = [first.placements[0].picker.pick() for _ in range(2)]
    assert [each.name for each in found if each is not None] == ["b", "a"]

    again = passed(writer, reader, snapshot(a, b, routes=routes, knows_all=True)).routes[b"m"]
    assert again.placements is not None
    assert again.placements[0].picker is not None
    picked = again.placements[0].picker.pick()
    assert picked is not None
    assert picked.name == "a"
    assert [trial.is_open for trial in reader.trials.values()] == [False]


def test_another_version_is_refused(reader: PoolReader) -> None:
    message = PoolWriter("e").write(snapshot(backend("a")), (), is_whole=True)
    with pytest.raises(ValueError, match="version 99"):
        reader.read({**message, "version": 99})
