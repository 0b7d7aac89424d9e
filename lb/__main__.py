"""`python -m lb` is the command `triton-lb`."""

from __future__ import annotations

import sys

from lb.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
