"""Where spans go. The exporter itself, `lb.telemetry.span_exporter`, loads an HTTP client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Where spans go."""

    endpoint: str = ""
    """URL; empty: nowhere."""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 10.0
    """For one try at a batch."""
    resource: Mapping[str, str] = field(default_factory=dict)
    """Attributes of this process."""
    version: str = ""
    """Of this program."""
    is_compressed: bool = False
    """Batches are sent with gzip."""
