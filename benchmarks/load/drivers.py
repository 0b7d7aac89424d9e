"""Load generators: run one for a cell against one proxy and bring back what it counted.

`wrk` and the clients of event streams run for a time, the others for a number of requests; the
count that CPU is divided by is always exact. Any error makes the run fail: a proxy that answers
with errors looks fast.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import payloads
from benchmarks.load.backend import TEMPLATES
from benchmarks.load.cells import Answers, Cell, Driver
from benchmarks.load.links import TLS_CIPHER
from benchmarks.load.processes import REPOSITORY, BenchError, run_pinned, tool
from benchmarks.load.proxies import Proxy
from benchmarks.load.tally import percentile

_SCRIPT = Path(__file__).parent / "post.lua"
_EXTRA_S = 30.0
_USER_AGENT = "user-agent: grpc-python/1.60.0 grpc-c/37.0.0 (linux; chttp2)"
_FIRST_REQUESTS = 20
"""Of every stream, where nothing is known of the rate yet."""


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

    def run(self, cell: Cell, proxy: Proxy, *, seconds: float, rate: float | None) -> Load:
        """Load a proxy for about `seconds`.

        Args:
            cell: what to send.
            proxy: where to.
            seconds: how long; the generators that count requests use `rate` to get there.
            rate: requests per second seen before, None at the first run; of a paced cell, those
                that shall be offered.

        Raises:
            BenchError: an error was counted, or the generator failed.
        """
        if cell.driver is Driver.WRK:
            return self._wrk(cell, proxy, seconds)
        if cell.driver is Driver.EVENTS:
            words = ["--port", str(proxy.http), "--connections", str(cell.connections)]
            return self._own("events_client", [*words, "--seconds", f"{seconds:g}"], seconds)
        at_once = cell.connections * cell.streams
        requests = max(2 * at_once, int(seconds * rate) if rate else _FIRST_REQUESTS * at_once)
        if cell.driver is Driver.H2LOAD:
            return self._h2load(cell, proxy, requests, seconds)
        words = ["--requests", str(requests)]
        words += ["--connections", str(cell.connections), "--streams", str(cell.streams)]
        if cell.driver in {Driver.UNIQUE, Driver.STREAM}:
            argv = [cell.driver.value, "--port", str(proxy.grpc), *words]
            return self._own("h2client", argv, seconds)
        return self._own("player", [*_player_words(cell, proxy, rate), *words], seconds)

    def _wrk(self, cell: Cell, proxy: Proxy, seconds: float) -> Load:
        # wrk takes whole seconds only.
        duration = max(1, round(seconds))
        argv = [
            *(tool("wrk"), "-t", "1", "-c", str(cell.connections), "-d", f"{duration}s"),
            *("--timeout", "20s", "-s", str(_SCRIPT), _infer_url(cell, proxy), "--"),
            *(str(self._directory / cell.body), str(payloads.JSON_HEADS.get(cell.body, 0))),
            *(["unique"] if cell.unique else []),
        ]
        output = run_pinned(argv, core=self._core, timeout_s=duration + _EXTRA_S)
        _, found, result = output.partition("RESULT ")
        if not found:
            raise BenchError(f"wrk printed no result: {output[-500:]}")
        return load_of(json.loads(result.splitlines()[0]))

    def _h2load(self, cell: Cell, proxy: Proxy, requests: int, seconds: float) -> Load:
        log = self._directory / "h2load.log"
        log.unlink(missing_ok=True)
        headers = (
            ["content-type: application/grpc", "te: trailers", _USER_AGENT]
            if cell.is_grpc
            else ["content-type: application/json"]
        )
        argv = [
            *(tool("h2load"), "-c", str(cell.connections), "-m", str(cell.streams)),
            *("-n", str(requests), "-d", str(self._directory / cell.body)),
            *(word for header in headers for word in ("-H", header)),
            *([] if cell.is_grpc else ["--h1"]),
            *(["--tls13-ciphers", TLS_CIPHER] if cell.tls else []),
            *("--log-file", str(log), _infer_url(cell, proxy)),
        ]
        output = run_pinned(argv, core=self._core, timeout_s=seconds * 10 + _EXTRA_S)
        times = [line.split("\t")[2] for line in log.read_text().splitlines()]
        return load_of(parse_h2load(output, requests, _answer_bytes(cell), times))

    def _own(self, module: str, words: list[str], seconds: float) -> Load:
        argv = [sys.executable, "-m", f"benchmarks.load.{module}", *words]
        environment = {"OPENSSL_CONF": str(TEMPLATES / "client-tls.cnf")}
        output = run_pinned(
            argv,
            core=self._core,
            timeout_s=seconds * 10 + _EXTRA_S,
            cwd=REPOSITORY,
            environment=environment,
        )
        return load_of(json.loads(output))


def parse_h2load(
    output: str, requests: int, answer_bytes: int, times_us: list[str]
) -> dict[str, float]:
    """The figures in what h2load printed, and in the last column of its log.

    Args:
        output: of h2load.
        requests: how many it was to make.
        answer_bytes: of a good answer; a gRPC error has status 200 and no message, so the bytes
            are counted as well.
        times_us: of all requests.

    Raises:
        BenchError: the figures are not there.
    """
    rate = re.search(r"finished in \S+ ([\d.]+) req/s", output)
    good = re.search(r" (\d+) succeeded,", output)
    data = re.search(r" \((\d+)\) data", output)
    if rate is None or good is None or data is None or not float(rate[1]):
        raise BenchError(f"h2load printed no result: {output[-500:]}")
    answers = int(data[1]) // answer_bytes
    latencies = sorted(int(each) for each in times_us)
    return {
        "requests": int(good[1]),
        "seconds": int(good[1]) / float(rate[1]),
        "errors": max(requests - int(good[1]), requests - answers),
        "p50_us": percentile(latencies, 0.5),
        "p99_us": percentile(latencies, 0.99),
        "p999_us": percentile(latencies, 0.999),
    }


def load_of(result: dict[str, float]) -> Load:
    """What a generator counted.

    Raises:
        BenchError: there was an error, or no answer at all.
    """
    if result["errors"] or not result["requests"]:
        raise BenchError(f"{result['errors']:g} errors, {result['requests']:g} good answers")
    return Load(
        int(result["requests"]),
        result["seconds"],
        result["p50_us"],
        result["p99_us"],
        result["p999_us"],
    )


def _infer_url(cell: Cell, proxy: Proxy) -> str:
    if cell.is_grpc:
        port, path = proxy.grpcs if cell.tls else proxy.grpc, payloads.INFER_PATH
    else:
        port = proxy.https if cell.tls else proxy.http
        path = f"/v2/models/{cell.model}/infer"
    return f"{'https' if cell.tls else 'http'}://127.0.0.1:{port}{path}"


def _answer_bytes(cell: Cell) -> int:
    if not cell.is_grpc:
        return len(payloads.small_http_response(cell.model))
    if cell.site.grpc is Answers.LARGE:
        return len(payloads.LARGE_GRPC_ANSWER)
    return len(payloads.GRPC_ANSWERS[payloads.INFER_PATH[1:]])


def _player_words(cell: Cell, proxy: Proxy, rate: float | None) -> list[str]:
    if cell.driver is Driver.MIXED:
        return ["mixed", "--http", str(proxy.http), "--grpc", str(proxy.grpc)]
    words = ["paced", "--rate", str(rate)]
    if cell.is_grpc:
        words += ["--grpc", str(proxy.grpcs if cell.tls else proxy.grpc)]
    else:
        words += ["--http", str(proxy.https if cell.tls else proxy.http)]
    return [*words, "--tls"] if cell.tls else words
