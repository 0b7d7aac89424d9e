"""Every module with code has a unit test at the same place."""

from __future__ import annotations

from pathlib import Path

import pytest

LB = Path(__file__).parents[2] / "lb"
UNIT = Path(__file__).parents[1] / "unit"
EXEMPT = {
    "__main__.py": "runs the command line, which has its own tests",
    "kserve/inference_pb2.py": "generated",
    "runtime/wiring.py": "only puts things together: every test of the process runs it",
    "telemetry/record.py": "declarations only",
    "domain/operation.py": "declarations only",
    "domain/outcome.py": "declarations only",
    "proxy/fan_out/options.py": "declarations only",
    "proxy/fan_out/question.py": "declarations only",
}
MODULES = sorted(
    str(path.relative_to(LB))
    for path in LB.rglob("*.py")
    if path.name != "__init__.py" and str(path.relative_to(LB)) not in EXEMPT
)


@pytest.mark.parametrize("module", MODULES)
def test_module_has_its_unit_test(module: str) -> None:
    path = Path(module)
    assert (UNIT / path.parent / f"test_{path.stem.strip('_')}.py").exists()
