"""Small requests beside something else: both protocols, at a rate that no answer changes.

Run as a program; prints one JSON object with the latencies of all requests, in microseconds from
when each was due, by protocol.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys

from benchmarks.load import payloads
from benchmarks.load.links import Http2Link, Link, LoadError
from benchmarks.load.player import Player, grpc_call, http_call

_CONNECTIONS, _STREAMS = 2, 32


class Bystander(Player):
    """A player that keeps every latency."""

    def __init__(self, requests: int) -> None:
        calls = [
            http_call("simple", payloads.small_http_request()),
            grpc_call(payloads.small_grpc_request()),
        ]
        super().__init__(calls, requests)
        self.latencies_us: dict[str, list[float]] = {"http": [], "grpc": []}

    def _answered(self, link: Link, due: float, is_good: bool, now: float) -> None:
        protocol = "grpc" if isinstance(link, Http2Link) else "http"
        self.latencies_us[protocol].append((now - due) * 1e6)
        super()._answered(link, due, is_good, now)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, required=True, help="port")
    parser.add_argument("--grpc", type=int, required=True, help="port")
    parser.add_argument(
        "--rate", type=float, required=True, help="requests a second, both together"
    )
    parser.add_argument("--requests", type=int, required=True)
    given = parser.parse_args()
    gc.disable()  # its pauses would be counted as the proxy's
    player = Bystander(given.requests)
    try:
        player.open_grpc(given.grpc, _CONNECTIONS, _STREAMS, tls=False)
        player.open_http(given.http, _STREAMS, tls=False)
        result = player.play_paced(given.rate)
    except (LoadError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps({"errors": result["errors"], **player.latencies_us}))


if __name__ == "__main__":
    main()
