"""What the settings mean for how backends are judged by the requests that they get."""

from __future__ import annotations

from lb.control.directory import BackendDirectory
from lb.health.outliers import MAX_EJECTION_S, OutlierRules
from lb.health.ramp import RampRules
from lb.settings.model import Settings


def outlier_rules(settings: Settings) -> OutlierRules | None:
    """When a backend is ejected; None: never."""
    detection = settings.outlier_detection
    if not detection.enabled:
        return None
    return OutlierRules(
        consecutive=detection.consecutive_failures,
        latency_factor=detection.latency_factor,
        base_s=detection.base_ejection_time,
        max_s=max(MAX_EJECTION_S, detection.base_ejection_time),
    )


def ramp_rules(settings: Settings) -> RampRules:
    """How a backend that joins or comes back gets its share."""
    return RampRules(window_s=settings.slow_start.window)


def apply_judgement(directory: BackendDirectory, settings: Settings, now: float) -> None:
    """Judge as the settings say from now on; the same again changes nothing."""
    directory.passive.use(outlier_rules(settings), now)
    directory.ramps.rules = ramp_rules(settings)
