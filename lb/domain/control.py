"""Seams around calls that concern all backends: who can be asked, and who is told afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lb.domain.backend import AppProtocol, Backend
from lb.domain.operation import Operation


@dataclass(frozen=True, slots=True)
class Reach:
    """One backend that is not disabled, and which of its ports answer, ready or not."""

    backend: Backend
    open: tuple[bool, bool]
    """By `AppProtocol`; False also where it has no such port."""

    def answers(self, protocol: AppProtocol) -> bool:
        """Whether it can be asked over `protocol`."""
        return self.open[protocol]

    @property
    def is_reachable(self) -> bool:
        """Whether it can be asked at all."""
        return any(self.open)


class Roster(Protocol):
    """Knows whom calls of our own can reach."""

    def __call__(self) -> tuple[Reach, ...]:
        """All backends that are not disabled, in the order of their source."""
        ...


class ControlNews(Protocol):
    """Is told of calls that changed servers."""

    def control_done(
        self, operation: Operation, model: bytes, backends: tuple[Backend, ...]
    ) -> None:
        """`operation` came to an end on `backends`, with success or without. Never raises.

        Args:
            operation: what was asked for.
            model: its model; empty where it has none.
            backends: all that were asked: also where it failed the state may be another now.
        """
        ...

    async def settled(self, backends: tuple[Backend, ...]) -> None:
        """Wait until what is known of `backends` is news from now on, for a second at most: a
        client that has its answer finds what it asked for."""
        ...
