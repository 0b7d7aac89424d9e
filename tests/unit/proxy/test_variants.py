"""Which variant a request gets, what operators may change, and what survives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.errors import RequestRefused
from lb.domain.model import NO_FACTS
from lb.domain.outcome import Reason
from lb.domain.pool import ModelRoute, OnDemand, Placement, PoolRef, PoolSnapshot
from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve.operations import MODEL_INFER
from lb.proxy.exchange import Exchange
from lb.proxy.variants import NameRules, Variant, VariantBook, VariantOptions, VariantRules
from tests.fakes.backends import make_backend
from tests.fakes.relay import named_policy

NAME = b"detector"
STABLE = VariantRules(name="stable", model=b"detector", weight=95)
CANARY = VariantRules(name="canary", model=b"detector_v2", weight=5)
HTTP = AppProtocol.HTTP


def snapshot(*ready: bytes) -> PoolSnapshot:
    """One backend that has these models ready."""
    backend = make_backend()
    placement = Placement((backend,), None, named_policy("round_robin"))
    routes = {
        model: ModelRoute(facts=NO_FACTS, ready_versions=frozenset({b"1"})) for model in ready
    }
    return PoolSnapshot(1, (backend,), (placement, placement), routes=routes, knows_all=True)


class Desk:
    """A book of variants, its pool, and its clock."""

    def __init__(self, **how: object) -> None:
        self.now = 1000.0
        self.pool = PoolRef(snapshot(b"detector", b"detector_v2"))
        self.book = VariantBook(self.pool, lambda: self.now)
        self.configure(**how)

    def configure(self, *variants: VariantRules, **how: object) -> None:
        rules = NameRules(variants=variants or (STABLE, CANARY), **how)  # type: ignore[arg-type]
        self.book.configure(VariantOptions(names={NAME: rules}))

    def choose(
        self,
        headers: Mapping[bytes, bytes] | None = None,
        *,
        step: SequenceStep | None = None,
        pinned: bytes = b"",
        token: str = "",
    ) -> str:
        return self.variant(headers, step=step, pinned=pinned, token=token).rules.name

    def variant(
        self,
        headers: Mapping[bytes, bytes] | None = None,
        *,
        step: SequenceStep | None = None,
        pinned: bytes = b"",
        token: str = "",
    ) -> Variant:
        hint = lambda name: (headers or {}).get(name, b"")  # noqa: E731
        split = self.book.sets[NAME]
        return self.book.choose(split, HTTP, hint, token, step, pinned)

    def percents(self) -> dict[str, float]:
        return {each.variant: each.percent for each in self.book.statuses()}


def step(number: int | str, *, start: bool = False, end: bool = False) -> SequenceStep:
    return SequenceStep(SequenceKey(NAME, number), start, end)


def test_requests_that_nothing_tells_apart_follow_the_weights() -> None:
    desk = Desk()
    counts = Counter(desk.choose() for _ in range(1000))
    assert counts["canary"] == pytest.approx(50, abs=2)


def test_a_client_stays_with_its_variant_by_a_header() -> None:
    desk = Desk(header=b"x-user")
    chosen = {user: desk.choose({b"x-user": b"%d" % user}) for user in range(500)}
    assert set(chosen.values()) == {"stable", "canary"}
    desk.book.sets[NAME].set_shares({"canary": 20})
    for user, before in chosen.items():
        after = desk.choose({b"x-user": b"%d" % user})
        assert before in (after, "stable")


def test_tenants_are_told_apart_by_their_tokens() -> None:
    desk = Desk(by_tenant=True)
    for token in ("team-a", "team-b", "team-c"):
        assert len({desk.choose(token=token) for _ in range(50)}) == 1


def test_a_sequence_stays_until_it_ends_whatever_becomes_of_the_weights() -> None:
    desk = Desk()
    split = desk.book.sets[NAME]
    split.set_shares({"canary": 100})
    assert desk.choose(step=step(7, start=True)) == "canary"
    split.set_shares({"canary": 0})
    assert desk.choose(step=step(8, start=True)) == "stable"
    assert desk.choose(step=step(7)) == "canary"
    assert desk.choose(step=step("7", start=True)) == "stable"  # another sequence
    assert desk.choose(step=step(7, end=True)) == "canary"
    assert desk.choose(step=step(7, start=True)) == "stable"


def test_a_sequence_that_began_in_the_process_before_stays() -> None:
    desk = Desk()
    running = {SequenceKey(b"detector_v2", 7)}
    book = desk.book = VariantBook(desk.pool, lambda: desk.now, running.__contains__)
    desk.configure()
    book.sets[NAME].set_shares({"canary": 0})
    assert desk.choose(step=step(7)) == "canary"
    assert desk.choose(step=step(7, start=True)) == "stable"
    assert desk.choose(step=step(8)) == "stable"


def test_a_sequence_ends_with_a_variant_that_a_reload_has_removed() -> None:
    desk = Desk()
    desk.book.sets[NAME].set_shares({"canary": 100})
    desk.choose(step=step(7, start=True))
    desk.configure(STABLE)
    assert desk.choose() == "stable"
    assert desk.variant(step=step(7)).rules.model == b"detector_v2"
    assert desk.variant(step=step(7, end=True)).rules.model == b"detector_v2"


def test_a_variant_that_is_nowhere_ready_gets_nothing() -> None:
    desk = Desk()
    desk.book.sets[NAME].set_shares({"canary": 100})
    desk.pool.publish(snapshot(b"detector"))
    assert desk.choose() == "stable"
    assert desk.choose(pinned=b"canary") == "stable"
    desk.pool.publish(snapshot(b"detector_v2"))
    desk.book.sets[NAME].set_shares({"canary": 0})
    assert desk.choose() == "canary"
    assert desk.book.is_ready(NAME, HTTP)
    desk.pool.publish(snapshot())
    assert desk.choose() == "stable"  # whose backend says what is wrong
    assert not desk.book.is_ready(NAME, HTTP)


def on_demand(error: str = "") -> PoolSnapshot:
    """The canary's model is loaded nowhere, and for requests."""
    usual = snapshot(b"detector")
    absent = ModelRoute(facts=NO_FACTS, on_demand=OnDemand(60.0, error))
    return replace(usual, routes={**usual.routes, b"detector_v2": absent})


def test_a_variant_that_is_loaded_on_demand_gets_its_share() -> None:
    desk = Desk(rollback=(2.0, None, 200))
    desk.book.sets[NAME].set_shares({"canary": 100})
    serve(desk, 2, failing=0)
    desk.pool.publish(on_demand())
    desk.book.check()  # it was evicted, and is not dead
    assert desk.percents() == {"stable": 0, "canary": 100}
    assert desk.choose() == "canary"
    assert [each.is_ready for each in desk.book.statuses()] == [True, True]
    desk.pool.publish(on_demand("out of memory"))
    assert desk.choose() == "stable"
    desk.book.check()
    assert desk.percents() == {"stable": 100, "canary": 0}


def test_a_header_may_choose_a_variant() -> None:
    beta = VariantRules(name="canary", model=b"detector_v2", match=(b"x-beta", b"1"))
    desk = Desk()
    desk.configure(STABLE, beta)
    assert desk.choose({b"x-beta": b"1"}) == "canary"
    assert desk.choose({b"x-beta": b"0"}) == "stable"


def test_an_unknown_variant_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(RequestRefused, match="stable, canary"):
        Desk().choose(pinned=b"nightly")


def test_what_an_operator_sets_survives_a_reload_of_other_settings() -> None:
    desk = Desk()
    desk.book.sets[NAME].set_shares({"canary": 20})
    desk.configure()
    assert desk.percents() == {"stable": 80, "canary": 20}
    desk.configure(STABLE, VariantRules(name="canary", model=b"detector_v2", weight=95))
    assert desk.percents() == {"stable": 50, "canary": 50}


def test_a_rolled_back_variant_gets_nothing_after_a_reload_of_other_rules() -> None:
    desk = Desk(rollback=(2.0, None, 200))
    assert serve(desk, 20, failing=0.5) is not None
    before = list(desk.book.statuses())
    for how in ({"rollback": (2.0, None, 300)}, {"header": b"x-user"}, {"ramp": (1.0, 50.0, 60.0)}):
        desk.configure(**how)
        desk.now += 30
        desk.book.check()
        assert list(desk.book.statuses()) == before


def test_a_sequence_counts_for_its_variant_after_a_reload_of_other_rules() -> None:
    desk = Desk()
    desk.book.sets[NAME].set_shares({"canary": 100})
    desk.choose(step=step(7, start=True))
    desk.configure(header=b"x-user")
    desk.variant(step=step(7)).count(0.01, is_error=False)
    assert [each.answers for each in desk.book.statuses()] == [0, 1]


def test_a_changed_threshold_of_a_rollback_holds_at_once() -> None:
    desk = Desk(rollback=(2.0, None, 1_000_000))
    assert serve(desk, 20, failing=0.5) is None
    desk.configure(rollback=(2.0, None, 200))
    assert serve(desk, 20, failing=0.5) is not None


def test_a_ramp_begins_when_a_reload_brings_it_and_stops_when_one_takes_it_away() -> None:
    desk = Desk()
    desk.now += 1000
    desk.configure(ramp=(None, 50.0, 1000.0))
    desk.now += 500
    desk.book.check()
    assert desk.percents()["canary"] == pytest.approx(27.5)
    desk.configure(ramp=(10.0, 50.0, 1000.0))
    assert desk.percents()["canary"] == pytest.approx(10)
    desk.configure()
    desk.now += 500
    desk.book.check()
    assert desk.percents()["canary"] == pytest.approx(10)


def test_promotion_makes_a_variant_the_first_one() -> None:
    desk = Desk()
    desk.book.promote(desk.book.sets[NAME], "canary")
    assert next(iter(desk.book.statuses())).variant == "canary"
    assert desk.percents() == {"stable": 0, "canary": 100}
    desk.book.reset("detector")
    assert desk.percents() == {"stable": 95, "canary": 5}
    assert desk.book.sets[NAME].changed == ""


def test_a_variant_that_no_backend_has_ready_is_not_promoted() -> None:
    desk = Desk()
    desk.pool.publish(snapshot(b"detector"))
    with pytest.raises(ValueError, match="no backend has 'canary' ready"):
        desk.book.promote(desk.book.sets[NAME], "canary")
    assert desk.percents() == {"stable": 95, "canary": 5}


def test_what_was_said_passes_to_a_successor() -> None:
    before, after = Desk(), Desk()
    before.book.sets[NAME].promote("canary")
    before.book.sets[NAME].set_shares({"stable": 30})
    after.book.resume(before.book.export())
    assert after.percents() == {"canary": 70, "stable": 30}
    assert after.book.sets[NAME].variants[0].rules.name == "canary"
    other = Desk()
    other.configure(STABLE)
    other.book.resume(before.book.export())
    assert other.percents() == {"stable": 100}


def test_a_ramp_raises_the_share_and_goes_on_in_a_successor() -> None:
    desk = Desk(ramp=(None, 50.0, 3600.0))
    desk.now += 1800
    desk.book.check()
    assert desk.percents()["canary"] == pytest.approx(27.5)
    after = Desk(ramp=(None, 50.0, 3600.0))
    after.book.resume(desk.book.export())
    after.now += 1800
    after.book.check()
    assert after.percents()["canary"] == pytest.approx(50)
    after.now += 1800
    after.book.check()
    assert after.percents()["canary"] == pytest.approx(50)
    assert after.book.sets[NAME].changed == "ramp"


def test_what_is_told_of_a_ramp_changes_with_the_shares_only() -> None:
    desk = Desk(ramp=(None, 50.0, 3600.0))
    desk.now += 1800
    desk.book.check()
    told = desk.book.export()
    desk.now += 0.5
    assert desk.book.export() == told
    desk.book.check()
    assert desk.book.export() != told


def test_who_follows_another_process_has_its_shares_whatever_they_come_from() -> None:
    leader, follower = Desk(ramp=(None, 50.0, 3600.0)), Desk(ramp=(None, 50.0, 3600.0))
    for change in (
        lambda split: split.promote("canary"),
        lambda split: leader.book.reset(split.name.decode()),
    ):
        change(leader.book.sets[NAME])
        follower.book.follow(json.loads(json.dumps(leader.book.export())))
        assert list(follower.percents().items()) == list(leader.percents().items())


def test_one_process_judges_by_the_requests_of_several() -> None:
    how: dict[str, object] = {"rollback": (2.0, None, 500)}
    desks = leader, *others = [Desk(**how) for _ in range(3)]
    for _ in range(8):  # a look counts as a part of what is enough
        for desk in others:
            for _ in range(250):
                variant = desk.variant()
                failed = variant.rules.name == "canary"
                variant.count(None if failed else 0.01, is_error=failed)
            leader.book.add_recent(json.loads(json.dumps(desk.book.take_recent())))
            assert desk.book.take_recent() == {}
        leader.book.check()
    for desk in others:
        desk.book.follow(leader.book.export())
    assert [desk.percents()["canary"] for desk in desks] == [0, 0, 0]


def test_a_ramp_may_begin_with_another_share_than_that_of_the_file() -> None:
    desk = Desk(ramp=(1.0, 51.0, 1000.0))
    assert desk.percents()["canary"] == pytest.approx(1)
    desk.now += 500
    desk.book.check()
    assert desk.percents()["canary"] == pytest.approx(26)


def test_an_operator_ends_a_ramp() -> None:
    desk = Desk(ramp=(None, 50.0, 3600.0))
    desk.book.sets[NAME].set_shares({"canary": 1})
    desk.now += 1800
    desk.book.check()
    assert desk.percents()["canary"] == 1


def serve(desk: Desk, seconds: int, *, failing: float) -> int | None:
    """Two hundred requests a second; when the canary is rolled back, in seconds."""
    for second in range(seconds):
        for number in range(200):
            variant = desk.variant()
            bad = variant.rules.name == "canary" and number % 100 < failing * 100
            variant.count(0.01, is_error=bad)
        desk.now += 1
        desk.book.check()
        if not desk.percents()["canary"]:
            return second
    return None


def test_a_bad_variant_is_rolled_back_and_all_know_why(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(rollback=(2.0, None, 200))
    assert serve(desk, 20, failing=0) is None
    at = serve(desk, 20, failing=0.5)
    assert at is not None
    assert at < 10
    status = next(each for each in desk.book.statuses() if each.variant == "canary")
    assert status.changed == "rollback"
    assert "requests failed" in status.why
    assert dict(status.rollbacks) == {"errors": 1}
    assert "rolled back" in caplog.text
    assert {desk.choose() for _ in range(100)} == {"stable"}


OK, INVALID, LATE, CANCELLED, BROKEN = range(5)
CODES = {HTTP: (200, 400, 504, 499, 500), AppProtocol.GRPC: (0, 3, 4, 1, 13)}
"""Good, the client's fault, past the deadline, cancelled and the server's fault."""


@pytest.mark.parametrize("protocol", AppProtocol)
@pytest.mark.parametrize(
    ("code", "reason", "due_s", "counts", "waits"),
    [
        (OK, None, 1, (1, 0), []),
        (OK, Reason.UPSTREAM_LOST, 9, (1, 1), []),
        (INVALID, None, 9, (1, 0), []),
        (BROKEN, None, 9, (1, 1), []),
        (BROKEN, Reason.MEMORY, 9, (0, 0), []),
        (LATE, None, 9, (1, 1), []),
        (LATE, None, 2, (1, 1), [2.0]),
        (LATE, Reason.DEADLINE, 2, (1, 1), [2.0]),
        (CANCELLED, None, 9, (0, 0), []),
        (CANCELLED, Reason.CLIENT_GONE, 9, (0, 0), [2.0]),
    ],
)
def test_an_end_counts_alike_over_both_protocols(
    protocol: AppProtocol,
    code: int,
    reason: Reason | None,
    due_s: float,
    counts: tuple[int, int],
    waits: list[float],
) -> None:
    desk = Desk(rollback=(2.0, None, 200))
    exchange = Exchange(protocol, MODEL_INFER, "127.0.0.1:1", desk.now)
    if protocol is HTTP:
        exchange.status = CODES[protocol][code]
    else:
        exchange.grpc_status = CODES[protocol][code]
    variant = desk.variant()
    took_s = variant.ended(exchange, reason, desk.now + due_s, desk.now + 2.0)
    assert took_s == (2.0 if code == OK and reason is None else None)
    assert (variant.answers, variant.errors) == counts
    assert variant.recent.waits == waits


def give_up(desk: Desk, seconds: int, waited_s: float, *, also_answers: bool) -> int | None:
    """As `serve`, and clients of the canary do not wait for longer than that."""
    for second in range(seconds):
        for _ in range(200):
            variant = desk.variant()
            if variant.rules.name == "stable" or also_answers:
                variant.count(0.01, is_error=False)
        for _ in range(10):
            desk.book.sets[NAME].variants[1].given_up(waited_s, is_answered=True)
        desk.now += 1
        desk.book.check()
        if not desk.percents()["canary"]:
            return second
    return None


def test_clients_that_wait_for_less_time_than_answers_take_roll_nothing_back() -> None:
    desk = Desk(rollback=(2.0, 1.5, 200))
    assert give_up(desk, 100, 0.003, also_answers=True) is None
    status = next(each for each in desk.book.statuses() if each.variant == "canary")
    assert status.errors == 1000  # they are told so all the same


def test_a_variant_that_hangs_is_rolled_back_though_its_clients_give_up() -> None:
    desk = Desk(rollback=(2.0, 1.5, 200))
    assert serve(desk, 3, failing=0) is None
    at = give_up(desk, 20, 0.1, also_answers=False)
    assert at is not None
    assert at < 10
    assert "requests failed" in desk.book.sets[NAME].why


def test_nothing_is_kept_of_requests_that_nobody_judges() -> None:
    desk = Desk()
    for _ in range(100):
        desk.variant().count(0.01, is_error=False)
        desk.variant().given_up(0.01, is_answered=False)
    recent = [each.recent for each in desk.book.sets[NAME].variants]
    assert not any(each.requests or each.waits for each in recent)


def test_a_dead_variant_is_rolled_back_at_once() -> None:
    desk = Desk(rollback=(2.0, None, 200))
    serve(desk, 2, failing=0)
    desk.pool.publish(snapshot(b"detector"))
    desk.book.check()
    assert desk.percents() == {"stable": 100, "canary": 0}
    assert "no backend has it ready" in desk.book.sets[NAME].why


def test_a_variant_stays_as_long_as_all_are_dead() -> None:
    desk = Desk(rollback=(2.0, None, 200))
    serve(desk, 2, failing=0)
    desk.pool.publish(snapshot())
    desk.book.check()
    assert desk.percents()["canary"] == 5
    desk.pool.publish(snapshot(b"detector"))
    desk.book.check()
    assert desk.percents()["canary"] == 0


def test_a_dead_variant_that_an_operator_gives_a_share_keeps_it() -> None:
    desk = Desk(rollback=(2.0, None, 200))
    serve(desk, 2, failing=0)
    desk.pool.publish(snapshot(b"detector"))
    desk.book.check()
    desk.book.find("detector").set_shares({"canary": 20})
    desk.book.check()
    assert desk.percents()["canary"] == 20


def test_a_variant_that_was_never_ready_is_not_rolled_back() -> None:
    desk = Desk(rollback=(2.0, None, 200))
    desk.pool.publish(snapshot(b"detector"))
    serve(desk, 3, failing=0)
    assert desk.percents()["canary"] == 5


def test_a_request_leaves_a_variant_once_and_goes_to_the_first_that_is_ready() -> None:
    desk = Desk()
    split = desk.book.sets[NAME]
    stable, canary = split.variants
    choice = desk.book.choice(split, canary, HTTP, None, b"")
    assert choice is not None
    assert not choice.follow(), "it is ready"
    desk.pool.publish(snapshot(b"detector"))
    assert choice.follow()
    assert choice.variant is stable
    desk.pool.publish(snapshot(b"detector_v2"))
    assert not choice.leave(), "it has left the other one before"
    assert not choice.follow()


def test_a_request_leaves_a_variant_that_a_backend_says_it_does_not_have() -> None:
    desk = Desk()
    split = desk.book.sets[NAME]
    choice = desk.book.choice(split, split.variants[1], HTTP, None, b"")
    assert choice is not None
    assert choice.leave()
    assert choice.follow()
    assert choice.variant is split.variants[0]
    assert not choice.leave()


def test_pinned_requests_and_open_sequences_leave_no_variant() -> None:
    desk = Desk()
    split = desk.book.sets[NAME]
    canary = split.variants[1]
    assert desk.book.choice(split, canary, HTTP, None, b"canary") is None
    assert desk.book.choice(split, canary, HTTP, step(7), b"") is None


def test_the_start_of_a_sequence_takes_the_sequence_along() -> None:
    desk = Desk()
    split = desk.book.sets[NAME]
    start = step(7, start=True)
    split.steps.note(start, split.variants[1], desk.now)
    choice = desk.book.choice(split, split.variants[1], HTTP, start, b"")
    assert choice is not None
    assert choice.leave()
    assert choice.follow()
    assert desk.choose(step=step(7)) == "stable"


def test_an_operator_hears_which_names_and_variants_there_are() -> None:
    desk = Desk()
    with pytest.raises(LookupError, match="'nobody' has no variants"):
        desk.book.find("nobody")
    with pytest.raises(ValueError, match="there is no variant 'beta'; there are: stable, canary"):
        desk.book.sets[NAME].promote("beta")
