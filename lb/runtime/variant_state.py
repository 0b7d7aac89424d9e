"""The file in which shares of variants outlive the process (`state` in the configuration)."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from lb.net.files import answer_of, read_text, replace_text
from lb.net.tasks import TaskOwner
from lb.net.threads import in_thread
from lb.net.timers import TimerWheel
from lb.proxy.variants import VariantBook

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_RAMP_S: Final = 60.0
"""How often a ramp is written down that goes on."""
_KEY: Final = "variants"


class VariantState:
    """Reads the file when the process starts, and writes it when shares have changed."""

    def __init__(self, book: VariantBook, timers: TimerWheel, tasks: TaskOwner) -> None:
        """
        Args:
            book: whose shares are kept.
            timers: of the process.
            tasks: owns the writing.
        """
        self._book = book
        self._tasks = tasks
        self._path = ""
        self._is_start = True
        self._written: Any = None
        """What the file holds, as far as it matters; None: nobody knows."""
        self._looks = 0
        self._is_writing = False
        self._why = ""
        """Why it could not be written last, as it was logged."""
        timers.every(_LOOK_S, self._look)

    def configure(self, path: str | None) -> None:
        """Keep the state in another file from now on; None: in none. It is read when the process
        starts: later the process knows better, and its event loop reads no files."""
        is_start, self._is_start = self._is_start, False
        if (path or "") == self._path:
            return
        self._path, self._written = path or "", None
        if path is not None and is_start:
            self._read(path)

    def _read(self, path: str) -> None:
        try:
            state = json.loads(answer_of(lambda: read_text(path), path))
            self._book.resume(state[_KEY])
        except FileNotFoundError:
            pass  # nothing was changed yet
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            fields = {"file": path, "why": str(error)}
            _log.warning("state of variants cannot be read", extra=fields)

    def _look(self) -> None:
        """Write the file if that is due."""
        if not self._path or self._is_writing:
            return
        self._looks += 1
        state = {name: each for name, each in self._book.export().items() if each["changed"]}
        ramps = any(each["ramp_s"] is not None for each in state.values())
        known = {name: _lasting(each) for name, each in state.items()}
        if known != self._written or (ramps and self._looks * _LOOK_S >= _RAMP_S):
            self._is_writing = True
            self._tasks.spawn(self._write(state, known), name="write-state")

    async def _write(self, state: dict[str, Any], known: dict[str, Any]) -> None:
        """Write the file; if that fails, the next look tries again."""
        path = self._path
        try:
            await in_thread(replace_text, path, json.dumps({_KEY: state}, indent=1) + "\n")
        except OSError as error:
            why = error.strerror or str(error)
            if why != self._why:
                self._why = why
                fields = {"file": path, "why": why}
                _log.warning("state of variants cannot be written", extra=fields)
        else:
            self._why = ""
            if path == self._path:
                self._written, self._looks = known, 0
        finally:
            self._is_writing = False


def _lasting(state: dict[str, Any]) -> dict[str, Any]:
    """What of a name's state does not change by itself."""
    if state["ramp_s"] is None:
        return state
    return {"changed": state["changed"], "why": state["why"]}
