"""Settings of further attempts: retries, hedges, and calls to all backends."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lb.settings.section import Section
from lb.settings.units import PositiveDuration
from lb.settings.values import Boolean, Number, PositiveCount


class RetryMode(StrEnum):
    """Whether requests that may have run are sent again."""

    AUTO = "auto"
    NEVER = "never"


class RetrySettings(Section):
    """A request that fails before its response begins is sent to another backend if it certainly
    did not run, or may run twice. Inferences without a sequence and reads may run twice."""

    attempts: Annotated[PositiveCount, Field(le=100)] = 3
    """Attempts in all, including the first; 1 never retries. A refused connection does not count
    otherwise. A request that was lost with its server is retried only once, since it may have
    killed that server.

    Set this when a proxy or client in front of us retries, too; otherwise a request reaches up to
    three backends."""
    budget: Annotated[Number, Field(ge=0, le=1)] = 0.2
    """Retries of requests that may have run, as a share of all requests of the last ten seconds.
    Ten a second are always allowed, and ten more for clients that have not used up the others. All
    that a backend had under way when it died or fell silent may go again besides, once in ten
    seconds. 0 allows none at all.

    Set this when retries overload the backends that are left; otherwise every fifth request may be
    retried."""


class HedgingSettings(Section):
    """Hedging sends an inference that takes longer than usual to a second backend as well; the
    first response counts. Only for requests that may run twice (see `retry`)."""

    enabled: Boolean = False
    """Whether to hedge.

    Set this when single backends are slow at times while others are idle; otherwise a slow
    inference is waited for."""
    quantile: Annotated[Number, Field(gt=0, le=0.999)] = 0.95
    """Send a hedge once a request has taken longer than this quantile of the model's recent
    latencies, and at least 10 ms.

    Set this when the tail matters more, or less, than extra work; otherwise the slowest twentieth
    is hedged."""
    max_ratio: Annotated[Number, Field(gt=0, le=1)] = 0.05
    """Hedges as a share of all requests.

    Set this when GPUs have room for more duplicates; otherwise every twentieth request may be sent
    twice."""


class FanOutSettings(Section):
    """Calls that concern all backends: model control, shared memory, settings, and views such as
    statistics, which are merged from the answers of all."""

    rolling: Boolean = False
    """Whether models are loaded and unloaded on one backend after the other, stopping at the first
    failure, so that the rest keeps serving what it has.

    Set this when a bad model version must not reach every backend; otherwise all load it at
    once."""
    deadline: PositiveDuration = 300.0
    """How long one backend may take for a call that changes it; then the call counts as failed
    there.

    Set this when loading a model takes longer than five minutes; otherwise such loads are reported
    as failed."""
    read_timeout: PositiveDuration = 5.0
    """How long one backend may take for a view; a slower one is left out.

    Set this when a backend with many models is missing in statistics or in the index; otherwise a
    hanging backend delays a view by five seconds."""
