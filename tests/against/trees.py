"""One version of the product, served from its sources before scripted backends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from tests.against.backends import Registry, backends
from tests.fakes.process import REPOSITORY, ChildProcess, wait_until, whole_lines

BACKENDS = 3
_START_S = 60.0
_SETTINGS = Path("tests", "against", "balancer.yaml")
_UNSTABLE = ("time", "backend", "client", "queue_ms", "connect_ms", "first_byte_ms", "total_ms")
"""Fields of the access log that differ from run to run."""
_COUNTERS = re.compile(
    r"triton_lb_(?:\w*requests|request_errors|retries|reruns\w*|unkept_bodies|hedges\w*"
    r"|re\w+_bytes|backend_attempts|backend_responses|backend_failures|sequences\w*)_total"
)
"""Counters that say what became of requests, in whatever order they came."""
_LABELS = re.compile(r'\b(?:backend|model)="[^"]*",?')
"""Labels that are a matter of time: a model has its own once a good answer to it was counted, and
requests are counted together. The access log names the model as well."""


class Tree:
    """A running balancer of one version."""

    def __init__(self, name: str, folder: Path, registry: Registry) -> None:
        self.name = name
        self.registry = registry
        self.http = self.grpc = 0
        self.metrics = ""
        self.played: Counter[str] = Counter()
        """How often each request was played that has a line of its own in the access log."""
        self._log = folder / f"{name}-access.log"

    def counters(self) -> dict[str, float]:
        """Its counters of requests, all backends and models together."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics/own", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            series, _, value = line.rpartition(" ")
            if _COUNTERS.match(series):
                name = _LABELS.sub("", series)
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def logged(self) -> dict[str, str]:
        """What its access log says, by request id, of the last time that it was played.

        Raises:
            TimeoutError: a request that was played is not there.
        """
        found: dict[str, str] = {}

        def is_complete() -> bool:
            counts: Counter[str] = Counter()
            for line in whole_lines(self._log):
                entry = json.loads(line)
                # A field that one version has more is no difference while it says nothing.
                told = ((key, value) for key, value in entry.items() if value is not None)
                kept = {key: value for key, value in told if key not in _UNSTABLE}
                found[entry["request_id"]] = json.dumps(kept)
                counts[entry["request_id"]] += 1
            return counts >= self.played

        wait_until(is_complete, timeout_s=_START_S, what="every request is in the access log")
        return found


@asynccontextmanager
async def serve(
    name: str, sources: Path, folder: Path, ignored: Collection[str] = ()
) -> AsyncIterator[Tree]:
    """Serve what lies in `sources`, with files in `folder`; `ignored` as in `Registry`."""
    registry = Registry(ignored)
    tree = Tree(name, folder, registry)
    async with backends(registry, BACKENDS) as found:
        own = sources / _SETTINGS
        settings = yaml.safe_load((own if own.exists() else REPOSITORY / _SETTINGS).read_text())
        listeners = ("http", "grpc", "metrics", "admin")
        settings["listen"] = dict.fromkeys(listeners, "127.0.0.1:0")
        settings["backends"] = found
        settings["access_log"]["path"] = str(folder / f"{name}-access.log")
        # The start-up line tells the addresses.
        settings["log"] = {"level": "info"}
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings))
        process = ChildProcess(
            (sys.executable, "-m", "lb", "serve", "--config", str(path)),
            log=folder / f"{name}.log",
            env={**os.environ, "PYTHONPATH": str(sources)},
            cwd=sources,
        )
        try:
            addresses = await _addresses(process)
            tree.http = int(addresses["http"].rpartition(":")[2])
            tree.grpc = int(addresses["grpc"].rpartition(":")[2])
            tree.metrics = addresses["metrics"]
            await _until_ready(tree)
            yield tree
        finally:
            process.close()


async def _addresses(process: ChildProcess) -> Mapping[str, str]:
    async with asyncio.timeout(_START_S):
        while True:
            if line := process.start_line:
                return dict(re.findall(r"(http|grpc|metrics|admin)=(\S+)", line))
            if not process.is_running:
                raise RuntimeError(f"it did not start:\n{process.last_lines()}")
            await asyncio.sleep(0.05)


async def _until_ready(tree: Tree) -> None:
    def is_ready() -> bool:
        with urllib.request.urlopen(f"http://{tree.metrics}/metrics/own", timeout=30) as answer:
            page = answer.read().decode()
        up = re.findall(r"triton_lb_backend_up\{[^}]*\} 1\.0", page)
        known = re.findall(r"triton_lb_backend_models_ready\{[^}]*\} 4\.0", page)
        return len(up) == 2 * BACKENDS and len(known) == BACKENDS

    async with asyncio.timeout(_START_S):
        while not await asyncio.to_thread(is_ready):  # noqa: ASYNC110  # the product's state
            await asyncio.sleep(0.1)


def check_out(revision: str, folder: Path) -> Path:
    """The sources of a commit, in a folder of their own."""
    target = folder / "sources"
    target.mkdir()
    archive = subprocess.run(
        ("git", "archive", revision), cwd=REPOSITORY, check=True, capture_output=True
    )
    subprocess.run(("tar", "-x", "-C", str(target)), input=archive.stdout, check=True)
    return target
