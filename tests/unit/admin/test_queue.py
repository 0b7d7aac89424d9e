from __future__ import annotations

from aiohttp.test_utils import TestClient, TestServer

from lb.admin.app import make_admin_app
from lb.admin.openapi import openapi_document
from lb.admin.operations import QUEUE
from lb.control.membership import Membership
from lb.domain.schedule import ModelBackendView, ModelQueueView
from lb.telemetry.queue import QueueStatus
from tests.fakes.backends import make_backend
from tests.fakes.pool import make_pool
from tests.unit.admin.schema import problems


def lane(name: str, learnt: int) -> ModelBackendView:
    return ModelBackendView(
        model=b"m",
        version=b"",
        backend=make_backend(name),
        in_flight=1,
        limit=2,
        expected_s=0.005 if learnt else 0.0,
        row_s=0.0005,
        learnt=learnt,
        slowed=1.5 if learnt else 1.0,
    )


STATUS = QueueStatus(
    model_queues=[
        ModelQueueView(model=b"n", version=b"2", waiting={}, oldest_s=0.0),
        ModelQueueView(model=b"m", version=b"", waiting={1: 3, 0: 1}, oldest_s=0.1234567),
    ],
    model_backends=[lane("b", 7), lane("a", 0)],
    unplaced=4,
)


async def test_the_queue_is_shown_by_model() -> None:
    directory = make_pool()
    app = make_admin_app(directory, Membership(directory), version="1", queue=lambda: STATUS)
    async with TestClient(TestServer(app)) as client, client.get(QUEUE) as answer:
        shown = await answer.json()
    assert shown == {
        "without_backend": 4,
        "models": [
            {
                "model": "m",
                "version": "",
                "waiting": {"1": 1, "2": 3},
                "oldest_ms": 123.457,
                "backends": [
                    {
                        "name": "a",
                        "in_flight": 1,
                        "limit": 2,
                        "backend_in_flight": 0,
                        "backend_set_aside": 0,
                        "expected_ms": None,
                        "row_ms": None,
                        "learnt": 0,
                        "slowed": 1.0,
                    },
                    {
                        "name": "b",
                        "in_flight": 1,
                        "limit": 2,
                        "backend_in_flight": 0,
                        "backend_set_aside": 0,
                        "expected_ms": 5.0,
                        "row_ms": 0.5,
                        "learnt": 7,
                        "slowed": 1.5,
                    },
                ],
            },
            {"model": "n", "version": "2", "waiting": {}, "oldest_ms": 0.0, "backends": []},
        ],
    }
    document = openapi_document("1")
    assert problems(shown, "Queue", document) == []
