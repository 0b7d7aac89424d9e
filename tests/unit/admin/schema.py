"""Just enough of JSON Schema to hold answers against the OpenAPI document."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def problems(
    value: Any, schema: dict[str, Any], document: dict[str, Any], at: str = "$"
) -> list[str]:
    """Say where `value` differs from `schema`; properties that are not listed count as well."""
    if "$ref" in schema:
        return problems(value, resolve(schema["$ref"], document), document, at)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, _TYPES[kind]) for kind in kinds):
        return [f"{at}: {value!r} is not {kinds}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is not one of {schema['enum']}"]
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        return [f"{at}: {value!r} is too small"]
    found: list[str] = []
    if isinstance(value, list):
        for place, item in enumerate(value):
            found += problems(item, schema["items"], document, f"{at}[{place}]")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        rest = schema.get("additionalProperties")
        found += [
            f"{at}.{name}: missing" for name in schema.get("required", ()) if name not in value
        ]
        for name, item in value.items():
            if name in known or rest:
                found += problems(item, known.get(name, rest), document, f"{at}.{name}")
            elif known:
                found.append(f"{at}.{name}: not in the document")
    return found


def resolve(reference: str, document: dict[str, Any]) -> dict[str, Any]:
    """Follow `#/a/b/c`."""
    place: Any = document
    for step in reference.removeprefix("#/").split("/"):
        place = place[step]
    assert isinstance(place, dict)
    return place
