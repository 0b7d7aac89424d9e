"""The part of the admin API that shows requests which wait for their turn, and what was learnt of
how long models take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from lb.domain.schedule import ModelBackendView, ModelQueueView
from lb.telemetry.queue import QueueStatus

QUEUE: Final = "/api/v1/queue"


class QueueApi:
    """The handler."""

    def __init__(self, read: Callable[[], QueueStatus]) -> None:
        self._read = read

    def install(self, app: web.Application) -> None:
        """Add the route."""
        app.router.add_get(QUEUE, self._show)

    async def _show(self, _request: web.Request) -> web.Response:
        return web.json_response(render(self._read()))


def render(status: QueueStatus) -> dict[str, Any]:
    """The JSON of a queue; models in the order of their names."""
    model_backends: dict[tuple[bytes, bytes], list[ModelBackendView]] = {}
    for model_backend in status.model_backends:
        model_backends.setdefault((model_backend.model, model_backend.version), []).append(
            model_backend
        )
    model_queues = sorted(
        status.model_queues, key=lambda model_queue: (model_queue.model, model_queue.version)
    )
    return {
        "without_backend": status.unplaced,
        "models": [
            _model_queue(
                model_queue, model_backends.get((model_queue.model, model_queue.version), [])
            )
            for model_queue in model_queues
        ],
    }


def _model_queue(
    model_queue: ModelQueueView, model_backends: list[ModelBackendView]
) -> dict[str, Any]:
    return {
        "model": _text(model_queue.model),
        "version": _text(model_queue.version),
        "waiting": {
            str(priority + 1): count for priority, count in sorted(model_queue.waiting.items())
        },
        "oldest_ms": round(model_queue.oldest_s * 1000, 3),
        "backends": [
            _model_backend(model_backend)
            for model_backend in sorted(
                model_backends, key=lambda model_backend: model_backend.backend.name
            )
        ],
    }


def _model_backend(model_backend: ModelBackendView) -> dict[str, Any]:
    return {
        "name": model_backend.backend.name,
        "in_flight": model_backend.in_flight,
        "limit": model_backend.limit,
        "expected_ms": round(model_backend.expected_s * 1000, 3)
        if model_backend.expected_s
        else None,
        "row_ms": round(model_backend.row_s * 1000, 3) if model_backend.expected_s else None,
        "learnt": model_backend.learnt,
        "slowed": round(model_backend.slowed, 3),
    }


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
