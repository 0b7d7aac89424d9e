"""Settings of what autoscalers are told."""

from __future__ import annotations

from lb.settings.section import Section
from lb.settings.units import Duration


class ScalingSettings(Section):
    """How many backends the load needs: `triton_lb_desired_backends` (docs/operations.md)."""

    latency: Duration = 0.0
    """Mean time of an inference that is wanted, from its arrival here to the end of its answer. 0s:
    twice as long as one takes when little is asked, whatever that turns out to be."""
