"""Settings of what is known of models, backend by backend."""

from __future__ import annotations

from lb.settings.section import Section
from lb.settings.units import PositiveDuration


class ModelTableSettings(Section):
    """What is known of the backends' models: requests for a model go only to backends that have
    it ready."""

    refresh: PositiveDuration = 5.0
    """How often each backend is asked which models it has, give or take a tenth. It is also asked
    at once when its state changes, after calls that change it, and when an answer of it contradicts
    what it said."""
    restore: bool = True
    """Give a backend that joins or comes back what all others have: models that are ready there
    (where the backends load models on request), regions of shared memory, and trace and log
    settings."""
