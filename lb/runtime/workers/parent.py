"""A process of a service with workers ends with its supervisor, from its first moment on.

It has the listening sockets from its start, but hears its supervisor only once all is imported.
Until then SIGTERM ends it: from the supervisor that stops, or from the kernel when the supervisor
has died. Afterwards SIGTERM is ignored, and the channel to the supervisor tells the same. A process
that was stopped (SIGSTOP) does not read the channel, so the kernel has it go on then.

Nothing else is imported here: this is to be called before the imports that take time.
"""

from __future__ import annotations

import ctypes
import select
import signal
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "TRITON_LB_SEAT_FD"
"""Environment variable with the descriptor of the channel to the supervisor."""
_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def end_with_supervisor(environment: Mapping[str, str]) -> None:
    """Have the kernel send SIGTERM when the supervisor dies. Do nothing where there is none.

    Args:
        environment: of the process.
    """
    channel = environment.get(VARIABLE, "")
    if not channel:
        return
    _signal_at_death_of_supervisor(signal.SIGTERM)
    poll = select.poll()
    poll.register(int(channel), 0)  # tells nothing but that the other end has gone
    if poll.poll(0):  # it had died before
        signal.raise_signal(signal.SIGTERM)


def go_on_without_supervisor() -> None:
    """Have the kernel send SIGCONT when the supervisor dies, in place of SIGTERM.

    A process that is stopped then hears from its channel that the supervisor has gone, and gives up
    the listening sockets. To all others the signal is nothing. To be called by a process that
    ignores SIGTERM and reads the channel.
    """
    _signal_at_death_of_supervisor(signal.SIGCONT)


def _signal_at_death_of_supervisor(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
