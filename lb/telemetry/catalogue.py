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
        "triton_lb_held_bytes",
        _GAUGE,
        "Bytes of requests and responses held in buffers, toward the process-wide ceiling.",
    ),
    MetricSpec(
        "triton_lb_log_dropped_total",
        _COUNTER,
        "Log lines lost because their reader was too slow or the disk full.",
        ("log",),
    ),
    MetricSpec(
        "triton_lb_certificate_expiry_timestamp_seconds",
        _GAUGE,
        "Unix time at which a certificate in use ends, by the file that it was loaded from.",
        ("file",),
    ),
    MetricSpec(
        "triton_lb_certificate_reload_failures_total",
        _COUNTER,
        "Times that changed certificates, keys or authorities could not be used; the ones before "
        "stay in use.",
    ),
)
CONFIGURATION: Final = (
    MetricSpec(
        "triton_lb_reloads_total",
        _COUNTER,
        "Reloads of the configuration: applied, unchanged (the file says what is in force), or "
        "refused, after which everything stays as it was.",
        ("result",),
    ),
    MetricSpec("triton_lb_last_reload_success", _GAUGE, "Whether the last reload was not refused."),
    MetricSpec(
        "triton_lb_configuration_timestamp_seconds",
        _GAUGE,
        "Unix time at which the configuration in force was applied, or last found unchanged.",
    ),
    MetricSpec(
        "triton_lb_configuration_info",
        _GAUGE,
        "Always 1; how the SHA-256 of the configuration in force begins (empty: there is no file).",
        ("hash",),
    ),
)
TOKENS: Final = (
    MetricSpec(
        "triton_lb_token_requests_total",
        _COUNTER,
        "Requests on the ports for clients that showed a valid token where one was looked for, "
        "those that were then refused included, by the name of the token.",
        ("token",),
    ),
    MetricSpec(
        "triton_lb_token_reload_failures_total",
        _COUNTER,
        "Times that changed files of tokens could not be used; the ones before stay in use.",
    ),
    MetricSpec(
        "triton_lb_file_stalls_total",
        _COUNTER,
        "Times that a file did not answer for five seconds, as on a network file system whose "
        "server is gone; what was read before stays in use.",
        ("file",),
    ),
    MetricSpec(
        "triton_lb_stalled_file_reads", _GAUGE, "Reads of files that do not answer at the moment."
    ),
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
        "Finished requests, by the backend of their last attempt (empty: none was involved) and "
        "by the HTTP status or gRPC status name that the client got.",
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
        "Attempts beyond the first of a request.",
        ("protocol",),
    ),
    MetricSpec(
        "triton_lb_reruns_total",
        _COUNTER,
        "Requests that may have run and went again, since running twice does them no harm.",
    ),
    MetricSpec(
        "triton_lb_reruns_refused_total",
        _COUNTER,
        "Those that did not go again, by why: lost_twice (two servers seem to have died of it), "
        "deadly_model (see `triton_lb_blocked_models`), never (a setting of the model) or budget.",
        ("why",),
    ),
    MetricSpec(
        "triton_lb_blocked_models",
        _GAUGE,
        "Models of which nothing goes again for half a minute, since a request for them was lost "
        "with two servers: it may be what they died of. Alert on it.",
    ),
    MetricSpec(
        "triton_lb_unkept_bodies_total",
        _COUNTER,
        "Requests that would not go again, since much was held when their bodies came.",
    ),
    MetricSpec(
        "triton_lb_hedges_total",
        _COUNTER,
        "Requests that were sent to a second backend beside the first (`hedging`).",
    ),
    MetricSpec(
        "triton_lb_hedges_won_total",
        _COUNTER,
        "Those that the second backend was the first to answer.",
    ),
    MetricSpec(
        "triton_lb_hedges_refused_total",
        _COUNTER,
        "Requests that were not sent to a second backend, since the budget for it was spent.",
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
        "Times that the backend was ejected for an ML model since requests fared badly on it, by "
        "reason: device (its answers name a broken device), connection, error, latency.",
        ("backend", "reason"),
    ),
    MetricSpec(
        "triton_lb_backend_ejected",
        _GAUGE,
        "1 while the backend is ejected as a whole, since most models in use on it are, else 0.",
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
        "What part of its share of the load the backend gets: less than 1 while it starts slowly.",
        ("backend",),
    ),
    MetricSpec("triton_lb_backend_in_flight", _GAUGE, "Attempts under way.", _PORT),
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
        "From the start of an attempt to the end of the backend's answer.",
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
        "Requests given up because the backend does not answer them: it has answered later ones of "
        "the model, or the client left and the answer is far overdue.",
        ("backend",),
    ),
    MetricSpec(
        "triton_lb_backend_own_calls_total",
        _COUNTER,
        "Calls to the backend that one request of a client for all backends became, by what came "
        "of them: ok, error (the backend answered one), or why it did not answer.",
        ("operation", "backend", "outcome"),
    ),
)
DISCOVERY: Final = (
    MetricSpec(
        "triton_lb_source_up",
        _GAUGE,
        "1 when the last look at a source found which backends there are, else 0: what it said "
        "before is in force.",
        ("source",),
    ),
    MetricSpec(
        "triton_lb_source_backends",
        _GAUGE,
        "Backends in the last good set of a source, which is in force.",
        ("source",),
    ),
    MetricSpec("triton_lb_source_updates_total", _COUNTER, "Sets that a source gave.", ("source",)),
    MetricSpec(
        "triton_lb_source_failures_total",
        _COUNTER,
        "Times that a source had no set to give: an error of DNS or of the API of Kubernetes, "
        "no answer, a file that cannot be used.",
        ("source",),
    ),
    MetricSpec(
        "triton_lb_source_age_seconds",
        _GAUGE,
        "Age of the last good set of a source. Files and Kubernetes give one only when it changes.",
        ("source",),
    ),
)
MODELS: Final = (
    MetricSpec(
        "triton_lb_backend_models_ready",
        _GAUGE,
        "Models that the backend has ready, where it lists its models.",
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
        "Models that the backend does not configure as most that have the same version ready.",
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
        "What a backend that joined lacked and the others had, and was given (restored) or could "
        "not be given (failed), by kind: model, configuration (of a restored model), region, trace "
        "or log.",
        ("kind", "result"),
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
        "Sequences that ended otherwise than by their END: their backend died (lost), no step came "
        "for long (expired), or there were too many (dropped).",
        ("why",),
    ),
)
QUEUE: Final = (
    MetricSpec(
        "triton_lb_queue_length",
        _GAUGE,
        "Requests that wait for their turn at a backend; priority 1 is the highest.",
        ("model", "priority"),
    ),
    MetricSpec(
        "triton_lb_queue_oldest_seconds",
        _GAUGE,
        "How long the one has waited that has waited longest.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_queue_without_backend",
        _GAUGE,
        "Requests that wait since no backend is eligible for them (`wait_for_backend`).",
    ),
    MetricSpec(
        "triton_lb_queue_wait_seconds",
        _HISTOGRAM,
        "How long requests of scheduled models waited until they began; most should not at all.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_queue_position",
        _HISTOGRAM,
        "How many waited before a request that had to wait when it joined the queue.",
        ("model",),
    ),
    MetricSpec(
        "triton_lb_queue_waits_total",
        _COUNTER,
        "Requests that had to wait, by why: limit (backends had as many as they may), faster (one "
        "was free, and a faster one would end it sooner), reserved (what was free is kept for "
        "priority 1), no_backend (with an empty model).",
        ("model", "why"),
    ),
    MetricSpec(
        "triton_lb_model_backend_requests",
        _GAUGE,
        "Requests of a scheduled model under way at a backend.",
        ("model", "backend"),
    ),
    MetricSpec(
        "triton_lb_model_backend_limit",
        _GAUGE,
        "How many may be; 0 is no limit.",
        ("model", "backend"),
    ),
    MetricSpec(
        "triton_lb_model_backend_expected_seconds",
        _GAUGE,
        "How long a request of one row takes there alone, as far as it was learnt; 0: not at all.",
        ("model", "backend"),
    ),
    MetricSpec(
        "triton_lb_model_backend_slowed_ratio",
        _GAUGE,
        "By how much requests count as slower there because the backend says that others use it, "
        "as far as that is not learnt already; 1: not at all.",
        ("model", "backend"),
    ),
)
SCALING: Final = (
    MetricSpec(
        "triton_lb_desired_backends",
        _GAUGE,
        "Backends that the load needs: the demand by what one can do within the latency budget "
        "(docs/operations.md, scaling). Of several replicas the highest counts, not the sum.",
    ),
    MetricSpec(
        "triton_lb_demand_rate",
        _GAUGE,
        "Inferences a second that backends are needed for: those that came, refused ones included, "
        "and what waits too long; the highest of the last minute.",
    ),
    MetricSpec(
        "triton_lb_backend_capacity_rate",
        _GAUGE,
        "Inferences a second from this process that one backend does within the latency budget, as "
        "far as was learnt; absent before the first ones.",
    ),
)
SCRAPE_FAILURES: Final = MetricSpec(
    "triton_lb_backend_scrape_failures_total",
    _COUNTER,
    "Times that a backend's own metrics could not be read for this page.",
    ("backend",),
)
SCRAPE_CUTS: Final = MetricSpec(
    "triton_lb_backend_scrape_cuts_total",
    _COUNTER,
    "Times that a backend's own metrics were shown in part, or not at all, because they are too "
    "long.",
    ("backend",),
)
COLLECTED: Final = (
    *PROCESS,
    *CONFIGURATION,
    *TOKENS,
    *CLIENTS,
    *BACKENDS,
    *DISCOVERY,
    *MODELS,
    *QUEUE,
    *SCALING,
)
"""What the collector renders, in this order."""

_INTRODUCTION: Final = """\
# Metrics

`GET /metrics` on the metrics port (8002). This page is printed from `lb/telemetry/catalogue.py`.

- Units are seconds and bytes. `protocol` is `http` or `grpc`; `code` is the HTTP status or the gRPC
  status name, `none` where the client got neither, `other` for codes that no standard knows.
- `reason` says why triton-lb answered with an error of its own; a code without a reason is the
  backend's. The access log has the same words. `flood`: the client did something so often that it
  cost us more than itself (docs/protocols.md); each such connection counts once.
- `kind` of an operation is `read`, `inference`, `stream`, `control` or `other`, so that neither
  health checks nor long streams hide the latency of inferences.
- Series of a backend, its counters included, end when it is gone from the pool and start at 0 when
  it comes back. While it finishes what it has its state is `leaving`; if a successor at another
  address has its name it is called `NAME~1`. `rate()` copes with all that; sum after the rate, not
  before.
- A model gets a label of its own once a request for it has succeeded, for as many models as
  `metrics.model_labels` says; all else is `model="other"`. A model has 21 series where it answers
  well over both protocols, and at most 75, for streams and many error codes.
- Metrics of the process (`process_*`) and of Python (`python_*`) are those of `prometheus-client`.
- The metrics of backends that have a `metrics` address follow ours, each sample with the first
  label `backend`; a `backend` label of their own becomes `exported_backend`. They are read at most
  once a second. A backend that does not answer within half a second is left out and counted.
  Of one page, 8 MiB, 100,000 lines of up to 16 KiB and 2,000 families are shown, and 64 MiB of all
  pages together, where the longest are left out first. The log names the backends.
  `GET /metrics/own` shows ours alone.
- `perf_analyzer --collect-metrics` reads this page, but does not understand `nv_gpu_*` with a
  `backend` label and leaves its GPU columns empty; point its `--metrics-url` at a Triton for those.
- `GET /livez` is 200 while the process works, `GET /readyz` while it takes requests, whatever
  the backends do, else 503.
"""


def markdown() -> str:
    """The whole of `docs/metrics.md`."""
    parts = [_INTRODUCTION]
    for title, specs in (
        ("Process", PROCESS),
        ("Configuration", CONFIGURATION),
        ("Access", TOKENS),
        ("Clients and requests", CLIENTS),
        ("Backends", (*BACKENDS, SCRAPE_FAILURES, SCRAPE_CUTS)),
        ("Sources of backends", DISCOVERY),
        ("Models", MODELS),
        ("Requests that wait", QUEUE),
        ("Scaling", SCALING),
    ):
        parts.append(f"\n## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n")
        parts.extend(_rows(specs))
    return "".join(parts)


def _rows(specs: Iterable[MetricSpec]) -> Iterable[str]:
    for spec in specs:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        yield f"| `{spec.name}` | {spec.type} | {labels} | {spec.help} |\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
