"""Who learns how a request was served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lb.access.gate import Credentials
from lb.domain.access import Audience, Role
from lb.settings.reporting import DiagnosticsSettings

_ADMIN_ROLES: Final = frozenset({Role.READ, Role.OPERATE})


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What is told to whom."""

    audience: Audience = Audience.NOBODY
    request_ids: bool = False
    """Requests without an id get one, which goes to the backend."""

    def may_concern(self, credentials: Credentials | None) -> bool:
        """Whether the client of a request may learn something, by its head alone.

        Args:
            credentials: what the gate asks of it; None where it asks nothing.
        """
        if self.audience is Audience.ROLE:
            return credentials is not None
        return self.audience is Audience.ALL

    def concerns(self, credentials: Credentials | None) -> bool:
        """Whether the client of a request learns something; the gate has admitted the claim."""
        if self.audience is not Audience.ROLE:
            return self.audience is Audience.ALL
        token = (
            credentials.token
            if credentials is not None and credentials.digest is not None
            else None
        )
        return token is not None and not token.roles.isdisjoint(_ADMIN_ROLES)


NO_DISCLOSURE: Final = Disclosure()
"""Nobody learns anything."""


def disclosure(settings: DiagnosticsSettings) -> Disclosure:
    """Read what is told to whom from settings."""
    return Disclosure(settings.headers, settings.request_ids)
