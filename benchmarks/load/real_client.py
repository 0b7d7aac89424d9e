"""One `tritonclient`, synchronous, that asks the model `simple` of a real Triton.

Run as a program; prints one JSON object. Without a rate the next request follows each answer; with
one, requests begin at even distances in time, and the latency of one counts from when it was due.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from importlib import import_module

import numpy as np

from benchmarks.load.tally import tally

_WARM_UP_REQUESTS = 50


def backend_client(protocol: str, port: int) -> Callable[[], None]:
    """A function that makes one request and reads its answer."""
    module = import_module(f"tritonclient.{protocol}")
    client = module.InferenceServerClient(f"127.0.0.1:{port}")
    numbers = np.arange(16, dtype=np.int32).reshape(1, 16)
    inputs = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(numbers)

    def ask() -> None:
        found = client.infer("simple", inputs).as_numpy("OUTPUT0")
        if found is None or not (found == 2 * numbers).all():
            raise ValueError("a wrong answer")

    return ask


def play(ask: Callable[[], None], seconds: float, rate: float) -> dict[str, float]:
    """Ask for some seconds, `rate` times a second if that is not 0; what was counted."""
    latencies: list[float] = []
    begun = now = time.perf_counter()
    while now - begun < seconds:
        due = begun + (len(latencies) + 1) / rate if rate else now
        while now < due:
            time.sleep(due - now)
            now = time.perf_counter()
        ask()
        now = time.perf_counter()
        latencies.append((now - due) * 1e6)
    return tally(latencies, now - begun, errors=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("protocol", choices=("http", "grpc"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second")
    given = parser.parse_args()
    ask = backend_client(given.protocol, given.port)
    for _ in range(_WARM_UP_REQUESTS):
        ask()
    gc.disable()  # its pauses would be counted as the proxy's
    print(json.dumps(play(ask, given.seconds, given.rate)), flush=True)


if __name__ == "__main__":
    main()
