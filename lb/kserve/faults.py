"""Whose fault an error answer is: the text decides, since Triton's codes do not.

Triton answers errors of a device as 400, 500 or UNKNOWN, and mistakes of clients as 400, 500 or
INTERNAL as well. So what is certainly a client's mistake is told by how Triton words it, what is
certainly a broken device by the names of CUDA and its libraries, and the rest stays open: a backend
is to blame for it if others answer well (`lb.health.outliers`). That holds for every code, also for
one that usually is a client's mistake: a backend that answers all requests so at once would be the
quickest of all, and get them all.
"""

from __future__ import annotations

import re
from typing import Final

from lb.domain.backend import AppProtocol
from lb.domain.fault import Fault
from lb.kserve.errors import meaning

LEAST_RESPONSE: Final = 80
"""Bytes of a response to an inference, at least: the names of a model and of an output, its type,
shape and data in JSON. Shorter ones are looked into, which takes nothing from the usual ones."""

_BUSY: Final = (frozenset({408, 413, 429, 431, 503}), frozenset({4, 8, 14}))
"""By protocol: codes of servers that are busy or leave, of limits, and of deadlines. They say
nothing against a backend unless the text names a device. gRPC: DEADLINE_EXCEEDED,
RESOURCE_EXHAUSTED and UNAVAILABLE."""

_STEP: Final = r"(?:in ensemble '[^']*', )?(?:\[request id: [^\]]*\] )?"
_MISTAKES: Final = re.compile(
    _STEP + r"(?:"
    # Bad JSON and messages: 500 and INTERNAL in some versions.
    r"failed to parse|Unable to (?:parse|load|set)|Error parsing|Unexpected |unexpected "
    r"|Converting keyword|failed to get (?:request params|model version from)"
    r"|Invalid |invalid |Missing |missing |must |Expected |expected |expects "
    r"|Unable to find shared memory|shared memory|Unsupported |unsupported "
    r"|inference (?:request|input|output)|input '|input \"|output '|output \"|parameter '"
    r"|(?:Raw request|Input|contents field) must |unable to find data for input|'shared_memory_"
    r"|This (?:API|protocol) is restricted|explicit model load|request .{0,64}must "
    r"|\S* ?model .{0,128}(?:expects|does not support)|.{0,128}does not support batching"
    r"|input byte size mismatch|incomplete string|The shape of the raw input"
    r"|attempt to (?:access|get) "
    r"|All input dimensions should be specified|class result not available|sending [BF]\S+ data "
    r"|Failed to convert|failed to convert|(?:\S+ RPC |HTTP end point )?doesn't support"
    r"|the server does not support"
    r")"
)
_WAITED: Final = re.compile(r".{0,256}(?:timeout expired|timeout of the corresponding sequence)")
"""Limits that the client or the model's configuration set."""
_TOO_MUCH: Final = re.compile(r"(?i:out of memory)")
"""The request may have been too large."""
_BROKEN: Final = re.compile(
    r"CUDA|\bcuda[A-Z_]|cudnn|CUDNN|cublas|CUBLAS|\bNVML\b|\bECC\b|uncorrectable|device-side assert"
    r"|illegal memory access|unspecified launch failure|GPU is lost|fallen off the bus"
    r"|Stub process .{0,256}is not healthy"
)


def lacks_outputs(body: bytes) -> bool:
    """Whether a response to an inference is a JSON object without outputs. Triton always writes
    that member, though it may be empty. What is no JSON is left to the client."""
    return body[:1] == b"{" and b'"outputs"' not in body


def fault_of_answer(protocol: AppProtocol, code: int, text: str) -> Fault | None:
    """What an error answer says against the backend that gave it; None: nothing.

    Args:
        protocol: over which it came.
        code: HTTP or gRPC status.
        text: of the error; empty where it is not known.
    """
    if not (code >= 400 if protocol is AppProtocol.HTTP else code):
        return None
    if _MISTAKES.match(text) or _WAITED.match(text) or meaning(text) is not None:
        return None
    if _BROKEN.search(text) and not _TOO_MUCH.search(text):
        return Fault.DEVICE
    return None if code in _BUSY[protocol] else Fault.ERROR
