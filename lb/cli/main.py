"""The command `triton-lb`."""

from __future__ import annotations

import errno
import sys
from typing import Final

from lb.cli.commands import build_parser
from lb.cli.streams import OutputError, give_up_output, open_standard_streams
from lb.runtime.collector import collect_seldom

_SIGPIPE: Final = 141
"""Whoever read the output has closed it, as `head` does: what shells show of programs that do not
ignore this signal."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; usage errors exit with 2 by themselves."""
    open_standard_streams()
    collect_seldom()
    try:
        parser = build_parser()
        arguments = parser.parse_args(argv)
        if arguments.handler is None:
            parser.error("missing: COMMAND")
        code = int(arguments.handler(arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except OutputError as error:
        give_up_output()
        if error.errno == errno.EPIPE:
            return _SIGPIPE
        print(f"triton-lb: cannot write the output: {error.strerror}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
