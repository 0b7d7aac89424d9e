"""The OpenAPI 3.1 document of the admin API, written by hand; tests hold it to the routes."""

from __future__ import annotations

from typing import Any, Final

from lb.domain.backend import BackendState
from lb.domain.model import ModelState

Schema = dict[str, Any]


def _object(properties: dict[str, Schema], description: str) -> Schema:
    return {
        "type": "object",
        "description": description,
        "required": list(properties),
        "properties": properties,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Schema, description: str) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_COUNT: Final = {"type": "integer", "minimum": 0}
_SECONDS: Final = {"type": "number", "minimum": 0}
_SECONDS_OR_NULL: Final = {"type": ["number", "null"], "minimum": 0}
_NUMBER_OR_NULL: Final = {"type": ["number", "null"], "minimum": 0}
_MS: Final = {"type": ["number", "null"], "minimum": 0}
_TEXT: Final = {"type": "string"}
_NAMES: Final = {"type": "array", "items": _TEXT}
_STATE: Final = {"type": "string", "enum": [state.value for state in BackendState]}
_WHY: Final = {"type": "string", "description": "The reason in words; empty when it is up."}
_NAME: Final = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": _TEXT,
    "description": "Name of the backend.",
}
_LIMIT: Final = {
    "name": "limit",
    "in": "query",
    "schema": _TEXT,
    "description": "How long what still runs on it may take, such as `30s`; the rest is cut.",
}

_SCHEMAS: Final = {
    "Latency": _object(
        {"p50_ms": _MS, "p99_ms": _MS},
        "Quantiles of answered attempts since the start, from histograms; null: none yet.",
    ),
    "Port": _object(
        {
            "address": _TEXT,
            "state": _STATE | {"description": "What the probes say."},
            "why": _WHY,
            "since_s": _SECONDS | {"description": "Seconds in this state."},
            "changes": _COUNT | {"description": "How often the state has changed."},
            "in_flight": _COUNT,
            "connections": _COUNT,
            "served": _COUNT | {"description": "Attempts that the backend answered."},
            "failed": _COUNT | {"description": "Attempts that ended without its answer."},
            "latency": _ref("Latency"),
            "probe_ms": _MS | {"description": "How long the last probe took."},
        },
        "One protocol port of a backend.",
    ),
    "Device": _object(
        {
            "id": _TEXT | {"description": "The UUID of a GPU, or of a slice of one."},
            "utilization": _NUMBER_OR_NULL
            | {"description": "Part of the time in which anybody used it, 0 to 1."},
            "memory_used_bytes": _NUMBER_OR_NULL,
            "memory_total_bytes": _NUMBER_OR_NULL,
        },
        "A device of a backend; null: it does not say.",
    ),
    "Load": _object(
        {
            "age_s": _SECONDS_OR_NULL | {"description": "Since it said so; null: it does not."},
            "pending": {
                "type": "number",
                "minimum": 0,
                "description": "Requests that wait in it, whoever sent them.",
            },
            "others": _NUMBER_OR_NULL
            | {
                "description": "Part of the time in which others than this load balancer keep its "
                "devices busy; null: that cannot be told."
            },
            "devices": {"type": "array", "items": _ref("Device")},
        },
        "What a backend with a metrics address says of how much it has to do.",
    ),
    "Backend": _object(
        {
            "name": _TEXT,
            "state": _STATE
            | {"description": "What the operator says, else the worst state of its ports."},
            "why": _WHY,
            "since_s": _SECONDS | {"description": "Seconds in this state."},
            "in_flight": _COUNT,
            "open_sequences": _COUNT | {"description": "Of stateful models."},
            "served": _COUNT,
            "latency": _ref("Latency"),
            "weight": {"type": "number", "exclusiveMinimum": 0},
            "share": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1,
                "description": "What part of its weight counts: less than 1 while it starts "
                "slowly.",
            },
            "max_in_flight": _COUNT | {"description": "0 is no limit."},
            "empty": {
                "type": "boolean",
                "description": "Nothing is in flight and no sequence open: a backend that drains "
                "may be stopped.",
            },
            "origin": _TEXT
            | {"description": "What names it: `configuration`, a source, or `operator`."},
            "cut_in_s": _SECONDS_OR_NULL
            | {
                "description": "When what still runs on a backend that drains or leaves is cut; "
                "null: never."
            },
            "load": _ref("Load"),
            "ports": {
                "type": "object",
                "description": "By protocol: `http`, `grpc`.",
                "additionalProperties": _ref("Port"),
            },
        },
        "One Triton.",
    ),
    "Backends": _object(
        {"backends": {"type": "array", "items": _ref("Backend")}}, "The whole pool."
    ),
    "Queue": _object(
        {
            "without_backend": _COUNT
            | {"description": "Requests that wait since no backend is eligible for them."},
            "models": {"type": "array", "items": _ref("QueuedModel")},
        },
        "Requests that wait.",
    ),
    "QueuedModel": _object(
        {
            "model": _TEXT,
            "version": _TEXT | {"description": "As requests name it; empty for any."},
            "waiting": {
                "type": "object",
                "description": "Requests by priority; 1 is the highest.",
                "additionalProperties": _COUNT,
            },
            "oldest_ms": _MS | {"description": "How long the one has waited that came first."},
            "backends": {"type": "array", "items": _ref("ModelBackend")},
        },
        "One version of a model.",
    ),
    "ModelBackend": _object(
        {
            "name": _TEXT,
            "in_flight": _COUNT,
            "limit": _COUNT | {"description": "0 is no limit."},
            "expected_ms": _MS
            | {"description": "What a request of one row takes there alone; null: not learnt yet."},
            "row_ms": _MS | {"description": "What each further row adds."},
            "learnt": _COUNT
            | {
                "description": "Executions that it was learnt from; 0, and yet a time: the backend "
                "itself has measured that."
            },
            "slowed": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "By how much requests count as slower there because others use it, "
                "as far as that is not learnt already.",
            },
        },
        "A scheduled model on one backend.",
    ),
    "Model": _object(
        {
            "name": _TEXT,
            "version": _TEXT | {"description": "Empty where none was ever loaded."},
            "state": {"type": "string", "enum": [state.value for state in ModelState]},
            "reason": _TEXT | {"description": "Why it is not ready, in the backend's words."},
        },
        "One version of a model on one backend.",
    ),
    "Drift": _object(
        {
            "models": _NAMES | {"description": "Ready on another backend and not on this one."},
            "configurations": _NAMES
            | {
                "description": "Models that it does not configure as most backends that have the "
                "same version. At most 200 such models are looked at in all."
            },
            "settings": _NAMES
            | {"description": "Trace and log settings in which it differs from most."},
        },
        "What a backend does not have like the others. It may be meant so.",
    ),
    "Models": _object(
        {
            "listed": {
                "type": ["boolean", "null"],
                "description": "Whether it lists its models: if not, it counts as having any. "
                "null: it has not been asked yet, or does not answer.",
            },
            "age_s": {
                "type": ["number", "null"],
                "minimum": 0,
                "description": "Age of the list in seconds.",
            },
            "models": {"type": "array", "items": _ref("Model")},
            "regions": _NAMES | {"description": "Registered regions of shared memory."},
            "drift": _ref("Drift"),
        },
        "What is known of the models of one backend.",
    ),
    "Source": _object(
        {
            "name": _TEXT | {"description": "Such as `dns:HOST` or `file:PATH`."},
            "backends": _COUNT | {"description": "In its last good set, which is in force."},
            "updates": _COUNT | {"description": "Sets that it gave."},
            "failures": _COUNT | {"description": "Times that it had none to give."},
            "age_s": _SECONDS_OR_NULL | {"description": "Of its last good set; null: none yet."},
            "error": _TEXT | {"description": "Why it has none now; empty where it has."},
        },
        "One source of backends.",
    ),
    "Sources": _object(
        {"sources": {"type": "array", "items": _ref("Source")}}, "All sources, in their order."
    ),
    "NewBackend": {
        "type": "object",
        "description": "As an entry of `backends` in the configuration (docs/configuration.md); "
        "with the name alone, a backend that was removed is taken back.",
        "properties": {"name": _TEXT, "http": _TEXT, "grpc": _TEXT},
    },
    "Reload": _object(
        {
            "changed": _NAMES | {"description": "Settings that are others now, as paths."},
            "hash": _TEXT | {"description": "How the SHA-256 of the file begins."},
        },
        "What a reload has done.",
    ),
    "Upgrade": _object({"pid": _COUNT}, "The process that serves now."),
    "NotDone": _object(
        {"error": _TEXT, "problems": _NAMES}, "Why nothing has changed; all that was wrong."
    ),
    "Error": _object({"error": _TEXT}, "What was wrong, in one sentence."),
}

_REFUSALS: Final = {
    "401": _json(_ref("Error"), "A valid token is needed, where tokens with admin roles exist."),
    "403": _json(
        _ref("Error"),
        "The token lacks the role, or the request comes from another web site or for another host.",
    ),
}
_BAD_QUERY: Final = _json(_ref("Error"), "What stands behind the question mark is wrong.")
_NOT_FOUND: Final = _json(_ref("Error"), "There is no such backend.")


def _change(action: str, summary: str) -> Schema:
    return {
        "post": {
            "operationId": f"{action}Backend",
            "summary": summary,
            "parameters": [_NAME, _LIMIT] if action == "drain" else [_NAME],
            "responses": {
                "200": _json(_ref("Backend"), "The backend as it is now."),
                **_REFUSALS,
                "400": _BAD_QUERY,
                "404": _NOT_FOUND,
                "409": _json(_ref("Error"), "It has been removed, and finishes what it has."),
                "415": _json(_ref("Error"), "The body is not JSON; none is needed."),
            },
        }
    }


def _get(operation: str, summary: str, answer: Schema) -> Schema:
    responses = {"200": answer, **_REFUSALS}
    return {"operationId": operation, "summary": summary, "responses": responses}


def _get_one(operation: str, summary: str, answer: Schema) -> Schema:
    responses = {"200": answer, **_REFUSALS, "404": _NOT_FOUND}
    return _get(operation, summary, answer) | {"parameters": [_NAME], "responses": responses}


def _add() -> Schema:
    return {
        "operationId": "addBackend",
        "summary": "Add a backend until the process ends; it gets requests once its probes say so.",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("NewBackend")}},
        },
        "responses": {
            "201": _json(_ref("Backend"), "The backend as it is now."),
            **_REFUSALS,
            "400": _json(_ref("Error"), "The settings are wrong; all that is wrong is told."),
            "409": _json(_ref("Error"), "The name is taken, or there are too many backends."),
        },
    }


def _remove() -> Schema:
    return {
        "operationId": "removeBackend",
        "summary": "Remove a backend: it finishes what it has, and is gone.",
        "description": "One that the configuration or a source names stays out until the process "
        "ends, or until it is added again.",
        "parameters": [_NAME, _LIMIT],
        "responses": {
            "200": _json(_ref("Backend"), "The backend as it is now; it may be gone already."),
            **_REFUSALS,
            "400": _BAD_QUERY,
            "404": _NOT_FOUND,
        },
    }


def _life(name: str, schema: str, summary: str) -> Schema:
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "responses": {
                "200": _json(_ref(schema), "It is done."),
                **_REFUSALS,
                "409": _json(_ref("NotDone"), "Nothing has changed."),
                "415": _json(_ref("Error"), "The body is not JSON; none is needed."),
            },
        }
    }


def _paths() -> Schema:
    return {
        "/api/v1/backends": {
            "get": _get(
                "listBackends",
                "List all backends in the order of their sources.",
                _json(_ref("Backends"), "All backends."),
            ),
            "post": _add(),
        },
        "/api/v1/backends/{name}": {
            "get": _get_one("getBackend", "Show one backend.", _json(_ref("Backend"), "It.")),
            "delete": _remove(),
        },
        "/api/v1/sources": {
            "get": _get(
                "listSources",
                "List the sources of backends, in their order.",
                _json(_ref("Sources"), "All sources."),
            )
        },
        "/api/v1/queue": {
            "get": _get(
                "getQueue",
                "Show requests that wait for their turn, by model.",
                _json(_ref("Queue"), "All models that are scheduled and were asked for."),
            )
        },
        "/api/v1/backends/{name}/models": {
            "get": _get_one(
                "getModels",
                "Show which models one backend has, and what it lacks.",
                _json(_ref("Models"), "What is known of them."),
            )
        },
        "/api/v1/backends/{name}/drain": _change(
            "drain", "Let a backend finish what it has and give it nothing new."
        ),
        "/api/v1/backends/{name}/enable": _change("enable", "Give a backend requests again."),
        "/api/v1/backends/{name}/disable": _change("disable", "Take a backend out."),
        "/api/v1/reload": _life(
            "reload", "Reload", "Apply the configuration file: all of it, or nothing."
        ),
        "/api/v1/upgrade": _life(
            "upgrade",
            "Upgrade",
            "Start the program anew with the listening sockets, and give way to it.",
        ),
        "/api/v1/openapi.json": {
            "get": _get("getOpenapi", "This document.", _json({"type": "object"}, "OpenAPI 3.1."))
        },
    }


def openapi_document(version: str) -> Schema:
    """Return the document for this version of the product."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "triton-lb admin API",
            "version": version,
            "description": "State of the backends; adding, draining and removing them.",
        },
        "paths": _paths(),
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }
