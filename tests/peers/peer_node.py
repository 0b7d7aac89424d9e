"""Node: @grpc/grpc-js, which has an HTTP/2 of its own."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.process import REPOSITORY
from tests.peers.balancer import Balancer, run

SCRIPT = Path(__file__).parent / "node" / "peer.js"
MODULES = REPOSITORY / "build" / "peers" / "node_modules"
"""Where tools/setup_peers.sh puts them."""


def test_calls_cancels_deadlines_and_keep_alive(balancer: Balancer, is_tls: bool) -> None:
    listener, more = ("grpcs", (balancer.world.ca,)) if is_tls else ("grpc", ())
    with balancer.expecting(connections=1):
        command = ("node", str(SCRIPT), balancer.address(listener), *more)
        said = run(*command, env={"NODE_PATH": str(MODULES)})
    assert said.endswith("all well\n"), said
