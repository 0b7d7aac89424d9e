"""What the fronts for cloud platforms have in common: a request of theirs is a v2 request.

SageMaker and Vertex AI fix the routes and drop headers that they do not know, so a Triton has a
port with other routes for each, where the content type says how long the JSON before binary
tensors is. Sources: Triton `src/sagemaker_server.cc`, `src/vertex_ai_server.cc`; what its code
leaves open was tried on 2.51.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

NO_JSON_LENGTH: Final = -1
"""The content type says nothing: all of the body is JSON."""
REPLACED: Final = frozenset(
    {b"accept-encoding", b"content-encoding", b"inference-header-content-length"}
)
"""Fields that these ports of a Triton do not look at; its v2 port would."""
_NUMBER: Final = re.compile(rb"[ \t]*([+-]?[0-9]{1,18})?")
"""As far as `atoi` reads."""


@dataclass(frozen=True, slots=True)
class FrontRequest:
    """What matters of a request to a front."""

    method: bytes
    path: bytes
    """Without a query."""
    length: int
    """Of the body in bytes; negative where it comes in chunks."""
    content_type: bytes = b""
    model: bytes = b""
    """`X-Amzn-SageMaker-Target-Model`."""
    redirect: bytes | None = None
    """`X-Vertex-Ai-Triton-Redirect`."""


@dataclass(frozen=True, slots=True)
class Forward:
    """It is this v2 request."""

    method: bytes
    target: bytes
    json_length: int = NO_JSON_LENGTH
    """For Inference-Header-Content-Length."""


@dataclass(frozen=True, slots=True)
class Own:
    """It is answered on the spot, as a Triton does."""

    status: int
    body: bytes = b""


class FrontFault(ValueError):
    """A content type that cannot be meant."""


UNKNOWN_ROUTE: Final = Own(400)
"""What these ports answer to everything that they do not know."""


def json_length(mime: bytes, request: FrontRequest) -> int:
    """How much of the body is JSON.

    Args:
        mime: the front's content type for binary tensors, up to the number.
        request: whose content type it may be.

    Raises:
        FrontFault: with Triton's text.
    """
    given = request.content_type
    at = given.find(mime)
    if at < 0:
        return NO_JSON_LENGTH
    if at:
        raise FrontFault(
            "expect MIME type for binary data starts with "
            f"'{mime.decode()}', got: {given.decode('latin-1')}"
        )
    text = given[len(mime) :]
    number = _NUMBER.match(text)
    length = int(number[1]) if number is not None and number[1] else 0
    if length < 0 or length > request.length >= 0:
        raise FrontFault(
            f"inference header size should be in range (0, {max(request.length, 0)}), "
            f"got: {text.decode('latin-1')}"
        )
    return length


def v2_head(head: bytes, forward: Forward) -> bytes:
    """The head of the v2 request.

    Args:
        head: of the request to the front: legal, and with its empty line.
        forward: what it becomes.
    """
    start, *lines = head.split(b"\r\n")
    dropped = REPLACED if forward.json_length < 0 else REPLACED | {b"content-type"}
    kept = [line for line in lines[:-2] if line.partition(b":")[0].lower() not in dropped]
    if forward.json_length >= 0:
        kept.append(b"Content-Type: application/octet-stream")
        kept.append(b"Inference-Header-Content-Length: %d" % forward.json_length)
    version = start.rpartition(b" ")[2]
    return b"\r\n".join((b"%b %b %b" % (forward.method, forward.target, version), *kept, b"", b""))
