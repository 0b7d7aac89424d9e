from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from lb.simulator.gpu import SimulatedGpu
from lb.simulator.statistics import ModelCounters, metrics_text, statistics_of


def counted() -> ModelCounters:
    counters = ModelCounters("m", last_inference_ms=5, pending=2)
    counters.succeeded(batch=3, queue_ns=1_000, total_ns=5_000)
    counters.succeeded(batch=1, queue_ns=2_000, total_ns=4_000)
    counters.failed(total_ns=7_000)
    counters.canceled += 1
    return counters


def test_statistics_add_up() -> None:
    statistics = statistics_of(counted())
    parts = statistics.inference_stats
    assert (statistics.name, statistics.version, statistics.last_inference) == ("m", "1", 5)
    assert (statistics.inference_count, statistics.execution_count) == (4, 2)
    assert (parts.success.count, parts.success.ns) == (2, 9_000)
    assert (parts.queue.ns, parts.compute_infer.ns) == (3_000, 6_000)
    assert (parts.fail.count, parts.fail.ns) == (2, 7_000)
    rows = [(row.batch_size, row.compute_infer.ns) for row in statistics.batch_stats]
    assert rows == [(1, 2_000), (3, 4_000)]


def test_a_gpu_is_reported_as_far_as_it_is_known() -> None:
    gpu, mig = SimulatedGpu("GPU-1"), SimulatedGpu("MIG-1", is_slice=True)
    page = metrics_text([], gpu)
    assert 'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.0' in page
    assert 'nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 17179869184.0' in page
    assert 'nv_gpu_memory_used_bytes{gpu_uuid="MIG-1"}' in metrics_text([], mig)
    assert "nv_gpu_utilization" not in metrics_text([], mig)
    assert "nv_gpu" not in metrics_text([counted()])


def test_metrics_are_prometheus_text_under_tritons_names() -> None:
    families = text_string_to_metric_families(metrics_text([counted(), ModelCounters("n")]))
    samples = {
        (
            sample.name.removesuffix("_total"),
            sample.labels["model"],
            sample.labels.get("reason"),
        ): sample.value
        for family in families
        for sample in family.samples
    }
    assert samples["nv_inference_request_success", "m", None] == 2
    assert samples["nv_inference_count", "m", None] == 4
    assert samples["nv_inference_request_duration_us", "m", None] == 9
    assert samples["nv_inference_request_failure", "m", "CANCELED"] == 1
    assert samples["nv_inference_pending_request_count", "m", None] == 2
    assert samples["nv_inference_pending_request_count", "n", None] == 0
