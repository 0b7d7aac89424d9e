"""The catalogue of our metrics: the one place that holds their names, types, labels and texts.

`docs/metrics.md` is printed from it (`python -m lb.telemetry.catalogue`) and a test compares them.
Names follow docs/decisions/0006-metric-names.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricType(StrEnum):
    """The Prometheus types that we use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()


_COUNTER: Final = MetricType.COUNTER
_GAUGE: Final = MetricType.GAUGE
_HISTOGRAM: Final = MetricType.HISTOGRAM
_PORT: Final = ("backend", "protocol")

PROCESS: Final = (
    MetricSpec(
        "triton_lb_build_info",
        _GAUGE,
        "Always 1; versions of triton-lb, Python and uvloop (empty: the asyncio loop runs).",
        ("version", "python", "uvloop"),
    ),
    MetricSpec("triton_lb_start_time_seconds", _GAUGE, "Unix time at which the process started."),
    MetricSpec(
        "triton_lb_event_loop_lag_seconds",
        _HISTOGRAM,
        "How late the event loop ran a timer: high values mean that something blocks all traffic.",
    ),
    MetricSpec(
        "triton_lb_tasks",
        _GAUGE,
        "Tasks of the event loop; a number that only grows is a leak.",
    ),
    MetricSpec(
        "triton_lb_worker_up",
        _GAUGE,
        "Whether a worker (`workers`) is connected with the control process.",
        ("worker",),
    ),
    MetricSpec(
        "triton_lb_worker_starts_total",
        _COUNTER,
        "How often a worker was started; more than once where it died.",
        ("worker",),
    ),
    MetricSpec(
        "triton_lb_worker_connections",
        _GAUGE,
        "Open connections of clients by worker; `triton_lb_connections` has those of all.",
        ("worker",),
    ),
    MetricSpec(
        "triton_lb_worker_requests_total",
        _COUNTER,
        "Requests that a worker has finished; begins anew when the worker is started again.",
        ("worker",),
    ),
    MetricSpec(
        "triton_lb_worker_cpu_seconds_total",
        _COUNTER,
        "CPU that a worker has used; begins anew when the worker is started again.",
        ("worker",),
    ),
    MetricSpec(
        "triton_lb_worker_silent_seconds",
        _GAUGE,
        "Time since the control process heard of a worker: more than a second where the worker "
        "stands still.",
        ("worker",),
    ),
    MetricSpec(
        "triton_lb_control_process_starts_total",
        _COUNTER,
        "How often the control process (`workers`) was started; more than once where it died.",
    ),
    MetricSpec(
        "triton_lb_held_bytes",
        _GAUGE,
        "Bytes of requests and responses held in buffers, toward the process-wide ceiling.",
    ),
    MetricSpec(
        "triton_lb_log_dropped_total",
        _COUNTER,
        "Log lines lost because their reader was too slow or the disk full; of the payload log, "
        "sampled inferences.",
        ("log",),
    ),
    MetricSpec(
        "triton_lb_certificate_expiry_timestamp_seconds",
        _GAUGE,
        "Unix time at which a certificate in use expires, by the file that it was loaded from.",
        ("file",),
    ),
    MetricSpec(
        "triton_lb_certificate_reload_failures_total",
        _COUNTER,
        "Changed certificates, keys or authorities that could not be used; the ones before "
        "stay in use.",
    ),
)
CONFIGURATION: Final = (
    MetricSpec(
        "triton_lb_reloads_total",
        _COUNTER,
        "Reloads of the configuration: applied, unchanged (the file equals what is in force),"
        " or refused (nothing changes).",
        ("result",),
    ),
    MetricSpec(
        "triton_lb_last_reload_success", _GAUGE, "0 if the last reload was refused, else 1."
    ),
    MetricSpec(
        "triton_lb_configuration_timestamp_seconds",
        _GAUGE,
        "Unix time at which the configuration in force was applied, or last found unchanged.",
    ),
    MetricSpec(
        "triton_lb_configuration_info",
        _GAUGE,
        "Always 1; the beginning of the SHA-256 of the configuration in force (empty: there "
        "is no file).",
        ("hash",),
    ),
)
TRACES: Final = (
    MetricSpec(
        "triton_lb_spans_exported_total", _COUNTER, "Spans that the collector of traces has taken."
    ),
    MetricSpec(
        "triton_lb_spans_dropped_total",
        _COUNTER,
        "Spans that the collector did not get: too many in a second (limited, about two for each"
        " request), queue_full, failed (it did not answer), or rejected.",
        ("reason",),
    ),
    MetricSpec("triton_lb_queued_spans", _GAUGE, "Spans that wait to be sent; at most 2048."),
)
TOKENS: Final = (
    MetricSpec(
        "triton_lb_token_requests_total",
        _COUNTER,
        "Client requests with a valid token, by its name; only where tokens are needed. "
        "Requests that were then refused are included.",
        ("token",),
    ),
    MetricSpec(
        "triton_lb_token_reload_failures_total",
        _COUNTER,
        "Changed token files that could not be used; the ones before stay in use.",
    ),
    MetricSpec(
        "triton_lb_file_stalls_total",
        _COUNTER,
        "Reads of a file that took longer than five seconds, as on a dead network mount; the "
        "last content stays in use.",
        ("file",),
    ),
    MetricSpec("triton_lb_stalled_file_reads", _GAUGE, "Reads of files that do not answer now."),
)
CLIENTS: Final = (
    MetricSpec("triton_lb_connections", _GAUGE, "Open connections of clients.", ("protocol",)),
    MetricSpec(
        "triton_lb_connections_accepted_total",
        _COUNTER,
        "Connections of clients accepted.",
        ("protocol",),
    ),
    MetricSpec(
        "triton_lb_connection_errors_total",
        _COUNTER,
        "Connections of clients that we ended for breaking a rule, outside of any request.",
        ("protocol", "reason"),
    ),
    MetricSpec("triton_lb_open_requests", _GAUGE, "Requests begun and not finished."),
    MetricSpec(
        "triton_lb_requests_total",
        _COUNTER,
        "Finished requests, by the backend of their last attempt (empty: none) and by the "
        "HTTP status or gRPC status name that the client got.",
        ("backend", "protocol", "code"),
    ),
    MetricSpec(
        "triton_lb_request_duration_seconds",
        _HISTOGRAM,
        "From a request's complete head to its end, queueing and retries included, by kind of "
        "operation.",
        ("protocol", "kind"),
    ),
    MetricSpec(
        "triton_lb_operation_requests_total",
        _COUNTER,
        "Finished requests by operation (gRPC method name, for both protocols).",
        ("operation", "protocol"),
    ),
    MetricSpec(
        "triton_lb_model_requests_total",
        _COUNTER,
        "Finished requests by ML model and code: HTTP status, gRPC status by name, none where "
        "nothing was answered. Models that never worked, those beyond the cap, and rare codes are "
        "other.",
        ("model", "protocol", "code"),
    ),
    MetricSpec(
        "triton_lb_model_request_duration_seconds",
        _HISTOGRAM,
        "Successful inferences outside of ModelStreamInfer by ML model, from a request's complete "
        "head to its end, queueing and retries included.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_model_first_answer_seconds",
        _HISTOGRAM,
        "ModelStreamInfer and generate_stream: from the first request of a stream to its first "
        "good answer, by ML model of that request.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_model_answer_interval_seconds",
        _HISTOGRAM,
        "ModelStreamInfer and generate_stream: between good answers of a stream; those that "
        "arrive in one read count once.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_request_errors_total",
        _COUNTER,
        "Requests that triton-lb answered with an error of its own or cut short, by reason.",
        ("protocol", "reason"),
    ),
    MetricSpec(
        "triton_lb_retries_total",
        _COUNTER,
        "Attempts beyond the first of a request; hedges only where they won.",
        ("protocol",),
    ),
    MetricSpec(
        "triton_lb_reruns_total",
        _COUNTER,
        "Retries of requests that may have run already and may run twice.",
    ),
    MetricSpec(
        "triton_lb_reruns_refused_total",
        _COUNTER,
        "Requests that were not retried, by why: lost_twice (two servers seem to have died of"
        " it), deadly_model (see `triton_lb_blocked_models`), never (a setting of the model) "
        "or budget.",
        ("why",),
    ),
    MetricSpec(
        "triton_lb_blocked_models",
        _GAUGE,
        "Models without retries for half a minute, since a request for them was lost with two"
        " servers and may have killed them. Alert on it.",
    ),
    MetricSpec(
        "triton_lb_unkept_bodies_total",
        _COUNTER,
        "Requests that could not be retried, since memory was short when their bodies arrived.",
    ),
    MetricSpec(
        "triton_lb_hedges_total",
        _COUNTER,
        "Requests that were sent to a second backend beside the first (`hedging`).",
    ),
    MetricSpec(
        "triton_lb_hedges_won_total",
        _COUNTER,
        "Hedges that were answered before the first attempt.",
    ),
    MetricSpec(
        "triton_lb_hedges_refused_total",
        _COUNTER,
        "Hedges that were not sent, since the budget for them was spent.",
    ),
    MetricSpec(
        "triton_lb_split_batches_total",
        _COUNTER,
        "Batches that were cut and ran as several (`models.NAME.split`).",
    ),
    MetricSpec(
        "triton_lb_split_parts_total",
        _COUNTER,
        "Parts of those batches. A Triton counts each as a request.",
    ),
    MetricSpec(
        "triton_lb_split_unfit_models_total",
        _COUNTER,
        "Models whose batches are cut no more, since their outputs were not by rows.",
    ),
    MetricSpec(
        "triton_lb_request_bytes_total",
        _COUNTER,
        "Payload bytes from clients, counted when their request ends.",
        ("protocol",),
    ),
    MetricSpec(
        "triton_lb_response_bytes_total",
        _COUNTER,
        "Payload bytes to clients, counted when their request ends.",
        ("protocol",),
    ),
)
BACKENDS: Final = (
    MetricSpec("triton_lb_pool_backends", _GAUGE, "Backends known, whatever their state."),
    MetricSpec(
        "triton_lb_pool_eligible_backends",
        _GAUGE,
        "Backends that may get new requests.",
        ("protocol",),
    ),
    MetricSpec(
        "triton_lb_backend_up", _GAUGE, "1 when the port may get new requests, else 0.", _PORT
    ),
    MetricSpec(
        "triton_lb_backend_state",
        _GAUGE,
        "1 for the state that the port is in, 0 for the others.",
        (*_PORT, "state"),
    ),
    MetricSpec(
        "triton_lb_backend_state_changes_total", _COUNTER, "Changes of a port's state.", _PORT
    ),
    MetricSpec(
        "triton_lb_backend_ejections_total",
        _COUNTER,
        "Ejections of the backend for an ML model, by reason: device (its responses name a "
        "broken device), connection, error, latency.",
        ("backend", "reason"),
    ),
    MetricSpec(
        "triton_lb_backend_ejected",
        _GAUGE,
        "1 while the backend is ejected as a whole, since it is ejected for most models in "
        "use, else 0.",
        ("backend",),
    ),
    MetricSpec(
        "triton_lb_backend_ejected_models",
        _GAUGE,
        "ML models for which the backend is ejected.",
        ("backend",),
    ),
    MetricSpec(
        "triton_lb_backend_share",
        _GAUGE,
        "Share of its full load that the backend gets; less than 1 during slow start.",
        ("backend",),
    ),
    MetricSpec("triton_lb_backend_in_flight", _GAUGE, "Attempts in flight.", _PORT),
    MetricSpec(
        "triton_lb_backend_connections",
        _GAUGE,
        "Open connections to the backend, idle ones included.",
        _PORT,
    ),
    MetricSpec("triton_lb_backend_attempts_total", _COUNTER, "Attempts started.", _PORT),
    MetricSpec(
        "triton_lb_backend_responses_total",
        _COUNTER,
        "Attempts that the backend answered, by HTTP status or gRPC status name.",
        (*_PORT, "code"),
    ),
    MetricSpec(
        "triton_lb_backend_failures_total",
        _COUNTER,
        "Attempts that ended without an answer of the backend, by reason.",
        (*_PORT, "reason"),
    ),
    MetricSpec(
        "triton_lb_backend_attempt_duration_seconds",
        _HISTOGRAM,
        "From the start of an attempt, or the end of a later upload, to the end of the backend's "
        "answer; of a stream to its end. Ports that have answered nothing yet are left out.",
        _PORT,
    ),
    MetricSpec(
        "triton_lb_backend_sent_bytes_total", _COUNTER, "Payload bytes to the backend.", _PORT
    ),
    MetricSpec(
        "triton_lb_backend_received_bytes_total",
        _COUNTER,
        "Payload bytes from the backend.",
        _PORT,
    ),
    MetricSpec(
        "triton_lb_backend_connects_total", _COUNTER, "Connections made to the backend.", _PORT
    ),
    MetricSpec(
        "triton_lb_backend_connect_failures_total",
        _COUNTER,
        "Connections to the backend that could not be made.",
        _PORT,
    ),
    MetricSpec(
        "triton_lb_backend_lost_requests_total",
        _COUNTER,
        "Requests given up because the backend does not answer them: it has answered later "
        "ones of the model, or the client left and the response is far overdue.",
        ("backend",),
    ),
    MetricSpec(
        "triton_lb_backend_own_calls_total",
        _COUNTER,
        "Calls to the backend for requests that concern all backends, by result: ok, error "
        "(the backend answered one), or why there was no answer.",
        ("operation", "backend", "outcome"),
    ),
)
DISCOVERY: Final = (
    MetricSpec(
        "triton_lb_source_up",
        _GAUGE,
        "1 if the last lookup of a source succeeded, else 0: its last good list is in force.",
        ("source",),
    ),
    MetricSpec(
        "triton_lb_source_backends",
        _GAUGE,
        "Backends in the last good list of a source, which is in force.",
        ("source",),
    ),
    MetricSpec(
        "triton_lb_source_updates_total", _COUNTER, "Lists that a source gave.", ("source",)
    ),
    MetricSpec(
        "triton_lb_source_failures_total",
        _COUNTER,
        "Lookups of a source that failed: an error of DNS or of the Kubernetes API, no "
        "answer, a file that cannot be used.",
        ("source",),
    ),
    MetricSpec(
        "triton_lb_source_age_seconds",
        _GAUGE,
        "Age of the last good list of a source. Files and Kubernetes give one only when it "
        "changes.",
        ("source",),
    ),
)
MODELS: Final = (
    MetricSpec(
        "triton_lb_backend_models_ready",
        _GAUGE,
        "Models that the backend has ready, if it lists its models.",
        ("backend",),
    ),
    MetricSpec(
        "triton_lb_backend_model_table_age_seconds",
        _GAUGE,
        "Age of the newest list of models that the backend gave.",
        ("backend",),
    ),
    MetricSpec(
        "triton_lb_backend_models_missing",
        _GAUGE,
        "Models that another backend has ready and this one has not.",
        ("backend",),
    ),
    MetricSpec(
        "triton_lb_backend_settings_differing",
        _GAUGE,
        "Trace and log settings in which the backend differs from most.",
        ("backend",),
    ),
    MetricSpec(
        "triton_lb_backend_configurations_differing",
        _GAUGE,
        "Models whose configuration differs from most backends that have the same version ready.",
        ("backend",),
    ),
    MetricSpec(
        "triton_lb_model_ready_backends",
        _GAUGE,
        "Backends that have a model ready, for as many models as `metrics.model_labels` says.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_restored_total",
        _COUNTER,
        "Items that a joining backend lacked, by kind (model, configuration, region, trace, "
        "log) and result: restored or failed.",
        ("kind", "result"),
    ),
    MetricSpec(
        "triton_lb_model_loads_total",
        _COUNTER,
        "Loads of models by `placement`, by result: loaded, failed or overdue (others may load the "
        "model too; the load goes on, and counts again when it ends).",
        ("result",),
    ),
    MetricSpec(
        "triton_lb_model_load_seconds",
        _HISTOGRAM,
        "Time that successful loads by `placement` took.",
    ),
    MetricSpec(
        "triton_lb_model_evictions_total",
        _COUNTER,
        "Models that `placement` unloaded, by why: room (for others), idle (`idle_unload`) or "
        "operator.",
        ("why",),
    ),
    MetricSpec(
        "triton_lb_open_sequences",
        _GAUGE,
        "Sequences of stateful models that run on the backend, for as many models as "
        "`metrics.model_labels` says; others as `other`.",
        ("backend", "model"),
    ),
    MetricSpec("triton_lb_sequences_started_total", _COUNTER, "STARTs of sequences."),
    MetricSpec(
        "triton_lb_sequences_forgotten_total",
        _COUNTER,
        "Sequences that ended without END: a step came after their backend had died (lost), no "
        "step came for long (expired), or there were too many (dropped).",
        ("why",),
    ),
)
QUEUE: Final = (
    MetricSpec(
        "triton_lb_queue_length",
        _GAUGE,
        "Queued requests; priority 1 is the highest.",
        ("model", "priority"),
    ),
    MetricSpec(
        "triton_lb_queue_oldest_seconds",
        _GAUGE,
        "Time that the oldest queued request has waited.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_queue_without_backend",
        _GAUGE,
        "Requests that wait because no backend is eligible for them (`wait_for_backend`, "
        "`standby.hold`).",
    ),
    MetricSpec(
        "triton_lb_queue_wait_seconds",
        _HISTOGRAM,
        "Time that requests of scheduled models were queued; mostly 0.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_queue_position",
        _HISTOGRAM,
        "Requests ahead of a request when it joined the queue.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_queue_waits_total",
        _COUNTER,
        "Queued requests, by why: limit (all backends were full), faster (a slower one was free), "
        "reserved (room for priority 1), no_backend (without a model). Others wait for loading "
        "(`placement`), activating (`standby`) or sequence (news of it from other processes).",
        ("model", "why"),
    ),
    MetricSpec(
        "triton_lb_model_backend_requests",
        _GAUGE,
        "Requests of a scheduled model in flight at a backend.",
        ("model", "backend"),
    ),
    MetricSpec(
        "triton_lb_model_backend_limit",
        _GAUGE,
        "Limit of triton_lb_model_backend_requests; 0 is no limit.",
        ("model", "backend"),
    ),
    MetricSpec(
        "triton_lb_model_backend_expected_seconds",
        _GAUGE,
        "Learnt time of a request of one row that runs there alone; 0 if nothing is learnt yet.",
        ("model", "backend"),
    ),
    MetricSpec(
        "triton_lb_model_backend_slowed_ratio",
        _GAUGE,
        "Factor by which requests count as slower there, because the backend reports load of "
        "others; 1 is none.",
        ("model", "backend"),
    ),
)
VARIANTS: Final = (
    MetricSpec(
        "triton_lb_variant_share",
        _GAUGE,
        "Share of the requests for a name that a variant gets, 0 to 1.",
        ("model", "variant"),
    ),
    MetricSpec(
        "triton_lb_variant_requests_total",
        _COUNTER,
        "Answered requests, by variant and result: good (also errors of the client) or failed.",
        ("model", "variant", "result"),
    ),
    MetricSpec(
        "triton_lb_variant_request_duration_seconds",
        _HISTOGRAM,
        "From the end of the request's upload to the end of a good answer, by variant.",
        ("model", "variant"),
    ),
    MetricSpec(
        "triton_lb_variant_rollbacks_total",
        _COUNTER,
        "Times that a variant was taken out of service by rule, by why: errors, p99 or dead.",
        ("model", "variant", "why"),
    ),
    MetricSpec(
        "triton_lb_shadow_copies_total",
        _COUNTER,
        "Copies of requests, by kind (shadow, or noise for the model in service) and outcome: "
        "answered, error, failed, timeout, busy, not_ready, memory or unfit (docs/shadow.md).",
        ("model", "kind", "outcome"),
    ),
    MetricSpec(
        "triton_lb_shadow_duration_seconds",
        _HISTOGRAM,
        "Durations of good answers to copies, with their connection.",
        ("model", "kind"),
    ),
    MetricSpec(
        "triton_lb_shadow_paused",
        _GAUGE,
        "1 while nothing is copied, because copies made requests slower.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_shadow_compared_total",
        _COUNTER,
        "Pairs of answers, by kind and result: same, different or unreadable.",
        ("model", "kind", "result"),
    ),
    MetricSpec(
        "triton_lb_shadow_comparisons_dropped_total",
        _COUNTER,
        "Pairs of answers that were not compared, because there were too many.",
    ),
)
SCALING: Final = (
    MetricSpec(
        "triton_lb_desired_backends",
        _GAUGE,
        "Backends that the load needs within the latency budget (docs/operations.md, "
        "scaling). Of several replicas the highest counts, not the sum.",
    ),
    MetricSpec(
        "triton_lb_demand_rate",
        _GAUGE,
        "Inferences per second that need backends: arrivals, refused ones included, and what "
        "waits too long; the highest of the last minute.",
    ),
    MetricSpec(
        "triton_lb_backend_capacity_rate",
        _GAUGE,
        "Learnt inferences per second of this process that one backend does within the "
        "latency budget; absent before the first ones.",
    ),
    MetricSpec(
        "triton_lb_standby_backends",
        _GAUGE,
        "Backends with a rank in `backends[].standby`, by phase: standby, activating, active or "
        "releasing.",
        ("phase",),
    ),
    MetricSpec(
        "triton_lb_activations_total",
        _COUNTER,
        "Activations of standby backends, by why (no_backend, latency, operator, found) and "
        "result: ok, failed, or lost for one that did not stay ready.",
        ("backend", "why", "result"),
    ),
    MetricSpec(
        "triton_lb_activation_seconds_total",
        _COUNTER,
        "Time that successful activations took, in seconds.",
    ),
)
SCRAPE_FAILURES: Final = MetricSpec(
    "triton_lb_backend_scrape_failures_total",
    _COUNTER,
    "Reads of a backend's own metrics that failed. Those of a backend that does not answer "
    "probes are not read.",
    ("backend",),
)
SCRAPE_CUTS: Final = MetricSpec(
    "triton_lb_backend_scrape_cuts_total",
    _COUNTER,
    "Pages of a backend's own metrics that were too long and shown in part, or not at all.",
    ("backend",),
)
COLLECTED: Final = (
    *PROCESS,
    *CONFIGURATION,
    *TRACES,
    *TOKENS,
    *CLIENTS,
    *BACKENDS,
    *DISCOVERY,
    *MODELS,
    *QUEUE,
    *SCALING,
    *VARIANTS,
)
"""What the collector renders, in this order."""

_INTRODUCTION: Final = """\
# Metrics

`GET /metrics` on the metrics port (8002). This page is printed from `lb/telemetry/catalogue.py`.

- [How to read them](#how-to-read-them)
- [Metrics of the Tritons](#metrics-of-the-tritons)
"""
_RULES: Final = """
## How to read them

- **Units** are seconds and bytes. `rate()` works with every counter; sum after the rate, not
  before.
- **`protocol`** is `http` or `grpc`. **`code`** is the HTTP status or the gRPC status name:
  `none` if the client got neither, `other` for unknown codes.
- **`reason`** says why triton-lb answered with an error of its own. A code without a reason is
  the backend's. The access log uses the same words.
- **`reason="flood"`** means that a client exceeded a budget
  ([Protocols](protocols.md#http2-and-grpc)). Each such connection counts once.
- **`kind`** of an operation is `read`, `inference`, `stream`, `control` or `other`. So neither
  health checks nor long streams hide the latency of inferences.
- **`model`**: a model gets a label once an inference of it has succeeded, up to
  `metrics.model_labels` models. All others are `model="other"`.
  A model that succeeds over both protocols has 21 series. With streams and many error codes it
  has up to 75.
- **`backend`**: series of a backend end when it is gone, and start at 0 when it returns. While it
  finishes its requests, its state is `removing`. If another backend takes its name, it is
  `NAME~1`.
- **Process**: `process_*` and `python_*` are those of `prometheus-client`.
- `GET /livez` is 200 while the process works. `GET /readyz` is 200 while it takes requests,
  whatever the backends do, else 503.

## Metrics of the Tritons

Metrics of backends with a `metrics` address follow ours, with a first label `backend`. A
`backend` label of their own becomes `exported_backend`. `GET /metrics/own` shows ours alone.

- Who asks while a page is made shares the next one. Pages take a quarter of the time at most, and
  readers wait beyond that; `/livez` and `/readyz` do not.
- Pages of backends are read at most once a second. A backend that does not answer within half a
  second is left out and counted.
- Per page at most 8 MiB, 100,000 lines of up to 16 KiB and 2,000 families are shown. All pages
  together have 64 MiB; the longest are left out first. The log names the backends.
- `perf_analyzer --collect-metrics` does not understand `nv_gpu_*` with a `backend` label, and
  leaves its GPU columns empty. Point its `--metrics-url` at a Triton for those.
"""
_SECTIONS: Final = (
    ("Process", PROCESS),
    ("Configuration", CONFIGURATION),
    ("Traces", TRACES),
    ("Access", TOKENS),
    ("Clients and requests", CLIENTS),
    ("Backends", (*BACKENDS, SCRAPE_FAILURES, SCRAPE_CUTS)),
    ("Sources of backends", DISCOVERY),
    ("Models", MODELS),
    ("Queue", QUEUE),
    ("Scaling", SCALING),
    ("Variants", VARIANTS),
)


def markdown() -> str:
    """Return the whole of `docs/metrics.md`."""
    links = (f"- [{title}](#{title.lower().replace(' ', '-')})\n" for title, _ in _SECTIONS)
    parts = [_INTRODUCTION, *links, _RULES]
    for title, specs in _SECTIONS:
        parts.append(f"\n## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n")
        parts.extend(_rows(specs))
    return "".join(parts)


def _rows(specs: Iterable[MetricSpec]) -> Iterable[str]:
    for spec in specs:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        yield f"| `{spec.name}` | {spec.type} | {labels} | {spec.help} |\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
