"""Why there is an attempt."""

from __future__ import annotations

from enum import Enum


class Why(Enum):
    """Why an attempt was made at a backend."""

    FIRST = "first"
    RETRY = "retry"
    """One before it failed."""
    HEDGE = "hedge"
    """One beside it is slow."""
    PART = "part"
    """It is one of several that share a request."""
    SHADOW = "shadow"
    """Its answer is compared, and goes to nobody."""
