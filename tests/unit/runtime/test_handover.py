"""What one process tells the next of its state."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Any

import pytest

from lb.domain.backend import AdminState, AppProtocol
from lb.domain.sequence import Question, SequenceKey, SequenceStep
from lb.runtime.handover import (
    operator_state,
    resume_operator_state,
    sequence_news,
)
from lb.runtime.logs import Logs
from lb.runtime.wiring import LoadBalancer
from lb.settings.backends import BackendSettings
from lb.settings.model import Settings
from tests.fakes.metrics import make_snapshot

CONFIG: dict[str, Any] = {
    "listen": {"http": "127.0.0.1:0"},
    "backends": [{"name": name, "http": f"127.0.0.1:{port}"} for port, name in enumerate("abc", 1)],
}
IDLE_S = 60.0


@pytest.fixture
async def make() -> AsyncIterator[Callable[[], LoadBalancer]]:
    settings = Settings.model_validate(CONFIG)
    logs = Logs(settings)
    made: list[LoadBalancer] = []

    def build_one() -> LoadBalancer:
        made.append(LoadBalancer(settings, logs))
        return made[-1]

    yield build_one
    for product in made:
        await product.aclose()
    logs.close()


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def start(product: LoadBalancer, model: bytes, sequence_id: int | str) -> str:
    """Begin a sequence; returns the name of its backend."""
    backends = [record.backend for record in product.control.directory.records]
    placement = make_snapshot(backends).placements[AppProtocol.HTTP]
    step = SequenceStep(SequenceKey(model, sequence_id), is_start=True)
    table = product.relay.dispatcher.steps.table
    backend, pin = table.place(step, placement, IDLE_S, monotonic())
    assert backend is not None
    assert pin is not None
    table.ended(step, pin, pin.starts, monotonic())
    return backend.name


def home(product: LoadBalancer, model: bytes, sequence_id: int | str) -> str | None:
    found = product.relay.dispatcher.steps.table.backend_of(SequenceKey(model, sequence_id))
    return None if found is None else found.name


async def test_what_operators_said_lives_on(make: Callable[[], LoadBalancer]) -> None:
    old, new = make(), make()
    old.control.directory.set_admin("b", AdminState.DRAINING, monotonic(), limit_s=60.0)
    entry = {
        "name": "d",
        "http": "unix:/run/d.sock",
        "weight": 2,
        "headers": {"authorization": "secret"},
        "health": {"interval": "5s", "probe": "tcp"},
        "tls": {"server_name": "d", "ports": ["http"]},
    }
    old.control.membership.add(BackendSettings.model_validate(entry))
    old.control.membership.remove("c")
    old.control.directory.drain_model("a", b"m\xff", is_drained=True, now=monotonic())
    resume_operator_state(new, through_json(operator_state(old)))
    states = {record.backend.name: record.admin for record in new.control.directory.records}
    assert {name: states[name] for name in "abd"} == {
        "a": AdminState.ENABLED,
        "b": AdminState.DRAINING,
        "d": AdminState.ENABLED,
    }
    assert new.control.membership.runtime_changes == old.control.membership.runtime_changes
    assert new.control.directory.find("a").drained_models == {b"m\xff"}


async def test_what_another_version_does_not_know_is_left_out(
    make: Callable[[], LoadBalancer],
) -> None:
    new = make()
    state = {
        "added": [{"name": "d", "novelty": 1}],
        "states": {"gone": "draining"},
        "drained_models": {"gone": ["m"]},
    }
    resume_operator_state(new, state)
    assert [record.backend.name for record in new.control.directory.records] == ["a", "b", "c"]


async def test_open_sequences_go_on_where_they_run(make: Callable[[], LoadBalancer]) -> None:
    old, new = make(), make()
    keys: list[tuple[bytes, int | str]] = [
        *((b"m", number) for number in range(1200)),
        (b"m", "77"),
        (b"m", 77_000),
        (b"\xff\xfe", "\udc80x"),
        (b"n", 2**63),
    ]
    homes = {key: start(old, *key) for key in keys}
    parts = [through_json(part) for part in sequence_news(old).parts()]
    assert len(parts) > 1
    for part in parts:
        sequence_news(new).hear(part)
    assert {key: home(new, *key) for key in keys} == homes
    assert len(new.relay.dispatcher.steps.table) == len(keys)
    assert sum(record.backend.open_sequences for record in new.control.directory.records) == len(
        keys
    )


async def test_what_begins_and_ends_meanwhile_is_told(make: Callable[[], LoadBalancer]) -> None:
    old, new = make(), make()
    start(old, b"m", 1)
    sequence_news(old).follow(lambda rows: sequence_news(new).hear(through_json(rows)), Question)
    where = start(old, b"m", 2)
    for part in sequence_news(old).parts():
        sequence_news(new).hear(part)
    assert home(new, b"m", 2) == where
    table = old.relay.dispatcher.steps.table
    backends = {record.backend.name: record.backend for record in old.control.directory.records}
    table.forget(SequenceKey(b"m", 2), backends[where])
    assert home(new, b"m", 2) is None
    assert home(new, b"m", 1) is not None


async def test_news_go_on_to_everybody_but_who_told_them(make: Callable[[], LoadBalancer]) -> None:
    product = make()
    news = sequence_news(product)
    told: dict[str, list[Any]] = {"before": [], "next": []}
    before, following = told["before"].extend, told["next"].extend
    news.follow(before, Question)
    news.follow(following, Question)
    where = start(product, b"m", 1)
    news.hear([["m", 2, "a", 60.0]], before)
    assert home(product, b"m", 2) == "a"
    assert [row[1] for row in told["before"]] == [1]
    assert [row[1:3] for row in told["next"]] == [[1, where], [2, "a"]]
    news.forget(before)
    news.forget(following)
    start(product, b"m", 3)
    assert [len(rows) for rows in told.values()] == [1, 2]


async def test_sequences_of_a_backend_that_is_gone_are_not_taken_over(
    make: Callable[[], LoadBalancer],
) -> None:
    new = make()
    sequence_news(new).hear([["m", 1, "gone", 60.0]])
    assert home(new, b"m", 1) is None
    assert len(new.relay.dispatcher.steps.table) == 0
