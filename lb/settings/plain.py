"""Settings as a file would have them, for another process of the same service.

What was given is there and defaults are not, so that the other process reads equal settings.
Secrets are written out: for private channels only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import SecretStr

from lb.domain.backend import Address
from lb.settings.section import Section, key_of


def plain(value: object) -> Any:
    """Return a value of the settings as JSON can hold it."""
    if isinstance(value, Section):
        given = sorted(value.model_fields_set)
        return {key_of(name): plain(getattr(value, name)) for name in given}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [plain(each) for each in value]
    return value if isinstance(value, (bool, int, float, type(None))) else str(value)
