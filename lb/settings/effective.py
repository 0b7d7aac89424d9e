"""The effective configuration: all settings as a file would have them, without secrets.

Defaults are filled in, references such as `${NAME}` are replaced by their values, and each backend
has the probes that it really gets. Paths of files keep their references, as in messages.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from lb.settings.document import written
from lb.settings.model import Settings
from lb.settings.section import Section, key_of

MASK: Final = "***"
"""Stands for a secret: a token, its digest, or the value of a header."""


def effective(settings: Settings) -> dict[str, Any]:
    """Return the settings as a plain tree, in the order of the documentation.

    `triton-lb check` accepts the tree and reads the same settings from it, but for the secrets.
    Settings without a value are left out.
    """
    tree = _section(settings)
    for backend, entry in zip(settings.backends, tree["backends"], strict=True):
        entry["name"] = backend.known_as
        entry["health"] = _section(settings.health_of(backend))
    return tree


def _section(section: Section) -> dict[str, Any]:
    found = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value is not None:
            found[key_of(name)] = _value(value, field)
    return found


def _value(value: object, field: FieldInfo) -> object:
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, Section):
        return _section(value)
    if isinstance(value, tuple) and value and isinstance(value[0], Section):
        return [_section(each) for each in value]
    if isinstance(value, dict):
        return {
            key: _section(each) if isinstance(each, Section) else each if field.repr else MASK
            for key, each in value.items()
        }
    return written(value, field)
