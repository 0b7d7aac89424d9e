"""What is done to a proxy while small requests pass it, again and again until it is ended.

Run as `python -m benchmarks.load.disturb KIND --http PORT ...`; every line of output is one thing
done, an error ends it.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import random
import re
import select
import signal
import sys
import time
import urllib.request
import zlib
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

from benchmarks.load import payloads
from benchmarks.load.fleet_backend import SEQUENCES
from benchmarks.load.links import Http2Link, Link, LoadError
from benchmarks.load.player import grpc_call

BODY_BYTES = 64 * 2**20
"""The largest body in which triton-lb looks for a sequence."""
LOAD_BYTES = 16 * 2**20
_TIMEOUT_S = 120.0
_SCRAPE_S = 1.0
_CERTIFICATE_S = 0.5
_RELOAD_S = 1.0
_RELOAD_LIMIT_S = 15.0
"""A file is read beside the load, which leaves little of the core."""
_PAGES = 3
_PARAMETERS = '"parameters":{"sequence_id":%d,"sequence_start":true,"sequence_end":true}'


def json_body(piece: str, datatype: str, size: int = BODY_BYTES) -> bytes:
    """A step of a sequence that is all JSON, `size` bytes, its parameters behind the tensor.

    Args:
        piece: of the tensor's data, repeated; ends in a comma.
        datatype: of the tensor.
        size: of the whole.
    """
    count = (size - 256) // len(piece)
    values = piece.count(",") * count + 1
    head = f'{{"inputs":[{{"name":"INPUT","datatype":"{datatype}","shape":[1,{values}],"data":['
    tail = f"{piece.split(',')[0]}]}}],{_PARAMETERS % 7}}}"
    room = size - len(head) - len(tail) - count * len(piece)
    return b"".join((head.encode(), piece.encode() * count, b" " * room, tail.encode()))


def sequence_message(size: int = BODY_BYTES) -> bytes:
    """A prefixed ModelInferRequest of about `size` bytes with its parameters at the very end."""
    raw = payloads.infer_request(SEQUENCES, "FP32", [1, size // 4], bytes(size - 1024))
    parameters = b"".join(
        _field(4, _field(1, key) + _field(2, value))
        for key, value in (
            (b"sequence_id", b"\x10\x07"),
            (b"sequence_start", b"\x08\x01"),
            (b"sequence_end", b"\x08\x01"),
        )
    )
    return payloads.grpc_message(raw + parameters)


def _field(number: int, value: bytes) -> bytes:
    """A field of protobuf that is shorter than 128 B."""
    return bytes([number << 3 | 2, len(value)]) + value


def _post(port: int, path: str, body: bytes, **headers: str) -> None:
    """Send one request and read its answer.

    Raises:
        LoadError: the answer is an error.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        method = "GET" if body == b"-" else "POST"
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=None if body == b"-" else body, headers=fields)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise LoadError(f"{path}: {answer.status} {content[:300]!r}")


def _get(port: int, path: str) -> None:
    _post(port, path, b"-")


def _infer(given: argparse.Namespace, body: bytes, **headers: str) -> Callable[[], None]:
    path = f"/v2/models/{SEQUENCES}/infer"
    return lambda: _post(given.http, path, body, Content_Type="application/json", **headers)


def _numbers(given: argparse.Namespace) -> Callable[[], None]:
    return _infer(given, json_body("0.1234567,", "FP32"))


def _texts(given: argparse.Namespace) -> Callable[[], None]:
    return _infer(given, json_body('"a","b",', "BYTES"))


def _compressed(given: argparse.Namespace) -> Callable[[], None]:
    digits = "".join(f"0.{random.randrange(10**7):07}," for _ in range(100_000))
    body = zlib.compress(json_body(digits, "FP32"), 1)
    return _infer(given, body, Content_Encoding="deflate")


def _messages(given: argparse.Namespace) -> Callable[[], None]:
    call = grpc_call(sequence_message())
    poll = select.epoll()
    answers: list[bool] = []

    def answered(_link: Link, _due: float, is_good: bool, _now: float) -> None:
        answers.append(is_good)

    link = Http2Link(given.grpc, None, answered)
    poll.register(link.fd, link.events)

    def turn() -> None:
        for _fd, mask in poll.poll(_TIMEOUT_S):
            if mask & select.EPOLLOUT:
                link.flush()
            if mask & ~select.EPOLLOUT:
                link.receive()
        poll.modify(link.fd, link.events)

    while not link.is_open:
        turn()

    def send() -> None:
        answers.clear()
        link.ask(call, 0.0)
        poll.modify(link.fd, link.events)
        while not answers:
            turn()
        if not answers[0]:
            raise LoadError("a large call failed")

    return send


def _scrape(given: argparse.Namespace) -> Callable[[], None]:
    def once() -> None:
        _get(given.metrics, "/metrics")
        time.sleep(_SCRAPE_S)

    return once


def _certificates(given: argparse.Namespace) -> Callable[[], None]:
    """Put the same certificate and key in their places anew, as tools do that renew them."""
    files = {path: path.read_bytes() for path in map(Path, given.files)}

    def once() -> None:
        for path, content in files.items():
            fresh = path.with_suffix(".new")
            fresh.write_bytes(content)
            fresh.replace(path)
        time.sleep(_CERTIFICATE_S)

    return once


def _reload(given: argparse.Namespace) -> Callable[[], None]:
    """Change the weight of a backend in the configuration, and have that applied."""
    weights = cycle((2, 1))
    done = _applied(given.metrics)

    def once() -> None:
        nonlocal done
        line = f"name: gpu-1, weight: {next(weights)},"
        text = re.sub(r"name: gpu-1,( weight: \d,)?", line, given.config.read_text(), count=1)
        given.config.write_text(text)
        os.kill(given.pid, signal.SIGHUP)
        give_up = time.monotonic() + _RELOAD_LIMIT_S
        before = done
        while done == before:
            if time.monotonic() > give_up:
                raise LoadError("the configuration was not reloaded")
            time.sleep(_RELOAD_S)
            done = _applied(given.metrics)

    return once


def _applied(port: int) -> int:
    """How many reloads of the configuration were applied, as the metrics say."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics/own", timeout=30.0) as answer:
        page = answer.read().decode()
    found = re.search(r'^triton_lb_reloads_total\{result="applied"\} (\d+)', page, re.MULTILINE)
    return int(found[1]) if found else 0


def _views(given: argparse.Namespace) -> Callable[[], None]:
    def once() -> None:
        _get(given.admin, "/api/v1/backends")
        _get(given.admin, "/api/v1/backends/gpu-5/models")

    return once


def _events(given: argparse.Namespace) -> Callable[[], None]:
    """Three people have the page open: each reads a document a second."""
    readers = []
    for _ in range(_PAGES):
        connection = http.client.HTTPConnection("127.0.0.1", given.admin, timeout=_TIMEOUT_S)
        connection.request("GET", "/api/v1/live/events")
        readers.append(connection.getresponse())

    def once() -> None:
        for reader in readers:
            while not reader.readline().startswith(b"data: "):
                pass

    return once


def _merged(given: argparse.Namespace) -> Callable[[], None]:
    def once() -> None:
        _post(given.http, "/v2/repository/index", b"")
        _get(given.http, "/v2/models/stats")

    return once


def _tables(given: argparse.Namespace) -> Callable[[], None]:
    """The stand-in says at every look that a model has come or gone."""
    _post(given.fleet, "/churn/on", b"")

    def once() -> None:
        time.sleep(1.0)

    return once


def _broadcast(given: argparse.Namespace) -> Callable[[], None]:
    model = base64.b64encode(os.urandom(LOAD_BYTES * 3 // 4)).decode()
    parameters = {"config": payloads.model_config_json("model_0001"), "file:1/model.py": model}
    body = json.dumps({"parameters": parameters}).encode()
    path = "/v2/repository/models/model_0001/load"
    return lambda: _post(given.http, path, body, Content_Type="application/json")


KINDS: dict[str, Callable[[argparse.Namespace], Callable[[], None]]] = {
    "numbers": _numbers,
    "texts": _texts,
    "compressed": _compressed,
    "messages": _messages,
    "scrape": _scrape,
    "certificates": _certificates,
    "reload": _reload,
    "views": _views,
    "events": _events,
    "merged": _merged,
    "tables": _tables,
    "broadcast": _broadcast,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    for name in ("http", "grpc", "metrics", "admin", "fleet"):
        parser.add_argument(f"--{name}", type=int, required=True, help="port")
    parser.add_argument("--pid", type=int, required=True, help="of triton-lb")
    parser.add_argument("--config", type=Path, required=True, help="file of triton-lb")
    parser.add_argument("--files", nargs="*", default=[], help="certificate and key")
    given = parser.parse_args()
    try:
        once = KINDS[given.kind](given)
        print("ready", flush=True)
        while True:
            once()
            print("done", flush=True)
    except (LoadError, OSError, http.client.HTTPException) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
