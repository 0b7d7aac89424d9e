"""Nothing loads at its start what it does not need: loading is most of the time until it serves.

Each part below is loaded on top of those before it, in one interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_HEAVY = ("aiohttp", "google", "prometheus_client", "pydantic", "yaml")
_DATA_PLANE = ("lb.balancing", "lb.kserve", "lb.proxy")
_CONTROL = ("lb.admin", "lb.control", "lb.discovery", "lb.probes")
_OPTIONAL = ("lb.cli.demo", "lb.generate", "lb.simulator", "lb.testing")
COMMANDS = (
    ("lb.cli.commands", ("asyncio", *_HEAVY)),
    ("lb.cli.admin lb.cli.tables", ("asyncio", "aiohttp", "google", "yaml", "lb.settings.section")),
    ("lb.cli.check", ("asyncio", "aiohttp", "google", *_DATA_PLANE)),
)
SERVICE = (
    ("lb.cli.serve", ("aiohttp", "google", "prometheus_client")),
    (
        "lb.runtime.workers.supervisor",
        ("aiohttp", "google", "prometheus_client", *_DATA_PLANE, *_CONTROL),
    ),
    (
        "lb.runtime.workers.run lb.runtime.workers.worker",
        ("aiohttp", "prometheus_client", *_CONTROL, *_OPTIONAL),
    ),
    (
        "lb.runtime.process",
        ("lb.discovery.kubernetes", "lb.telemetry.span_exporter", *_OPTIONAL),
    ),
)
_SCRIPT = """\
import importlib, json, sys
found = {}
for modules, names in json.loads(sys.argv[1]):
    for module in modules.split():
        importlib.import_module(module)
    found[modules] = [name for name in names if name in sys.modules]
print(json.dumps(found))
"""


@pytest.mark.parametrize("parts", [COMMANDS, SERVICE], ids=["commands", "service"])
def test_nothing_is_loaded_that_a_start_does_not_need(
    parts: tuple[tuple[str, tuple[str, ...]], ...],
) -> None:
    command = [sys.executable, "-c", _SCRIPT, json.dumps(parts)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert found == {modules: [] for modules, _ in parts}
