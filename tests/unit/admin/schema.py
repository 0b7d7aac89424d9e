"""Holds answers of the admin API against its OpenAPI document."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

Json = dict[str, Any]


def problems(value: object, name: str, document: Json) -> list[str]:
    """Where `value` differs from the schema `name` of the document."""
    return _problems(value, {"$ref": f"#/components/schemas/{name}"}, document)


def answer_problems(
    document: Json, method: str, path: str, status: int, answer: object
) -> list[str]:
    """Where an answer differs from what the document says of it.

    Args:
        document: the OpenAPI document.
        method: of the request.
        path: as the document has it, such as `/api/v1/backends/{name}`.
        status: of the answer.
        answer: its JSON.
    """
    common = document["components"]["responses"]
    operations = document["paths"].get(path, {})
    if method.lower() in operations:
        response = operations[method.lower()]["responses"][str(status)]
        if "$ref" in response:
            response = resolve(response["$ref"], document)
    else:
        names = {401: "Unauthorized", 405: "UnknownMethod"} if operations else {
            401: "Unauthorized", 404: "UnknownPath",
        }  # fmt: skip
        response = common[names[status]]
    return _problems(answer, response["content"]["application/json"]["schema"], document)


def is_valid_body(document: Json, method: str, path: str, body: object) -> bool:
    """Whether the document allows a body for an operation."""
    described = document["paths"][path][method.lower()]["requestBody"]
    schema = described["content"]["application/json"]["schema"]
    return not _problems(body, schema, document)


def _problems(value: object, schema: Json, document: Json) -> list[str]:
    validator = Draft202012Validator(
        {**_strict(schema), "components": _strict(document["components"])}
    )
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def _strict(schema: Any) -> Any:
    """The same, but fields that are not listed are wrong: the server sends none."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: _strict(each) for key, each in schema.items()}
    if copy.get("type") == "object" and "properties" in copy:
        copy.setdefault("additionalProperties", False)
    return copy


def resolve(reference: str, document: Json) -> Json:
    """Follow `#/a/b/c`."""
    place: Any = document
    for step in reference.removeprefix("#/").split("/"):
        place = place[step]
    assert isinstance(place, dict)
    return place
