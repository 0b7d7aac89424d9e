"""What `make image-test` runs inside of the image, as its user: starts it, uses it, ends it.

Its argument is a JSON object with `uid`, `command` and `health`. Ends with 0 and one line that says
what was seen, or with a traceback.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import grpc

from lb.kserve import inference_pb2 as pb
from lb.kserve import messages
from lb.wire.compiled import is_compiled

LIMIT_S = 30.0
INFER = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [5]}]}
TRITON = {"http": 18000, "grpc": 18001, "metrics": 18002}
LISTENING = {("00000000", 8000), ("00000000", 8001), ("00000000", 8002), ("0100007F", 8003)}


def ask(path: str, port: int, body: bytes | None = None) -> int:
    """The status of one request; 0 where there is no answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, 10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_for(path: str, port: int) -> None:
    """Until that is answered with 200."""
    until = time.monotonic() + LIMIT_S
    while ask(path, port) != 200:
        assert time.monotonic() < until, f"{path} on {port} is not there"
        time.sleep(0.05)


def check_confinement(uid: int) -> None:
    """Nobody in particular, on a file system that nothing can be written to."""
    assert (os.getuid(), os.getgid()) == (uid, uid)
    status = Path("/proc/self/status").read_text()
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
        assert line in status, line
    for folder in ("/", "/tmp", "/opt/triton-lb", "/etc/triton-lb", "/var/tmp"):
        try:
            Path(folder, "probe").write_text("x")
        except OSError:
            continue
        raise AssertionError(f"{folder} can be written to")


def listening() -> set[tuple[str, int]]:
    """Addresses below 10000 that are listened on."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    places = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {(host, int(port, 16)) for host, port in places if int(port, 16) < 10_000}


def infer_by_grpc() -> None:
    """One inference over gRPC."""
    request = pb.ModelInferRequest(model_name="sleeper")
    tensor = request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    tensor.contents.int_contents.append(5)
    method = messages.MODEL_INFER
    with grpc.insecure_channel("127.0.0.1:8001") as channel:
        channel.unary_unary(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )(request, timeout=10)


def main() -> None:
    """See above."""
    plan = json.loads(sys.argv[1])
    assert is_compiled()
    check_confinement(plan["uid"])
    ports = [word for name, port in TRITON.items() for word in (f"--{name}-port", str(port))]
    own = {f"TRITON_{name.upper()}": f"127.0.0.1:{port}" for name, port in TRITON.items()}
    triton = subprocess.Popen(["python3", "-m", "lb.simulator", *ports], stdout=subprocess.DEVNULL)
    wait_for("/v2/health/ready", TRITON["http"])
    began = time.monotonic()
    product = subprocess.Popen(plan["command"], env={**os.environ, **own}, stdout=sys.stderr)
    try:
        wait_for("/readyz", 8002)
        took = time.monotonic() - began
        wait_for("/v2/health/ready", 8000)
        body = json.dumps(INFER).encode()
        assert ask("/v2/models/sleeper/infer", 8000, body) == 200
        infer_by_grpc()
        assert ask("/metrics", 8002) == 200
        assert listening() == LISTENING, listening()
        assert subprocess.run(plan["health"], check=False).returncode == 0
        command = ["triton-lb", "backends"]
        assert subprocess.run(command, check=False, stdout=sys.stderr).returncode == 0
        product.send_signal(signal.SIGTERM)
        assert product.wait(LIMIT_S) == 0
        silent = subprocess.DEVNULL
        assert subprocess.run(plan["health"], check=False, stderr=silent).returncode != 0
    finally:
        product.kill()
        triton.kill()
    print(
        f"compiled, user {os.getuid()}, read-only root, no capabilities, ready after {took:.1f} s"
    )


if __name__ == "__main__":
    main()
