"""`triton-lb` without a thread to be had: `python -m tests.fakes.threadless MARKER serve ...`.

As long as the file MARKER exists, no thread that reads files can be started. A real limit of
processes does not bind root, as whom tests may run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lb.cli.main import main


@contextmanager
def no_further_thread() -> Iterator[None]:
    """No thread of this process can be started meanwhile."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def _refuse_threads(marker: Path) -> None:
    start = threading.Thread.start

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name == "files" and marker.exists():
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = start_or_not  # type: ignore[method-assign]


if __name__ == "__main__":
    _refuse_threads(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
