"""What pyproject.toml cannot say: the optional compilation of the hot modules.

    TRITON_LB_COMPILE=1 python -m build --wheel

tools/build_backend.py names what the compiler needs. Everything else builds and runs without it (docs/decisions/0021-compiling.md). TRITON_LB_COMPILE_O=0
spares the C compiler's optimiser, for tests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup

_FOLDERS = (
    "lb/balancing", "lb/domain", "lb/proxy", "lb/proxy/http1", "lb/proxy/http2", "lb/wire",
    "lb/wire/grpc", "lb/wire/http1", "lb/wire/http2",
)  # fmt: skip
_MODULES = (
    "lb/kserve/gate.py", "lb/kserve/inspect.py", "lb/kserve/pending_responses.py", "lb/kserve/work.py",
    "lb/net/timers.py", "lb/sharing/board.py", "lb/telemetry/meter.py", "lb/telemetry/record.py",
    "lb/telemetry/sampling.py", "lb/telemetry/spans.py",
)  # fmt: skip
_INTERPRETED = {"lb/wire/compiled.py", "lb/wire/native.py", "lb/wire/proxy_protocol.py"}
"""Of those folders; packages stay interpreted as well."""


def modules() -> list[str]:
    """Files that are compiled: all that a request runs through, as one unit, because a call or an
    attribute across its border costs more than it does without any compiling."""
    found = [str(path) for folder in _FOLDERS for path in sorted(Path(folder).glob("*.py"))]
    return [
        path
        for path in (*found, *_MODULES)
        if not path.endswith("__init__.py") and path not in _INTERPRETED
    ]


extensions = []
# setuptools runs this file for the metadata as well, before there is a compiler.
if os.environ.get("TRITON_LB_COMPILE") == "1" and "bdist_wheel" in sys.argv:
    from mypyc.build import mypycify

    extensions = mypycify(
        ["--config-file=pyproject.toml", *modules()],
        opt_level=os.environ.get("TRITON_LB_COMPILE_O", "3"),
        debug_level="0",
        multi_file=True,
        group_name="triton_lb",
    )
setup(ext_modules=extensions)
