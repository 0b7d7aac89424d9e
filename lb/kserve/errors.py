"""What an error of a Triton means to a balancer: the text decides, since its codes do not.

Status 503 and UNAVAILABLE stand for a full queue, a server that exits, a model that is loading, and
for calls that the client must not make (Triton `src/http_server.cc`, `src/grpc/grpc_utils.cc`,
`core/src`: texts of 2.51 to 2.73).
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Final


class Meaning(Enum):
    """What is said about a request that did not run."""

    NO_VERSION = "no_version"
    """This server has no version of the model."""
    UNKNOWN_MODEL = "unknown_model"
    """This server does not have the model, or not that version."""
    MODEL_NOT_READY = "model_not_ready"
    """It has the model, and loads or unloads it."""
    QUEUE_FULL = "queue_full"
    LEAVING = "leaving"
    """The server takes nothing new: it exits, or is not ready."""
    NO_SEQUENCE = "no_sequence"
    """The request continues a sequence that this server does not know."""
    NO_REGION = "no_region"
    """This server does not have a region of shared memory that the request names."""
    LOOP = "loop"
    """The server is a balancer of this kind, and has passed the request on before."""
    NOT_RUN = "not_run"
    """The server is a balancer of this kind, and says that the request ran on none of its backends
    (`lb.wire.hops.NOT_RUN`; no text says so)."""


NOT_READY: Final = frozenset(
    {Meaning.NO_VERSION, Meaning.UNKNOWN_MODEL, Meaning.MODEL_NOT_READY, Meaning.LEAVING}
)
"""The server runs no request for the model, for now."""
GRPC_STATUSES: Final = frozenset({3, 5, 14})
"""INVALID_ARGUMENT, NOT_FOUND and UNAVAILABLE: the only ones that may mean any of it."""
HTTP_STATUSES: Final = frozenset({400, 404, 503, 508})
ERROR_BYTES: Final = 4096
"""Longer answers are not looked into."""

_STEP: Final = r"(?:in ensemble '[^']*', )?"
_REQUEST: Final = r"(?:\[request id: .*\] )?"
"""Before some texts. The id is the client's, and other texts quote what clients write: so what such
a text says is all that there is."""
_NO_VERSION: Final = re.compile(
    r"Request for unknown model: '(.*)' (?:is not found|has no available versions)\Z"
)
_TEXTS: Final = (
    (
        Meaning.MODEL_NOT_READY,
        re.compile(_STEP + r"Request for unknown model: .* is not at ready state"),
    ),
    (Meaning.NO_VERSION, _NO_VERSION),
    (Meaning.UNKNOWN_MODEL, re.compile(_STEP + r"Request for unknown model: ")),
    (Meaning.UNKNOWN_MODEL, re.compile(r"requested model '[^']*' is not available")),
    (Meaning.QUEUE_FULL, re.compile(_STEP + _REQUEST + r"Exceeds maximum queue size\Z")),
    (
        Meaning.LEAVING,
        re.compile(
            r"Server exiting|Server not ready|GRPC server is shutting down|"
            + _STEP
            + _REQUEST
            + r"Server is stopping, scheduler for model has stopped accepting new inference"
            + r" requests\Z"
        ),
    ),
    (
        Meaning.NO_REGION,
        re.compile(_STEP + _REQUEST + r"Unable to find (?:system |cuda )?shared memory region: '"),
    ),
    (Meaning.LOOP, re.compile(r"loop detected: ")),
    (Meaning.NO_SEQUENCE, re.compile(r".{0,512}must specify the START flag on the first request")),
)


def meaning(text: str) -> Meaning | None:
    """What an error's text says; None for all other errors, which are for the client alone."""
    for known, expression in _TEXTS:
        if expression.match(text) is not None:
            return known
    return None


def model_without_version(text: str) -> str:
    """The model of which an error's text says that the server has no version; empty where it says
    something else."""
    found = _NO_VERSION.match(text)
    return "" if found is None else found[1]


def http_error_text(body: bytes) -> str:
    """The text in `{"error": "..."}`, or in an event that holds that, as those of `generate_stream`
    do; empty when the body is something else."""
    if len(body) > ERROR_BYTES:
        return ""
    body = body.removeprefix(b"data:")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    text = content.get("error") if isinstance(content, dict) else None
    return text if isinstance(text, str) else ""
