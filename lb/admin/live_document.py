"""The live document: what the page, `triton-lb top` and scripts show of a running process.

Rates and quantiles are of the last few seconds. They are null until two readings can be compared.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, RootModel
from typing_extensions import TypedDict  # pydantic reads no other one before Python 3.12

MOST_BACKENDS: Final = 300
"""A page with more rows can neither be drawn nor read."""
MOST_MODELS: Final = 100

Verdict = Literal["good", "degraded", "bad"]
Rate = Annotated[float | None, Field(description="Per second.")]
Milliseconds = Annotated[float | None, Field(description="Milliseconds.")]


class LiveSummary(TypedDict):
    """The whole pool in one line."""

    verdict: Verdict
    why: Annotated[str, Field(description="One sentence: what is wrong, or that nothing is.")]
    up: Annotated[int, Field(description="Backends in state `up`.")]
    backends: Annotated[int, Field(description="All of them.")]
    requests: Annotated[float | None, Field(description="Inferences completed per second.")]
    p50_ms: Annotated[float | None, Field(description="Median latency, as clients see it.")]
    p99_ms: Annotated[float | None, Field(description="99th percentile, as clients see it.")]
    errors: Annotated[
        dict[str, float],
        Field(
            description="Failed requests per second by reason, as in "
            "`triton_lb_request_errors_total`; `backend_status`: a backend answered so."
        ),
    ]
    in_flight: Annotated[int, Field(description="Requests at backends.")]
    queued: Annotated[int, Field(description="Requests that wait in the queue.")]
    oldest_ms: Annotated[float, Field(description="Age of the oldest queued request.")]
    retries: Rate
    hedges: Rate


class LearntTime(TypedDict):
    """What the scheduler has learnt of a main model on one backend."""

    model: str
    ms: Annotated[float | None, Field(description="One request of one row, alone.")]
    in_flight: Annotated[int, Field(description="Requests of the model there.")]
    limit: Annotated[int, Field(description="Of these requests; 0: none.")]
    slowed: Annotated[float, Field(description="1: nobody else slows the backend down.")]


class ModelCountsOfBackend(TypedDict):
    """Models of one backend, by what is the matter with them."""

    ready: Annotated[int, Field(description="May be asked for.")]
    loading: Annotated[int, Field(description="Being loaded or warmed up.")]
    missing: Annotated[int, Field(description="Ready on other backends only.")]
    different: Annotated[int, Field(description="Not configured as on most backends.")]


class GpuUse(TypedDict):
    """The devices of one backend, as its metrics show them."""

    devices: Annotated[int, Field(description="How many.")]
    utilization: Annotated[float | None, Field(description="Of the busiest one, 0 to 1.")]
    memory_used: Annotated[float | None, Field(description="Bytes on all of them.")]
    memory_total: Annotated[float | None, Field(description="Bytes of all of them.")]


class LiveBackend(TypedDict):
    """One backend."""

    name: str
    state: str
    why: str
    since_s: Annotated[float, Field(description="Seconds in this state.")]
    past: Annotated[
        list[tuple[float, str]],
        Field(
            description="Its states of the last five minutes, oldest first: how many seconds ago "
            "each began, and the state."
        ),
    ]
    in_flight: Annotated[int, Field(description="Requests there.")]
    limit: Annotated[int, Field(description="`max_requests`; 0: none.")]
    requests: Rate
    share: Annotated[float | None, Field(description="Part of all requests, 0 to 1.")]
    errors: Rate
    mean_ms: Annotated[float | None, Field(description="Mean time of completed attempts.")]
    start_share: Annotated[float, Field(description="Less than 1 in slow start.")]
    main_models: list[LearntTime]
    models: ModelCountsOfBackend | None
    gpu: GpuUse | None
    cut_in_s: Annotated[
        float | None, Field(description="Until running requests are cut; null: never.")
    ]


class LiveModel(TypedDict):
    """One model."""

    name: str
    ready_on: Annotated[int, Field(description="Backends that get requests for it.")]
    not_on: Annotated[
        list[str], Field(description="Backends in use that do not have it ready; eight at most.")
    ]
    requests: Rate
    failures: Rate
    p50_ms: Annotated[
        float | None, Field(description="Median latency of successful inferences; null: none.")
    ]
    p99_ms: Annotated[float | None, Field(description="99th percentile of the same.")]
    retries: Annotated[
        float | None, Field(description="Further attempts per second, hedges included.")
    ]
    hedges: Annotated[
        float | None,
        Field(description="Requests per second that were sent to a second backend as well."),
    ]
    queued: Annotated[int, Field(description="Requests that wait in the queue.")]
    oldest_ms: Annotated[float, Field(description="Age of the oldest of them.")]
    waits: Annotated[
        dict[str, float], Field(description="Requests that had to wait, per second by reason.")
    ]


class LiveChange(TypedDict):
    """One change of state."""

    age_s: Annotated[float, Field(description="Seconds ago.")]
    at: Annotated[float, Field(description="Unix time in seconds.")]
    backend: str
    subject: Annotated[
        str, Field(description="Ports or model that it concerns; empty: the whole backend.")
    ]
    before: str
    after: str
    why: str


class LiveVariant(TypedDict):
    """A model that serves a share of the requests for a name."""

    name: Annotated[str, Field(description="The name that clients use, a slash, and the variant.")]
    model: Annotated[str, Field(description="Its model on the Tritons.")]
    percent: Annotated[float, Field(description="Share of the requests.")]
    file_percent: Annotated[float, Field(description="The same by the configuration file.")]
    ready: Annotated[bool, Field(description="Some backend serves it.")]
    answers: Annotated[int, Field(description="Requests that were answered since the start.")]
    errors: Annotated[int, Field(description="Those among them that failed.")]
    p99_ms: Annotated[float | None, Field(description="Since the start.")]
    note: Annotated[str, Field(description="What has changed its share, and why; or empty.")]


class LivePlacement(TypedDict):
    """A backend whose models are loaded on demand."""

    backend: str
    models: Annotated[
        list[str], Field(description="Those that take room there, with their state unless ready.")
    ]
    room: Annotated[str, Field(description="How many models it has, and may have.")]
    note: Annotated[
        str, Field(description="What is done there, or which load failed last; or empty.")
    ]


class LiveWorker(TypedDict):
    """A process that serves clients, where `workers` says that there are several."""

    index: Annotated[int, Field(description="From 0; stays the same when it is started again.")]
    pid: Annotated[int, Field(description="0 while it is away.")]
    state: Annotated[
        Literal["serving", "silent", "away"],
        Field(description="`silent`: it tells no counts, so it stands still; `away`: it has died."),
    ]
    since_s: Annotated[float, Field(description="Seconds in this state.")]
    restarts: Annotated[int, Field(description="How often it was started again.")]
    connections: Annotated[int, Field(description="Open connections of clients.")]
    in_flight: Annotated[int, Field(description="Requests that are not answered yet.")]
    requests: Annotated[float | None, Field(description="Requests completed per second.")]
    cpu: Annotated[float | None, Field(description="Part of one core that it uses.")]


class LiveDocument(TypedDict):
    """All of it."""

    version: str
    at: Annotated[float, Field(description="Unix time in seconds.")]
    uptime_s: Annotated[float, Field(description="Seconds since the start.")]
    replicas: Annotated[
        list[str], Field(description="Admin APIs of other processes, as `admin.replicas` says.")
    ]
    window_s: Annotated[float | None, Field(description="Seconds that rates and quantiles are of.")]
    summary: LiveSummary
    backends: Annotated[
        list[LiveBackend], Field(description="At most 300, those with a problem first.")
    ]
    backends_total: Annotated[int, Field(description="With those left out.")]
    models: Annotated[list[LiveModel], Field(description="At most 100, the busiest first.")]
    models_total: Annotated[int, Field(description="With those left out.")]
    variants: Annotated[list[LiveVariant], Field(description="In the order of the file.")]
    placement: Annotated[
        list[LivePlacement], Field(description="Backends whose models are loaded on demand.")
    ]
    workers: Annotated[
        list[LiveWorker], Field(description="By index; empty where one process serves.")
    ]
    changes: Annotated[list[LiveChange], Field(description="At most 100, the newest first.")]


class Live(RootModel[LiveDocument]):
    """The document as clients of the API read it."""

    model_config = ConfigDict(defer_build=True)  # the process that makes it does not read it


class Login(TypedDict):
    """What begins a session."""

    token: Annotated[str, Field(description="One with the role read or operate.")]


class SessionRights(TypedDict):
    """What a browser may do."""

    needs_token: Annotated[bool, Field(description="Nobody gets in without a token.")]
    token: Annotated[str, Field(description="Name of the token of its session; empty: none.")]
    may_operate: bool
    csrf: Annotated[
        str, Field(description="To be sent as `X-CSRF-Token` with what changes something.")
    ]
