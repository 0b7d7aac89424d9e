"""The command `triton-lb`."""

from __future__ import annotations

import sys

from lb.cli.commands import build_parser
from lb.cli.streams import open_standard_streams
from lb.runtime.collector import collect_seldom


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; usage errors exit with 2 by themselves."""
    open_standard_streams()
    collect_seldom()
    try:
        parser = build_parser()
        arguments = parser.parse_args(argv)
        if arguments.handler is None:
            parser.error("missing: COMMAND")
        return int(arguments.handler(arguments))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
