"""Load generators: run one for a cell against one proxy and bring back what it counted.

`wrk` runs for a time, the others for a number of requests, so the count that CPU is divided by is
exact. Any error makes the run fail: a proxy that answers with errors looks fast.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import payloads
from benchmarks.load.cells import Cell, Driver
from benchmarks.load.processes import REPOSITORY, BenchError, run_pinned, tool

_SCRIPT = Path(__file__).parent / "post.lua"
_EXTRA_S = 30.0


@dataclass(frozen=True)
class Load:
    """What a load generator saw: completed requests, duration, latencies in microseconds."""

    requests: int
    seconds: float
    p50_us: float
    p99_us: float
    p999_us: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


class LoadGenerators:
    """Runs the generators on one core, with the bodies of the run's directory."""

    def __init__(self, directory: Path, core: int) -> None:
        self._directory = directory
        self._core = core
        payloads.write_requests(directory)

    def run(self, cell: Cell, port: int, *, seconds: float, rate: float | None) -> Load:
        """Load a port for about `seconds`.

        Args:
            cell: what to send.
            port: loopback port.
            seconds: how long; the generators that count requests use `rate` to get there.
            rate: requests per second seen before, None at the first run.

        Raises:
            BenchError: an error was counted, or the generator failed.
        """
        if cell.driver is Driver.WRK:
            return self._wrk(cell, port, seconds)
        parallel = cell.connections * cell.streams
        requests = max(2 * parallel, int(seconds * rate) if rate else 20 * parallel)
        if cell.driver is Driver.H2LOAD:
            return self._h2load(cell, port, requests, seconds)
        return self._own(cell, port, requests, seconds)

    def _wrk(self, cell: Cell, port: int, seconds: float) -> Load:
        url = f"http://127.0.0.1:{port}/v2/models/{cell.model}/infer"
        json_head = payloads.image_http_request()[1] if cell.body == "http-image" else 0
        # wrk takes whole seconds only.
        duration = max(1, round(seconds))
        argv = [
            *(tool("wrk"), "-t", "1", "-c", str(cell.connections), "-d", f"{duration}s"),
            *("--timeout", "20s", "-s", str(_SCRIPT), url, "--"),
            *(str(self._directory / cell.body), str(json_head)),
        ]
        output = run_pinned(argv, core=self._core, timeout_s=duration + _EXTRA_S)
        _, found, result = output.partition("RESULT ")
        if not found:
            raise BenchError(f"wrk printed no result: {output[-500:]}")
        return _load_of(json.loads(result.splitlines()[0]))

    def _h2load(self, cell: Cell, port: int, requests: int, seconds: float) -> Load:
        log = self._directory / "h2load.log"
        log.unlink(missing_ok=True)
        argv = [
            *(tool("h2load"), "-c", str(cell.connections), "-m", str(cell.streams)),
            *("-n", str(requests), "-d", str(self._directory / cell.body)),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            *("-H", "user-agent: grpc-python/1.60.0 grpc-c/37.0.0 (linux; chttp2)"),
            *("--log-file", str(log), f"http://127.0.0.1:{port}{payloads.INFER_PATH}"),
        ]
        output = run_pinned(argv, core=self._core, timeout_s=seconds * 10 + _EXTRA_S)
        rate = re.search(r"finished in \S+ ([\d.]+) req/s", output)
        good = re.search(r" (\d+) succeeded,", output)
        data = re.search(r" \((\d+)\) data", output)
        if rate is None or good is None or data is None or not float(rate[1]):
            raise BenchError(f"h2load printed no result: {output[-500:]}")
        # A gRPC error has status 200 and no message: count the message bytes as well.
        messages = int(data[1]) // len(payloads.GRPC_ANSWERS[payloads.INFER_PATH[1:]])
        latencies = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines())
        return _load_of(
            {
                "requests": int(good[1]),
                "seconds": int(good[1]) / float(rate[1]),
                "errors": max(requests - int(good[1]), requests - messages),
                "p50_us": percentile(latencies, 0.5),
                "p99_us": percentile(latencies, 0.99),
                "p999_us": percentile(latencies, 0.999),
            }
        )

    def _own(self, cell: Cell, port: int, requests: int, seconds: float) -> Load:
        argv = [
            *(sys.executable, "-m", "benchmarks.load.h2client", cell.driver.value),
            *("--port", str(port), "--requests", str(requests)),
            *("--connections", str(cell.connections), "--streams", str(cell.streams)),
        ]
        timeout_s = seconds * 10 + _EXTRA_S
        output = run_pinned(argv, core=self._core, timeout_s=timeout_s, cwd=REPOSITORY)
        return _load_of(json.loads(output))


def percentile(ordered: list[int], share: float) -> float:
    """Value below which `share` of the ordered samples lie; 0 without samples."""
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))]) if ordered else 0.0


def _load_of(result: dict[str, float]) -> Load:
    if result["errors"] or not result["requests"]:
        raise BenchError(f"{result['errors']:g} errors in {result['requests']:g} requests")
    return Load(
        int(result["requests"]),
        result["seconds"],
        result["p50_us"],
        result["p99_us"],
        result["p999_us"],
    )
