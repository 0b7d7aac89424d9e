"""`python -m tests.against REVISION`: the working tree against a commit."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.against.compare import Comparison, compare
from tests.against.trees import check_out
from tests.fakes.process import REPOSITORY

SHOWN = 20
"""Differences that are shown whole."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.against", description=__doc__)
    parser.add_argument("revision", help="the commit to compare with, such as HEAD~1")
    parser.add_argument("--plans", type=int, default=10_000, help="connections to play")
    parser.add_argument("--seed", type=int, default=1, help="another seed makes other plans")
    parser.add_argument("--only", type=int, help="play the plan of this number alone")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="FIELD",
        help="a field that backends get and that is to differ; may be given several times",
    )
    arguments = parser.parse_args()
    numbers = range(arguments.plans) if arguments.only is None else (arguments.only,)
    with tempfile.TemporaryDirectory() as folder:
        sources = check_out(arguments.revision, Path(folder))
        trees = (Path(folder), sources, REPOSITORY)
        found = asyncio.run(compare(*trees, numbers, arguments.seed, arguments.ignore))
    sys.stdout.write(report(found) + "\n")
    return bool(found.differences or found.counters)


def report(found: Comparison) -> str:
    """A comparison as text."""
    lines = [f"{found.played} connections played, {len(found.differences)} differ"]
    for each in found.differences[:SHOWN]:
        lines.append(f"\nplan {each.plan.number} ({each.plan.protocol}):")
        for request in each.plan.requests:
            acts = ", ".join(reply.act for reply in request.replies)
            left = ", the client leaves" if request.is_left else ""
            lines.append(f"  {request.method} {request.path} {request.model}: {acts}{left}")
        lines += [f"  - {line}" for line in each.first if line not in each.second]
        lines += [f"  + {line}" for line in each.second if line not in each.first]
    lines += [f"counter {each}" for each in found.counters]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
