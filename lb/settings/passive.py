"""Settings of what live traffic says of backends, and of those that join."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from lb.settings.section import Section
from lb.settings.units import Duration, PositiveDuration
from lb.settings.values import Number, PositiveCount

Share = Annotated[Number, Field(ge=0, le=1)]
"""Between nothing and all."""
_LEAST_FACTOR: Final = 1.5


def _check_factor(value: float) -> float:
    if 0.0 < value < _LEAST_FACTOR:
        raise ValueError(f"must be 0, or {_LEAST_FACTOR} or more")
    return value


class OutlierSettings(Section):
    """Passive health: a backend on which requests for a model fail while they do not on others gets
    none for that model, and none at all when most of its models fail. After a while one request
    tries it again. What is the fault of clients does not count, nor what fails everywhere."""

    enabled: bool = True
    """Whether backends are judged by how requests fare at all."""
    consecutive: PositiveCount = 5
    """Failures in a row of one model that may be enough. It takes more of them the more the same
    model fails on other backends, and fewer where they are certainly the backend's fault, as its
    answers name a CUDA or ECC error."""
    share: Annotated[Share, Field(gt=0)] = 0.2
    """Share of the last requests for a model that fail and may be enough."""
    latency_factor: Annotated[Number, Field(ge=0), AfterValidator(_check_factor)] = 5.0
    """A backend is also ejected when for a second all its answers to a model take this many times
    longer than they did before, and than those of others; 0 is never. Otherwise it must be at
    least 1.5."""
    base: PositiveDuration = 5.0
    """How long the first ejection takes. Each further one takes twice as long, until the backend
    has served well for a minute or more."""
    max: PositiveDuration = 300.0
    """The longest ejection."""
    min_left: Share = 0.3
    """Share of the backends that are otherwise usable that must be left: when fewer would be, all
    are used. The last one always is."""


class WarmUpSettings(Section):
    """What becomes ready on a Triton can be made to compute something before requests of clients go
    there: zeros of the shapes and types that the model's configuration says, with batch size 1 and
    1 for dimensions of any size. Over HTTP; not for models of sequences and decoupled ones."""

    enabled: bool = False
    """Whether to do that. Meanwhile the model counts as loading there, as long as another backend
    has it ready. Where the answer names a broken device, or there is none, it is tried again until
    it works or nobody else has the model; any other error is logged, and the model serves."""
    timeout: PositiveDuration = 60.0
    """How long one such inference may take."""


class SlowStartSettings(Section):
    """A backend that joins or comes back gets its share of the load little by little, as its first
    inferences are slow. When all of them begin, each gets its share at once. Requests of scheduled
    models prefer the others while these are idle, and do not wait for them while it is."""

    window: Duration = 10.0
    """How long that takes; 0 is not at all."""
    aggression: Annotated[Number, Field(gt=0, le=100)] = 1.0
    """With 1 the share grows evenly; with more it grows faster in the beginning."""
    min_share: Annotated[Share, Field(ge=0.01)] = 0.1
    """With what part of its share it begins."""
