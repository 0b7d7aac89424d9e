"""The JSON schema of a configuration file, for editors: `triton-lb schema`.

Pydantic's own schema of the models, with what a file adds: descriptions and defaults as an operator
writes them, references such as `${NAME}` in place of any value, and keys without a value.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from lb.settings.document import default_of
from lb.settings.model import Settings
from lb.settings.section import Section, key_of
from lb.settings.shape import meanings, section_of

_Node = dict[str, Any]

# Editors know draft 7 best; nothing here needs a later one.
_DIALECT: Final = "http://json-schema.org/draft-07/schema#"
_REFERENCE: Final = {
    "type": "string",
    "pattern": r"\$\{(?:[A-Za-z_][A-Za-z0-9_]*(?::-[^{}]*)?|file:[^{}]+)\}",
    "description": "${NAME}, ${NAME:-DEFAULT} or ${file:PATH}.",
}
_NOTHING: Final = {"type": "null"}
_CONTAINERS: Final = ("array", "object")
_BOUNDS: Final = {
    "gt": "exclusiveMinimum",
    "ge": "minimum",
    "lt": "exclusiveMaximum",
    "le": "maximum",
}


def json_schema() -> _Node:
    """Return the schema of a whole file."""
    root = Settings.model_json_schema()
    definitions: _Node = root.pop("$defs")
    sections = {section.__name__: section for section in _sections(Settings)}
    for name, node in definitions.items():
        section = sections.get(name)
        definitions[name] = _widened(node) if section is None else _described(node, section)
    return {
        "$schema": _DIALECT,
        **_described(root, Settings),
        "title": "triton-lb",
        "$defs": definitions,
    }


def _sections(section: type[Section]) -> set[type[Section]]:
    """The section and all sections below it."""
    found = {section}
    for field in section.model_fields.values():
        inner = section_of(field.annotation)
        if inner is not None:
            found |= _sections(inner)
    return found


def _described(node: _Node, section: type[Section]) -> _Node:
    """The schema of a section, its properties with description, default and bounds."""
    texts = meanings(section)
    properties = {}
    for name, field in section.model_fields.items():
        key = key_of(name)
        choices = _choices(node["properties"][key])
        for item in field.metadata:
            for bound, word in _BOUNDS.items():
                if (limit := getattr(item, bound, None)) is not None:
                    _limit(choices, word, limit)
        inner = section_of(field.annotation)
        made: _Node = {"description": texts[name] or inspect.getdoc(inner)}
        if not field.is_required():
            choices.append(_NOTHING)
            made["default"] = default_of(field)
        properties[key] = {**made, "anyOf": choices}
    rest = {key: value for key, value in node.items() if key not in ("title", "description")}
    return {**rest, "properties": properties}


def _choices(node: _Node) -> list[_Node]:
    """What a value may be, one schema each; without null, which `_described` adds."""
    node = {key: value for key, value in node.items() if key not in ("title", "default")}
    found = [_inside(each) for each in node.get("anyOf", [node]) if each != _NOTHING]
    is_scalar = any("$ref" not in each and each.get("type") not in _CONTAINERS for each in found)
    return [*found, _REFERENCE] if is_scalar else found


def _widened(node: _Node) -> _Node:
    choices = _choices(node)
    return {"anyOf": choices} if len(choices) > 1 else choices[0]


def _inside(node: _Node) -> _Node:
    """A schema whose items and values may be references, too."""
    # Pydantic leaves bounds behind a validator in its own words.
    node = {_BOUNDS.get(key, key): value for key, value in node.items()}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            node[key] = _widened(node[key])
    if "patternProperties" in node:
        patterns = node["patternProperties"]
        node["patternProperties"] = {name: _widened(each) for name, each in patterns.items()}
        node["additionalProperties"] = False
    return node


def _limit(choices: list[_Node], word: str, limit: float) -> None:
    for each in choices:
        if each.get("type") in ("integer", "number"):
            each[word] = limit
