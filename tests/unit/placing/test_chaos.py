"""Loads, evictions, kills, drains and failures by chance, on a clock of their own."""

from __future__ import annotations

from collections import Counter
from random import Random

from lb.placing.planner import ModelRules, PlannerRules
from tests.fakes.model_store import SimulatedStores

ACTIONS = 2_500
MODELS = [b"m%d" % number for number in range(20)]
SETTLED_S = 2000.0
"""Longer than any failure is remembered."""


def test_no_request_is_lost_or_meets_a_model_under_unload() -> None:
    """`SimulatedStores` asserts that requests run where their model is ready, that nothing in use
    is evicted, and that no backend ever has more models than there is room for."""
    rng = Random(11)
    failing: set[tuple[bytes, str]] = set()
    stores = SimulatedStores(
        count=3,
        models=MODELS,
        rules=PlannerRules(
            max_models=4,
            min_age_s=5.0,
            models={
                MODELS[0]: ModelRules(is_pinned=True),
                MODELS[1]: ModelRules(min_copies=2),
                MODELS[2]: ModelRules(idle_unload_s=30.0),
                MODELS[3]: ModelRules(calls=frozenset({MODELS[4]})),
            },
        ),
        load_s=2.0,
        unload_s=1.0,
        request_s=0.5,
        fails=lambda model, backend: "no" if (model, backend) in failing else "",
    )
    done: Counter[str] = Counter()
    for _ in range(ACTIONS):
        stores.advance(stores.now + rng.expovariate(2.0))
        kind = rng.choices(["ask", "kill", "drain", "fail"], [90, 2, 5, 3])[0]
        model, backend = rng.choice(MODELS), rng.choice(list(stores.stores))
        done[kind] += 1
        if kind == "ask":
            stores.ask(model)
        elif kind == "kill":
            stores.kill(backend)
        elif kind == "drain":
            stores.drain(backend, model)
        else:
            failing = {(model, backend)}
    failing.clear()
    for store in stores.stores.values():
        for model in list(store.drained):
            stores.drain(store.name, model)
    stores.advance(stores.now + SETTLED_S)
    assert not stores.waiting
    # Refused: what cannot be loaded anywhere for a while. Lost: what ran on a backend when it died;
    # such requests are for the retries of the relay.
    assert stores.served + stores.refused == done["ask"]
    assert stores.refused < done["ask"] / 20
    assert stores.lost <= done["kill"] * 10
    assert len(stores.evictions) > ACTIONS / 20
    # What is to be there without being asked for has come back, and what nobody uses has gone.
    ready = Counter(model for store in stores.stores.values() for model in store.ready)
    assert (ready[MODELS[0]], ready[MODELS[1]], ready[MODELS[2]]) == (1, 2, 0)
