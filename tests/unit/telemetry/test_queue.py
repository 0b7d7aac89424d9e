from __future__ import annotations

from lb.domain.backend import Histogram
from lb.domain.schedule import ModelBackendView, ModelQueueView, PositionHistogram
from lb.telemetry.queue import Names, QueueStatus, position_rows, queue_rows, wait_rows
from tests.fakes.backends import make_backend

A, B = make_backend("a"), make_backend("b")


def lane(model: bytes, version: bytes, **facts: object) -> ModelBackendView:
    usual: dict[str, object] = {
        "backend": A, "in_flight": 1, "limit": 2, "expected_s": 0.005, "row_s": 0.0, "learnt": 3,
    }  # fmt: skip
    return ModelBackendView(model=model, version=version, **(usual | facts))  # type: ignore[arg-type]


def histogram(waited_s: float, bucket: int) -> Histogram:
    made = Histogram()
    made.counts[bucket] = 1
    made.sum = waited_s
    return made


def places(*positions: int) -> PositionHistogram:
    made = PositionHistogram()
    for each in positions:
        made.add(each)
    return made


STATUS = QueueStatus(
    model_queues=(
        ModelQueueView(model=b"m", version=b"", waiting={0: 2, 1: 3}, oldest_s=0.5),
        ModelQueueView(model=b"m", version=b"1", waiting={1: 1}, oldest_s=0.75),
        ModelQueueView(model=b"n", version=b"", waiting={}, oldest_s=0.0),
    ),
    model_backends=(
        lane(b"m", b""),
        lane(b"m", b"1", in_flight=2, limit=3, expected_s=0.001, slowed=1.5),
        lane(b"n", b"", backend=B),
    ),
    waits={b"m": histogram(0.25, 2), b"n": histogram(1.0, 3), b"o": histogram(2.0, 3)},
    positions={b"m": places(0, 5, 5), b"n": places(1)},
    wait_reasons={
        (b"m", "limit"): 4,
        (b"n", "limit"): 1,
        (b"o", "limit"): 2,
        (b"", "no_backend"): 7,
    },
    unplaced=5,
)


def rows(name: str, most: int = 10) -> dict[tuple[str, ...], float]:
    return dict(queue_rows(lambda: STATUS, lambda: most)[f"triton_lb_{name}"]())


def test_versions_of_a_model_are_counted_together() -> None:
    assert rows("queue_length") == {("m", "1"): 2, ("m", "2"): 4}
    assert rows("queue_oldest_seconds") == {("m",): 0.75, ("n",): 0.0}
    assert rows("model_backend_requests") == {("m", "a"): 3, ("n", "b"): 1}
    assert rows("model_backend_limit") == {("m", "a"): 3, ("n", "b"): 2}
    assert rows("model_backend_expected_seconds") == {("m", "a"): 0.005, ("n", "b"): 0.005}
    assert rows("model_backend_slowed_ratio") == {("m", "a"): 1.5, ("n", "b"): 1.0}
    assert rows("queue_without_backend") == {(): 5}


def test_places_are_counted_by_model() -> None:
    found = dict(position_rows(STATUS, 10))
    assert found["m"].counts[:4] == [1, 0, 0, 2]
    assert (found["m"].sum, found["n"].sum) == (10, 1)
    assert dict(position_rows(STATUS, 1))["other"].sum == 1


def test_only_so_many_models_have_a_label() -> None:
    assert rows("queue_waits_total", most=1) == {
        ("m", "limit"): 4,
        ("other", "limit"): 3,
        ("", "no_backend"): 7,
    }
    waits = dict(wait_rows(STATUS, 1))
    assert sorted(waits) == ["m", "other"]
    assert waits["other"].counts[3] == 2
    assert waits["other"].sum == 3.0
    assert Names([b"\xff"], 1).of(b"\xff") == "\\xff"
