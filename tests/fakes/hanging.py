"""`triton-lb` on file systems that hang: `python -m tests.fakes.hanging MARKER serve ...`.

Opening a file or asking for its state hangs as long as its path stands in the file MARKER; then
there is a file MARKER.hangs, too. A FIFO cannot stand for such a file, since it can be told from a
regular one without waiting.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from lb.cli.main import main


def _hang(marker: str) -> None:
    open_plainly, stat_plainly = os.open, os.stat

    def wait(path: Any) -> None:
        while True:
            number = open_plainly(marker, os.O_RDONLY)
            try:
                hanging = os.read(number, 1 << 16).decode().splitlines()
            finally:
                os.close(number)
            if str(path) not in hanging:
                return
            os.close(open_plainly(f"{marker}.hangs", os.O_WRONLY | os.O_CREAT))
            time.sleep(0.05)

    def hanging_open(path: Any, *args: Any, **more: Any) -> int:
        wait(path)
        return open_plainly(path, *args, **more)

    def hanging_stat(path: Any, *args: Any, **more: Any) -> os.stat_result:
        wait(path)
        return stat_plainly(path, *args, **more)

    os.open = hanging_open
    os.stat = hanging_stat


if __name__ == "__main__":
    _hang(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
