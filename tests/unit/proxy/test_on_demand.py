"""Inferences wait for a model that is loaded for them; questions do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lb.domain.backend import AppProtocol, Backend
from lb.domain.errors import RequestRefused
from lb.domain.operation import Operation, OperationKind
from lb.domain.outcome import Outcome, Reason
from lb.domain.pool import ModelRoute, OnDemand, Placement
from lb.kserve.errors import Meaning
from lb.proxy.exchange import Attempt, RoutingHints
from lb.proxy.queue import MAX_WAIT_REASONS
from tests.fakes.backends import make_backend
from tests.unit.proxy.test_queue import FACTS, Bench, Waiting

pytestmark = pytest.mark.interpreted("a class of its own")
WAIT_S = 60.0
METADATA = Operation("ModelMetadata", OperationKind.READ)


class OnDemandBench(Bench):
    """A pool in which the scheduled model `m` is loaded nowhere."""

    def __init__(self) -> None:
        super().__init__(2)
        self.wanted: list[bytes] = []
        self.dispatcher.placer.wanted = lambda model, *_: self.wanted.append(model)
        self.absent()

    def absent(self, error: str = "") -> None:
        """Publish that it is loaded nowhere."""
        usual = self.snapshot(self.backends)
        nowhere = Placement((), None, usual.placements[0].policy)  # type: ignore[attr-defined]
        route = ModelRoute(
            facts=FACTS,
            plan=self.plan,
            placements=(nowhere, nowhere),
            on_demand=OnDemand(WAIT_S, error),
        )
        self.loadable = {b"m": OnDemand(WAIT_S, error)}
        self._publish(usual, route)

    def _publish(self, usual: object, route: ModelRoute) -> None:
        self.ref.publish(
            replace(usual, routes={b"m": route}, loadable=self.loadable)  # type: ignore[type-var]
        )

    def loaded(self, backend: Backend) -> None:
        """Publish that one backend has it ready."""
        usual = self.snapshot(self.backends)
        place = Placement((backend,), *_picker(usual, backend))
        route = ModelRoute(facts=FACTS, plan=self.plan, placements=(place, place))
        self._publish(usual, route)


def _picker(snapshot: object, backend: Backend) -> tuple[object, object]:
    policy = snapshot.placements[AppProtocol.GRPC].policy  # type: ignore[attr-defined]
    return policy.build((backend,)), policy


def test_inferences_wait_until_their_model_is_ready() -> None:
    bench = OnDemandBench()
    first, second = bench.come(), bench.come()
    assert (first.at, second.at, bench.wanted) == ("", "", [b"m", b"m"])
    assert (first.queue_why, second.queue_why) == ("loading", "loading")
    bench.turn(30.0)
    bench.loaded(bench.backends[1])
    bench.turn()
    assert (first.at, second.at) == ("b1", "")  # it is scheduled, one at a time
    first.end()
    bench.turn()
    assert second.at == "b1"
    second.end()
    bench.turn()
    bench.assert_idle()
    assert bench.queue.wait_reasons[b"m", "loading"] == 2


def test_models_that_clients_invent_are_not_counted_by_name_without_end() -> None:
    bench = OnDemandBench()
    nowhere = bench.snapshot(bench.backends[:0])
    bench.ref.publish(replace(nowhere, on_standby=OnDemand(WAIT_S, is_standby=True)))  # type: ignore[type-var]
    count = MAX_WAIT_REASONS + 50
    for number in range(count):
        assert bench.come(b"m%d" % number).queue_why == "activating"
    bench.turn(WAIT_S + 0.1)
    assert len(bench.queue.wait_reasons) == MAX_WAIT_REASONS + 1
    assert bench.queue.wait_reasons[b"", "activating"] == 50


def test_they_are_refused_when_it_was_not_loaded_in_time() -> None:
    bench = OnDemandBench()
    one = bench.come()
    bench.turn(WAIT_S + 0.1)
    assert one.refused is not None
    assert (one.refused.reason, str(one.refused)) == (
        Reason.NO_BACKEND,
        "the model could not be loaded in time",
    )
    bench.assert_idle()


def test_they_are_told_why_it_is_not_loaded_and_others_do_not_wait() -> None:
    bench = OnDemandBench()
    one = bench.come()
    bench.absent("failed to load 'm'")
    bench.turn()
    another = bench.come()
    for each in (one, another):
        assert each.refused is not None
        assert (each.refused.reason, str(each.refused)) == (Reason.NO_BACKEND, "failed to load 'm'")
    assert bench.wanted == [b"m"]
    bench.assert_idle()


def test_a_refused_connection_makes_an_inference_wait_for_another_load() -> None:
    """The only backend that had the model has died, and another one can load it."""
    bench = OnDemandBench()
    bench.loaded(bench.backends[0])
    one = bench.come()
    assert one.at == "b0"
    one.end(outcome=Outcome.CONNECT_REFUSED)
    bench.absent()
    may_retry = bench.dispatcher.retry.take_retry
    assert may_retry(one, Outcome.CONNECT_REFUSED, body_retained=True, response_begun=False)
    one.go_on()
    assert (one.at, bench.wanted) == ("", [b"m"])
    bench.loaded(bench.backends[1])
    bench.turn()
    assert one.at == "b1"
    one.end()
    bench.turn()
    bench.assert_idle()


def test_what_was_under_way_when_the_only_holder_died_waits_for_another_load() -> None:
    bench = OnDemandBench()
    bench.loaded(bench.backends[0])
    one = bench.come()
    assert one.at == "b0"
    one.end(outcome=Outcome.LOST)
    may_retry = bench.dispatcher.retry.take_retry
    assert may_retry(one, Outcome.LOST, body_retained=True, response_begun=False)
    one.go_on()  # it is not known yet that the backend is gone
    assert one.at == ""
    bench.absent()
    bench.turn()
    assert (one.at, bench.wanted[-1:]) == ("", [b"m"])
    bench.loaded(bench.backends[1])
    bench.turn()
    assert one.at == "b1"
    one.end()
    bench.turn()
    bench.assert_idle()


@pytest.mark.parametrize("meaning", [Meaning.UNKNOWN_MODEL, Meaning.MODEL_NOT_READY])
def test_a_model_that_its_backend_has_no_longer_is_waited_for(meaning: Meaning) -> None:
    """The only backend with the model has restarted, and its list is older than that."""
    bench = OnDemandBench()
    bench.loaded(bench.backends[0])
    one = bench.come()
    retry = bench.dispatcher.retry
    assert retry.take_failover(one, meaning, body_retained=True)
    assert not retry.take_failover(one, meaning, body_retained=False)
    one.operation = METADATA  # nothing is loaded for a question
    assert not retry.take_failover(one, meaning, body_retained=True)
    one.end()
    bench.loadable = {}
    bench.loaded(bench.backends[0])
    assert not retry.take_failover(bench.come(), meaning, body_retained=True)


def test_a_client_that_leaves_waits_no_more() -> None:
    bench = OnDemandBench()
    bench.come().leave()
    bench.assert_idle()


def test_questions_about_it_go_to_any_backend() -> None:
    bench = OnDemandBench()
    question = Waiting(bench)
    question.operation = METADATA
    question.hints = RoutingHints()
    attempt = bench.dispatcher.placer.place(question, Attempt, None, question)
    assert attempt is not None
    assert attempt.backend in bench.backends
    assert bench.wanted == []


def test_questions_do_not_wait_while_there_is_no_backend() -> None:
    bench = OnDemandBench()
    route = bench.ref.current.routes[b"m"]
    bench.publish()
    bench.ref.publish(replace(bench.ref.current, routes={b"m": route}))
    question = Waiting(bench)
    question.operation = METADATA
    question.hints = RoutingHints()
    with pytest.raises(RequestRefused, match="no backend is available"):
        bench.dispatcher.placer.place(question, Attempt, None, question)
    assert bench.wanted == []


def test_what_is_loaded_by_others_is_waited_for_as_before() -> None:
    bench = OnDemandBench()
    bench.publish(make_backend("b9"))
    assert bench.come().at == "b9"
