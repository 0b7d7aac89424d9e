"""The arguments of `triton-lb generate`; the work is in `lb.cli.generate`, which loads more."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lb.generate.stack import (
    BALANCER_IMAGE,
    FIRST_PORT,
    IMAGES,
    Listen,
    Options,
    ServerKind,
    Target,
)

DEFAULT_FOLDER: Final = "triton-stack"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What the command line says."""

    target: Target
    options: Options
    folder: Path
    source: str | None = None
    """File with what nvidia-smi printed; None: ask it."""
    gpus: int = 0
    cpu_servers: int = 0
    devices: tuple[str, ...] = ()
    mig: str = ""
    check: bool = False
    force: bool = False
    up: bool = False


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Describe the arguments of the command."""
    command.add_argument(
        "target", type=Target, choices=list(Target), help="what the files are for", metavar="TARGET"
    )
    command.add_argument(
        "--output",
        default=DEFAULT_FOLDER,
        metavar="DIR",
        help=f"folder of the files (default {DEFAULT_FOLDER})",
    )
    command.add_argument(
        "--check", action="store_true", help="only show how the files there differ; 1 if they do"
    )
    command.add_argument("--force", action="store_true", help="replace files that differ")
    command.add_argument(
        "--up", action="store_true", help="compose: print the stack, then start it"
    )
    _add_devices(command.add_argument_group("devices", "by default all that nvidia-smi lists"))
    _add_servers(command.add_argument_group("servers"))
    _add_balancer(command.add_argument_group("triton-lb"))


def _add_devices(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="read a saved output of `nvidia-smi -L` instead; - is standard input",
    )
    source.add_argument(
        "--gpus", type=_positive, default=0, metavar="N", help="so many whole GPUs, by index"
    )
    source.add_argument(
        "--cpu", type=_positive, default=0, metavar="N", help="so many servers without a GPU"
    )
    group.add_argument(
        "--devices",
        type=_words,
        default=(),
        metavar="LIST",
        help="only these: indexes (0, 0:3 for a MIG device) or UUIDs, separated by commas",
    )
    group.add_argument(
        "--mig",
        default="",
        metavar="LAYOUT",
        help="divide each GPU, such as 1g.5gb=7 or 3g.20gb=1,1g.5gb=4: writes a script to read and "
        "a unit for the boot, and runs neither",
    )


def _add_servers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--server",
        type=ServerKind,
        choices=list(ServerKind),
        default=ServerKind.TRITON,
        metavar="KIND",
        help="triton (default) or tfserving",
    )
    group.add_argument(
        "--image", default="", help=f"of the servers (default {IMAGES[ServerKind.TRITON]})"
    )
    group.add_argument(
        "--models",
        default="",
        metavar="WHERE",
        help="compose: folder, relative to the file (default ./models); systemd: folder (default "
        "/srv/models); kubernetes: folder of the nodes, or PersistentVolumeClaim (default "
        "triton-models)",
    )
    group.add_argument("--model", default="model", metavar="NAME", help="the model of a TF Serving")
    group.add_argument(
        "--server-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="further argument of every server, such as --server-arg=--strict-readiness=false",
    )
    group.add_argument(
        "--shared-memory", action="store_true", help="clients of this host share memory with them"
    )
    group.add_argument(
        "--first-port",
        type=_positive,
        default=FIRST_PORT,
        metavar="PORT",
        help=f"HTTP port of the first server (default {FIRST_PORT})",
    )


def _add_balancer(group: argparse._ArgumentGroup) -> None:
    for name, address in Listen().addresses.items():
        group.add_argument(
            f"--{name}",
            default=address,
            metavar="ADDRESS",
            help=f"where it listens (default {address})",
        )
    group.add_argument(
        "--lb-image",
        default=BALANCER_IMAGE,
        metavar="IMAGE",
        help=f"of triton-lb (default {BALANCER_IMAGE})",
    )
    group.add_argument("--prometheus", action="store_true", help="compose: with Prometheus")
    group.add_argument(
        "--grafana", action="store_true", help="compose: with Grafana, and Prometheus for it"
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return number


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def options_of(arguments: argparse.Namespace) -> GenerateOptions:
    """What the parsed command line says."""
    options = Options(
        server=arguments.server,
        image=arguments.image,
        balancer_image=arguments.lb_image,
        models=arguments.models,
        model=arguments.model,
        server_args=tuple(arguments.server_arg),
        listen=Listen(
            http=arguments.http,
            grpc=arguments.grpc,
            metrics=arguments.metrics,
            admin=arguments.admin,
        ),
        first_port=arguments.first_port,
        shared_memory=arguments.shared_memory,
        prometheus=arguments.prometheus or arguments.grafana,
        grafana=arguments.grafana,
    )
    return GenerateOptions(
        target=arguments.target,
        options=options,
        folder=Path(arguments.output),
        source=arguments.source,
        gpus=arguments.gpus,
        cpu_servers=arguments.cpu,
        devices=arguments.devices,
        mig=arguments.mig,
        check=arguments.check,
        force=arguments.force,
        up=arguments.up,
    )
