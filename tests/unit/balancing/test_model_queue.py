"""Model backends and pools of one version of a model."""

from __future__ import annotations

from itertools import combinations

from lb.balancing.batching import BatchingModelBackend
from lb.balancing.model_backend import ModelBackend
from lb.balancing.model_queue import ModelQueue
from lb.domain.backend import Backend
from lb.domain.schedule import Capacity, Ending, QueuePlan, QueueRules, RequestClass, Ticket
from tests.fakes.backends import make_backend, make_backends


def line_of(*, reserved: float = 0.0, instances: int = 1) -> ModelQueue:
    default = Capacity(instances + 1, instances=instances)
    plan = QueuePlan(limits={}, default=default, rules=QueueRules(reserved=reserved))
    return ModelQueue(b"model", b"", plan, {})


def ticket(model_queue: ModelQueue, *eligible: Backend) -> Ticket:
    return Ticket(RequestClass(b"model", b"", model_queue.plan, eligible), 0.0)


def test_tickets_with_the_same_backends_share_a_pool() -> None:
    model_queue = line_of()
    one, two = make_backend("one"), make_backend("two")
    pool = model_queue.eligible_set(ticket(model_queue, one, two), 0.0)
    assert model_queue.eligible_set(ticket(model_queue, one, two), 0.0) is pool
    assert model_queue.eligible_set(ticket(model_queue, one), 0.0) is not pool
    assert len(model_queue.model_backends) == 2


def test_pools_share_lanes() -> None:
    model_queue = line_of()
    one, two = make_backend("one"), make_backend("two")
    both, alone = (
        model_queue.eligible_set(ticket(model_queue, one, two), 0.0),
        model_queue.eligible_set(ticket(model_queue, one), 0.0),
    )
    assert alone.model_backends[0] is both.model_backends[0]


def test_where_it_failed_is_left_out_while_there_is_another() -> None:
    model_queue = line_of()
    one, two = make_backend("one"), make_backend("two")
    again = ticket(model_queue, one, two)
    again.tried = (one,)
    assert [
        model_backend.backend
        for model_backend in model_queue.eligible_set(again, 0.0).model_backends
    ] == [two]
    again.tried = (one, two)
    assert [
        model_backend.backend
        for model_backend in model_queue.eligible_set(again, 0.0).model_backends
    ] == [one, two]


def test_equal_tuples_share_an_eligible_set() -> None:
    model_queue = line_of()
    backends = make_backends(*[0] * 3)
    for _ in range(1000):
        model_queue.eligible_set(ticket(model_queue, *list(backends)), 0.0)
    assert len(model_queue.eligible_sets) == 1


def test_request_class_have_another_eligible_set_after_each_snapshot() -> None:
    model_queue = line_of()
    one = ticket(model_queue, *make_backends(0, 0))
    first = model_queue.eligible_set(one, 0.0)
    assert model_queue.eligible_set(one, 0.0) is first is one.request_class.eligible_set
    model_queue.retire()
    second = model_queue.eligible_set(one, 0.0)
    assert second is one.request_class.eligible_set is not first
    assert list(model_queue.eligible_sets.values()) == [second]


def going_again(model_queue: ModelQueue, backends: tuple[Backend, ...], *tried: Backend) -> Ticket:
    made = Ticket(RequestClass(b"model", b"", model_queue.plan, backends), 0.0)
    made.tried = tried
    return made


def test_pools_of_requests_that_go_again_are_not_kept_for_ever() -> None:
    model_queue = line_of()
    backends = make_backends(*[0] * 40)
    first = model_queue.eligible_set(going_again(model_queue, backends), 0.0)
    for pair in combinations(backends, 2):
        pool = model_queue.eligible_set(going_again(model_queue, backends, *pair), 0.0)
        assert len(pool.model_backends) == 38
        assert not {model_backend.backend for model_backend in pool.model_backends} & set(pair)
    assert len(model_queue.eligible_sets) <= 256
    again = model_queue.eligible_set(going_again(model_queue, backends), 0.0)
    assert again.model_backends == first.model_backends
    assert model_queue.eligible_set(going_again(model_queue, backends), 0.0) is again


def test_pools_in_which_somebody_waits_are_kept() -> None:
    model_queue = line_of()
    backends = make_backends(*[0] * 40)
    waiting = going_again(model_queue, backends, backends[0], backends[1])
    waiting.number, waiting.work_s = 1, 0.01
    pool = model_queue.eligible_set(waiting, 0.0)
    pool.queue.add(waiting)
    for pair in combinations(backends[2:], 2):
        model_queue.eligible_set(going_again(model_queue, backends, *pair), 0.0)
    assert model_queue.eligible_set(waiting, 0.0) is pool


def test_new_pool_changes_nothing_of_the_others_but_where_lanes_are_new() -> None:
    model_queue = line_of()
    backends = make_backends(*[0] * 20)
    model_queue.eligible_set(going_again(model_queue, backends), 0.0)
    pool = model_queue.eligible_set(going_again(model_queue, backends, backends[0]), 0.0)
    index, among = pool.index, pool._among
    assert index is not None
    assert (
        model_queue.eligible_set(going_again(model_queue, backends, backends[1]), 0.0).index
        is index
    )
    assert pool.index is index
    assert pool._among is among
    more = (*backends, make_backend("more"))
    assert model_queue.eligible_set(going_again(model_queue, more), 0.0).index is pool.index
    assert pool.index is not index


def test_pools_are_found_by_what_waits_when_lanes_become_of_another_kind() -> None:
    model_queue = line_of()
    backends = make_backends(*[0] * 20)
    made = going_again(model_queue, backends)
    pool = model_queue.eligible_set(made, 0.0)
    some = model_queue.eligible_set(going_again(model_queue, backends, backends[0]), 0.0)
    model_queue.apply(QueuePlan(limits={}, default=Capacity(8, max_batch=8)), 0.0)
    assert model_queue.eligible_set(made, 0.0) is pool
    assert pool.index is some.index is model_queue.index
    assert {
        type(model_backend) for model_backend in (*pool.model_backends, *some.model_backends)
    } == {BatchingModelBackend}
    assert pool.model_backends[1:] == some.model_backends
    assert pool.decide(made, 0.0).chosen in pool.model_backends
    assert some.decide(made, 0.0).chosen in some.model_backends


def low(model_queue: ModelQueue) -> Ticket:
    made = ticket(model_queue)
    made.priority = 1
    return made


def begin(model_queue: ModelQueue, model_backend: ModelBackend, made: Ticket) -> None:
    model_backend.begin(made, model_backend.estimate(1, 0, 0.0), 0.0)
    model_queue.began(made, model_backend, 0.0)


def end(model_queue: ModelQueue, model_backend: ModelBackend, made: Ticket) -> None:
    model_backend.end(made, 0.0, Ending.NEITHER)
    model_queue.ended(made, model_backend, 0.0)


def test_part_is_kept_for_the_highest_priority() -> None:
    model_queue = line_of(reserved=0.25, instances=2)
    one, two = make_backend("one"), make_backend("two")
    first, second = model_queue.eligible_set(ticket(model_queue, one, two), 0.0).model_backends
    last = low(model_queue)
    for model_backend, each in (
        (first, low(model_queue)),
        (first, low(model_queue)),
        (second, last),
    ):
        assert not model_queue.check_reserved(1)
        begin(model_queue, model_backend, each)
    assert model_queue.check_reserved(1)
    assert not model_queue.check_reserved(0)
    end(model_queue, second, last)
    assert not model_queue.check_reserved(1)


def test_it_is_kept_beyond_what_the_highest_priority_uses() -> None:
    model_queue = line_of(reserved=0.25, instances=2)
    one, two = make_backend("one"), make_backend("two")
    first, second = model_queue.eligible_set(ticket(model_queue, one, two), 0.0).model_backends
    begin(model_queue, first, low(model_queue))
    begin(model_queue, first, ticket(model_queue))
    assert not model_queue.check_reserved(1)
    begin(model_queue, second, ticket(model_queue))
    assert model_queue.check_reserved(1)


def test_what_goes_ahead_to_a_busy_lane_takes_no_slot() -> None:
    model_queue = line_of(reserved=0.3)
    model_backends = model_queue.eligible_set(
        ticket(model_queue, *(make_backend(name) for name in "abc")), 0.0
    ).model_backends
    first, ahead = low(model_queue), low(model_queue)
    begin(model_queue, model_backends[0], first)
    begin(model_queue, model_backends[0], ahead)
    assert not model_queue.check_reserved(1)
    begin(model_queue, model_backends[1], low(model_queue))
    end(model_queue, model_backends[0], ahead)
    assert model_queue.check_reserved(1)
    end(model_queue, model_backends[0], first)
    assert not model_queue.check_reserved(1)


def test_what_is_kept_follows_a_reload_while_requests_are_under_way() -> None:
    model_queue = line_of(instances=2)
    one, two = make_backend("one"), make_backend("two")
    first, second = model_queue.eligible_set(ticket(model_queue, one, two), 0.0).model_backends
    in_flight_by_model = [low(model_queue), low(model_queue), low(model_queue)]
    for model_backend, each in zip((first, first, second), in_flight_by_model, strict=True):
        begin(model_queue, model_backend, each)
    model_queue.apply(line_of(reserved=0.25, instances=2).plan, 0.0)
    assert model_queue.check_reserved(1)
    end(model_queue, first, in_flight_by_model[0])
    assert not model_queue.check_reserved(1)


def test_lanes_that_no_pool_uses_have_nothing_that_could_be_kept() -> None:
    model_queue = line_of(reserved=0.25, instances=2)
    one, two = make_backend("one"), make_backend("two")
    _, gone = model_queue.eligible_set(ticket(model_queue, one, two), 0.0).model_backends
    late = low(model_queue)
    begin(model_queue, gone, late)
    model_queue.retire()
    (left,) = model_queue.eligible_set(ticket(model_queue, one), 0.0).model_backends
    assert not model_queue.check_reserved(1)
    begin(model_queue, left, low(model_queue))
    assert model_queue.check_reserved(1)
    end(model_queue, gone, late)
    assert model_queue.check_reserved(1)
    model_queue.eligible_set(ticket(model_queue, two, one), 0.0)
    assert not model_queue.check_reserved(1)


def test_lower_priorities_are_never_shut_out() -> None:
    model_queue = line_of(reserved=0.9)
    model_queue.eligible_set(ticket(model_queue, make_backend("one")), 0.0)
    assert not model_queue.check_reserved(5)


def test_another_plan_changes_the_limits() -> None:
    model_queue = line_of()
    one = make_backend("one")
    model_queue.eligible_set(ticket(model_queue, one), 0.0)
    model_queue.apply(QueuePlan(limits={one: Capacity(7)}), 0.0)
    assert model_queue.model_backends[one].limit == 7
