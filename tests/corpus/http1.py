"""What clients should not send over HTTP/1.1, and the right answer to each: the whole corpus.

The rows name the rule, not one server's quirk. A row with status 200 is legal though unusual and
reaches the backend in its clean form; any other is answered by us, once, and the connection is
closed. The rows of b1 in the review of trusted proxies keep their ids.
"""

from __future__ import annotations

from typing import Final

from tests.corpus import http1_framing, http1_heads
from tests.corpus.http1_rows import Row

ALL: Final[tuple[Row, ...]] = http1_framing.ALL + http1_heads.ALL

DEVIATIONS: Final[dict[str, str]] = {
    "CL-2": "RFC 9110 8.6 lets a recipient repair equal lengths; nothing is repaired here. So are "
    "CL-4 and CL-35.",
    "TE-3": "RFC 9110 5.6.1 has recipients ignore empty list members; no client sends them here. "
    "So is TE-4.",
    "CK-3": "Extensions have no length in RFC 9112 7.1.1; over 256 bytes they are refused.",
    "CK-16": "What is wrong with a chunk may come after the head has gone to a backend: the "
    "request is then aborted there, by closing its connection, and never completed.",
    "LN-28": "RFC 9112 2.2 asks to ignore at least one empty line before a request; one it is.",
    "HO-7": "RFC 9112 3.2.2 has servers accept the absolute form. It is for proxies of clients, "
    "and offers a second host beside Host, so it is refused. So is HO-32.",
    "HO-12": "Access is decided on the decoded path; what is not control passes as it is spelled, "
    "and Triton, which compares paths raw, answers 404. So do HO-40 and HO-43.",
    "HO-31": "HTTP/1.0 has no Host; the HTTP/1.1 that we speak to backends needs one.",
    "PI-4": "A client that goes on sending behind `Connection: close` is not waited for: it may "
    "see a reset after its answer.",
}
"""Rows whose right answer differs from the standard's or the review's, and why."""
