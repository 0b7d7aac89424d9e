"""Differences between backends, for the admin API and metrics.

*Drift* is what one backend lacks that another one has: it may be meant so, or be what restoring
could not mend, such as a model whose files came with the call that loaded it. Configurations are
compared as they are read, which is slow; see `lb.control.configurations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Final

from lb.control.directory import BackendDirectory
from lb.control.record import BackendRecord
from lb.domain.backend import AdminState, Backend
from lb.domain.names import readable
from lb.health.configurations import deviating
from lb.health.models import Version, names_of
from lb.kserve.server_settings import Settings, Value, differing
from lb.telemetry.collector import ModelTableStatus

_COMPARED: Final = 200
"""Models with different configurations that are named: it is done at once."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What a backend does not have like the others."""

    models: tuple[str, ...] = ()
    """Ready on another backend and not on this one; none where models are loaded on demand."""
    configurations: tuple[str, ...] = ()
    """Models that are not configured as on most backends that have the same version."""
    settings: tuple[str, ...] = ()
    """Trace and log settings that are otherwise on most."""


def table_statuses(directory: BackendDirectory, now: float) -> Iterator[ModelTableStatus]:
    """Describe every backend that lists its models, for the metrics page."""
    comparison = DriftComparison(directory)
    for record in directory.records:
        age_s = record.models.age_s(now)
        if age_s is not None:
            drift = comparison.drift(record)
            yield ModelTableStatus(
                backend=record.backend.name,
                ready=len(names_of(record.models.ready)),
                age_s=age_s,
                missing=len(drift.models),
                differing=len(drift.settings),
                reconfigured=len(drift.configurations),
            )


def ready_backends(directory: BackendDirectory, most: int) -> list[tuple[str, int]]:
    """How many backends have each model ready, for `most` models at most."""
    tables = Counter(record.models.ready for record in directory.records)
    return _ready_backends(frozenset(tables.items()), most)


@lru_cache(maxsize=1)
def _ready_backends(
    tables: frozenset[tuple[frozenset[Version], int]], most: int
) -> list[tuple[str, int]]:
    """How many backends have each model, by how many have each table of models. Mostly no table has
    changed since the last page."""
    counts: Counter[bytes] = Counter()
    for ready, backends in tables:
        for name in names_of(ready):
            counts[name] += backends
    return [(readable(name), count) for name, count in islice(sorted(counts.items()), most)]


class DriftComparison:
    """Compares each backend with all enabled backends that list their models."""

    def __init__(self, directory: BackendDirectory) -> None:
        records = [
            each
            for each in directory.records
            if each.admin is AdminState.ENABLED and each.models.lists is True
        ]
        self._records = frozenset(records)
        self._models: set[bytes] = set()
        """Those that all should have ready."""
        if not directory.loads_on_demand:
            for ready in {record.models.ready for record in records}:
                self._models |= names_of(ready)
        self._missing: dict[frozenset[Version], tuple[str, ...]] = {}
        """By what a backend has ready, which is mostly the same."""
        self._reconfigured = _reconfigured(directory, [each.backend for each in records])
        self._usual = _usual([record.setup.trace | record.setup.log for record in records])

    def drift(self, record: BackendRecord) -> Drift:
        """What a backend lacks; nothing for one that is not compared."""
        if record not in self._records:
            return Drift()
        ready = record.models.ready
        if ready not in self._missing:
            missing = self._models - names_of(ready)
            self._missing[ready] = tuple(sorted(readable(name) for name in missing))
        settings = record.setup.trace | record.setup.log
        return Drift(
            self._missing[ready],
            tuple(sorted(map(readable, self._reconfigured.get(record.backend, ())))),
            tuple(
                name
                for name, value in self._usual.items()
                if name in settings and settings[name] != value
            ),
        )


def _reconfigured(
    directory: BackendDirectory, backends: Sequence[Backend]
) -> dict[Backend, set[bytes]]:
    """The models of each backend that are not configured as on most."""
    found: dict[Backend, set[bytes]] = {}
    for (name, _), digests in islice(directory.configurations.differing.items(), _COMPARED):
        for backend in deviating(digests, backends):
            found.setdefault(backend, set()).add(name)
    return found


def _usual(settings: list[Settings]) -> Settings:
    """The most common value of each setting that is not the same everywhere."""
    usual: Settings = {}
    for name in differing(settings):
        values: Counter[Value] = Counter(each[name] for each in settings if name in each)
        usual[name] = values.most_common(1)[0][0]
    return usual
