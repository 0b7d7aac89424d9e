"""The part of the admin API that shows requests which wait for their turn, and what was learnt of
how long models take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

from lb.domain.schedule import LaneView, LineView
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
    lanes: dict[tuple[bytes, bytes], list[LaneView]] = {}
    for lane in status.lanes:
        lanes.setdefault((lane.model, lane.version), []).append(lane)
    lines = sorted(status.lines, key=lambda line: (line.model, line.version))
    return {
        "without_backend": status.homeless,
        "models": [_line(line, lanes.get((line.model, line.version), [])) for line in lines],
    }


def _line(line: LineView, lanes: list[LaneView]) -> dict[str, Any]:
    return {
        "model": _text(line.model),
        "version": _text(line.version),
        "waiting": {str(priority + 1): count for priority, count in sorted(line.waiting.items())},
        "oldest_ms": round(line.oldest_s * 1000, 3),
        "backends": [_lane(lane) for lane in sorted(lanes, key=lambda lane: lane.backend.name)],
    }


def _lane(lane: LaneView) -> dict[str, Any]:
    return {
        "name": lane.backend.name,
        "in_flight": lane.in_flight,
        "limit": lane.limit,
        "expected_ms": round(lane.expected_s * 1000, 3) if lane.expected_s else None,
        "row_ms": round(lane.row_s * 1000, 3) if lane.expected_s else None,
        "learnt": lane.learnt,
        "slowed": round(lane.slowed, 3),
    }


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
