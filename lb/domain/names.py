"""Names of the wire (models, versions, devices, tenants) as text: for processes, and for people.

They are bytes that need not be UTF-8.
"""

from __future__ import annotations


def to_text(name: bytes) -> str:
    """A name of the wire as JSON can hold it; `to_bytes` gives back what is not UTF-8, too."""
    return name.decode("utf-8", "surrogateescape")


def to_bytes(name: str) -> bytes:
    """A name as it stands on the wire."""
    return name.encode("utf-8", "surrogateescape")


def readable(name: bytes) -> str:
    """A name of the wire for people; bytes that are not UTF-8 show as `\\xNN`."""
    return name.decode("utf-8", "backslashreplace")
