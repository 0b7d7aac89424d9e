"""Generates the OpenAPI 3.1 document of the admin API from its operations and models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from lb.admin.models import Error
from lb.admin.operations import (
    COMMON_REFUSALS,
    LIVE_OPERATIONS,
    OPERATIONS,
    UNKNOWN_METHOD,
    UNKNOWN_PATH,
    AdminRefusal,
    Operation,
    Parameter,
)
from lb.net.threads import computed

Json = dict[str, Any]

_ALL: Final = (*OPERATIONS, *LIVE_OPERATIONS)

_DESCRIPTION = """\
State of the backends; adding, draining and removing them.

Every GET operation has HEAD, too. A path that does not exist is answered with 404, a method that a
path does not have with 405 (see `components.responses`). Errors have the schema `Error`.

Clients ignore fields that they do not know, since later versions may add some.
"""


async def openapi_text(version: str) -> str:
    """Return the document for one version of the product as JSON, made beside the traffic: it takes
    0.1 s of CPU time.

    Models are built when they are first used. Answers use them in the event loop and two threads
    must not build the same one, so all are built there, one in each iteration. A thread does the
    rest.
    """
    for model in _named_models():
        if issubclass(model, BaseModel):
            model.model_rebuild()
            await asyncio.sleep(0)
    return await computed(lambda: json.dumps(openapi_document(version)))


def openapi_document(version: str) -> Json:
    """Return the document for one version of the product."""
    paths: dict[str, Json] = {}
    for operation in _ALL:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "triton-lb admin API",
            "version": version,
            "description": _DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": {
                **{
                    _response_name(status): _refusal(refusal)
                    for status, refusal in COMMON_REFUSALS.items()
                },
                "UnknownPath": _refusal(UNKNOWN_PATH),
                "UnknownMethod": _refusal(UNKNOWN_METHOD),
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed as soon as a token has the role `read` or `operate`. "
                    "Each operation lists the role that it needs; `operate` includes `read`.",
                }
            },
        },
    }


def _operation(operation: Operation) -> Json:
    responses = {
        str(operation.status): _content(
            _schema(operation.answer), operation.meaning, operation.media_type
        ),
        **{str(status): _refusal(each) for status, each in operation.refusals.items()},
        **{
            str(status): {"$ref": f"#/components/responses/{_response_name(status)}"}
            for status in COMMON_REFUSALS
        },
    }
    optional = {
        "description": operation.description,
        "parameters": [_parameter(each) for each in operation.parameters],
        "requestBody": _body(operation.body),
        "security": [{}, {"token": [operation.role.value]}] if operation.needs_token else None,
    }
    return {
        "operationId": operation.id,
        "summary": operation.summary,
        **{key: value for key, value in optional.items() if value},
        "responses": dict(sorted(responses.items())),
    }


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "schema": {"type": "string"},
        "description": parameter.description,
    }


def _body(model: type[Any] | None) -> Json | None:
    if model is None:
        return None
    return {"required": True, "content": {"application/json": {"schema": _schema(model)}}}


def _refusal(refusal: AdminRefusal) -> Json:
    return _content(_schema(refusal.answer), refusal.description)


def _response_name(status: int) -> str:
    """The key of a common answer in `components.responses`, such as `Unauthorized`."""
    return HTTPStatus(status).phrase.title().replace(" ", "")


def _content(schema: Json, description: str, media_type: str = "application/json") -> Json:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _schema(model: type[Any] | None) -> Json:
    return {"type": "object"} if model is None else {"$ref": _reference(model.__name__)}


def _reference(name: str) -> str:
    return f"#/components/schemas/{name}"


class _Schema(GenerateJsonSchema):
    """Schemas without a title for each field, which would only repeat its name."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Never."""
        return False


def _schemas() -> Mapping[str, Json]:
    """Schemas of all models that operations name, and of those inside of them, by name."""
    _, document = TypeAdapter.json_schemas(
        [(model.__name__, mode, TypeAdapter(model)) for model, mode in _named_models().items()],
        ref_template=_reference("{model}"),
        schema_generator=_Schema,
    )
    definitions: dict[str, Json] = document["$defs"]
    return definitions


def _named_models() -> Mapping[type[Any], Literal["validation", "serialization"]]:
    models: dict[type[Any], Literal["validation", "serialization"]] = {Error: "serialization"}
    for operation in _ALL:
        for refusal in operation.refusals.values():
            models[refusal.answer] = "serialization"
        if operation.answer is not None:
            models[operation.answer] = "serialization"
        if operation.body is not None:
            models[operation.body] = "validation"
    return models
