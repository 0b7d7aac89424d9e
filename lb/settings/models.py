"""Settings of single ML models."""

from __future__ import annotations

from enum import StrEnum

from lb.settings.scheduling import Concurrency, Priority
from lb.settings.section import Section
from lb.settings.units import Duration
from lb.settings.values import Count


class RetryMode(StrEnum):
    """Whether requests that may have run are sent again."""

    AUTO = "auto"
    NEVER = "never"


class ModelSettings(Section):
    """Settings of one ML model."""

    retry: RetryMode = RetryMode.AUTO
    """`never`: its inferences change something, so one that may have run is never sent again, not
    even where a connection is lost that was used before. What surely did not run still goes to
    another backend. `auto`: as the section `retry` says."""
    attempt_timeout: Duration | None = None
    """As `timeouts.attempt`, for this model; left out, that is it."""
    concurrency: Concurrency | None = None
    """As `scheduling.concurrency`, for this model."""
    queue: Count | None = None
    """As `scheduling.queue`."""
    priority: Priority | None = None
    """As `scheduling.priority`."""
