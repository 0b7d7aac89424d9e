"""Life signs of the metrics port. Its pages are tested in tests/integration."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import TestClient, TestServer

from lb.admin.metrics_app import make_metrics_app
from lb.telemetry.collector import make_registry
from tests.fakes.metrics import Counters


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("path", ["/readyz", "/livez"])
async def test_each_life_sign_follows_its_own_answer(
    path: str, is_live: bool, is_ready: bool
) -> None:
    app = make_metrics_app(
        make_registry(Counters().collector()),
        is_ready=lambda: is_ready,
        is_live=lambda: is_live,
        targets=list,
        include_backends=False,
    )
    is_good = is_ready if path == "/readyz" else is_live
    async with TestClient(TestServer(app)) as client, client.get(path) as response:
        assert response.status == (200 if is_good else 503)
        assert response.content_type == "text/plain"
        assert await response.text() == ("ok\n" if is_good else "not ok\n")
