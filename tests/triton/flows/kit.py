"""One face for NVIDIA's two clients, where a flow is the same with both."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tests.triton.tensors import Array, tensor


@dataclass(frozen=True)
class Kit:
    """A client with the module that has its classes; the HTTP client speaks JSON, gRPC messages."""

    module: ModuleType
    client: Any

    def __enter__(self) -> Kit:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @property
    def is_http(self) -> bool:
        return self.module.__name__ == "tritonclient.http"

    def tensor(self, name: str, values: Array, **how: Any) -> Any:
        return tensor(self.module, name, values, **how)

    def number(self, name: str, value: int) -> Any:
        """One INT32 in a batch of one."""
        return self.tensor(name, np.array([[value]], dtype=np.int32))

    def json(self, method: str, *arguments: Any, **named: Any) -> Any:
        """What a method of the client answers, in JSON's types with either protocol."""
        if not self.is_http:
            named["as_json"] = True
        return getattr(self.client, method)(*arguments, **named)

    def index(self) -> dict[str, str]:
        """The repository's models and their states, `""` where none is told."""
        answer = self.json("get_model_repository_index")
        entries = answer if self.is_http else answer.get("models", [])
        return {entry["name"]: entry.get("state", "") for entry in entries}

    def system_regions(self) -> dict[str, dict[str, Any]]:
        """The registered regions of system shared memory by name."""
        answer = self.json("get_system_shared_memory_status")
        return _regions(answer if self.is_http else answer.get("regions", {}))

    def trace_settings(self, model: str | None = None) -> dict[str, Any]:
        """The trace settings; with gRPC every value is a list, with HTTP most are plain."""
        answer = self.json("get_trace_settings", model_name=model)
        return answer if self.is_http else _trace(answer)

    def update_trace_settings(self, settings: dict[str, Any], model: str | None = None) -> Any:
        answer = self.json("update_trace_settings", model_name=model, settings=settings)
        return answer if self.is_http else _trace(answer)

    def log_settings(self) -> dict[str, Any]:
        answer = self.json("get_log_settings")
        return answer if self.is_http else _log(answer)

    def update_log_settings(self, settings: dict[str, Any]) -> dict[str, Any]:
        answer = self.json("update_log_settings", settings)
        return answer if self.is_http else _log(answer)

    def statistics(self, model: str = "") -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.json("get_inference_statistics", model)["model_stats"]
        return answer


def _regions(listed: Any) -> dict[str, dict[str, Any]]:
    entries = listed.values() if isinstance(listed, dict) else listed
    return {entry["name"]: entry for entry in entries}


def _trace(answer: dict[str, Any]) -> dict[str, Any]:
    settings = {}
    for name, setting in answer["settings"].items():
        value = setting.get("value", [])
        settings[name] = value if name == "trace_level" or len(value) != 1 else value[0]
    return settings


def _log(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: next(iter(value.values())) for name, value in answer["settings"].items()}
