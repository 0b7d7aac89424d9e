"""Whatever is asked for and whatever dies, the planner keeps its promises."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lb.placing.planner import ModelRules, PlannerRules
from tests.fakes.model_store import SimulatedStores

MODELS = [b"%d" % number for number in range(8)]
MIN_AGE_S = 5.0

asks = st.tuples(st.just("ask"), st.integers(1, len(MODELS) - 1))
pauses = st.tuples(st.just("pause"), st.sampled_from([0, 1, 3, 20]))
kills = st.tuples(st.just("kill"), st.integers(0, 2))


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(asks | asks | pauses | kills, max_size=70),
    room=st.integers(2, 3),
    bad=st.sets(st.tuples(st.sampled_from(MODELS[1:]), st.sampled_from(["b0", "b1", "b2"]))),
)
def test_every_request_is_served_or_refused_and_limits_hold(
    events: list[tuple[str, int]], room: int, bad: set[tuple[bytes, str]]
) -> None:
    stores = SimulatedStores(
        count=3,
        models=MODELS,
        rules=PlannerRules(
            max_models=room, min_age_s=MIN_AGE_S, models={MODELS[0]: ModelRules(is_pinned=True)}
        ),
        load_s=2.0,
        unload_s=1.0,
        request_s=0.5,
        fails=lambda model, backend: "no" if (model, backend) in bad else "",
    )
    asked = 0
    for kind, value in events:
        if kind == "ask":
            stores.ask(MODELS[value])
            asked += 1
        elif kind == "pause":
            stores.advance(stores.now + value)
        else:
            stores.kill(f"b{value}")
    stores.advance(stores.now + 400.0)
    assert stores.served + stores.refused == asked
    if not bad:
        lost = any(kind == "kill" for kind, _ in events)
        assert lost or not stores.refused
    assert stores.most_taken <= room
    for _, model, _, age_s in stores.evictions:
        assert model != MODELS[0]  # which is pinned
        assert age_s >= MIN_AGE_S
    assert any(MODELS[0] in store.ready for store in stores.stores.values())
