"""Settings of requests that are sent to a second backend when the first takes long."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lb.settings.section import Section
from lb.settings.units import PositiveDuration
from lb.settings.values import Number


class HedgingSettings(Section):
    """An inference that takes longer than most of its model is sent to a second backend as well,
    and the first answer counts. Only where it may run twice (see `retry`). It costs work for
    shorter tails: of use where backends are slow at times, and not where all are busy."""

    enabled: bool = False
    """Whether to do that."""
    quantile: Annotated[Number, Field(gt=0, le=0.999)] = 0.95
    """Of the times that the last answers of the model took: after so long it is sent again."""
    least: PositiveDuration = 0.01
    """But not before this."""
    share: Annotated[Number, Field(gt=0, le=1)] = 0.05
    """How many of all requests may be sent twice so."""
