"""What a simulated Triton counts per model, as ModelStatistics and as `nv_*` metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from lb.kserve import inference_pb2 as pb
from lb.simulator.gpu import SimulatedGpu
from lb.simulator.models import VERSION


@dataclass(slots=True)
class ModelCounters:
    """Counters of one model since the start; durations in nanoseconds."""

    model: str
    success: int = 0
    failure: int = 0
    canceled: int = 0
    pending: int = 0
    """Requests in the model's queue now."""
    batch: int = 0
    """Inferences performed: a request with a batch of n counts n."""
    request_ns: int = 0
    failure_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    by_rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Executions by their rows, and how long they took together."""
    last_inference_ms: int = 0
    """When the last request came, in milliseconds since the epoch."""

    def succeeded(self, *, batch: int, queue_ns: int, total_ns: int) -> None:
        """Count one request that the model answered."""
        self.success += 1
        self.batch += batch
        self.queue_ns += queue_ns
        self.request_ns += total_ns
        compute_ns = total_ns - queue_ns
        self.compute_ns += compute_ns
        count, ns = self.by_rows.get(batch, (0, 0))
        self.by_rows[batch] = (count + 1, ns + compute_ns)

    def failed(self, *, total_ns: int) -> None:
        """Count one request that was accepted and then failed."""
        self.failure += 1
        self.failure_ns += total_ns


def statistics_of(counters: ModelCounters) -> pb.ModelStatistics:
    """Return the counters as ModelStatistics has them."""

    def duration(count: int = 0, ns: int = 0) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=count, ns=ns)

    done = counters.success
    return pb.ModelStatistics(
        name=counters.model,
        version=VERSION,
        last_inference=counters.last_inference_ms,
        inference_count=counters.batch,
        execution_count=done,
        inference_stats=pb.InferStatistics(
            success=duration(done, counters.request_ns),
            fail=duration(counters.failure + counters.canceled, counters.failure_ns),
            queue=duration(done, counters.queue_ns),
            compute_input=duration(done),
            compute_infer=duration(done, counters.compute_ns),
            compute_output=duration(done),
            cache_hit=duration(),
            cache_miss=duration(),
        ),
        batch_stats=[
            pb.InferBatchStatistics(
                batch_size=rows,
                compute_input=duration(count),
                compute_infer=duration(count, ns),
                compute_output=duration(count),
            )
            for rows, (count, ns) in sorted(counters.by_rows.items())
        ],
    )


_METRICS: Final[tuple[tuple[str, str, str, Callable[[ModelCounters], dict[str, int]]], ...]] = (
    (
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        lambda c: {"": c.success},
    ),
    (
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        lambda c: {',reason="BACKEND"': c.failure, ',reason="CANCELED"': c.canceled},
    ),
    (
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        lambda c: {"": c.batch},
    ),
    (
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        lambda c: {"": c.success},
    ),
    (
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda c: {"": c.request_ns // 1000},
    ),
    (
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda c: {"": c.queue_ns // 1000},
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda c: {"": c.compute_ns // 1000},
    ),
    (
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda c: {"": c.pending},
    ),
)


_GPU_METRICS: Final[tuple[tuple[str, str, Callable[[SimulatedGpu], float | None]], ...]] = (
    (
        "nv_gpu_utilization",
        "GPU utilization rate [0.0 - 1.0)",
        lambda gpu: gpu.utilization,
    ),
    ("nv_gpu_memory_total_bytes", "GPU total memory, in bytes", lambda gpu: gpu.memory_total),
    ("nv_gpu_memory_used_bytes", "GPU used memory, in bytes", lambda gpu: gpu.memory_used),
)


def metrics_text(counters: Iterable[ModelCounters], gpu: SimulatedGpu | None = None) -> str:
    """Return the counters in Prometheus' text format, under Triton's names."""
    models = tuple(counters)
    lines: list[str] = []
    for name, kind, what, values in _METRICS:
        lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
        for model in models:
            for more, value in values(model).items():
                lines.append(f'{name}{{model="{model.model}"{more},version="{VERSION}"}} {value}')
    if gpu is not None:
        lines += _gpu_lines(gpu)
    return "\n".join(lines) + "\n"


def _gpu_lines(gpu: SimulatedGpu) -> list[str]:
    lines: list[str] = []
    for name, what, value_of in _GPU_METRICS:
        value = value_of(gpu)
        if value is not None:
            lines += [f"# HELP {name} {what}", f"# TYPE {name} gauge"]
            lines.append(f'{name}{{gpu_uuid="{gpu.uuid}"}} {value:.6f}')
    return lines
