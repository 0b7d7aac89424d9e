from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lb.admin.openapi import openapi_document
from tests.unit.admin.schema import resolve

DOCUMENT = openapi_document("1.2.3")


def every(value: Any) -> Iterator[Any]:
    """All values inside the document."""
    yield value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in inside:
        yield from every(each)


def test_it_is_json_and_names_its_version() -> None:
    document = json.loads(json.dumps(DOCUMENT))
    assert document["openapi"] == "3.1.0"
    assert document["info"]["version"] == "1.2.3"


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    references = {
        each["$ref"] for each in every(DOCUMENT) if isinstance(each, dict) and "$ref" in each
    }
    for reference in references:
        assert resolve(reference, DOCUMENT)
    names = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert names == references


def test_operation_ids_are_unique_and_path_parameters_declared() -> None:
    operations = [
        (path, operation)
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
    ]
    ids = [operation["operationId"] for _, operation in operations]
    assert len(set(ids)) == len(ids)
    for path, operation in operations:
        parameters = operation.get("parameters", ())
        declared = [each["name"] for each in parameters if each["in"] == "path"]
        assert declared == (["name"] if "{name}" in path else [])
        assert operation["responses"].keys() & {"200", "201"}
