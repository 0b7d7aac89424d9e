"""Errors of Triton are told apart by their texts."""

from __future__ import annotations

import json

import pytest

from lb.kserve.errors import ERROR_BYTES, Meaning, http_error_text, meaning


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Request for unknown model: 'm' is not found", Meaning.NO_VERSION),
        ("Request for unknown model: 'm' has no available versions", Meaning.NO_VERSION),
        ("Request for unknown model: 'm' version 9 is not found", Meaning.UNKNOWN_MODEL),
        ("in ensemble 'e', Request for unknown model: 'm' is not found", Meaning.UNKNOWN_MODEL),
        ("requested model 'm' is not available", Meaning.UNKNOWN_MODEL),
        (
            "Request for unknown model: 'm' version 1 is not at ready state",
            Meaning.MODEL_NOT_READY,
        ),
        ("Exceeds maximum queue size", Meaning.QUEUE_FULL),
        ("[request id: 7] Exceeds maximum queue size", Meaning.QUEUE_FULL),
        ("Server exiting", Meaning.LEAVING),
        ("Server not ready", Meaning.LEAVING),
        (
            "GRPC server is shutting down and has stopped accepting new requests.",
            Meaning.LEAVING,
        ),
        (
            "[request id: 7] Server is stopping, scheduler for model has stopped accepting new"
            " inference requests",
            Meaning.LEAVING,
        ),
        (
            "[request id: a] inference request for sequence 77 to model 'm' must specify the START"
            " flag on the first request of the sequence",
            Meaning.NO_SEQUENCE,
        ),
        ("loop detected: the request has passed this load balancer before: a", Meaning.LOOP),
        ("This protocol is restricted, expecting header 'k'", None),
        ("explicit model load / unload is not allowed if polling is enabled", None),
        ("Request timeout expired", None),
        ("unexpected shape for input 'IN' for model 'm'", None),
        ("the model said: Server exiting", None),
        # What a client writes is quoted.
        ("unexpected inference input 'Exceeds maximum queue size' for model 'm'", None),
        ("[request id: Exceeds maximum queue size] unexpected shape for input 'IN'", None),
        (
            "Unable to find shared memory region: 'Server is stopping, scheduler for model has"
            " stopped accepting new inference requests'",
            Meaning.NO_REGION,
        ),
        ("unexpected input 'Unable to find shared memory region: 'r'' for model 'm'", None),
        ("", None),
    ],
)
def test_meanings(text: str, expected: Meaning | None) -> None:
    assert meaning(text) is expected


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":"Server exiting"}', "Server exiting"),
        (b'data: {"error":"it failed"}\n\n', "it failed"),
        (b'data: {"error":"one"}\n\ndata: {"error":"two"}\n\n', ""),
        (b'{"error": 7}', ""),
        (b'["error"]', ""),
        (b"", ""),
        (b"\xff", ""),
        (b"[" * ERROR_BYTES, ""),
        (json.dumps({"error": "x" * ERROR_BYTES}).encode(), ""),
    ],
)
def test_texts_of_http_errors(body: bytes, text: str) -> None:
    assert http_error_text(body) == text
