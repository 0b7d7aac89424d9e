"""How much memory models take: configured, measured, or told by a backend; otherwise guessed.

Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lb.placing.copies import Model


@dataclass(slots=True)
class ModelSizes:
    """Sizes of models, and memory that backends did not give back."""

    configured: Mapping[Model, int] = field(default_factory=dict)
    measured: dict[Model, int] = field(default_factory=dict)
    """The most by which the used memory of a GPU grew with a load of the model."""
    told: dict[Model, int] = field(default_factory=dict)
    """By the statistics of a backend."""
    unreturned: dict[str, int] = field(default_factory=dict)
    """By backend: memory of models that were unloaded, which did not come back. Triton keeps it for
    its next loads, or has lost it."""

    def of(self, model: Model) -> int:
        """The size of a model; of one that is not known, the mean of those that are."""
        for source in (self.configured, self.measured, self.told):
            if (size := source.get(model)) is not None:
                return size
        known = {**self.told, **self.measured, **self.configured}
        return sum(known.values()) // len(known) if known else 0

    def source(self, model: Model) -> str:
        """Where the size of a model comes from."""
        if model in self.configured:
            return "configured"
        if model in self.measured:
            return "measured"
        return "statistics" if model in self.told else "guessed"

    def loaded(self, model: Model, backend: str, grown: int) -> None:
        """The used memory of a backend grew by so much while a model was loaded there. Memory that
        was not given back before is taken to be used again first."""
        held = self.unreturned.get(backend, 0)
        if held:
            self._hold(backend, held - max(0, self.of(model) - grown))
        elif grown > 0:
            self.measured[model] = max(grown, self.measured.get(model, 0))

    def unloaded(self, model: Model, backend: str, shrunk: int) -> int:
        """The used memory of a backend shrank by so much while a model was unloaded there.

        Returns:
            How much of it did not come back.
        """
        missing = max(0, self.of(model) - shrunk)
        self._hold(backend, self.unreturned.get(backend, 0) + missing)
        return missing

    def _hold(self, backend: str, size: int) -> None:
        if size > 0:
            self.unreturned[backend] = size
        else:
            self.unreturned.pop(backend, None)

    def restarted(self, backend: str) -> None:
        """A backend has begun anew: all memory came back."""
        self.unreturned.pop(backend, None)

    def forget(self, known: set[Model], backends: set[str]) -> None:
        """Keep what is known of these models and backends alone."""
        for memory in (self.measured, self.told):
            for model in [each for each in memory if each not in known]:
                del memory[model]
        for name in [each for each in self.unreturned if each not in backends]:
            del self.unreturned[name]
