"""A process of a service with workers ends with its supervisor, from its first moment on.

It has the listening sockets from its start, but hears its supervisor only once all is imported.
Until then SIGTERM ends it: from the supervisor that stops, or from the kernel when the supervisor
has died. Afterwards SIGTERM is ignored, and the channel to the supervisor tells the same.

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
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    poll = select.poll()
    poll.register(int(channel), 0)  # tells nothing but that the other end has gone
    if poll.poll(0):  # it had died before
        signal.raise_signal(signal.SIGTERM)
