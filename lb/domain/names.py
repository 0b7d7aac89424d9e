"""Names of the wire (models, versions, devices) as JSON can hold them, and back.

They are bytes that need not be UTF-8; those that are not come back as they were.
"""

from __future__ import annotations


def to_text(name: bytes) -> str:
    """A name of the wire as JSON can hold it."""
    return name.decode("utf-8", "surrogateescape")


def to_bytes(name: str) -> bytes:
    """A name as it stands on the wire."""
    return name.encode("utf-8", "surrogateescape")
