from __future__ import annotations

from lb.domain.load import LoadReport, Measured, ModelLoad


def test_what_waits_at_a_backend_is_that_of_all_its_models() -> None:
    models = {b"a": ModelLoad(pending=2.0), b"b": ModelLoad(pending=1.0)}
    assert LoadReport(at=0.0, models=models).pending == 3.0
    assert LoadReport(at=0.0).pending == 0.0


def test_an_execution_takes_its_rows_on_average() -> None:
    assert Measured(base_s=0.5, row_s=0.25, rows=2.0).mean_s == 1.0
