"""Everything that the admin API receives and returns, as pydantic models.

The routes return these models, the OpenAPI document is generated from them (`lb.admin.openapi`),
and the commands of `lb.cli.admin` parse and print them.

Units are part of a field's name: `_s` seconds, `_ms` milliseconds, `_bytes` bytes. Times that
people compare with a clock are in seconds, latencies in milliseconds, both with three decimals.

Compatibility:
- Unknown fields are ignored, so that a command can read the answers of a newer server.
- Words such as a backend's state are plain text for the same reason; the schema lists them.
- Bounds are documented and not enforced. A view with one odd figure is of more use than an error.
- A field that is added later gets a default, so that a command can read an older server.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from lb.domain.backend import BackendKind, BackendState
from lb.domain.model import ModelState
from lb.domain.standby import StandbyPhase
from lb.settings.choices import LogLevel, PlacementMode

_AT_LEAST_0 = Field(json_schema_extra={"minimum": 0})

Count = Annotated[int, _AT_LEAST_0]
Amount = Annotated[float, _AT_LEAST_0]
State = Annotated[str, Field(json_schema_extra={"enum": [each.value for each in BackendState]})]

Level = Annotated[str, Field(json_schema_extra={"enum": [each.value for each in LogLevel]})]


class View(BaseModel):
    """Base of all models of the admin API."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        # Each is built when it is first used, in 3 ms at most, and not all at the start.
        defer_build=True,
        # Before 2.10 pydantic keeps names that begin with `model_` to itself.
        protected_namespaces=(),
    )


class Index(View):
    """Paths of the most used resources."""

    name: str = Field(description="`triton-lb admin`.")
    status: str
    backends: str
    sources: str
    queue: str
    placement: str = ""
    live: str
    reload: str
    upgrade: str
    openapi: str
    config: str = ""


class ChangedShare(View):
    """The share of a variant that is not the one of the configuration file."""

    variant: str = Field(description="The name that clients use, and the variant: `NAME/VARIANT`.")
    percent: Amount = Field(description="Share now, in percent.")
    file_percent: Amount = Field(description="Share by the configuration file, in percent.")
    changed: str = Field(description="Who changed it: `operator`, `ramp` or `rollback`.")


class Status(View):
    """Summary of one process."""

    version: str = Field(description="Version of triton-lb.")
    backends: Count = Field(description="Backends in the pool.")
    up: Count = Field(description="Backends in the state `up`.")
    not_up: dict[str, State] = Field(description="State of each other backend, by name.")
    in_flight: Count = Field(description="Attempts under way on all backends.")
    served: Count = Field(description="Attempts that backends in the pool answered.")
    changed_shares: list[ChangedShare] = Field(
        description="Shares of variants that differ from the configuration file."
    )


class Latency(View):
    """Quantiles of the duration of answered attempts since the start, whole streams among them,
    estimated from a histogram; null before the first answer."""

    p50_ms: Amount | None = Field(description="Median in milliseconds.")
    p99_ms: Amount | None = Field(description="99th percentile in milliseconds.")


class Port(View):
    """One protocol port of a backend."""

    address: str = Field(description="`HOST:PORT` or `unix:PATH`.")
    state: State = Field(description="Result of the health probes.")
    why: str = Field(description="Reason for the state in words; empty when the port is up.")
    since_s: Amount = Field(description="Seconds since the state last changed.")
    changes: Count = Field(description="Changes of the state since the start.")
    in_flight: Count = Field(description="Attempts under way.")
    connections: Count = Field(description="Open connections.")
    served: Count = Field(description="Attempts that the backend answered.")
    failed: Count = Field(description="Attempts that ended without an answer of the backend.")
    latency: Latency
    probe_ms: Amount | None = Field(
        description="Duration of the last probe in milliseconds; null before the first."
    )


class Device(View):
    """A GPU of a backend, or a slice of one; null: the backend does not report it."""

    id: str = Field(description="UUID of the GPU or of the slice.")
    utilization: Amount | None = Field(
        description="Fraction of the time in which any process used it, 0 to 1."
    )
    memory_used_bytes: Amount | None = Field(description="Memory in use, in bytes.")
    memory_total_bytes: Amount | None = Field(description="Size of its memory, in bytes.")


class Load(View):
    """The load that a backend with a metrics address reports, whoever causes it."""

    age_s: Amount | None = Field(
        description="Seconds since the last report; null: the backend does not report its load."
    )
    pending: Amount = Field(description="Requests in the queues of the backend.")
    others: Amount | None = Field(
        description="Fraction of the time in which clients other than this load balancer keep its "
        "devices busy, 0 to 1; null: unknown."
    )
    devices: list[Device]


class Standby(View):
    """How far a backend is that serves only when the load needs it."""

    rank: Count = Field(description="Lower ranks are activated first and released last.")
    phase: str = Field(
        description="Whether it serves.",
        json_schema_extra={"enum": [each.value for each in StandbyPhase]},
    )
    since_s: Amount = Field(description="Seconds since the phase began.")
    cause: str = Field(
        description="Why it was last activated: `no_backend`, `latency`, `operator` or `found` "
        "(its server ran when this process began); empty: it was not."
    )
    error: str = Field(
        description="Why its last activation failed, or what its last release left loaded or "
        "running; empty: neither."
    )
    failures: Count = Field(description="Failed activations in a row.")
    retry_in_s: Amount | None = Field(
        description="Seconds until it may be activated again; null: now."
    )
    cold_start_s: Amount | None = Field(
        description="Duration of its last activation in seconds; null: there was none."
    )


class Backend(View):
    """One server that requests are sent to."""

    name: str = Field(description="Unique name.")
    state: State = Field(
        description="The operator's decision, otherwise the worst state of the ports."
    )
    why: str = Field(description="Reason for the state in words; empty when the backend is up.")
    since_s: Amount = Field(description="Seconds since the state last changed.")
    in_flight: Count = Field(description="Attempts under way on all ports.")
    open_sequences: Count = Field(description="Open sequences of stateful models.")
    served: Count = Field(description="Attempts that the backend answered, on all ports.")
    latency: Latency
    weight: Amount = Field(description="Configured share of the load, relative to other backends.")
    share: Amount = Field(
        description="Fraction of the weight in effect, 0 to 1; below 1 during a slow start."
    )
    set_aside: Count = Field(
        description="Attempts under way that count against no limit, since their clients are slow "
        "to send requests or to read responses."
    )
    max_requests: Count = Field(description="Limit of attempts under way; 0: no limit.")
    empty: bool = Field(
        description="Whether no attempt is under way and no sequence is open. A draining backend "
        "that is empty can be stopped."
    )
    origin: str = Field(description="`configuration`, the name of a source, or `operator`.")
    cut_in_s: Amount | None = Field(
        description="Seconds until a draining or removed backend's remaining requests are cut; "
        "null: never."
    )
    standby: Standby | None = Field(description="null: the backend always serves.")
    load: Load
    ports: dict[str, Port] = Field(description="Ports by protocol: `http`, `grpc`.")


class Backends(View):
    """The whole pool."""

    backends: list[Backend] = Field(description="All backends, in the order of their sources.")


class NewBackend(View):
    """A backend to add: an entry of `backends` in the configuration (docs/configuration.md), whose
    other keys are accepted, too. The name alone takes back a backend that was removed."""

    model_config = ConfigDict(extra="allow")

    name: str | None = Field(
        default=None,
        description="Unique name; without one, the address of the HTTP port, or else of the gRPC "
        "port.",
    )
    http: str | None = Field(default=None, description="Address of the HTTP port: `HOST:PORT`.")
    grpc: str | None = Field(default=None, description="Address of the gRPC port: `HOST:PORT`.")
    metrics: str | None = Field(
        default=None, description="Address of the metrics port: `HOST:PORT`."
    )
    kind: str = Field(
        default="triton",
        description="The server that it runs.",
        json_schema_extra={"enum": [each.value for each in BackendKind]},
    )
    weight: float = Field(
        default=1.0,
        description="Share of the load, relative to other backends.",
        json_schema_extra={"exclusiveMinimum": 0, "maximum": 1_000_000},
    )
    max_requests: Count = Field(default=0, description="Limit of attempts under way; 0: no limit.")


class Model(View):
    """One version of a model on one backend."""

    name: str
    version: str = Field(description="Empty if no version was ever loaded.")
    state: str = Field(
        description="State of the version.",
        json_schema_extra={"enum": [each.value for each in ModelState]},
    )
    reason: str = Field(description="Why it is not ready, in the words of the backend.")
    draining: bool = Field(
        default=False, description="Whether the operator has drained the model on this backend."
    )
    placement: str = Field(
        default="",
        description="With `placement`: why it is never evicted, that it may be, or that it is "
        "loaded on demand. Empty: its backend is not managed.",
    )


class ModelDrain(View):
    """One model on one backend, whichever its version: whether it gets new requests there."""

    backend: str = Field(description="Name of the backend.")
    model: str
    draining: bool = Field(description="Whether the operator has drained it.")
    in_flight: Count = Field(
        description="Attempts of the model under way. Attempts whose model is not known yet count."
    )
    open_sequences: Count = Field(description="Open sequences of the model.")
    empty: bool = Field(
        description="Whether no attempt is under way and no sequence is open. A draining model "
        "that is empty can be unloaded."
    )


class Drift(View):
    """Differences of a backend from the others, intended or not."""

    models: list[str] = Field(description="Models that are ready on another backend only.")
    configurations: list[str] = Field(
        description="Models whose configuration differs from that of most backends with the same "
        "version. At most 200 models are compared."
    )
    settings: list[str] = Field(
        description="Trace and log settings that differ from those of most backends."
    )


class Models(View):
    """Models of one backend, as far as known."""

    listed: bool | None = Field(
        description="Whether the backend lists its models. false: it is assumed to have every "
        "model. null: it has not been asked yet, or does not answer."
    )
    age_s: Amount | None = Field(description="Seconds since the list was read; null: no list.")
    models: list[Model]
    regions: list[str] = Field(description="Names of registered regions of shared memory.")
    drift: Drift


class ModelBackend(View):
    """A scheduled model on one backend."""

    name: str = Field(description="Name of the backend.")
    in_flight: Count = Field(description="Attempts of the model under way there.")
    limit: Count = Field(description="Limit of those attempts; 0: no limit.")
    backend_in_flight: Count = Field(
        description="Attempts of all models under way on the backend, which `max_requests` limits."
    )
    backend_set_aside: Count = Field(
        description="Those of them that count against no limit, since their clients are slow to "
        "send requests or to read responses. They are not part of the model's `in_flight`."
    )
    expected_ms: Amount | None = Field(
        description="Expected duration in milliseconds of a request of one row on the idle "
        "backend; null: not learnt yet."
    )
    row_ms: Amount | None = Field(
        description="Expected additional duration per further row, in milliseconds."
    )
    learnt: Count = Field(
        description="Executions behind the expected duration. 0: the backend's own statistics."
    )
    slowed: Amount = Field(
        description="Factor by which requests are expected to take longer because other clients "
        "use the backend, as far as that is not learnt already."
    )


class ModelQueue(View):
    """The queue of one version of a model."""

    model: str
    version: str = Field(description="As requests name it; empty: any version.")
    waiting: dict[str, Count] = Field(
        description="Queued requests by priority; 1 is the highest priority."
    )
    oldest_ms: Amount = Field(
        description="Time in milliseconds that the oldest queued request has been queued."
    )
    backends: list[ModelBackend] = Field(description="Backends that the model has run on.")


class Queue(View):
    """Queued requests of all scheduled models."""

    without_backend: Count = Field(description="Queued requests for which no backend is eligible.")
    models: list[ModelQueue] = Field(description="Scheduled models that were requested, by name.")


class PlacedModel(View):
    """A model that takes room on a backend."""

    model: str
    backend: str = Field(description="Name of the backend.")
    state: str = Field(description="`ready`, `loading` or `unloading`.")
    age_s: Amount | None = Field(
        description="Seconds since it was loaded; null: it was there before triton-lb looked."
    )
    value: Amount = Field(
        description="Uses of the model, recent ones more than old ones, times the seconds that "
        "loading it takes. The lowest value is evicted first."
    )
    load: Amount = Field(
        description="Part of the time that its copies are busy; above 0.7 it gets another copy."
    )
    size_bytes: Count = Field(description="Memory that it takes; 0: memory is not bounded.")
    size_source: str = Field(
        description="Where the size comes from: `configured`, `measured`, `statistics` or "
        "`guessed`."
    )
    kept: str = Field(description="Why it is never evicted; empty: it may be.")


class PlacementStep(View):
    """A load, after what makes room for it."""

    model: str = Field(description="Empty: models are unloaded, and none is loaded.")
    backend: str = Field(description="Name of the backend.")
    evict: list[str] = Field(description="Models that are unloaded there before.")
    before: list[str] = Field(description="Models that it calls, which are loaded before it.")


class WantedModel(View):
    """A model that requests wait for."""

    model: str
    for_s: Amount = Field(description="Seconds since the first of them began to wait.")


class FailedLoad(View):
    """The last load of a model on a backend, which failed."""

    model: str
    backend: str = Field(description="Name of the backend.")
    error: str = Field(description="In the words of the backend.")
    failures: Count = Field(description="Failures in a row.")
    retry_in_s: Amount = Field(description="Seconds until the load may be tried again there.")


class PlacementView(View):
    """Which models are loaded where, and what is done about it."""

    mode: str = Field(
        description="`placement.mode`.",
        json_schema_extra={"enum": [each.value for each in PlacementMode]},
    )
    max_models: Count = Field(description="Models that a backend may have loaded; 0: not said.")
    memory_bytes: Count = Field(
        description="Bytes that the models of a backend may take; 0: not said."
    )
    unreturned_bytes: dict[str, Count] = Field(
        description="By backend, memory of unloaded models that did not come back."
    )
    backends: list[str] = Field(description="Backends whose models are managed.")
    left_alone: list[str] = Field(description="Tritons that do not load models on request.")
    models: list[PlacedModel] = Field(description="By backend, then by name.")
    wanted: list[WantedModel]
    steps: list[PlacementStep] = Field(
        description="Changes under way; in the mode `observe`, what would be done now."
    )
    failures: list[FailedLoad]


class Source(View):
    """One source of backends."""

    name: str = Field(description="For example `dns:HOST` or `file:PATH`.")
    backends: Count = Field(description="Backends in its last valid result, which is in force.")
    updates: Count = Field(description="Valid results so far.")
    failures: Count = Field(description="Failed attempts to get a result so far.")
    age_s: Amount | None = Field(
        description="Seconds since its last valid result; null: none so far."
    )
    error: str = Field(description="Why the last attempt failed; empty after a success.")


class Sources(View):
    """All sources of backends."""

    sources: list[Source] = Field(description="All sources, in the order of precedence.")


class Reload(View):
    """Result of a reload."""

    changed: list[str] = Field(description="Paths of the settings that have changed.")
    hash: str = Field(description="First digits of the SHA-256 of the configuration file.")


class Upgrade(View):
    """Result of an upgrade."""

    pid: Count = Field(description="Id of the process that serves from now on.")


class LogLevelChange(View):
    """Another level of the application log, for a time."""

    model_config = ConfigDict(extra="forbid")

    level: Level = Field(description="The least important messages to write.")
    duration: str = Field(
        default="10m",
        alias="for",
        description="Until the configured level is in force again, such as `10m`; `0s`: now. At "
        "most 24 hours.",
    )


class LogLevelInForce(View):
    """The level of the application log."""

    level: Level = Field(description="The least important messages that are written.")
    configured: Level = Field(description="The level that the configuration asks for.")
    left_s: Amount = Field(
        description="Seconds until the configured level is in force again; 0: it is."
    )


class Error(View):
    """Why a request was refused or failed."""

    error: str = Field(description="One sentence.")


class NotDone(Error):
    """Why a reload or an upgrade has changed nothing."""

    problems: list[str] = Field(description="All problems that were found.")


class Variant(View):
    """A model that serves a share of the requests for a name."""

    name: str = Field(description="Name of the variant.")
    model: str = Field(description="Its model on the Tritons.")
    version: str = Field(description="Version of the model; empty: the Triton decides.")
    percent: Amount = Field(description="Share of the requests in percent.")
    file_percent: Amount = Field(description="The same by the configuration file.")
    ready: bool = Field(description="Whether some backend serves it; otherwise it gets nothing.")
    answers: Count = Field(description="Requests that were answered since the start.")
    errors: Count = Field(description="Those among them that failed.")
    latency: Latency


class VariantSet(View):
    """A name that clients use, and the variants that serve it; the first one is the stable one."""

    model: str = Field(description="The name.")
    changed: str = Field(
        description="What has changed the shares since the file was read: `operator`, `ramp` or "
        "`rollback`; empty: nothing has."
    )
    why: str = Field(description="Why the last rollback was made; empty without one.")
    variants: list[Variant]


class VariantSets(View):
    """All names with variants."""

    models: list[VariantSet]


class Shares(View):
    """Shares that some variants of a name get."""

    percents: dict[str, float] = Field(
        description="Percent by the name of the variant; the others share what is left."
    )


class Promotion(View):
    """A variant that becomes the first one."""

    variant: str = Field(description="Its name.")
