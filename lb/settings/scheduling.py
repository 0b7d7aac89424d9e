"""Settings of when and where requests run: policy, limits, queue, priorities, sequences, models."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Annotated, Literal, get_args

from pydantic import Field, PlainValidator, WithJsonSchema

from lb.settings.problems import Finding, show
from lb.settings.retry import RetryMode
from lb.settings.section import Section
from lb.settings.shadow import ShadowSettings, shadow_problems
from lb.settings.units import Duration, PositiveDuration, Size
from lb.settings.values import Boolean, Count, HeaderName, Number, PositiveCount
from lb.settings.variants import (
    RampSettings,
    RollbackSettings,
    Sticky,
    VariantSettings,
    variant_problems,
)

ConcurrencyWord = Literal["auto", "adaptive", "off"]
MAX_CONCURRENCY = 1_000_000


def read_concurrency(value: object) -> ConcurrencyWord | int:
    """Check and parse how many requests a backend may have at once.

    Raises:
        ValueError: with a message that says what was expected.
    """
    match value:
        case "auto" | "adaptive" | "off" as word:
            return word
    # Text, too: it may come from a variable of the environment.
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value[:10])
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_CONCURRENCY:
        raise ValueError(
            f"expected auto, adaptive, off, or a number from 1 to {MAX_CONCURRENCY}, "
            f"got {show(value)}"
        )
    return value


Concurrency = Annotated[
    ConcurrencyWord | int,
    PlainValidator(read_concurrency),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(get_args(ConcurrencyWord))},
                {"type": "integer", "minimum": 1, "maximum": MAX_CONCURRENCY},
            ]
        }
    ),
]
"""`auto`, `adaptive`, `off` or a number."""
Priority = Annotated[PositiveCount, Field(le=100)]
"""1 is the highest."""


class PriorityOrder(StrEnum):
    """How priorities share what there is."""

    STRICT = "strict"
    WEIGHTED = "weighted"


class OverloadStatus(IntEnum):
    """HTTP status of requests that are refused because there are too many."""

    UNAVAILABLE = 503
    TOO_MANY = 429


class TenantBy(StrEnum):
    """What tells tenants apart."""

    NOTHING = "nothing"
    TOKEN = "token"
    HEADER = "header"


class PolicyName(StrEnum):
    """How a backend is chosen among the eligible ones."""

    LEAST_LOADED = "least_loaded"
    LEAST_LATENCY = "least_latency"
    LEAST_REQUESTS = "least_requests"
    ROUND_ROBIN = "round_robin"


class AffinityName(StrEnum):
    """How the backend of a new sequence is chosen."""

    LEAST_LOADED = "least_loaded"
    RENDEZVOUS = "rendezvous"


class BalancingSettings(Section):
    """How requests are spread over backends."""

    policy: PolicyName = PolicyName.LEAST_LOADED
    """`least_loaded`: the backend that is free soonest, by learnt times (see `scheduling`), and for
    models that are not scheduled the fewest requests in flight for its weight. `least_requests`:
    always the latter, as `least_conn` of nginx, `leastconn` of HAProxy and `LEAST_REQUEST` of
    Envoy. `least_latency`: lowest latency times requests in flight. `round_robin`: in turn, by
    weight.

    Set this when backends must get equal numbers of requests, for a comparison for example;
    otherwise faster backends get more."""


class SchedulingSettings(Section):
    """By default triton-lb learns execution times per model and backend, and picks the backend that
    is free soonest, counting a part of the request's own execution. Excess requests wait in one
    queue per model. Steps of sequences, requests on streams, and models that are not scheduled are
    never queued; `balancing` places the latter."""

    max_requests_per_backend: Concurrency | None = None
    """Requests of one model in flight at once on each backend. `auto` keeps the instances of
    the model's configuration, and its dynamic batcher, busy. It sets no limit for ensembles and
    engines that batch by themselves. It does not schedule decoupled models and servers other than
    Triton. `adaptive`: found by measuring, not for decoupled models. A number: exactly that,
    also for decoupled models and `kserve` servers. `off`: nothing is scheduled.

    Set this when GPUs are idle while requests are queued, or a model may only run so often at once;
    otherwise it is `auto` with the policy `least_loaded`, `off` with others."""
    max_queue_size: Count = 100_000
    """Queued requests per model. Beyond that, requests of the lowest priority are refused, from the
    tenant with most of them. 0 queues nothing, not even for a faster backend.

    Set this when clients should get an error early instead of a long wait; otherwise up to 100,000
    are queued."""
    max_wait: Duration = 0.0
    """How long a request may be queued; then it is refused. 0 is no limit but the request's own
    deadline.

    Set this when clients send no deadlines but give up after some time; otherwise their requests
    are still computed."""
    wait_for_backend: Duration = 0.0
    """How long requests are queued while no backend is eligible for them; 0 refuses them at once.

    Set this when all Tritons may restart at once and clients do not retry; otherwise they get 503
    or UNAVAILABLE."""
    overload_status: OverloadStatus = OverloadStatus.UNAVAILABLE
    """HTTP status of requests refused by a full queue or after `max_wait`. gRPC gets
    RESOURCE_EXHAUSTED.

    Set this when your clients back off on 429 but not on 503; otherwise they get 503."""
    deadline_header: HeaderName | None = None
    """HTTP header with the time that a request may take, such as `x-triton-lb-timeout: 200ms` (or
    `1.5s`; a plain number is milliseconds); then 504. Other values are ignored. gRPC has
    `grpc-timeout`.

    Set this when HTTP clients can say how long they wait; otherwise no header is read."""
    priority_header: HeaderName | None = None
    """Header with the priority of a request, 1 being the highest. It overrides the request
    parameter `priority`.

    Set this when a gateway assigns priorities; otherwise only the request parameter counts."""
    priority: Priority = 2
    """Priority of requests that name none, or 0. Priorities from 16 on are equal.

    Set this when some clients should be served after all those that name no priority; otherwise
    these have priority 2."""
    priorities: PriorityOrder = PriorityOrder.STRICT
    """`strict`: a lower priority gets what the higher ones leave; `weighted`: each gets its part,
    by `weights`.

    Set this when low priorities must not starve; otherwise they may wait as long as there are
    higher ones."""
    weights: tuple[Annotated[Number, Field(gt=0, le=1e6)], ...] = ()
    """Weights of the priorities from 1 on, for `weighted`. Each one left out has half of the one
    before.

    Set this when priorities need other parts; otherwise each gets twice as much as the next one."""
    reserved: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Share of the capacity that is kept free for priority 1.

    Set this when urgent requests must never wait for running ones; otherwise they wait for the next
    free place."""
    tenants: TenantBy = TenantBy.NOTHING
    """What identifies a tenant; within a priority each tenant gets a fair share. `token`: its name
    in `access.tokens`; `header`: the value of `tenant_header`; `nothing`: all are one tenant.

    Set this when several teams share the Tritons; otherwise whoever sends most gets most."""
    tenant_header: HeaderName = "x-triton-lb-tenant"
    """The header that names the tenant, with `tenants: header`.

    Set this when a gateway already sets such a header; otherwise it is `x-triton-lb-tenant`."""
    shares: dict[str, Annotated[Number, Field(gt=0, le=1e6)]] = Field(default_factory=dict)
    """Shares of tenants, by name.

    Set this when a tenant is entitled to more than the others; otherwise each has the share 1."""
    load_poll_interval: Duration = 0.0
    """How often the load of backends with a `metrics` address is read: queued requests
    (`nv_inference_pending_request_count`), executions, and use of their GPUs. Only load beyond our
    own measurements counts. With more than 50 backends each is asked less often. 0 never asks.

    Set this when other clients or replicas use the same Tritons (2s suits); otherwise only our own
    requests count."""


class SequenceSettings(Section):
    """Sequences: requests with a `sequence_id` go to the backend that got their START."""

    affinity: AffinityName = AffinityName.LEAST_LOADED
    """Where a new sequence runs. `least_loaded`: the backend with the fewest open sequences of the
    model and requests in flight, times how long a step takes there. `rendezvous`: by a hash of
    model and id, so that replicas with the same backends agree. A step whose START went through
    another replica is then tried on up to three backends, within `retry.attempts`.

    Set this when several replicas serve the same sequences (`rendezvous`); otherwise steps must
    come through the replica that got the START."""
    max_open: Annotated[PositiveCount, Field(le=10_000_000)] = 1_000_000
    """Sequences that are remembered, about 180 bytes each. Beyond that the one idle for longest is
    forgotten, and its next request may reach the wrong backend.

    Set this when memory is short, or more sequences are open at once; otherwise a million are
    remembered."""


class SplitMode(StrEnum):
    """Which batches run as several."""

    OFF = "off"
    OVERSIZE = "oversize"
    AUTO = "auto"


class ModelSettings(Section):
    """Settings of one ML model."""

    retry: RetryMode = RetryMode.AUTO
    """`never`: an inference that may have run is not sent again, even if a reused connection was
    lost. One that certainly did not run still goes to another backend. `auto`: as `retry` says.

    Set this when inferences of the model have side effects; otherwise they may run twice after a
    failure."""
    attempt_timeout: Duration | None = None
    """As `timeouts.attempt`, for this model.

    Set this when the model is much faster or slower than the others; otherwise `timeouts.attempt`
    holds."""
    max_requests_per_backend: Concurrency | None = None
    """As `scheduling.max_requests_per_backend`, for this model.

    Set this when the model's configuration does not tell what it can run at once, as for LLM
    engines; otherwise the common setting holds."""
    max_queue_size: Count | None = None
    """As `scheduling.max_queue_size`, for this model.

    Set this when requests of the model are useless after a long wait; otherwise the common setting
    holds."""
    priority: Priority | None = None
    """As `scheduling.priority`, for this model.

    Set this when the model matters more or less than the others; otherwise the common setting
    holds."""
    pin: Boolean = False
    """With `placement`: whether the model is loaded without being asked for, and a copy of it is
    never evicted.

    Set this when no request for the model may wait for a load; otherwise it is evicted when it is
    used less than others."""
    size: Annotated[Size, Field(ge=1)] | None = None
    """With `placement.memory`: the memory that the model takes.

    Set this when the model must never be loaded where it does not fit; otherwise its size is
    measured when it is loaded first."""
    min_copies: Count = 0
    """With `placement`: Tritons that have the model loaded without being asked for, at least.

    Set this when requests must not wait for a load even if a Triton has died, to 2; otherwise a
    copy is loaded when requests need it."""
    max_copies: PositiveCount | None = None
    """With `placement`: Tritons that may have the model loaded for its load, at most. A model gets
    another copy when its copies are busy for 70 % of the time. Needs a model that is scheduled.

    Set this when a busy model must leave room for others; otherwise it may have a copy on each
    Triton."""
    idle_unload: PositiveDuration | None = None
    """With `placement`: the model is unloaded after that time without a request.

    Set this when other programs need the memory, too; otherwise the model stays until another one
    needs the room."""
    calls: tuple[str, ...] = ()
    """With `placement`: models that this one calls on its own Triton (business logic scripting).
    They are loaded before it, and stay as long as it. Steps of ensembles are known without this.

    Set this when a model calls others; otherwise its calls fail where these are not loaded."""
    variants: tuple[VariantSettings, ...] = ()
    """Models, or versions of one, that serve the requests for this name, each with a share. The
    first is the stable one.

    Set this when a new version should get a part of the requests first; otherwise the name is that
    of the model (see [Variants](variants.md))."""
    sticky: Sticky = "none"
    """What keeps a client with its variant: `header:NAME` (the value of a header), `tenant` (see
    `scheduling.tenants`), or nothing. Sequences always stay with their variant until they end;
    `sequence` says that nothing else does.

    Set this when a user must not change between variants; otherwise each request is drawn anew."""
    ramp: RampSettings | None = None
    """Raises the share of the last variant over time.

    Set this when nobody should have to raise it by hand; otherwise weights stay as they are."""
    rollback: RollbackSettings | None = None
    """Takes a variant out of service that is worse than the first one.

    Set this when nobody watches a new version; otherwise it stays until you change the weights."""
    shadow: ShadowSettings | None = None
    """Sends copies of inferences to another model after they were answered, and compares its
    answers (see [Shadow traffic](shadow.md)).

    Set this when a new model should be tried before any client gets its answers; otherwise nothing
    is copied."""
    split: SplitMode = SplitMode.OFF
    """`oversize`: a batch of more rows than the model's `max_batch_size` is cut, its parts run on
    several backends side by side, and the client gets one answer. `auto`: so is a smaller batch
    whose answer comes sooner that way, while backends are idle. Results may differ in their last
    bits where a model computes batches of another size otherwise. Not for sequences, decoupled
    models, and `retry: never`; see docs/split-batches.md.

    Set this when clients send more rows than the model takes, or wait for large batches; otherwise
    Triton refuses the former."""
    split_max: Annotated[PositiveCount, Field(le=1000)] = 8
    """Parts of one batch that run at once; a batch of more parts runs them as others end.

    Set this when a batch may use more backends, or must leave some to others; otherwise eight parts
    run at once."""
    split_max_bytes: Size = 64 << 20
    """Longest request that is cut, not compressed: it is held whole. A longer one gets 413 or
    RESOURCE_EXHAUSTED, unless one backend takes all of its rows: then it goes on as it came.

    Set this when batches are longer, or memory is short; otherwise 64 MiB are cut."""

    def broken_rules(self) -> Iterable[Finding]:
        """See `Section`."""
        if "variants" not in self.unreadable:
            yield from variant_problems(self.variants, self.sticky, self.ramp, self.rollback)
            yield from shadow_problems(self.shadow, self.variants)
        if self.max_copies is not None and self.min_copies > self.max_copies:
            yield ("max_copies",), f"is less than min_copies, which is {self.min_copies}"
