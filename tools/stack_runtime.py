#!/usr/bin/python3
"""runc for `make stack-test`: asks for no limits that this machine does not let root set.

Without CAP_SYS_RESOURCE nobody can raise a hard limit, such as that of locked memory: runc would
refuse the container. Then limits are cut to those that we have; elsewhere nothing changes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

_SYS_RESOURCE = 24
"""The bit of CAP_SYS_RESOURCE in CapEff, see capability.h."""


def may_raise_limits() -> bool:
    """Whether we have CAP_SYS_RESOURCE."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(int(line.split()[1], 16) >> _SYS_RESOURCE & 1)


def cut_limits(process: dict[str, Any]) -> None:
    """Change a process of the runtime specification."""
    for limit in process.get("rlimits", ()):
        hard = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if hard != resource.RLIM_INFINITY:
            limit["hard"] = min(limit["hard"], hard)
            limit["soft"] = min(limit["soft"], hard)


def rewrite(arguments: list[str]) -> None:
    """Cut the limits in the file that a command of runc is given, if there is one."""
    if "create" in arguments:
        file = Path(arguments[arguments.index("--bundle") + 1]) / "config.json"
    elif "--process" in arguments:
        file = Path(arguments[arguments.index("--process") + 1])
    else:
        return
    content = json.loads(file.read_text(encoding="utf-8"))
    cut_limits(content.get("process", content))
    file.write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
    if not may_raise_limits():
        rewrite(sys.argv)
    os.execvp("runc", ["runc", *sys.argv[1:]])
