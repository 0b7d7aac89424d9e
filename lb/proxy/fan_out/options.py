"""What is configured of calls to all backends."""

from __future__ import annotations

from dataclasses import dataclass

from lb.settings.model import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutOptions:
    """Times are in seconds."""

    rolling: bool = False
    """Load and unload on one backend after the other."""
    deadline_s: float = 300.0
    """For one backend to carry out a call that changes it."""
    read_timeout_s: float = 5.0
    """For one backend to answer a call that changes nothing."""
    concurrent: int = 64
    """Clients' calls of this kind at once."""


def fan_out_options(settings: Settings) -> FanOutOptions:
    """Read from settings how requests that concern all backends are carried out."""
    fan_out = settings.fan_out
    return FanOutOptions(
        rolling=fan_out.rolling,
        deadline_s=fan_out.deadline,
        read_timeout_s=fan_out.read_timeout,
    )
