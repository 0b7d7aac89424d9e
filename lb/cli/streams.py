"""Standard input, output and error: there are always three, whatever started the process."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


class OutputError(OSError):
    """Standard output could not be written."""


class _Output(io.FileIO):
    """Standard output, whose errors are told from all others."""

    def write(self, data: Buffer, /) -> int:
        """See `io.FileIO`.

        Raises:
            OutputError: it cannot be written.
        """
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from error


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
    output = sys.stdout
    if output is sys.__stdout__ and isinstance(output, io.TextIOWrapper):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(output.fileno(), "w", closefd=False)),
            encoding=output.encoding,
            # Not all terminals can show each sign.
            errors="replace" if output.errors == "strict" else output.errors,
            line_buffering=output.line_buffering,
        )


def give_up_output() -> None:
    """Write nothing more to standard output, also not what waits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
