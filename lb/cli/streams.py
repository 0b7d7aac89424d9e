"""Standard input, output and error: there are always three, whatever started the process."""

from __future__ import annotations

import os
import sys
from typing import Final

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_standard_streams() -> None:
    """Open those of the descriptors 0 to 2 that are closed on /dev/null.

    The first sockets would get their numbers otherwise, and a client would read our log lines.
    """
    for descriptor, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            # The system gives the lowest free number, and those below are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:  # Python found it closed
            stream = open(descriptor, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  # stays
            setattr(sys, name, stream)
