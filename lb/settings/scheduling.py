"""Settings of when and where requests begin: limits, queue, priorities, fairness."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from lb.settings.problems import show
from lb.settings.section import Section
from lb.settings.units import Duration
from lb.settings.values import Count, HeaderName, Number, PositiveCount

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


Concurrency = Annotated[ConcurrencyWord | int, PlainValidator(read_concurrency)]
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


class SchedulingSettings(Section):
    """Requests of a model that a backend can take begin at once; more wait here, in one queue per
    model, and go to whichever backend will end them first, by what was learnt of its speed. Steps
    of sequences, requests on streams, and models that are not scheduled never wait; the latter are
    placed as `balancing` says."""

    concurrency: Concurrency | None = None
    """How many requests of one model a backend may have at once. `auto`: as many as keep the
    instances busy that the model's configuration tells of, and their dynamic batcher; where it does
    not tell (ensembles, backends that mix requests by themselves) there is no limit, but requests
    go by speed as well; decoupled models and servers other than Triton are not scheduled.
    `adaptive`: found by measuring, not for decoupled models. A number: exactly that, also for
    decoupled models and servers of kind `kserve`. `off`: nothing is scheduled. Left out: `auto`
    with the policy `least_loaded`, `off` with another one."""
    queue: Count = 100_000
    """Requests of one model that wait at once; beyond that those of the lowest priority are
    refused, of the tenant of which most wait. 0: nobody waits, not even for a faster backend."""
    max_wait: Duration = 0.0
    """How long a request may wait; then it is refused. 0 is no limit but the request's own
    deadline."""
    wait_for_backend: Duration = 0.0
    """How long requests wait while no backend is eligible for them, before they are refused; 0
    refuses them at once."""
    overload_status: OverloadStatus = OverloadStatus.UNAVAILABLE
    """HTTP status of requests that are refused because too many wait, or for too long. gRPC gets
    RESOURCE_EXHAUSTED."""
    deadline_header: HeaderName | None = None
    """HTTP header with the time that a request may take, such as `x-triton-lb-timeout: 200ms` (or
    `1.5s`; a bare number is milliseconds); then 504. gRPC has `grpc-timeout`. Left out: no header
    is read."""
    priority_header: HeaderName | None = None
    """Header with the priority of a request, 1 being the highest; it outweighs the request
    parameter `priority`. Left out: no header is read."""
    priority: Priority = 2
    """Priority of requests that name none, or 0. From 16 on all are one."""
    priorities: PriorityOrder = PriorityOrder.STRICT
    """`strict`: lower ones get what the higher ones leave; `weighted`: all get their part, by
    `weights`."""
    weights: tuple[Annotated[Number, Field(gt=0, le=1e6)], ...] = ()
    """Of the priorities from 1 on, for `weighted`; each that is not named has half of the one
    before."""
    reserved: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    """Part of what backends may run at once that is kept free for priority 1."""
    tenants: TenantBy = TenantBy.NOTHING
    """Within a priority each tenant gets its fair share. What tells them apart: `token` (its name,
    see `access.tokens`), `header`, or `nothing`: all are one."""
    tenant_header: HeaderName = "x-triton-lb-tenant"
    """The header that names the tenant."""
    shares: dict[str, Annotated[Number, Field(gt=0, le=1e6)]] = Field(default_factory=dict)
    """Shares of tenants, by name; the others have 1."""
    load_poll_interval: Duration = 0.0
    """How often backends that have a `metrics` address are asked how much they have to do, for
    everybody: what waits there (`nv_inference_pending_request_count`), what was executed, how busy
    their GPUs are. What others do counts as far as our own measurements do not contain it. 2s
    suits; with more than 50 backends each is asked less often. 0 asks nobody: right where all
    requests come through here."""
