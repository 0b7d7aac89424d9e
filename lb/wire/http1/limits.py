"""Protective limits of the HTTP/1.1 codec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CHUNK_EXTENSION_BYTES: Final = 256
"""Nobody uses chunk extensions; Triton closes the connection on any. They are read and dropped."""
TRAILER_BYTES: Final = 16 * 1024
TRAILER_FIELDS: Final = 100
INTERIM_RESPONSES: Final = 10
"""1xx answers before the final one (RFC 9110 15.2 sets no limit, so a backend could go on)."""


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """What a head may be at most. Triton reads far less, other proxies 8 to 60 KiB."""

    head_bytes: int = 32 * 1024
    """Start line, fields and the empty line."""
    line_bytes: int = 8 * 1024
    """The request line (RFC 9112 3 wants 8,000 at least)."""
    fields: int = 100
