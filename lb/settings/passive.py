"""Settings of what live traffic says about backends, and of backends that join or come back."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from lb.settings.section import Section
from lb.settings.units import Duration, PositiveDuration
from lb.settings.values import Boolean, Number, PositiveCount

_MIN_LATENCY_FACTOR: Final = 1.5


def _check_factor(value: float) -> float:
    if 0.0 < value < _MIN_LATENCY_FACTOR:
        raise ValueError(f"must be 0, or {_MIN_LATENCY_FACTOR} or more")
    return value


class OutlierDetectionSettings(Section):
    """Passive health. A backend that fails requests for a model which others serve is ejected for
    that model. If most of its models fail, it is ejected as a whole. Later one request tries it.
    Failures that clients cause, or that happen everywhere, do not count."""

    enabled: Boolean = True
    """Whether backends are ejected at all.

    Set this to false when another system takes bad backends out; otherwise a backend that passes
    its probes but fails requests is ejected."""
    consecutive_failures: PositiveCount = 5
    """Consecutive failures of one model after which the backend is ejected for that model. More are
    needed if the model also fails elsewhere, fewer if answers name a CUDA or ECC error.

    Set this when healthy backends are ejected for short disturbances; otherwise five failures may
    be enough."""
    latency_factor: Annotated[Number, Field(ge=0), AfterValidator(_check_factor)] = 5.0
    """Eject a backend if all its responses of a model take this many times longer for a second.
    They are compared with earlier ones there and with other backends. 0 is never, other values are
    at least 1.5.

    Set this when inferences of one model differ widely in length and backends are ejected as slow;
    otherwise a factor of five counts."""
    base_ejection_time: PositiveDuration = 5.0
    """Length of the first ejection. Each further one takes twice as long, up to five minutes, until
    the backend has served well for a minute or more.

    Set this when a failed GPU or server needs longer to recover; otherwise it is tried again after
    five seconds."""


class SlowStartSettings(Section):
    """The first inferences of a backend are slow. So one that joins or comes back begins with a
    tenth of its share, and gets more step by step. If all backends start together, each gets its
    whole share at once. For scheduled models it only decides between idle backends."""

    window: Duration = 10.0
    """Time until a new backend gets its whole share; 0 gives it at once.

    Set this when models are slow for longer after a start, by lazy loading for example; otherwise
    the share grows over ten seconds."""


class WarmUpSettings(Section):
    """A model that becomes ready on a Triton can be warmed up before requests of clients go there.
    An inference of zeros is sent over HTTP, in the shapes and types of the model's configuration.
    Batch size and dimensions of variable size are 1. Models with sequences and decoupled models
    are not warmed up."""

    enabled: Boolean = False
    """Whether to warm up. Meanwhile the model counts as loading there, if another backend has it
    ready. After an error that names a broken device, or no answer, it is tried again until it works
    or no other backend has the model. Other errors are logged, and the model serves.

    Set this when the first requests after a start are slow and `model_warmup` is not configured in
    Triton; otherwise clients' requests warm it up."""
    timeout: PositiveDuration = 60.0
    """How long one warm-up inference may take.

    Set this when the first inference compiles or optimises the model for longer than a minute;
    otherwise it is cut and tried again."""


class ModelTableSettings(Section):
    """Which models each backend has: requests go only to backends that have their model ready."""

    refresh: PositiveDuration = 5.0
    """How often each backend is asked for its models, plus or minus 10 % at random. It is also
    asked when its state changes, after calls that change it, and when an answer contradicts its
    list.

    Set this when dozens of replicas ask the same Tritons (30s is usual); otherwise a model that was
    loaded without us is found within five seconds."""
    restore: Boolean = True
    """Whether a backend that joins or comes back is given what all others have: ready models (if
    models are loaded on request), shared memory regions, trace and log settings.

    Set this to false when backends hold different models on purpose and something else loads them;
    otherwise a restarted Triton serves the same models again."""
