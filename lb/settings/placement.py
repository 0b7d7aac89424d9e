"""Settings of which models are loaded on which Tritons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from lb.settings.choices import PlacementMode
from lb.settings.problems import Finding
from lb.settings.section import Section
from lb.settings.units import Duration, PositiveDuration, Size
from lb.settings.values import PositiveCount


class PlacementSettings(Section):
    """Serve more models than fit. A model that Tritons have in their repositories, and that is
    loaded nowhere, is loaded when a request needs it. Models that are used less make room. This is
    for Tritons with `--model-control-mode=explicit`; others are left alone. Only one active process
    may do this for a pool (docs/decisions/0064-placement-of-models.md)."""

    mode: PlacementMode = PlacementMode.OFF
    """`on_demand` loads and unloads. `observe` decides, reports and does nothing.

    Set this when your Tritons have more models in their repositories than memory; otherwise only
    clients and Tritons load models."""
    max_models: PositiveCount | None = None
    """How many models a Triton may have loaded at a time. Steps of ensembles count. This or
    `memory` is needed unless `mode` is `off`.

    Set this when you choose a mode and models are of similar size, to what fits into the memory of
    the smallest GPU; otherwise `memory` alone bounds them."""
    memory: Annotated[Size, Field(ge=1)] | None = None
    """How much memory of its GPUs the models of a Triton may take. Sizes are those of
    `models.NAME.size`, else measured by `nv_gpu_memory_used_bytes` when models are loaded, else as
    Triton's statistics say, else the mean of those that are known. What others use on a GPU counts
    where the backend has a metrics port.

    Set this when models differ much in size, to what the smallest GPU can spare; otherwise
    `max_models` bounds them."""
    wait: PositiveDuration = 60.0
    """How long a request waits for its model to be loaded; then it is answered with 503.

    Set this when loads take longer, or clients give up earlier; otherwise a request waits a
    minute."""
    min_age: Duration = 30.0
    """No model is evicted that was loaded less than this long ago.

    Set this when models that do not fit together replace each other too often, or loads are much
    faster than half a minute; otherwise two such models take turns of 30 seconds."""

    def broken_rules(self) -> Iterable[Finding]:
        """See `Section`."""
        if self.mode is not PlacementMode.OFF and self.max_models is self.memory is None:
            yield ("max_models",), f"or memory is required with mode: {self.mode.value}"
