"""What the models look like from outside: which keys a section has, and what sections hold."""

from __future__ import annotations

from typing import get_args

from lb.settings.model import Settings
from lb.settings.problems import Path
from lb.settings.section import Section


def section_of(annotation: object) -> type[Section] | None:
    """Return the section that a field holds: directly, optionally, in a list or in a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    for part in get_args(annotation):
        section = section_of(part)
        if section is not None:
            return section
    return None


def keys_at(path: Path) -> tuple[str, ...]:
    """Return the keys that the section at a path may have; none where there is no section."""
    section: type[Section] | None = Settings
    for part in path:
        if section is None:
            return ()
        field = section.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            section = section_of(field.annotation)
    return tuple(section.model_fields) if section is not None else ()
