"""What is shown of requests that wait for their turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from lb.domain.backend import Histogram
from lb.domain.names import readable
from lb.domain.schedule import ModelBackendView, ModelQueueView, PositionHistogram
from lb.telemetry.labels import OTHER

Row = tuple[tuple[str, ...], float]
Rows = Callable[[], Iterable[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """All of it, at one time."""

    model_queues: Sequence[ModelQueueView] = ()
    model_backends: Sequence[ModelBackendView] = ()
    waits: Mapping[bytes, Histogram] = field(default_factory=dict)
    """How long requests had waited that began, by model."""
    positions: Mapping[bytes, PositionHistogram] = field(default_factory=dict)
    """How many had been before them when they joined, by model."""
    wait_reasons: Mapping[tuple[bytes, str], int] = field(default_factory=dict)
    """Requests that had to wait, by model and why."""
    unplaced: int = 0
    """Requests that wait for any backend."""


class QueueReader(Protocol):
    """What knows of queued requests: the relay of this process, or all workers together."""

    def queue_status(self) -> QueueStatus:
        """Read all there is. Takes as long as there are models on backends."""
        ...

    def queued(self) -> int:
        """Count the requests that wait."""
        ...

    def oldest_s(self, now: float) -> float:
        """How many seconds the first request in a model queue has waited; 0 without one."""
        ...

    def model_queues(self, now: float) -> Iterable[ModelQueueView]:
        """Read the model queues in which requests wait."""
        ...

    def model_backends(self, models: Collection[bytes]) -> Iterable[ModelBackendView]:
        """Read what the scheduler knows of the copies of these models."""
        ...


class Names:
    """Labels of models; there are only so many."""

    def __init__(self, models: Iterable[bytes], most: int) -> None:
        self._known = frozenset(sorted(set(models))[:most])

    def of(self, model: bytes) -> str:
        """The label of one."""
        return readable(model) if model in self._known else OTHER


def queue_rows(read: Callable[[], QueueStatus], most: Callable[[], int]) -> dict[str, Rows]:
    """The series but for those of how long requests waited, by name."""

    def lengths() -> Iterable[Row]:
        status = read()
        return _summed(
            ((model, str(priority + 1)), count)
            for model, model_queue in _named(status.model_queues, most())
            for priority, count in model_queue.waiting.items()
        )

    def oldest() -> Iterable[Row]:
        status = read()
        return _largest(
            ((model,), model_queue.oldest_s)
            for model, model_queue in _named(status.model_queues, most())
        )

    def wait_reasons() -> Iterable[Row]:
        counts = read().wait_reasons
        names = Names((model for model, _ in counts if model), most())
        return _summed(
            ((names.of(model) if model else "", why), count)
            for (model, why), count in counts.items()
        )

    def model_backends(value: Callable[[ModelBackendView], float]) -> Callable[[], Iterator[Row]]:
        return lambda: (
            ((model, model_backend.backend.name), value(model_backend))
            for model, model_backend in _named(read().model_backends, most())
        )

    return {
        "triton_lb_queue_length": lengths,
        "triton_lb_queue_oldest_seconds": oldest,
        "triton_lb_queue_without_backend": lambda: [((), read().unplaced)],
        "triton_lb_queue_waits_total": wait_reasons,
        "triton_lb_model_backend_requests": lambda: _summed(
            model_backends(lambda model_backend: model_backend.in_flight)()
        ),
        "triton_lb_model_backend_limit": lambda: _largest(
            model_backends(lambda model_backend: model_backend.limit)()
        ),
        "triton_lb_model_backend_expected_seconds": lambda: _largest(
            model_backends(lambda model_backend: model_backend.expected_s)()
        ),
        "triton_lb_model_backend_slowed_ratio": lambda: _largest(
            model_backends(lambda model_backend: model_backend.slowed)()
        ),
    }


def wait_rows(status: QueueStatus, most: int) -> Iterator[tuple[str, Histogram]]:
    """How long requests waited that began, by label."""
    return _together(status.waits, Histogram, most)


def position_rows(status: QueueStatus, most: int) -> Iterator[tuple[str, PositionHistogram]]:
    """How many waited before requests that joined, by label."""
    return _together(status.positions, PositionHistogram, most)


_CountsT = TypeVar("_CountsT", Histogram, PositionHistogram)


def _together(
    by_model: Mapping[bytes, _CountsT], make: Callable[[], _CountsT], most: int
) -> Iterator[tuple[str, _CountsT]]:
    """What is counted of models, added up for those that share a label."""
    names = Names(by_model, most)
    found: dict[str, _CountsT] = {}
    for model, counts in by_model.items():
        total = found.setdefault(names.of(model), make())
        total.counts = [a + b for a, b in zip(total.counts, counts.counts, strict=True)]
        total.sum += counts.sum
    yield from found.items()


_ViewT = TypeVar("_ViewT", ModelQueueView, ModelBackendView)


def _named(views: Sequence[_ViewT], most: int) -> Iterator[tuple[str, _ViewT]]:
    names = Names((view.model for view in views), most)
    for view in views:
        yield names.of(view.model), view


def _summed(rows: Iterable[Row]) -> list[Row]:
    """One row for each set of labels: versions of a model, and models without a label, share it."""
    found: dict[tuple[str, ...], float] = {}
    for labels, value in rows:
        found[labels] = found.get(labels, 0) + value
    return list(found.items())


def _largest(rows: Iterable[Row]) -> list[Row]:
    found: dict[tuple[str, ...], float] = {}
    for labels, value in rows:
        found[labels] = max(found.get(labels, 0.0), value)
    return list(found.items())
