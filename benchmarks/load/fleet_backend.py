"""Stand-in for many Tritons with very many models, for the measurements of stalls.

Run as `python -m benchmarks.load.fleet_backend PARTS...`, each part `HTTP,GRPC`: two ports of one
backend. `--models NUMBER` besides `simple_sequence`, or, without it, `simple` alone. It takes
bodies of any size and answers at once from bytes made before; metrics are on the HTTP port. After a
`POST /churn/on` every list of models differs from the one before, until `POST /churn/off`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import cast

from benchmarks.load import payloads
from benchmarks.load.grpc_backend import BackendConnection

SEQUENCES = "simple_sequence"
METRIC_MODELS = 12
"""Models on the metrics page of a backend: as many as are busy there."""
_COUNTERS = (
    *("inference_request_success", "inference_request_failure", "inference_count"),
    *("inference_exec_count", "inference_request_duration_us", "inference_queue_duration_us"),
    *("inference_compute_input_duration_us", "inference_compute_infer_duration_us"),
    *("inference_compute_output_duration_us", "cache_num_hits_per_model"),
    *("cache_num_misses_per_model", "cache_hit_duration_per_model"),
)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_MODEL = re.compile(r"/v2/models/(\w+)/?(?:versions/\d+/)?(\w*)$")


def names(models: int) -> list[str]:
    """The models of a backend."""
    return (
        [SEQUENCES, *(f"model_{number:04}" for number in range(models))] if models else ["simple"]
    )


def metrics_page() -> bytes:
    """What a Triton with some busy models says about itself: 200 lines."""
    lines = []
    for counter in _COUNTERS:
        lines += [f"# HELP nv_{counter} Of this model", f"# TYPE nv_{counter} counter"]
        lines += [
            f'nv_{counter}{{model="model_{number:04}",version="1"}} {1000 * number}'
            for number in range(METRIC_MODELS)
        ]
    lines += ["# HELP nv_cpu_utilization CPU utilization rate", "# TYPE nv_cpu_utilization gauge"]
    return "\n".join([*lines, "nv_cpu_utilization 0.25", ""]).encode()


def _answer(body: bytes, status: str = "200 OK") -> bytes:
    head = "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return (head % (status, len(body))).encode() + body


def _config(name: str) -> dict[str, object]:
    config = cast(dict[str, object], json.loads(payloads.model_config_json(name)))
    return config | ({"sequence_batching": {}} if name == SEQUENCES else {})


def _statistics(name: str) -> dict[str, object]:
    times = {"count": 1000, "ns": 123456789}
    parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    return {
        "name": name,
        "version": "1",
        "last_inference": 1700000000000,
        "inference_count": 1000,
        "execution_count": 500,
        "inference_stats": dict.fromkeys((*parts, "cache_hit", "cache_miss"), times),
        "batch_stats": [],
    }


class Fleet:
    """What all backends of the process say."""

    def __init__(self, models: int) -> None:
        every = names(models)
        self.is_churning = False
        self._turn = 0
        listed = [{"name": name, "version": "1", "state": "READY"} for name in every]
        gone = [*listed[:-1], {**listed[-1], "state": "UNAVAILABLE", "reason": "unloaded"}]
        self._lists = [_answer(json.dumps(each).encode()) for each in (listed, gone)]
        self._infer = _answer(payloads.small_http_response("simple").encode())
        self._empty = _answer(b"")
        self._none = _answer(b'{"error": "not found"}', "404 Not Found")
        statistics = [_statistics(name) for name in every[:METRIC_MODELS]]
        self._known = {
            "/v2/health/ready": self._empty,
            "/v2/health/live": self._empty,
            "/metrics": _answer(metrics_page()),
            "/v2/models/stats": _answer(json.dumps({"model_stats": statistics}).encode()),
            "/v2/systemsharedmemory/status": _answer(b"[]"),
            "/v2/cudasharedmemory/status": _answer(b"[]"),
        }

    def answer(self, path: str) -> bytes:
        """The answer to any request, but for its body."""
        if path in self._known:
            return self._known[path]
        if path == "/v2/repository/index":
            self._turn += self.is_churning
            return self._lists[self._turn % 2]
        if path.startswith("/churn/"):
            self.is_churning = path.endswith("/on")
            return self._empty
        if path.startswith("/v2/repository/models/"):
            return self._empty
        model = _MODEL.match(path)
        if model is None:
            return self._none
        if model[2] == "config":
            return _answer(json.dumps(_config(model[1])).encode())
        return self._infer if model[2] == "infer" else self._empty


class HttpConnection(asyncio.Protocol):
    """One connection of HTTP/1.1, without pipelining."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._held = b""
        self._left = -1
        self._reply = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            head, found, data = (self._held + data).partition(b"\r\n\r\n")
            if not found:
                self._held = head
                return
            self._held = b""
            length = _LENGTH.search(head)
            self._left = int(length[1]) if length else 0
            self._reply = self._fleet.answer(head.split(b" ", 2)[1].decode())
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            self._transport.write(self._reply)


async def serve(parts: list[tuple[int, int]], models: int) -> None:
    """Serve on loopback until the process is ended."""
    loop = asyncio.get_running_loop()
    fleet = Fleet(models)
    for http, grpc in parts:
        make = loop.create_server(lambda: HttpConnection(fleet), "127.0.0.1", http, backlog=1024)
        await make
        await loop.create_server(BackendConnection, "127.0.0.1", grpc, backlog=1024)
    await loop.create_future()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", metavar="HTTP,GRPC")
    parser.add_argument("--models", type=int, default=0)
    given = parser.parse_args()
    parts = [(int(http), int(grpc)) for http, grpc in (each.split(",") for each in given.parts)]
    payloads.GRPC_ANSWERS["inference.GRPCInferenceService/RepositoryModelLoad"] = (
        payloads.grpc_message(b"")
    )
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(parts, given.models))
    else:
        uvloop.run(serve(parts, given.models))


if __name__ == "__main__":
    main()
