"""The operations of the admin API, from which the OpenAPI document gets its paths.

`OPERATIONS` are answered with a model each; the application gets their routes from here, too.
`LIVE_OPERATIONS` write their answers themselves, see `lb.admin.live_api`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from lb.admin.compare_models import Comparison, Comparisons
from lb.admin.live_document import LiveDocument, Login, SessionRights
from lb.admin.models import (
    Backend,
    Backends,
    Error,
    Index,
    LogLevelChange,
    LogLevelInForce,
    ModelDrain,
    Models,
    NewBackend,
    NotDone,
    PlacementView,
    Promotion,
    Queue,
    Reload,
    Shares,
    Sources,
    Status,
    Upgrade,
    VariantSet,
    VariantSets,
)
from lb.domain.access import Role

INDEX: Final = "/"
STATUS: Final = "/api/v1/status"
BACKENDS: Final = "/api/v1/backends"
BACKEND: Final = "/api/v1/backends/{name}"
MODELS: Final = "/api/v1/backends/{name}/models"
MODEL: Final = "/api/v1/backends/{name}/models/{model}"
SOURCES: Final = "/api/v1/sources"
QUEUE: Final = "/api/v1/queue"
PLACEMENT: Final = "/api/v1/placement"
PLACED: Final = "/api/v1/placement/models/{model}"
VARIANTS: Final = "/api/v1/variants"
VARIANT_SET: Final = "/api/v1/variants/{name}"
COMPARISONS: Final = "/api/v1/compare"
COMPARISON: Final = "/api/v1/compare/{name}"
LIVE: Final = "/api/v1/live"
EVENTS: Final = "/api/v1/live/events"
SESSION: Final = "/api/v1/session"
CONFIG: Final = "/api/v1/config"
LOG_LEVEL: Final = "/api/v1/log-level"
RELOAD: Final = "/api/v1/reload"
UPGRADE: Final = "/api/v1/upgrade"
OPENAPI: Final = "/api/v1/openapi.json"

_READING: Final = frozenset({"GET", "HEAD"})


def role_for(method: str) -> Role:
    """The role that a token needs for requests with an HTTP method."""
    return Role.READ if method in _READING else Role.OPERATE


@dataclass(frozen=True, slots=True)
class AdminRefusal:
    """An answer to a request that is not carried out."""

    description: str
    answer: type[Error] = Error


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a request; its value is text."""

    name: str
    place: str
    """`path` or `query`. Parameters in a path are required, those in a query optional."""
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation: a method of a path."""

    id: str
    """The `operationId` of the OpenAPI document."""
    method: str
    path: str
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: type[Any] | None = None
    """The JSON that a request must have as its body; None: no body is needed."""
    status: int = 200
    """The HTTP status of the answer when the request is carried out."""
    answer: type[Any] | None
    """The model of the answer's JSON. None: any JSON object, as the OpenAPI document is."""
    media_type: str = "application/json"
    """The media type of the answer."""
    needs_token: bool = True
    """Whether `role` is needed, where tokens with roles exist."""
    meaning: str
    """The answer in words."""
    refusals: dict[int, AdminRefusal] = field(default_factory=dict)
    """By HTTP status, beside `COMMON_REFUSALS`."""

    @property
    def role(self) -> Role:
        """The role that a token needs."""
        return role_for(self.method)


COMMON_REFUSALS: Final = {
    401: AdminRefusal("A valid token is needed, where tokens with roles of the admin API exist."),
    403: AdminRefusal(
        "The token lacks the role, or the request comes from another web site or is for another "
        "host."
    ),
    415: AdminRefusal("The body is not `application/json`."),
    500: AdminRefusal("A defect of triton-lb, which is in its log."),
}
"""Answers that every operation may give."""
UNKNOWN_PATH: Final = AdminRefusal("There is no such path.")
UNKNOWN_METHOD: Final = AdminRefusal(
    "The path does not have the method; `Allow` lists those it has."
)

_NAME: Final = Parameter("name", "path", "Name of the backend.")
_MODEL_NAME: Final = Parameter("model", "path", "Name of the model.")
_LIMIT: Final = Parameter(
    "limit",
    "query",
    "Time for requests under way on the backend, such as `30s`; the rest is cut. Without it they "
    "may take as long as they need, or as the configuration allows.",
)
_BAD_QUERY: Final = AdminRefusal("A query parameter is unknown or invalid.")
_NO_BACKEND: Final = AdminRefusal("There is no such backend.")
_NO_MODEL: Final = AdminRefusal("There is no such backend, or it does not list such a model.")
_REMOVED: Final = AdminRefusal("The backend was removed, and finishes its requests.")
_NO_STANDBY: Final = AdminRefusal(
    "The backend is no standby backend, or was drained, disabled or removed."
)
_NOW: Final = "The backend as it is now."
_PLACED_NOW: Final = "All managed backends as they are now."
_NOT_PLACED: Final = {
    404: AdminRefusal("No managed backend has the model in its repository, or has it loaded."),
    409: AdminRefusal("Placement is off, or the model is in use, pinned, or cannot be unloaded."),
}
_MODEL: Final = Parameter("name", "path", "Name that clients use.")
_NO_VARIANTS: Final = AdminRefusal("The name has no variants.")
_NO_SHADOW: Final = AdminRefusal("The name has no shadow.")
_BAD_SHARES: Final = AdminRefusal("There is no such variant, or the shares cannot be.")
_BAD_PROMOTION: Final = AdminRefusal("There is no such variant, or no backend has it ready.")
_VARIANTS_NOW: Final = "The variants as they are now."


def _change(
    action: str, summary: str, *parameters: Parameter, conflict: AdminRefusal = _REMOVED
) -> Operation:
    """A POST that changes the state of one backend."""
    return Operation(
        id=f"{action}Backend",
        method="POST",
        path=f"{BACKEND}/{action}",
        summary=summary,
        parameters=(_NAME, *parameters),
        answer=Backend,
        meaning=_NOW,
        refusals={
            400: _BAD_QUERY,
            404: _NO_BACKEND,
            409: conflict,
        },
    )


def _model_change(action: str, summary: str, missing: AdminRefusal) -> Operation:
    """A POST that changes whether one backend gets requests for one model."""
    return Operation(
        id=f"{action}Model",
        method="POST",
        path=f"{MODEL}/{action}",
        summary=summary,
        parameters=(_NAME, _MODEL_NAME),
        answer=ModelDrain,
        meaning="The model as it is now.",
        refusals={404: missing, 409: _REMOVED},
    )


OPERATIONS: Final = (
    Operation(
        id="getIndex",
        method="GET",
        path=INDEX,
        summary="Show the paths of the most used resources.",
        answer=Index,
        meaning="The paths.",
    ),
    Operation(
        id="getStatus",
        method="GET",
        path=STATUS,
        summary="Sum up the state of the process.",
        answer=Status,
        meaning="The summary.",
    ),
    Operation(
        id="listBackends",
        method="GET",
        path=BACKENDS,
        summary="List all backends in the order of their sources.",
        answer=Backends,
        meaning="All backends.",
    ),
    Operation(
        id="addBackend",
        method="POST",
        path=BACKENDS,
        summary="Add a backend until the process ends.",
        description="The backend gets requests as soon as its health probes succeed.",
        body=NewBackend,
        status=201,
        answer=Backend,
        meaning=_NOW,
        refusals={
            400: AdminRefusal("The settings are invalid; the error lists all problems."),
            409: AdminRefusal(
                "The name is taken, the pool is full, or no backend of that name was removed."
            ),
            413: AdminRefusal("The body is larger than 16 KiB."),
        },
    ),
    Operation(
        id="getBackend",
        method="GET",
        path=BACKEND,
        summary="Show one backend.",
        parameters=(_NAME,),
        answer=Backend,
        meaning=_NOW,
        refusals={404: _NO_BACKEND},
    ),
    Operation(
        id="removeBackend",
        method="DELETE",
        path=BACKEND,
        summary="Remove a backend after it has finished its requests.",
        description="A backend that the configuration or a source names stays out until the "
        "process ends, or until it is added again.",
        parameters=(_NAME, _LIMIT),
        answer=Backend,
        meaning="The backend as it is now; it may be gone already.",
        refusals={400: _BAD_QUERY, 404: _NO_BACKEND},
    ),
    Operation(
        id="getModels",
        method="GET",
        path=MODELS,
        summary="Show the models of one backend, and how it differs from the others.",
        parameters=(_NAME,),
        answer=Models,
        meaning="Models of the backend, as far as known.",
        refusals={404: _NO_BACKEND},
    ),
    _change("drain", "Let a backend finish its requests and send it no new ones.", _LIMIT),
    _change("enable", "Send requests to a backend again."),
    _change("disable", "Send no new requests to a backend; those under way go on."),
    _change(
        "activate",
        "Let a standby backend serve, until the load does not need it any more.",
        conflict=_NO_STANDBY,
    ),
    _change(
        "deactivate",
        "Let an active standby backend finish its requests, and stop it.",
        conflict=_NO_STANDBY,
    ),
    Operation(
        id="getModel",
        method="GET",
        path=MODEL,
        summary="Show what of one model runs on one backend.",
        parameters=(_NAME, _MODEL_NAME),
        answer=ModelDrain,
        meaning="The model as it is now.",
        refusals={404: _NO_MODEL},
    ),
    _model_change(
        "drain",
        "Let one backend finish its requests for one model and send it no new ones.",
        _NO_MODEL,
    ),
    _model_change("enable", "Send one backend requests for one model again.", _NO_BACKEND),
    Operation(
        id="listSources",
        method="GET",
        path=SOURCES,
        summary="List the sources of backends.",
        answer=Sources,
        meaning="All sources.",
    ),
    Operation(
        id="getQueue",
        method="GET",
        path=QUEUE,
        summary="Show queued requests and expected durations by model.",
        answer=Queue,
        meaning="All scheduled models that were requested.",
    ),
    Operation(
        id="getPlacement",
        method="GET",
        path=PLACEMENT,
        summary="Show which models are loaded where on demand, and what is under way.",
        answer=PlacementView,
        meaning="All managed backends; with `placement.mode: off` there are none.",
    ),
    Operation(
        id="pinModel",
        method="POST",
        path=f"{PLACED}/pin",
        summary="Load a model without being asked for, and never evict it.",
        description="It holds until the process ends, whatever the file says.",
        parameters=(_MODEL_NAME,),
        answer=PlacementView,
        meaning=_PLACED_NOW,
        refusals=_NOT_PLACED,
    ),
    Operation(
        id="unpinModel",
        method="POST",
        path=f"{PLACED}/unpin",
        summary="Let a model be evicted again.",
        description="It holds until the process ends, whatever the file says.",
        parameters=(_MODEL_NAME,),
        answer=PlacementView,
        meaning=_PLACED_NOW,
        refusals=_NOT_PLACED,
    ),
    Operation(
        id="evictModel",
        method="POST",
        path=f"{PLACED}/evict",
        summary="Unload a model, whatever its age and whoever loaded it.",
        description="It is answered when the model is gone. The next request for the model loads "
        "it again.",
        parameters=(
            _MODEL_NAME,
            Parameter("backend", "query", "Name of the backend; without it, all that have it."),
        ),
        answer=PlacementView,
        meaning=_PLACED_NOW,
        refusals={
            400: _BAD_QUERY,
            **_NOT_PLACED,
        },
    ),
    Operation(
        id="listVariants",
        method="GET",
        path=VARIANTS,
        summary="List the names that variants serve, with shares, errors and latency.",
        answer=VariantSets,
        meaning="All such names.",
    ),
    Operation(
        id="listComparisons",
        method="GET",
        path=COMPARISONS,
        summary="Show the shadows of all names, and how their answers compare.",
        answer=Comparisons,
        meaning="All names with a shadow.",
    ),
    Operation(
        id="getComparison",
        method="GET",
        path=COMPARISON,
        summary="Show the shadow of a name, and how its answers compare.",
        parameters=(_MODEL,),
        answer=Comparison,
        meaning="The comparison since the process started, or its rules changed.",
        refusals={404: _NO_SHADOW},
    ),
    Operation(
        id="setShares",
        method="POST",
        path=f"{VARIANT_SET}/shares",
        summary="Give variants of a name other shares.",
        description="They hold until the variants in the file change, or the process ends; an "
        "upgrade keeps them. A ramp ends.",
        parameters=(_MODEL,),
        body=Shares,
        answer=VariantSet,
        meaning=_VARIANTS_NOW,
        refusals={400: _BAD_SHARES, 404: _NO_VARIANTS},
    ),
    Operation(
        id="promoteVariant",
        method="POST",
        path=f"{VARIANT_SET}/promote",
        summary="Make a variant the first one, which gets all requests.",
        description="Write it into the file, too: a restart begins with the file.",
        parameters=(_MODEL,),
        body=Promotion,
        answer=VariantSet,
        meaning=_VARIANTS_NOW,
        refusals={400: _BAD_PROMOTION, 404: _NO_VARIANTS},
    ),
    Operation(
        id="resetVariants",
        method="POST",
        path=f"{VARIANT_SET}/reset",
        summary="Go by the shares of the configuration file again.",
        description="A ramp begins anew.",
        parameters=(_MODEL,),
        answer=VariantSet,
        meaning=_VARIANTS_NOW,
        refusals={404: _NO_VARIANTS},
    ),
    Operation(
        id="getConfig",
        method="GET",
        path=CONFIG,
        summary="Show the configuration in force, with defaults and without secrets.",
        answer=None,
        meaning="The settings, as a configuration file has them; `***` stands for a secret.",
    ),
    Operation(
        id="setLogLevel",
        method="POST",
        path=LOG_LEVEL,
        summary="Write more or fewer messages to the application log for a time.",
        description="The configured level comes back by itself, and with an upgrade. A reload "
        "does not end the time.",
        body=LogLevelChange,
        answer=LogLevelInForce,
        meaning="The level in force.",
        refusals={400: AdminRefusal("The body does not say a level, or its time is invalid.")},
    ),
    Operation(
        id="reload",
        method="POST",
        path=RELOAD,
        summary="Apply the configuration file: all of it, or nothing.",
        answer=Reload,
        meaning="The file is applied.",
        refusals={409: AdminRefusal("Nothing has changed.", NotDone)},
    ),
    Operation(
        id="upgrade",
        method="POST",
        path=UPGRADE,
        summary="Start the program again with the listening sockets, and hand over to it.",
        answer=Upgrade,
        meaning="The new process serves.",
        refusals={409: AdminRefusal("Nothing has changed.", NotDone)},
    ),
    Operation(
        id="getOpenapi",
        method="GET",
        path=OPENAPI,
        summary="Show this document.",
        answer=None,
        meaning="OpenAPI 3.1.",
    ),
)
LIVE_OPERATIONS: Final = (
    Operation(
        id="getLive",
        method="GET",
        path=LIVE,
        summary="Show the whole process in one document.",
        answer=LiveDocument,
        meaning="LiveDocument.",
    ),
    Operation(
        id="getLiveEvents",
        method="GET",
        path=EVENTS,
        summary="Send that document once a second as server-sent events, to at most 16 viewers.",
        answer=LiveDocument,
        meaning="LiveDocument.",
        media_type="text/event-stream",
        refusals={503: AdminRefusal("16 viewers are connected already.")},
    ),
    Operation(
        id="getSession",
        method="GET",
        path=SESSION,
        summary="Show what this browser may do.",
        answer=SessionRights,
        meaning="SessionRights.",
        needs_token=False,
    ),
    Operation(
        id="logIn",
        method="POST",
        path=SESSION,
        summary="Begin a session for a token: sets a cookie.",
        body=Login,
        answer=SessionRights,
        meaning="SessionRights.",
        needs_token=False,
        refusals={
            400: AdminRefusal("The body has no token."),
            409: AdminRefusal("No token is needed here."),
        },
    ),
    Operation(
        id="logOut",
        method="DELETE",
        path=SESSION,
        summary="End the session.",
        answer=None,
        meaning="It has ended, if there was one.",
        needs_token=False,
    ),
)
