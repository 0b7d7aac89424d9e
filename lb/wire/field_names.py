"""Names of header fields that some server acts upon, and the disguises they come in.

Servers that hand fields on as variables (CGI, WSGI) cannot tell `content_length` from
`content-length`, so a field with an underscore may overrule the one that we have checked.
"""

from __future__ import annotations

from itertools import product
from typing import Final

REDIRECT: Final = b"x-vertex-ai-triton-redirect"
"""Has Triton's Vertex AI endpoint serve any other route, so that rules about paths mean nothing.
Never passed on."""

ACTED_UPON: Final = frozenset(
    b"accept-encoding content-encoding content-length content-type endpoint-load-metrics-format "
    b"grpc-accept-encoding grpc-encoding grpc-timeout http2-settings "
    b"inference-header-content-length keep-alive proxy-authenticate proxy-authorization "
    b"proxy-connection transfer-encoding true-client-ip x-amzn-sagemaker-target-model x-api-key "
    b"x-client-ip x-cluster-client-ip x-forwarded-by x-forwarded-client-cert x-forwarded-for "
    b"x-forwarded-host x-forwarded-port x-forwarded-prefix x-forwarded-proto x-forwarded-server "
    b"x-forwarded-ssl x-http-method x-http-method-override x-method-override x-original-url "
    b"x-real-ip x-request-id x-rewrite-url".split(b" ")
) | {REDIRECT}
"""Names with a hyphen that decide about framing, coding, origin or target of a request."""


def twins(name: bytes) -> frozenset[bytes]:
    """All other names that a server may take for `name`, which is in lower case."""
    first, *rest = name.split(b"-")
    spellings = (
        first + b"".join(mark + word for mark, word in zip(marks, rest, strict=True))
        for marks in product((b"-", b"_"), repeat=len(rest))
    )
    return frozenset(spellings) - {name}


TWINS: Final = frozenset(twin for name in ACTED_UPON for twin in twins(name))
"""Names with an underscore that a request does not need and must not have."""
DROPPED: Final = TWINS | {REDIRECT}
"""Request fields that no backend ever sees."""
