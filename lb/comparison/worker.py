"""The process that compares: pairs of answers come on its standard input, and what they came to
goes to its standard output.

Only reports are answered: by lines of JSON, one for each shadow and kind, with what was found since
the last report, and an empty line. The process ends with its input.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from lb.comparison.pairs import Pair, Reader
from lb.comparison.tally import Tally

NO_NUMPY: Final = 3
"""Exit code where the extra `compare` is not installed."""
_FILES: Final = 100
"""Examples in a folder."""
_NICE: Final = 10
"""It gives way to whoever serves requests."""
_BREAK_S: Final = 50e-6
"""After each pair the process sleeps for so long. A process that wakes while it compares may
otherwise have to wait for the next tick of the kernel: up to 4 ms at 250 ticks a second."""
_KINDS: Final = ("shadow", "noise")


def _keep(folder: Path, pair: Pair) -> None:
    """Write a request and both answers to a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if sum(1 for _ in folder.iterdir()) >= _FILES:
            return
        bodies = {"request": pair.request, "first": pair.first.body, "second": pair.second.body}
        text = {
            "id": pair.id,
            "name": pair.name,
            "protocol": "grpc" if pair.is_grpc else "http",
            **{name: base64.b64encode(body).decode() for name, body in bodies.items()},
        }
        name = "".join(each if each.isalnum() else "_" for each in pair.id)[:100]
        path = folder / f"{name}-{time.time_ns()}.json"
        path.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"example cannot be written: {error}\n")


def run(source: Any, sink: Any) -> None:
    """Compare what comes until it ends.

    Args:
        source: binary file with frames.
        sink: binary file for lines.
    """
    from lb.comparison.tensors import compare

    reader = Reader(source)
    found: dict[tuple[int, str], Tally] = {}
    while (pair := reader.next()) is not None:
        if pair == "report":
            _report(found, sink)
            continue
        tally = compare(pair)
        time.sleep(_BREAK_S)
        found.setdefault((pair.shadow, _KINDS[pair.is_noise]), Tally()).add(tally)
        if pair.rules.examples and tally.examples and not pair.is_noise:
            _keep(Path(pair.rules.examples), pair)


def _report(found: dict[tuple[int, str], Tally], sink: Any) -> None:
    for (shadow, kind), tally in found.items():
        said = {"shadow": shadow, "kind": kind, "tally": tally.as_json()}
        text = json.dumps(said, allow_nan=False)
        sink.write(text.encode() + b"\n")
    sink.write(b"\n")
    sink.flush()
    found.clear()


def main() -> int:
    """Run as a process. Returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us ends us
    os.nice(_NICE)
    try:
        run(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os.close(1)
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        return NO_NUMPY
    return 0


if __name__ == "__main__":
    sys.exit(main())
