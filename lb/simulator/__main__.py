"""`python -m lb.simulator`: one simulated Triton as a process.

Prints one JSON line with its ports when it is ready, and ends on SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from lb.simulator.gpu import SimulatedGpu
from lb.simulator.models import MODELS
from lb.simulator.process import Ports, serve


def _speed(text: str) -> float:
    speed = float(text)
    if not speed > 0:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return speed


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lb.simulator", description="A small simulated Triton server."
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="name or address, IPv6 without brackets"
    )
    parser.add_argument("--http-port", type=int, default=0, help="0 (default): any free port")
    parser.add_argument("--grpc-port", type=int, default=0)
    parser.add_argument("--metrics-port", type=int, default=0)
    parser.add_argument("--speed", type=_speed, default=1.0, help="how many times as fast as 1.0")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--gpu", metavar="UUID", help="report one of that UUID")
    parser.add_argument("--mig", action="store_true", help="as a slice, of unknown utilisation")
    parser.add_argument("--explicit", action="store_true", help="load models on request alone")
    return parser.parse_args(arguments)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> None:
    """Serve until a signal ends it."""
    given = _parse(arguments)
    ports = Ports(given.host, given.http_port, given.grpc_port, given.metrics_port)
    gpu = SimulatedGpu(given.gpu, is_slice=given.mig) if given.gpu else None
    try:
        models, is_explicit = tuple(given.models), given.explicit
        asyncio.run(serve(ports, models, given.speed, _say, gpu, is_explicit=is_explicit))
    except (OSError, RuntimeError) as error:
        sys.exit(f"simulator: cannot listen: {error}")


if __name__ == "__main__":
    main()
