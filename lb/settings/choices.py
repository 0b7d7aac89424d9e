"""Words of the settings that the admin API names, too.

Commands that ask a running process need them, and not the sections, which take 0.1 s to load.
"""

from __future__ import annotations

from enum import StrEnum


class LogLevel(StrEnum):
    """The least important messages that the application log shows."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class PlacementMode(StrEnum):
    """Whether models are loaded when requests need them."""

    OFF = "off"
    OBSERVE = "observe"
    ON_DEMAND = "on_demand"
