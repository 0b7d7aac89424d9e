"""Settings of calls that concern all backends."""

from __future__ import annotations

from lb.settings.section import Section
from lb.settings.units import PositiveDuration
from lb.settings.values import PositiveCount


class ControlSettings(Section):
    """Calls that concern all backends: model control, shared memory, settings, and views such as
    statistics, which are put together from what each backend says."""

    rolling: bool = False
    """Load and unload models on one backend after the other, and stop at the first that fails, so
    that the others go on serving what they have. Otherwise on all at once."""
    deadline: PositiveDuration = 300.0
    """How long one backend may take for a call that changes it. One that takes longer counts as
    failed."""
    read_timeout: PositiveDuration = 5.0
    """How long one backend may take for a view; the others are shown without one that takes
    longer."""
    concurrent: PositiveCount = 64
    """Such calls of clients at once, those that change servers and those that do not each; equal
    views count once. More get 503 or RESOURCE_EXHAUSTED."""
