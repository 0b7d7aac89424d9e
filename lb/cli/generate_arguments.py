"""The arguments of `triton-lb generate`; the work is in `lb.cli.generate`, which loads more."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from lb.cli.parser import Parser, number, positive
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
EXAMPLE: Final = "triton-lb generate compose --gpus 8 --models /srv/models"
MORE: Final = """\
Nothing is started without --up, and no file is replaced without --force.
If a folder has a stack and no option of a stack is given, the options that
it was made with are used again.

targets:
  compose     a Compose file: a container for each GPU, on this machine
  systemd     units: a service for each GPU, with sockets held by systemd
  kubernetes  manifests: a Deployment for each kind of GPU, for kubectl apply -k"""
_PROGRAM: Final = "triton-lb generate"
_MAX_SERVERS: Final = 1000
_SOURCES: Final = frozenset({"--from", "--gpus", "--cpu"})
"""Options of which there is one at most."""
_ACTIONS: Final = frozenset({"help", "target", "output", "check", "force", "up", "quiet"})
"""What the files do not depend on, apart from the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What the command line says."""

    target: Target
    options: Options
    folder: Path
    arguments: tuple[str, ...] = ()
    """The options that the files depend on, those with their default left out."""
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
        "target",
        choices=list(map(str, Target)),
        metavar="TARGET",
        help="compose, systemd or kubernetes",
    )
    command.add_argument(
        "--output",
        default=DEFAULT_FOLDER,
        metavar="DIR",
        help=f"folder of the files (default {DEFAULT_FOLDER})",
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="only show how the files there differ, and exit with 1 if they do; options that are "
        "not given are those that the files were made with",
    )
    command.add_argument("--force", action="store_true", help="replace files that differ")
    command.add_argument(
        "--up", action="store_true", help="compose: print the stack, then start it"
    )
    command.add_argument("-q", "--quiet", action="store_true", help="print notes and errors only")
    _add_devices(
        command.add_argument_group("devices", "By default all that nvidia-smi lists are used.")
    )
    _add_servers(command.add_argument_group("servers"))
    _add_balancer(command.add_argument_group("triton-lb"))


def _add_devices(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="saved output of `nvidia-smi -L`, instead of asking it; - is standard input",
    )
    source.add_argument(
        "--gpus", type=_servers, default=0, metavar="N", help="N whole GPUs, by index"
    )
    source.add_argument(
        "--cpu",
        type=_servers,
        default=0,
        dest="cpu_servers",
        metavar="N",
        help="N servers without a GPU",
    )
    group.add_argument(
        "--devices",
        type=_words,
        default=(),
        metavar="LIST",
        help="only these, separated by commas: indexes (0; 0:3 for a MIG device) or UUIDs",
    )
    group.add_argument(
        "--mig",
        default="",
        metavar="LAYOUT",
        help="divide each GPU, such as 1g.5gb=7 or 3g.20gb=1,1g.5gb=4; this writes a script to "
        "read and a unit for the boot, and runs neither",
    )


def _add_servers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--server",
        choices=list(map(str, ServerKind)),
        default=ServerKind.TRITON.value,
        metavar="KIND",
        help="triton (default) or tfserving",
    )
    group.add_argument(
        "--image",
        default="",
        help=f"image of the servers (default {IMAGES[ServerKind.TRITON]})",
    )
    group.add_argument(
        "--models",
        default="",
        metavar="WHERE",
        help="folder of the models, by default ./models beside the Compose file, or /srv/models "
        "for systemd; kubernetes: a folder of the nodes, or a PersistentVolumeClaim (default "
        "triton-models)",
    )
    group.add_argument(
        "--model", default="model", metavar="NAME", help="tfserving: name of its one model"
    )
    group.add_argument(
        "--server-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="further argument of every server, such as --server-arg=--strict-readiness=false",
    )
    group.add_argument(
        "--shared-memory",
        action="store_true",
        help="let clients on this host share memory with the servers",
    )
    group.add_argument(
        "--first-port",
        type=positive,
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
            help=f"address to listen on (default {address})",
        )
    group.add_argument(
        "--lb-image",
        default=BALANCER_IMAGE,
        metavar="IMAGE",
        help=f"image of triton-lb (default {BALANCER_IMAGE})",
    )
    group.add_argument("--prometheus", action="store_true", help="compose: add Prometheus")
    group.add_argument("--grafana", action="store_true", help="compose: add Grafana and Prometheus")


def _servers(text: str) -> int:
    """How many servers: as many as the load balancer takes for backends by default, at most."""
    wanted = f"a whole number from 1 to {_MAX_SERVERS}"
    return number(text, int, wanted, lambda found: 1 <= found <= _MAX_SERVERS)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def options_of(arguments: argparse.Namespace) -> GenerateOptions:
    """What the parsed command line says."""
    chosen = _chosen(arguments)
    command = shlex.join([*_PROGRAM.split(), arguments.target, *chosen])
    options = Options(
        server=ServerKind(arguments.server),
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
        command=command if command.isprintable() else "",  # a comment is one line
    )
    return GenerateOptions(
        target=Target(arguments.target),
        options=options,
        folder=Path(arguments.output),
        arguments=chosen,
        source=arguments.source,
        gpus=arguments.gpus,
        cpu_servers=arguments.cpu_servers,
        devices=arguments.devices,
        mig=arguments.mig,
        check=arguments.check,
        force=arguments.force,
        up=arguments.up,
    )


def remembered(given: GenerateOptions, command: str) -> GenerateOptions:
    """Complete a command line by the options of another one.

    Args:
        given: what the user says now.
        command: what the files were made by, as `Options.command`.

    Raises:
        ValueError: the command has a quotation mark too few.
    """
    names = {_name(each) for each in given.arguments}
    if names & _SOURCES:
        names |= _SOURCES
    words = shlex.split(command)[len(_PROGRAM.split()) + 1 :]
    kept = [each for each in words if _name(each) not in names]
    completed = options_of(_parser().parse_args([given.target, *kept, *given.arguments]))
    return replace(
        completed, folder=given.folder, check=given.check, force=given.force, up=given.up
    )


def _name(option: str) -> str:
    return option.partition("=")[0]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog=_PROGRAM)
    add_arguments(parser)
    return parser


def _chosen(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The options that the files depend on, each as one word, in the order of the help text."""
    chosen = []
    for action in _parser()._actions:
        value = getattr(arguments, action.dest, None)
        if action.dest in _ACTIONS or value == action.default:
            continue
        (option,) = action.option_strings
        if action.nargs == 0:
            chosen.append(option)
        else:
            chosen += [f"{option}={text}" for text in _texts(value)]
    return tuple(chosen)


def _texts(value: object) -> Sequence[str]:
    if isinstance(value, list):
        return value
    return [",".join(value) if isinstance(value, tuple) else str(value)]
