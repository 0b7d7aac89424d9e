"""What the settings mean for how backends are judged by the requests that they get."""

from __future__ import annotations

from lb.control.directory import BackendDirectory
from lb.health.outliers import OutlierRules
from lb.health.ramp import RampRules
from lb.settings.model import Settings


def outlier_rules(settings: Settings) -> OutlierRules | None:
    """When a backend is ejected; None: never."""
    outliers = settings.outliers
    if not outliers.enabled:
        return None
    return OutlierRules(
        consecutive=outliers.consecutive,
        share=outliers.share,
        latency_factor=outliers.latency_factor,
        base_s=outliers.base,
        max_s=outliers.max,
    )


def ramp_rules(settings: Settings) -> RampRules:
    """How a backend that joins or comes back gets its share."""
    slow = settings.slow_start
    return RampRules(window_s=slow.window, aggression=slow.aggression, min_share=slow.min_share)


def apply_judgement(directory: BackendDirectory, settings: Settings, now: float) -> None:
    """Judge as the settings say from now on; the same again changes nothing."""
    directory.passive.use(outlier_rules(settings), settings.outliers.min_left, now)
    directory.ramps.rules = ramp_rules(settings)
