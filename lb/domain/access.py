"""What a bearer of a token may do, and who learns how a request was served."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """One of the things that a token allows."""

    INFER = "infer"
    """Requests on the ports for clients, but for those that change a server."""
    CONTROL = "control"
    """Requests on the ports for clients that change a server: `OperationKind.CONTROL`."""
    READ = "read"
    """Looking at the admin API."""
    OPERATE = "operate"
    """Looking at the admin API, and changing what it shows."""


class Audience(StrEnum):
    """Who learns how a request was served."""

    NOBODY = "off"
    ROLE = "role"
    """Those with a token that has the role `read` or `operate`."""
    ALL = "all"
