from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lb.admin.access import AdminAccess
from lb.admin.app import make_admin_app
from lb.admin.live import LiveView
from lb.admin.live_api import LiveApi
from lb.admin.models import NewBackend
from lb.admin.openapi import openapi_document
from lb.admin.operations import SESSION
from lb.control.membership import Membership
from lb.settings.backends import BackendSettings
from tests.fakes.live import live_sources
from tests.fakes.pool import make_pool
from tests.unit.admin.schema import resolve

DOCUMENT = openapi_document("1.2.3")
OPERATIONS = [
    (method, path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
SCHEMAS = DOCUMENT["components"]["schemas"]


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


def test_it_describes_every_route_and_no_other() -> None:
    directory = make_pool()
    app = make_admin_app(directory, Membership(directory), version="1.2.3")
    LiveApi(LiveView(live_sources(directory)), AdminAccess()).install(app)
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in app.router.routes()
        if route.method != "HEAD" and route.resource is not None
    }
    assert routes == {(method, path) for method, path, _ in OPERATIONS}


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    references = {
        each["$ref"] for each in every(DOCUMENT) if isinstance(each, dict) and "$ref" in each
    }
    for reference in references:
        assert resolve(reference, DOCUMENT)
    assert {f"#/components/schemas/{name}" for name in SCHEMAS} <= references


def test_operation_ids_are_unique_and_path_parameters_declared() -> None:
    ids = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(ids)) == len(ids)
    for _, path, operation in OPERATIONS:
        parameters = operation.get("parameters", ())
        declared = [each["name"] for each in parameters if each["in"] == "path"]
        assert declared == [name for name in ("name", "model") if f"{{{name}}}" in path]


def test_an_operation_tells_its_role_and_all_its_answers() -> None:
    for method, path, operation in OPERATIONS:
        role = "read" if method == "get" else "operate"
        if path != SESSION:  # where a browser gets what it shows later
            assert {"token": [role]} in operation["security"]
        assert {"401", "403", "415", "500"} < operation["responses"].keys()
        assert operation["responses"].keys() & {"200", "201"}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_and_describes_its_figures(name: str) -> None:
    schema = SCHEMAS[name]
    Draft202012Validator.check_schema(schema)
    assert schema["description"]
    for field, described in schema["properties"].items():
        kinds = {each.get("type") for each in [described, *described.get("anyOf", ())]}
        if kinds & {"integer", "number"}:
            assert "description" in described, field


def test_answers_have_all_their_fields_and_requests_may_leave_them_out() -> None:
    assert set(SCHEMAS["Backend"]["required"]) == SCHEMAS["Backend"]["properties"].keys()
    assert "required" not in SCHEMAS["NewBackend"]
    assert SCHEMAS["NewBackend"]["additionalProperties"] is True


def test_defaults_of_a_new_backend_are_those_of_the_configuration() -> None:
    settings = BackendSettings.model_construct()
    for name, field in NewBackend.model_fields.items():
        wanted = getattr(settings, name)
        assert field.default == (wanted.value if isinstance(wanted, Enum) else wanted), name


def test_units_and_words_are_told() -> None:
    backend = SCHEMAS["Backend"]["properties"]
    assert "Seconds" in backend["since_s"]["description"]
    assert backend["since_s"]["minimum"] == 0
    assert {"up", "down", "draining"} < set(backend["state"]["enum"])
