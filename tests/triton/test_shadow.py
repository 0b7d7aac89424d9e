"""Models on real Tritons that differ by a known amount: how they compare as shadows."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.explicit import ask
from tests.triton.records import Records
from tests.triton.server import RealTriton
from tests.triton.target import WAIT_S, Target

CLASSES = 10
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        rows = len(requests)
        return [self.answer(request, rows) for request in requests]

    def answer(self, request, rows):
        number = pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy().astype(np.float64)
        scores = np.sin(number * 12.9898 + np.arange({classes}) * 78.233)
        {change}
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCORES", scores.astype(np.float32))])
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [ {{ name: "NUMBER" data_type: TYPE_FP32 dims: [ 1 ] }} ]
output [ {{ name: "SCORES" data_type: TYPE_FP32 dims: [ {classes} ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 2000 }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""
CHANGES = {
    "stable": "pass",
    "tiny": "scores = scores + 1e-6",
    "coarse": "scores = scores + 1e-2",
    "other_top_1": (
        "best = int(scores[0].argmax()); worst = int(scores[0].argmin())\n"
        "        if int(number[0, 0]) % 100 < 3:\n"
        "            scores[0, [best, worst]] = scores[0, [worst, best]]"
    ),
    "batched": "scores = scores + 1e-3 * (rows > 1)",
    "batched_copy": "scores = scores + 1e-3 * (rows > 1)",
}
"""What each model does to the scores. The last two differ by how requests were batched."""
NAMES = {"tiny": "stable", "coarse": "stable", "other_top_1": "stable", "batched_copy": "batched"}
"""Shadows, and the models in service."""


@pytest.fixture(scope="module")
def balancer(
    tmp_path_factory: pytest.TempPathFactory, records: Records
) -> Iterator[RunningBalancer]:
    """A balancer before two Tritons with all models. Shadows go by the name of their model."""
    workspace = tmp_path_factory.mktemp("tritons-of-shadows")
    models = workspace / "models-of-shadows"
    for name, change in CHANGES.items():
        write_model(models / name, change)
    tritons: list[RealTriton] = []
    settings = {
        f"name_{shadow}": {
            "variants": [{"name": "only", "model": model, "weight": 1}],
            "shadow": {"model": shadow, "percent": 100, "atol": 1e-4, "rtol": 0, "p99": 1000},
        }
        for shadow, model in NAMES.items()
    }
    try:
        for number in range(2):
            made = RealTriton(f"shadows-{number}", workspace, records.directory, models=models)
            tritons.append(made)
        for triton in tritons:
            triton.wait_ready()
        folder = tmp_path_factory.mktemp("balancer-of-shadows")
        yield from RunningBalancer.run(folder, tritons, models=settings)
    finally:
        for triton in tritons:
            triton.close()


def write_model(folder: Path, change: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG.format(classes=CLASSES))
    (folder / "1" / "model.py").write_text(CODE.format(classes=CLASSES, change=change))


def compared(balancer: RunningBalancer, shadow: str) -> dict[str, Any]:
    found: dict[str, Any] = ask(balancer.admin, "GET", f"/api/v1/compare/name_{shadow}")
    return found


def send(target: Target, shadow: str, numbers: range, protocol: Any = httpclient) -> None:
    """Ask with each number, one after the other."""
    address = target.http if protocol is httpclient else target.grpc
    with protocol.InferenceServerClient(address) as client:
        tensor = protocol.InferInput("NUMBER", [1, 1], "FP32")
        for number in numbers:
            tensor.set_data_from_numpy(np.array([[number]], np.float32))
            client.infer(f"name_{shadow}", [tensor], request_id=str(number))


def until_compared(balancer: RunningBalancer, shadow: str, count: int, noise: int = 1) -> Any:
    """Send requests until so many pairs were compared."""
    sent = 0
    found: dict[str, Any] = {}

    def is_enough() -> bool:
        nonlocal sent, found
        for protocol in (httpclient, grpcclient):
            send(balancer.target, shadow, range(sent, sent + 100), protocol)
            sent += 100
        found = compared(balancer, shadow)
        return found["agreement"]["compared"] >= count and found["noise"]["compared"] >= noise

    wait_until(is_enough, timeout_s=WAIT_S, what=f"{count} pairs of {shadow}")
    return found


@pytest.mark.parametrize(
    ("shadow", "low", "high", "same", "differs"),
    [("tiny", 5e-7, 2e-6, 100, False), ("coarse", 9.9e-3, 1.01e-2, 0, True)],
)
def test_a_difference_is_found_with_its_size(
    balancer: RunningBalancer, shadow: str, low: float, high: float, same: int, differs: bool
) -> None:
    found = until_compared(balancer, shadow, 150, noise=15)
    (output,) = found["outputs"]
    assert output["name"] == "SCORES"
    assert low < output["max_abs"] < high
    assert output["noise_max_abs"] == 0
    assert found["agreement"]["percent"] == same
    assert found["noise"]["percent"] == 100
    assert found["differs"] is differs
    assert output["top_1"]["percent"] == 100
    assert found["unreadable"] == found["status_differs"] == 0
    assert len(found["examples"]) == (20 if differs else 0)


def test_another_top_1_of_three_percent_is_found(balancer: RunningBalancer) -> None:
    found = until_compared(balancer, "other_top_1", 700)
    (output,) = found["outputs"]
    for agreement in (found["agreement"], output["top_1"]):
        assert agreement["low_percent"] <= 97 <= agreement["high_percent"]
        assert agreement["high_percent"] - agreement["low_percent"] < 4
    assert found["noise"]["percent"] == 100
    assert 1.5 < output["max_abs"] <= 2


def test_models_that_differ_by_their_batches_alone_are_not_accused(
    balancer: RunningBalancer,
) -> None:
    found: dict[str, Any] = {}

    def is_enough() -> bool:
        nonlocal found
        with ThreadPoolExecutor(6) as threads:
            for start in range(6):
                threads.submit(
                    send, balancer.target, "batched_copy", range(start * 50, start * 50 + 50)
                )
        found = compared(balancer, "batched_copy")
        return found["noise"]["compared"] >= 15 and found["agreement"]["percent"] < 100

    wait_until(is_enough, timeout_s=WAIT_S, what="batches that differ")
    assert found["outputs"][0]["max_abs"] == pytest.approx(1e-3, rel=1e-3)
    assert found["differs"] is False
