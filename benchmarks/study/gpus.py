"""What a Triton of the study stands for: models, and how long a GPU of some speed takes for one."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import MappingProxyType

PROGRAM = Path(__file__).with_name("sleeping_model.py")
MODEL = "gpu"
"""The model of fleets that have one only."""
COLUMNS = 4
"""Numbers in a row of an input."""

_CONFIG = string.Template("""\
name: "$name"
backend: "python"
max_batch_size: $max_batch
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ $columns ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: $instances } ]
parameters [
  { key: "base_ms" value: { string_value: "$base_ms" } },
  { key: "row_ms" value: { string_value: "$row_ms" } }
]
$batching
""")


_ENSEMBLE = string.Template("""\
name: "$name"
platform: "ensemble"
max_batch_size: $max_batch
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ $columns ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "$step" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" }
  output_map { key: "OUTPUT0" value: "OUTPUT0" }
} ] }
""")


@dataclass(frozen=True)
class Gpu:
    """A model on some GPU: one execution takes `base_ms` and `row_ms` for each row of the batch."""

    base_ms: float
    row_ms: float = 0.0
    instances: int = 1
    max_batch: int = 1
    batches: bool = False
    """Whether Triton puts requests that wait into one batch (dynamic batching)."""
    in_ensemble: bool = False
    """Whether it is the step of an ensemble that clients ask for by the model's name."""

    def rate(self, rows: float = 1.0) -> float:
        """Requests of so many rows a second that it carries at most, batched where it batches."""
        batch = max(1.0, self.max_batch // rows) if self.batches else 1.0
        return self.instances * batch * 1000.0 / (self.base_ms + batch * rows * self.row_ms)

    def slots(self) -> int:
        """Requests of one row that execute at once."""
        return self.instances * (self.max_batch if self.batches else 1)


def executed(name: str, gpu: Gpu) -> str:
    """The name under which a model that clients ask for is executed."""
    return f"{name}_step" if gpu.in_ensemble else name


Models = Mapping[str, Gpu]
"""What one Triton has, by model."""


def one(gpu: Gpu) -> Models:
    """A Triton with one model."""
    return MappingProxyType({MODEL: gpu})


def speeds(fleet: Sequence[Models]) -> list[float]:
    """How often faster each Triton is than the slowest: what somebody would set as weights."""
    rates = [sum(gpu.rate() for gpu in models.values()) for models in fleet]
    return [rate / min(rates) for rate in rates]


def limits(fleet: Sequence[Models]) -> list[int]:
    """Requests that execute at once on each: what somebody would set as limits."""
    return [max(gpu.slots() for gpu in models.values()) for models in fleet]


def tuned_limits(fleet: Sequence[Models]) -> list[int]:
    """The same with requests under way to fast ones, found by trying: half of the speed."""
    pairs = zip(limits(fleet), speeds(fleet), strict=True)
    return [max(limit, ceil(limit * speed / 2)) for limit, speed in pairs]


def write_repository(directory: Path, models: Models) -> None:
    """Write a model repository that `tritonserver` takes."""
    for asked, gpu in models.items():
        name = executed(asked, gpu)
        shape = {"max_batch": gpu.max_batch, "columns": COLUMNS}
        if gpu.in_ensemble:
            (directory / asked / "1").mkdir(parents=True)
            ensemble = _ENSEMBLE.substitute(name=asked, step=name, **shape)
            (directory / asked / "config.pbtxt").write_text(ensemble)
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "1" / "model.py").write_text(PROGRAM.read_text())
        config = _CONFIG.substitute(
            shape,
            name=name,
            instances=gpu.instances,
            base_ms=gpu.base_ms,
            row_ms=gpu.row_ms,
            batching="dynamic_batching { }" if gpu.batches else "",
        )
        (directory / name / "config.pbtxt").write_text(config)
