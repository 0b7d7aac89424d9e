"""`triton-lb simulate`: simulated Tritons in a terminal, for trying clients and settings."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Final

from lb.testing import StartError, Triton, simulated

_CHECK_S: Final = 0.5
"""How often it looks for Tritons that have ended, in seconds."""
_LAST_PORT: Final = 65535


def simulate(count: int, first_port: int, speeds: Sequence[float]) -> int:
    """Run simulated Tritons until SIGINT or SIGTERM, or until all of them have ended.

    Args:
        count: how many.
        first_port: HTTP port of the first one, each further one 100 above; 0: any free ports.
        speeds: of each in turns; as usual where there are none.

    Returns:
        The exit code: 1 if one did not start.
    """
    if first_port and (problem := _find_taken(count, first_port)):
        print(f"triton-lb simulate: {problem}; choose others by --first-port", file=sys.stderr)
        return 1
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with simulated(count, first_port=first_port, speeds=speeds) as tritons:
            _introduce(tritons)
            _watch(tritons, stop)
    except StartError as error:
        print(f"triton-lb simulate: {error}", file=sys.stderr)
        return 1
    return 0


def _find_taken(count: int, first_port: int) -> str:
    """Say why a port of the Tritons cannot be had; empty if all can."""
    ports = (first_port + 100 * number + offset for number in range(count) for offset in range(3))
    for port in ports:
        if port > _LAST_PORT:
            return f"there is no port {port}"
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                return f"cannot listen on 127.0.0.1:{port}: {error.strerror}"
    return ""


def _introduce(tritons: Sequence[Triton]) -> None:
    for each in tritons:
        print(
            f"{each.name}  http {each.http}  grpc {each.grpc}  metrics {each.metrics}"
            f"  process {each.pid}"
        )
    backends = " ".join(f"--backend {each.http}" for each in tritons)
    print(f"\n  triton-lb serve {backends}\n\nCtrl-C ends them.", flush=True)


def _watch(tritons: Sequence[Triton], stop: threading.Event) -> None:
    """Say who ends, until told to stop or until all have ended."""
    running = list(tritons)
    while running and not stop.wait(_CHECK_S):
        for each in [each for each in running if not each.is_running]:
            print(f"{each.name} has ended", flush=True)
            running.remove(each)
