"""Trace and log settings, statistics and metadata as clients see them through one address."""

from __future__ import annotations

import pytest
from tritonclient.utils import InferenceServerException

from tests.fakes.process import wait_until
from tests.triton.flows.kit import Kit
from tests.triton.tensors import numbers, pair

MANY = 12
"""Enough requests to reach every server behind the balancer."""


def test_trace_settings_are_changed_read_and_cleared(control_kit: Kit) -> None:
    before = control_kit.trace_settings()
    changed = control_kit.update_trace_settings({"trace_rate": "700", "log_frequency": "9"})
    assert (changed["trace_rate"], changed["log_frequency"]) == ("700", "9")
    for _ in range(MANY):
        assert control_kit.trace_settings() == before | {"trace_rate": "700", "log_frequency": "9"}
    assert control_kit.update_trace_settings({"trace_rate": None, "log_frequency": None}) == before
    for _ in range(MANY):
        assert control_kit.trace_settings() == before


def test_models_have_trace_settings_of_their_own(control_kit: Kit) -> None:
    before = control_kit.trace_settings("simple")
    control_kit.update_trace_settings({"trace_rate": "800"}, "simple")
    for _ in range(MANY):
        assert control_kit.trace_settings("simple")["trace_rate"] == "800"
    assert control_kit.trace_settings()["trace_rate"] == before["trace_rate"]
    control_kit.update_trace_settings({"trace_rate": None}, "simple")
    assert control_kit.trace_settings("simple") == before


def test_bad_trace_settings_are_refused(control_kit: Kit) -> None:
    before = control_kit.trace_settings()
    with pytest.raises(InferenceServerException, match="trace_rate"):
        control_kit.update_trace_settings({"trace_rate": "many"})
    assert control_kit.trace_settings() == before


def test_trace_settings_of_unknown_models_are_refused(control_kit: Kit) -> None:
    with pytest.raises(InferenceServerException, match="nosuch"):
        control_kit.trace_settings("nosuch")


def test_log_settings_are_changed_and_read(control_kit: Kit) -> None:
    before = control_kit.log_settings()
    changed = control_kit.update_log_settings({"log_verbose_level": 1, "log_warning": False})
    assert changed == before | {"log_verbose_level": 1, "log_warning": False}
    for _ in range(MANY):
        assert control_kit.log_settings() == changed
    assert control_kit.update_log_settings({"log_verbose_level": 0, "log_warning": True}) == before
    for _ in range(MANY):
        assert control_kit.log_settings() == before


def test_bad_log_settings_are_refused(control_kit: Kit) -> None:
    before = control_kit.log_settings()
    with pytest.raises(InferenceServerException, match="format"):
        control_kit.update_log_settings({"log_format": "nosuch"})
    assert control_kit.log_settings() == before


def test_statistics_count_every_request(control_kit: Kit) -> None:
    def counted() -> tuple[int, int, int]:
        (entry,) = control_kit.statistics("simple")
        return (
            int(entry.get("inference_count", 0)),
            int(entry["inference_stats"]["success"].get("count", 0)),
            int(entry["inference_stats"]["fail"].get("count", 0)),
        )

    inputs = pair(control_kit.module, numbers(batch=2))
    before = counted()
    for _ in range(MANY):
        control_kit.client.infer("simple", inputs)
    inferences, successes, failures = before
    expected = (inferences + 2 * MANY, successes + MANY, failures)
    # Triton counts a request after it has answered it.
    wait_until(lambda: counted() == expected, timeout_s=30, what="all are counted")


def test_statistics_of_batches_are_told_by_size(control_kit: Kit) -> None:
    def counted() -> dict[int, int]:
        (entry,) = control_kit.statistics("simple")
        return {
            int(batch["batch_size"]): int(batch["compute_infer"]["count"])
            for batch in entry["batch_stats"]
        }

    before = counted()
    for size, times in ((4, 1), (6, MANY)):
        for _ in range(times):
            control_kit.client.infer("simple", pair(control_kit.module, numbers(batch=size)))
    expected = before | {4: before.get(4, 0) + 1, 6: before.get(6, 0) + MANY}
    wait_until(lambda: counted() == expected, timeout_s=30, what="all are counted")


def test_statistics_name_every_model_once(control_kit: Kit) -> None:
    names = [entry["name"] for entry in control_kit.statistics()]
    assert len(names) == len(set(names))
    ready = {name for name, state in control_kit.index().items() if state == "READY"}
    assert set(names) == ready
    (one,) = control_kit.statistics("simple")
    assert one["name"] == "simple"


def test_statistics_of_unknown_models_are_refused(control_kit: Kit) -> None:
    with pytest.raises(InferenceServerException, match="requested model 'nosuch' is not available"):
        control_kit.statistics("nosuch")


def test_metadata_tell_of_server_and_model(control_kit: Kit) -> None:
    server = control_kit.json("get_server_metadata")
    assert server["name"] == "triton"
    assert {"sequence", "model_repository", "statistics"} <= set(server["extensions"])
    model = control_kit.json("get_model_metadata", "simple")
    assert model["versions"] == ["1"]
    with pytest.raises(InferenceServerException, match="unknown model: 'nosuch'"):
        control_kit.json("get_model_metadata", "nosuch")
    with pytest.raises(InferenceServerException, match="unknown model: 'simple'"):
        control_kit.json("get_model_metadata", "simple", "9")
