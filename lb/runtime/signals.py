"""Signals that come before the process can act on them.

By default each of them ends a process. `serve` holds them from its very beginning until it has
handlers for them, and then gets each one that has come, once. SIGTERM and SIGINT are not held: a
start that waits for a file must end.
"""

from __future__ import annotations

import signal
from typing import Final

_HELD: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def hold_signals() -> None:
    """Have them wait. To be called before the first thread is started, which inherits this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)


def release_signals() -> None:
    """Act on those that came, and on others at once. To be called in the main thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
