"""Models whose batches are cut, for Tritons under explicit model control.

`echo` takes eight rows, `echo_whole` any number. Both answer with those inputs that came, of any
data type, and with sums of numbers and of texts. `classes` and `classes_whole` answer with scores
of classes that have names. `versioned` adds a million times its version.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.triton.explicit import ask
from tests.triton.server import RealTriton

MAX_ROWS: Final = 8
ALL_ROWS: Final = 8192
"""What the models that take a batch whole take."""
STEP: Final = 1_000_000
DATA_TYPES: Final = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
    "FP32", "FP64", "BF16", "BYTES",
)  # fmt: skip
SUMMED: Final = {"LEFT": "INT32", "RIGHT": "INT32", "FIRST": "BYTES", "SECOND": "BYTES"}
"""Inputs that `SUM`, `DIFFERENCE` and `TEXT` are made of."""
OF_SUMMED: Final = {"SUM": "INT32", "DIFFERENCE": "INT32", "TEXT": "BYTES"}

_ECHO: Final = """
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([*self.outputs(request)]) for request in requests]

    def outputs(self, request):
        given = {each.name(): each for each in request.inputs()}
        for name, tensor in given.items():
            if name.startswith("IN_BF16"):
                # NumPy has no such numbers.
                yield pb_utils.Tensor.from_dlpack("OUT" + name[2:], tensor.to_dlpack())
            elif name.startswith("IN_"):
                yield pb_utils.Tensor("OUT" + name[2:], tensor.as_numpy())
        if "LEFT" in given:
            left, right = given["LEFT"].as_numpy(), given["RIGHT"].as_numpy()
            yield pb_utils.Tensor("SUM", left + right)
            yield pb_utils.Tensor("DIFFERENCE", left - right)
        if "FIRST" in given:
            yield pb_utils.Tensor("TEXT", given["FIRST"].as_numpy() + given["SECOND"].as_numpy())
"""
_CLASSES: Final = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([
                pb_utils.Tensor("SCORES", pb_utils.get_input_tensor_by_name(each, "IN").as_numpy())
            ])
            for each in requests
        ]
"""
LABELS: Final = ("cat", "dog", "hen", "owl")
_VERSIONED: Final = f"""
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.more = {STEP} * int(args["model_version"])

    def execute(self, requests):
        time.sleep(0.003)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", rows + self.more)])
"""


def _tensor(name: str, datatype: str, more: str = "") -> str:
    datatype = "STRING" if datatype == "BYTES" else datatype
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: [ -1 ] {more} }}'


def _config(rows: int, inputs: list[str], outputs: list[str], instances: int) -> str:
    return (
        f'backend: "python"\nmax_batch_size: {rows}\n'
        f"input [ {', '.join(inputs)} ]\noutput [ {', '.join(outputs)} ]\n"
        f"instance_group [ {{ kind: KIND_CPU count: {instances} }} ]\n"
    )


def write_repository(root: Path) -> None:
    """Make the models."""
    echoed = {f"_{each}": each for each in DATA_TYPES}
    inputs = {**{f"IN{name}": each for name, each in echoed.items()}, **SUMMED}
    outputs = {**{f"OUT{name}": each for name, each in echoed.items()}, **OF_SUMMED}
    for model, rows in (("echo", MAX_ROWS), ("echo_whole", ALL_ROWS)):
        config = _config(
            rows,
            [_tensor(*each, "optional: true") for each in inputs.items()],
            [_tensor(*each) for each in outputs.items()],
            1,
        )
        _write(root / model, config, _ECHO)
    for model, rows in (("classes", MAX_ROWS), ("classes_whole", ALL_ROWS)):
        shape = f"data_type: TYPE_FP32 dims: [ {len(LABELS)} ]"
        outputs_of = f'{{ name: "SCORES" {shape} label_filename: "labels.txt" }}'
        config = _config(rows, [f'{{ name: "IN" {shape} }}'], [outputs_of], 1)
        _write(root / model, config, _CLASSES)
        (root / model / "labels.txt").write_text("\n".join(LABELS))
    config = _config(MAX_ROWS, [_tensor("IN", "INT32")], [_tensor("OUT", "INT32")], 2)
    _write(root / "versioned", config, _VERSIONED)


def _write(folder: Path, config: str, text: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "1" / "model.py").write_text(text)


class BatchTriton(RealTriton):
    """Serves some of these models, and loads and unloads them."""

    newest = 1
    """Version of the models."""

    def load(self, model: str) -> None:
        ask(self.target.http, "POST", f"/v2/repository/models/{model}/load", {})

    def unload(self, model: str) -> None:
        ask(self.target.http, "POST", f"/v2/repository/models/{model}/unload", {})

    def load_next_version(self, model: str) -> None:
        """Put a further version into the repository and load it: only the newest is served."""
        folder = self._directory / "models" / model
        self.newest += 1
        shutil.copytree(folder / "1", folder / str(self.newest))
        self.load(model)


@contextmanager
def batch_tritons(
    count: int, workspace: Path, records: Path, *models: str
) -> Iterator[tuple[BatchTriton, ...]]:
    """Start some with these models, and end them."""
    repository = workspace / "repository"
    write_repository(repository)
    options = ("--model-control-mode=explicit", *(f"--load-model={model}" for model in models))
    started: list[BatchTriton] = []
    try:
        for number in range(count):
            name = f"batch-{number}"
            started.append(BatchTriton(name, workspace, records, *options, models=repository))
        for triton in started:
            triton.wait_ready()
        yield tuple(started)
    finally:
        for triton in started:
            triton.close()
