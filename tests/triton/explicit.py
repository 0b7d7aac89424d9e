"""Tritons under explicit model control, whose models come and go within a test."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.triton.server import RealTriton

SLOW = "slow_start"
SLOW_START_S = 4.0
"""Longer than probes take to notice, and than a request of milliseconds on a busy machine."""

_SLOW_CONFIG = """
backend: "python"
input [ { name: "IN", data_type: TYPE_INT32, dims: [ 1 ] } ]
output [ { name: "OUT", data_type: TYPE_INT32, dims: [ 1 ] } ]
"""
_SLOW_MODEL = f"""
import time
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        time.sleep({SLOW_START_S})

    def execute(self, requests):
        out = pb_utils.Tensor("OUT", numpy.array([1], numpy.int32))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""


class RefusedError(Exception):
    """A server answered with an error."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class ExplicitTriton(RealTriton):
    """Starts with the models that it is told to load, and loads others on request."""

    def __init__(
        self, name: str, workspace: Path, records: Path, models: Sequence[str] = ()
    ) -> None:
        super().__init__(name, workspace, records, *_options(models))
        # Its repository is looked at when a model is to be loaded.
        folder = self._directory / "models" / SLOW
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(_SLOW_CONFIG)
        (folder / "1" / "model.py").write_text(_SLOW_MODEL)

    def restart_with(self, *models: str) -> None:
        """Start it again with these models. Does not wait."""
        self._options = _options(models)
        self.restart()

    def ask(self, method: str, path: str, content: object = None) -> Any:
        """One request to this server alone; the content of its answer, None where it has none."""
        return ask(self.target.http, method, path, content)

    def ready_models(self) -> set[str]:
        """The models that it says are ready."""
        index = self.ask("POST", "/v2/repository/index", {})
        return {each["name"] for each in index if each.get("state") == "READY"}


def _options(models: Sequence[str]) -> tuple[str, ...]:
    return ("--model-control-mode=explicit", *(f"--load-model={model}" for model in models))


def ask(address: str, method: str, path: str, content: object = None) -> Any:
    """One request with JSON on both sides.

    Raises:
        RefusedError: it was refused.
    """
    connection = http.client.HTTPConnection(address, timeout=60.0)
    try:
        body = None if content is None else json.dumps(content)
        connection.request(method, path, body)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RefusedError(f"{method} {path}: {answer.status} {data!r}", answer.status)
    return json.loads(data) if data else None
