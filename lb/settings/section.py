"""Base of every section of the settings."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: frozen, and nothing unknown is let through."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        # Before 2.10 pydantic keeps names that begin with `model_` to itself.
        protected_namespaces=(),
    )
