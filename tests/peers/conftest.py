"""One balancer for all peers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.balancer import Balancer


@pytest.fixture(scope="session")
def balancer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Balancer]:
    """Running, with its backend in."""
    running = Balancer(tmp_path_factory.mktemp("peers"))
    try:
        running.wait_ready()
        yield running
    finally:
        running.close()


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def is_tls(request: pytest.FixtureRequest) -> bool:
    """Each peer both ways."""
    return bool(request.param)
