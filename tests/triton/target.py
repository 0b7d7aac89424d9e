"""What a flow runs against: one Triton directly, or the balancer in front of some."""

from __future__ import annotations

import http.client
from dataclasses import dataclass

WAIT_S = 60.0
"""How long a client of a test waits for anything: enough on a busy machine, and well below the
limit of a test, so that a server that answers nothing costs little."""


@dataclass(frozen=True)
class Target:
    """The two addresses, `HOST:PORT`, that serve KServe v2."""

    http: str
    grpc: str


def http_status(address: str, path: str, *, timeout_s: float = 2.0) -> int:
    """The status of one GET on a fresh connection, 0 when there is no answer."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
