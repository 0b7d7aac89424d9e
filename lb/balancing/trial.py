"""Gives one request to a backend that gets no others, and all further ones to whom they belong."""

from __future__ import annotations

from lb.domain.backend import Backend
from lb.domain.pool import Picker
from lb.domain.trial import Trial


class TrialPicker:
    """Takes a trial as soon as a request comes for which its backend has room."""

    __slots__ = ("_picker", "trial")

    def __init__(self, trial: Trial, picker: Picker | None) -> None:
        """Pick as `picker` does once the trial is taken."""
        self.trial = trial
        self._picker = picker

    def pick(self) -> Backend | None:
        """Return the backend for one request; None when all are full."""
        backend = self.take()
        if backend is not None:
            return backend
        return self._picker.pick() if self._picker is not None else None

    def take(self) -> Backend | None:
        """Return the backend of the trial; None when it is taken, or has no room."""
        trial = self.trial
        if trial.is_open and trial.backend.has_room:
            trial.is_open = False
            return trial.backend
        return None
