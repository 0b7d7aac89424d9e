"""The command line: which subcommands there are, their arguments, and where they lead."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from lb.cli.streams import open_standard_streams

if TYPE_CHECKING:
    from lb.cli.admin_client import AdminTarget

# Handlers import their subcommand when it is called, so that each command loads only what it
# needs: `triton-lb drain` should not wait for the data plane, nor `check` for aiohttp.

DEFAULT_ADMIN: Final = "http://127.0.0.1:8003"
"""Where the admin API listens by default."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; usage errors exit with 2 by themselves."""
    open_standard_streams()
    try:
        parser = build_parser()
        arguments = parser.parse_args(argv)
        if arguments.handler is None:
            parser.error("the following arguments are required: COMMAND")
        return int(arguments.handler(arguments))
    except KeyboardInterrupt:
        return 130


def build_parser() -> argparse.ArgumentParser:
    """Describe every subcommand; each sets `handler` to what runs it."""
    parser = argparse.ArgumentParser(
        prog="triton-lb",
        description="Make N Triton Inference Servers look like one (HTTP and gRPC).",
    )
    parser.add_argument(
        "--version", dest="handler", action="store_const", const=_version, help="print the version"
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="balance requests until told to stop"))
    command = commands.add_parser("check", help="print every problem of a configuration file")
    command.add_argument("file", metavar="FILE", help="the YAML file; - reads standard input")
    command.add_argument(
        "--syntax-only",
        action="store_true",
        help="do not open the certificates, keys and tokens that it names",
    )
    command.set_defaults(handler=_check)
    command = commands.add_parser(
        "schema", help="print the JSON schema of a configuration file, for editors"
    )
    command.set_defaults(handler=_schema)
    command = commands.add_parser("demo", help="balance over simulated Tritons and show it")
    command.add_argument(
        "--backends", type=_positive, default=3, metavar="N", help="how many Tritons (default 3)"
    )
    command.add_argument("--once", action="store_true", help="end by itself after some requests")
    command.set_defaults(handler=_demo)
    _add_simulate(commands.add_parser("simulate", help="run simulated Tritons until told to stop"))
    _add_generate(commands)
    _add_admin(commands)
    command = commands.add_parser("version", help="print the version")
    command.set_defaults(handler=_version)
    return parser


def _add_serve(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "-c", "--config", metavar="FILE", help="YAML file; see docs/configuration.md"
    )
    source.add_argument("file", nargs="?", metavar="FILE", help="the same without the option")
    source.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="HTTP port of a Triton, gRPC and metrics at the next two ports; may be repeated",
    )
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002), ("admin", 8003)):
        command.add_argument(
            f"--{name}",
            metavar="ADDRESS",
            help=f"where to listen, instead of the file's or 127.0.0.1:{port}",
        )
    command.add_argument(
        "--pid-file", metavar="FILE", help="file that is to hold the id of the process that serves"
    )
    command.set_defaults(handler=_serve)


def _add_simulate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--count", type=_positive, default=2, metavar="N", help="how many Tritons (default 2)"
    )
    command.add_argument(
        "--first-port",
        type=_port,
        default=18000,
        metavar="PORT",
        help="HTTP port of the first; gRPC and metrics at the next two, the next Triton 100 above "
        "(default 18000, as config/minimal.yaml has it; 0: any free ports)",
    )
    command.add_argument(
        "--speed",
        action="append",
        type=_speed,
        default=[],
        metavar="FACTOR",
        help="how many times as fast as usual a Triton executes; repeat it for unequal Tritons",
    )
    command.set_defaults(handler=_simulate)


def _add_generate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from lb.cli.generate_arguments import add_arguments

    help_text = "write the files of a stack: a server for each GPU, and this before them"
    command = commands.add_parser("generate", help=help_text, description=help_text + ".")
    add_arguments(command)
    command.set_defaults(handler=_generate)


def _add_admin(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that talk to running processes."""
    for name, help_text, handler in (
        ("status", "say in a line how running processes do", _status),
        ("backends", "list the backends of a running process", _backends),
        ("models", "show which models a backend has", _models),
        ("queue", "show queued requests by model, and expected durations by backend", _queue),
        ("sources", "list the sources of backends", _sources),
    ):
        command = commands.add_parser(name, help=help_text)
        if name == "models":
            command.add_argument("name", metavar="NAME", help="name of the backend")
        command.add_argument(
            "--json", action="store_true", help="print the JSON document of the admin API"
        )
        _add_admin_address(command)
        command.set_defaults(handler=handler)
    command = commands.add_parser("top", help="show live how running processes do")
    command.add_argument("--once", action="store_true", help="print it once, without keys")
    command.add_argument("--json", action="store_true", help="print the documents, one a line")
    _add_admin_address(command)
    command.set_defaults(handler=_top)
    for action, help_text in (
        ("drain", "let a backend finish what it has and give it nothing new"),
        ("enable", "give a backend requests again"),
        ("disable", "take a backend out at once"),
        ("remove", "drain a backend, and forget it until the process ends"),
    ):
        command = commands.add_parser(action, help=help_text)
        command.add_argument("name", metavar="NAME", help="name of the backend")
        if action in ("drain", "remove"):
            command.add_argument(
                "--limit", metavar="TIME", help="cut what still runs after this time, such as 30s"
            )
            command.add_argument(
                "--wait", action="store_true", help="return when nothing runs on it any more"
            )
        _add_admin_address(command)
        command.set_defaults(handler=_change, action=action, limit=None, wait=False)
    _add_add(commands.add_parser("add", help="add a backend until the process ends"))
    command = commands.add_parser("reload", help="apply the changed configuration file")
    _add_admin_address(command)
    command.set_defaults(handler=_reload)
    command = commands.add_parser(
        "upgrade", help="start the program anew, with the listening sockets of the one that runs"
    )
    _add_admin_address(command)
    command.set_defaults(handler=_upgrade)


def _add_add(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "backend",
        metavar="NAME|HOST:PORT",
        help="name of a backend, with its addresses below, or alone to take back one that was "
        "removed; or HTTP port of a Triton, gRPC and metrics at the next two ports",
    )
    for port in ("http", "grpc", "metrics"):
        command.add_argument(f"--{port}", metavar="ADDRESS", help=f"address of its {port} port")
    command.add_argument("--kind", metavar="KIND", help="triton, kserve, tfserving or generic")
    command.add_argument("--weight", type=float, metavar="N", help="share of the load")
    command.add_argument(
        "--max-requests", type=int, metavar="N", help="requests at once; 0 is no limit"
    )
    command.add_argument(
        "--wait", type=float, metavar="SECONDS", help="return when it gets requests, or fail"
    )
    _add_admin_address(command)
    command.set_defaults(handler=_add)


def _add_admin_address(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--admin",
        action="append",
        metavar="URL",
        help="admin API of the process; repeat it for several "
        f"(default $TRITON_LB_ADMIN, or {DEFAULT_ADMIN})",
    )
    command.add_argument(
        "--all",
        action="store_true",
        help="all addresses of the host names in --admin, as of a headless service",
    )
    command.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token that it wants (default: environment TRITON_LB_ADMIN_TOKEN)",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return number


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 1 << 16:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, got {text}")
    return port


def _speed(text: str) -> float:
    speed = float(text)
    if not speed > 0:
        raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}")
    return speed


def _serve(arguments: argparse.Namespace) -> int:
    from lb.runtime.signals import hold_signals

    hold_signals()  # before the other imports, which take most of the start
    from lb.cli.serve import ServeOptions, serve

    names = ("http", "grpc", "metrics", "admin")
    given = {name: getattr(arguments, name) for name in names}
    listen = {name: address for name, address in given.items() if address is not None}
    return serve(
        ServeOptions(
            config=arguments.config or arguments.file,
            backends=arguments.backend,
            listen=listen,
            pid_file=arguments.pid_file or "",
        )
    )


def _check(arguments: argparse.Namespace) -> int:
    from lb.cli.check import check

    return check(arguments.file, syntax_only=arguments.syntax_only)


def _schema(_arguments: argparse.Namespace) -> int:
    import json

    from lb.settings.json_schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from lb.cli.demo import run_demo

    return run_demo(arguments.backends, arguments.once)


def _simulate(arguments: argparse.Namespace) -> int:
    from lb.cli.simulate import simulate

    return simulate(arguments.count, arguments.first_port, arguments.speed)


def _generate(arguments: argparse.Namespace) -> int:
    from lb.cli.generate import generate
    from lb.cli.generate_arguments import options_of

    return generate(options_of(arguments))


def _status(arguments: argparse.Namespace) -> int:
    from lb.cli.admin import show_status

    return _ask_admin(arguments, show_status)


def _backends(arguments: argparse.Namespace) -> int:
    from lb.cli.admin import list_backends

    return _ask_admin(arguments, list_backends)


def _top(arguments: argparse.Namespace) -> int:
    from lb.cli.top import top

    return _with_targets(arguments, lambda targets: top(targets, once=arguments.once))


def _models(arguments: argparse.Namespace) -> int:
    from lb.cli.admin import list_models

    return _ask_admin(arguments, lambda admin: list_models(admin, arguments.name))


def _queue(arguments: argparse.Namespace) -> int:
    from lb.cli.admin import show_queue

    return _ask_admin(arguments, show_queue)


def _sources(arguments: argparse.Namespace) -> int:
    from lb.cli.admin import list_sources

    return _ask_admin(arguments, list_sources)


def _change(arguments: argparse.Namespace) -> int:
    from lb.cli.admin import change_backend

    return _ask_admin(
        arguments,
        lambda admin: change_backend(
            admin, arguments.name, arguments.action, limit=arguments.limit, wait=arguments.wait
        ),
    )


def _add(arguments: argparse.Namespace) -> int:
    from lb.cli.admin import add_backend

    keys = ("http", "grpc", "metrics", "kind", "weight", "max_requests")
    settings = {key: value for key in keys if (value := getattr(arguments, key)) is not None}
    return _ask_admin(
        arguments,
        lambda admin: add_backend(admin, arguments.backend, settings, wait_s=arguments.wait),
    )


def _reload(arguments: argparse.Namespace) -> int:
    from lb.cli.admin import reload_configuration

    return _ask_admin(arguments, reload_configuration)


def _upgrade(arguments: argparse.Namespace) -> int:
    from lb.cli.admin import upgrade_process

    return _ask_admin(arguments, upgrade_process)


def _ask_admin(arguments: argparse.Namespace, ask: Callable[[AdminTarget], int]) -> int:
    from lb.cli.replicas import ask_each

    return _with_targets(arguments, lambda targets: ask_each(targets, ask))


def _with_targets(
    arguments: argparse.Namespace, act: Callable[[Sequence[AdminTarget]], int]
) -> int:
    """Do something with the processes that the arguments name."""
    from lb.cli.admin_client import AdminError, AdminTarget, find_token
    from lb.cli.replicas import addresses_of

    try:
        token = find_token(arguments.token_file, os.environ)
        usual = os.environ.get("TRITON_LB_ADMIN") or DEFAULT_ADMIN
        addresses = addresses_of(arguments.admin or [usual], every=arguments.all)
    except AdminError as error:
        print(f"triton-lb: {error}", file=sys.stderr)
        return 1
    as_json = getattr(arguments, "json", False)  # of commands that print a view
    return act([AdminTarget(address, token, as_json=as_json) for address in addresses])


def _version(_arguments: argparse.Namespace) -> int:
    from importlib import metadata

    from lb.wire.compiled import is_compiled

    kind = "compiled" if is_compiled() else "pure Python"
    try:
        print(f"triton-lb {metadata.version('triton-lb')} ({kind})")
    except metadata.PackageNotFoundError:
        print("triton-lb, run from its source tree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
