"""The OpenAPI description of the live document, its events, and sessions."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter

from lb.admin.live_document import LiveDocument, Login, SessionRights
from lb.admin.operations import EVENTS, LIVE, SESSION

_SCHEMAS: Final = "#/components/schemas/"
_REFUSALS: Final = {
    401: "Unauthorized",
    403: "Forbidden",
    415: "UnsupportedMediaType",
    500: "InternalServerError",
}
"""Answers that every operation may give, by status."""
_NEEDS_READ: Final = {"security": [{}, {"token": ["read"]}]}


def live_schemas() -> dict[str, Any]:
    """The schemas by name."""
    _, definitions = TypeAdapter.json_schemas(
        [
            (kind.__name__, "serialization", TypeAdapter(kind))
            for kind in (LiveDocument, Login, SessionRights)
        ],
        ref_template=f"{_SCHEMAS}{{model}}",
    )
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


def live_paths() -> dict[str, Any]:
    """The routes."""
    document = _body("application/json", "LiveDocument")
    events = _body("text/event-stream", "LiveDocument")
    rights = _body("application/json", "SessionRights")
    log_in = _operation("logIn", "Begin a session for a token: sets a cookie.", rights)
    log_in["requestBody"] = {
        "required": True,
        "content": _body("application/json", "Login")["content"],
    }
    gone = {"description": "It has ended, if there was one."}
    return {
        LIVE: {
            "get": _operation("getLive", "Show the whole process in one document.", document)
            | _NEEDS_READ
        },
        EVENTS: {
            "get": _operation(
                "getLiveEvents",
                "Send that document once a second as server-sent events, to at most 32 viewers.",
                events,
            )
            | _NEEDS_READ
        },
        SESSION: {
            "get": _operation("getSession", "Show what this browser may do.", rights),
            "post": log_in,
            "delete": _operation("logOut", "End the session.", gone),
        },
    }


def _operation(name: str, summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    refusals = {
        str(status): {"$ref": f"#/components/responses/{phrase}"}
        for status, phrase in _REFUSALS.items()
    }
    return {"operationId": name, "summary": summary, "responses": {"200": answer, **refusals}}


def _body(kind: str, schema: str) -> dict[str, Any]:
    return {
        "description": f"{schema}.",
        "content": {kind: {"schema": {"$ref": f"{_SCHEMAS}{schema}"}}},
    }
