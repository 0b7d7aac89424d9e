"""A board between whose stores and loads other workers do something."""

from __future__ import annotations

from collections.abc import Callable

from lb.sharing.board import Board, Entry, Values


class BusyBoard(Board):
    """Other workers do something between what this one reads and writes."""

    meanwhile: Callable[[], None]

    def write(self, entry: Entry) -> bool:
        self.meanwhile()
        is_told = super().write(entry)
        self.meanwhile()
        return is_told

    def write_queued(self, count: int) -> None:
        super().write_queued(count)
        self.meanwhile()

    def has_queued_elsewhere(self) -> bool:
        found = super().has_queued_elsewhere()
        self.meanwhile()
        return found

    def changes(self) -> list[tuple[int, int]]:
        found = super().changes()
        self.meanwhile()
        return found

    def read(self, worker: int, number: int) -> Values:
        values = super().read(worker, number)
        self.meanwhile()
        return values
