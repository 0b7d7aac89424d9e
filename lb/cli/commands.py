"""Which commands there are: their arguments, help texts and examples. `lb.cli.handlers` runs them.

Each command says in one sentence what it does, and has one example.
"""

from __future__ import annotations

import argparse
from typing import Any, Final, TypeAlias

from lb.cli import handlers
from lb.cli.handlers import DEFAULT_ADMIN
from lb.cli.parser import Parser, count, duration, factor, port, positive, share
from lb.domain.backend import BackendKind

_KINDS: Final = [kind.value for kind in BackendKind]
SHELLS: Final = ("bash", "zsh", "fish")

_Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
_DESCRIPTION: Final = "Make N Triton Inference Servers look like one (HTTP and gRPC)."
_EPILOG: Final = f"""\
`triton-lb COMMAND --help` explains a command, with an example.

exit codes:
  0    done
  1    not done; standard error says why, or a check has found something
  2    the arguments cannot be understood
  130  interrupted (Ctrl-C)

environment:
  TRITON_LB_ADMIN        admin API to ask (default {DEFAULT_ADMIN})
  TRITON_LB_ADMIN_TOKEN  token for the admin API"""
_UNTIL_END: Final = "It needs `placement`, and holds until the process ends."


def build_parser() -> Parser:
    """Describe every command; each sets `handler` to what runs it."""
    parser = Parser(prog="triton-lb", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument(
        "--version",
        dest="handler",
        action="store_const",
        const=handlers.version,
        help="print the version",
    )
    commands: _Commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    _add_serve(commands)
    _add_files(commands)
    _add_trials(commands)
    _add_generate(commands)
    _add_replay(commands)
    _add_views(commands)
    _add_changes(commands)
    command = _add(
        commands,
        "completion",
        "print a completion script for a shell",
        "triton-lb completion bash > ~/.triton-lb.bash",
        "It needs `pip install 'triton-lb[completion]'`. Your shell has to read the script at its "
        "start: for bash add `source ~/.triton-lb.bash` to ~/.bashrc.",
    )
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    command.set_defaults(handler=handlers.completion, parser=parser)
    _add(commands, "version", "print the version", "triton-lb version").set_defaults(
        handler=handlers.version
    )
    return parser


def _add(
    commands: _Commands, name: str, help_text: str, example: str, more: str = "", **options: Any
) -> Parser:
    """Add a command.

    Args:
        commands: where to.
        name: of the command.
        help_text: for the list of all commands, and the first sentence of its own help.
        example: a command line.
        more: further sentences of its own help.
        options: of `ArgumentParser`.
    """
    sentence = f"{help_text[0].upper()}{help_text[1:]}."
    description = f"{sentence} {more}" if more else sentence
    return commands.add_parser(
        name, help=help_text, description=description, example=example, **options
    )


def _add_quiet(command: argparse._ActionsContainer, help_text: str) -> None:
    command.add_argument("-q", "--quiet", action="store_true", help=help_text)


# Configuration, and the process


def _add_serve(commands: _Commands) -> None:
    command = _add(
        commands,
        "serve",
        "balance requests until told to stop",
        "triton-lb serve --backend gpu-1:8000 --backend gpu-2:8000",
        "It needs a configuration file, or the Tritons by --backend.",
    )
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "-c", "--config", metavar="FILE", help="configuration in YAML (docs/configuration.md)"
    )
    source.add_argument(
        "file", nargs="?", metavar="FILE", help="configuration in YAML, as with --config"
    )
    source.add_argument(
        "--backend",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="HTTP port of a Triton; gRPC and metrics are at the next two ports; repeat it for "
        "each Triton",
    )
    for name, number in (("http", 8000), ("grpc", 8001), ("metrics", 8002), ("admin", 8003)):
        command.add_argument(
            f"--{name}",
            metavar="ADDRESS",
            help=f"address to listen on, instead of the file's or 127.0.0.1:{number}",
        )
    command.add_argument(
        "--pid-file", metavar="FILE", help="write the id of the serving process to this file"
    )
    volume = command.add_mutually_exclusive_group()
    _add_quiet(volume, "log warnings and errors only, and print no banner")
    volume.add_argument("-v", "--verbose", action="store_true", help="log everything (debug)")
    command.set_defaults(handler=handlers.serve)


def _add_files(commands: _Commands) -> None:
    command = _add(
        commands,
        "check",
        "print every problem of a configuration file",
        "triton-lb check triton-lb.yaml",
        "It also opens the certificates, keys, tokens and backend files that the file names. "
        "The exit code is 0 if there is no problem; warnings do not count.",
    )
    command.add_argument("file", metavar="FILE", help="configuration in YAML; - is standard input")
    command.add_argument("--syntax-only", action="store_true", help="open no file that FILE names")
    _add_quiet(command, "print problems only")
    command.set_defaults(handler=handlers.check)
    command = _add(
        commands,
        "config",
        "print the effective configuration",
        "triton-lb config triton-lb.yaml",
        "Defaults are filled in and secrets are masked. Without FILE it asks a running process.",
    )
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "file", nargs="?", metavar="FILE", help="configuration in YAML; - is standard input"
    )
    _add_admin_address(command, source)
    command.add_argument("--json", action="store_true", help="print JSON instead of YAML")
    command.set_defaults(handler=handlers.config)
    command = _add(
        commands,
        "schema",
        "print the JSON schema of a configuration file, for editors",
        "triton-lb schema > triton-lb.schema.json",
    )
    command.set_defaults(handler=handlers.schema)


def _add_trials(commands: _Commands) -> None:
    command = _add(
        commands,
        "demo",
        "balance over simulated Tritons and show it",
        "triton-lb demo --backends 4",
        "It needs no GPU.",
    )
    command.add_argument(
        "--backends", type=positive, default=3, metavar="N", help="number of Tritons (default 3)"
    )
    command.add_argument("--once", action="store_true", help="end after half a minute")
    command.set_defaults(handler=handlers.demo)
    command = _add(
        commands,
        "simulate",
        "run simulated Tritons until told to stop",
        "triton-lb simulate --count 2 --speed 1 --speed 0.5",
        "They need no GPU, and answer as Triton does.",
    )
    command.add_argument(
        "--count", type=positive, default=2, metavar="N", help="number of Tritons (default 2)"
    )
    command.add_argument(
        "--first-port",
        type=port,
        default=18000,
        metavar="PORT",
        help="HTTP port of the first Triton (default 18000); gRPC and metrics are at the next two "
        "ports, the next Triton is 100 above; 0 takes any free ports",
    )
    command.add_argument(
        "--speed",
        action="append",
        type=factor,
        default=[],
        metavar="FACTOR",
        help="speed of a Triton, 1 is usual; repeat it for unequal Tritons",
    )
    command.set_defaults(handler=handlers.simulate)


def _add_replay(commands: _Commands) -> None:
    command = _add(
        commands,
        "replay",
        "send the requests of a payload log to a server and compare its responses",
        "triton-lb replay payloads.jsonl --to gpu-9:8000",
        "The exit code is 1 if a response differs.",
    )
    command.add_argument("file", metavar="FILE", help="payload log (docs/payload-log.md)")
    command.add_argument(
        "--to", required=True, metavar="HOST:PORT", help="HTTP port of a Triton, or of triton-lb"
    )
    for name, what in (("atol", "absolute"), ("rtol", "relative")):
        command.add_argument(
            f"--{name}",
            type=factor,
            default=0.0,
            metavar="X",
            help=f"{what} difference that numbers with a fraction may have (default 0)",
        )
    command.set_defaults(handler=handlers.replay)


def _add_generate(commands: _Commands) -> None:
    from lb.cli.generate_arguments import EXAMPLE, MORE, add_arguments

    command = _add(
        commands,
        "generate",
        "write the files of a stack: one server for each GPU, and triton-lb in front",
        EXAMPLE,
        MORE,
    )
    add_arguments(command)
    command.set_defaults(handler=handlers.generate)


# Running processes


def _add_views(commands: _Commands) -> None:
    """Add the commands that show what running processes say."""
    for name, help_text, example, handler in (
        ("status", "say in one line how running processes do", "triton-lb status", handlers.status),
        ("backends", "list the backends", "triton-lb backends", handlers.backends),
        ("models", "list the models of a backend", "triton-lb models gpu-0", handlers.models),
        (
            "queue",
            "list queued requests by model, with expected durations by backend",
            "triton-lb queue",
            handlers.queue,
        ),
        (
            "placement",
            "list the models that are loaded on demand, by backend",
            "triton-lb placement",
            handlers.placement,
        ),
        ("sources", "list the sources of backends", "triton-lb sources", handlers.sources),
        (
            "variants",
            "list variants with their shares, errors and latency",
            "triton-lb variants",
            handlers.variants,
        ),
    ):
        more = ""
        if name == "status":
            more = "The exit code is 1 if no backend is up."
        command = _add(commands, name, help_text, example, more)
        if name == "models":
            command.add_argument("name", metavar="NAME", help="name of the backend")
        if name == "status":
            command.add_argument(
                "--fail-if-degraded",
                action="store_true",
                help="exit with 1 unless all is good, as the page and `top` judge it",
            )
            _add_quiet(command, "print nothing; the exit code tells")
        command.add_argument(
            "--json", action="store_true", help="print the JSON document of the admin API"
        )
        _add_admin_address(command)
        command.set_defaults(handler=handler)
    command = _add(
        commands,
        "top",
        "show live how running processes do",
        "triton-lb top --admin lb-0:8003 --admin lb-1:8003",
    )
    command.add_argument("--once", action="store_true", help="print it once, without keys")
    command.add_argument("--json", action="store_true", help="print the documents, one a line")
    _add_admin_address(command)
    command.set_defaults(handler=handlers.top)
    _add_compare(commands)


def _add_changes(commands: _Commands) -> None:
    """Add the commands that change running processes."""
    for action, help_text in (
        ("drain", "let a backend complete its requests and send it no new ones"),
        ("enable", "send requests to a backend again"),
        ("disable", "send nothing new to a backend, and give up its sequences"),
        ("activate", "let a standby backend serve, until the load does not need it any more"),
        ("deactivate", "drain an active standby backend, and stop it"),
        ("remove", "drain a backend, and forget it until the process ends"),
    ):
        example = f"triton-lb {action} gpu-0"
        if action in ("drain", "remove"):
            example += " --limit 30s --wait"
        command = _add(commands, action, help_text, example)
        command.add_argument("name", metavar="NAME", help="name of the backend")
        if action in ("drain", "enable"):
            command.add_argument(
                "--model",
                metavar="MODEL",
                help="drain this model only; the backend serves its other models"
                if action == "drain"
                else "end the drain of this model",
            )
        if action in ("drain", "remove"):
            command.add_argument(
                "--limit",
                type=duration,
                metavar="TIME",
                help="cut requests that still run after this time, such as 30s",
            )
            command.add_argument(
                "--wait",
                action="store_true",
                help="return when the backend has completed its requests"
                if action == "drain"
                else "return when the backend is removed",
            )
        _add_admin_address(command)
        _add_quiet(command, "print errors only")
        command.set_defaults(handler=handlers.change, action=action)
    _add_add(commands)
    _add_variants(commands)
    _add_placement(commands)
    for name, help_text, handler in (
        ("reload", "apply the changed configuration file", handlers.reload),
        (
            "upgrade",
            "replace the process by a new one of the installed version, without a gap",
            handlers.upgrade,
        ),
    ):
        command = _add(commands, name, help_text, f"triton-lb {name}")
        _add_admin_address(command)
        _add_quiet(command, "print errors only")
        command.set_defaults(handler=handler)


def _add_compare(commands: _Commands) -> None:
    command = _add(
        commands,
        "compare",
        "show how the answers of a shadow compare with those of the model in service",
        "triton-lb compare detector",
        "See docs/shadow.md.",
    )
    command.add_argument("name", metavar="NAME", help="name that clients use")
    form = command.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print the JSON document of the admin API"
    )
    form.add_argument("--markdown", action="store_true", help="print a report for a release")
    _add_admin_address(command)
    command.set_defaults(handler=handlers.compare)


def _add_placement(commands: _Commands) -> None:
    """Add the commands that change which models are loaded on demand."""
    for action, help_text, more in (
        ("pin", "load a model without being asked for, and never evict it", _UNTIL_END),
        ("unpin", "let a pinned model be evicted", _UNTIL_END),
        ("evict", "unload a model", "The next request for it loads it again."),
    ):
        command = _add(commands, action, help_text, f"triton-lb {action} bert", more)
        command.add_argument("model", metavar="MODEL", help="name of the model")
        if action == "evict":
            command.add_argument(
                "--backend", metavar="NAME", help="unload it there only (default: everywhere)"
            )
        _add_admin_address(command)
        _add_quiet(command, "print errors only")
        command.set_defaults(handler=handlers.change_placement, action=action)


def _add_variants(commands: _Commands) -> None:
    command = _add(
        commands,
        "set",
        "give variants of a model other shares",
        "triton-lb set detector canary=20",
        "The other variants share what is left. Without shares, those of the file hold again.",
    )
    command.add_argument("name", metavar="NAME", help="name that clients use")
    command.add_argument(
        "shares",
        nargs="*",
        type=share,
        metavar="VARIANT=PERCENT",
        help="a variant, and its share of the requests",
    )
    _add_admin_address(command)
    _add_quiet(command, "print errors only")
    command.set_defaults(handler=handlers.set_shares)
    command = _add(
        commands,
        "promote",
        "make a variant the stable one, which gets all requests",
        "triton-lb promote detector canary",
        "Write it into the configuration file, too.",
    )
    command.add_argument("name", metavar="NAME", help="name that clients use")
    command.add_argument("variant", metavar="VARIANT", help="the variant")
    _add_admin_address(command)
    _add_quiet(command, "print errors only")
    command.set_defaults(handler=handlers.promote)


def _add_add(commands: _Commands) -> None:
    command = _add(
        commands,
        "add",
        "add a backend until the process ends",
        "triton-lb add gpu-7:8000 --wait 1m",
        "A name alone takes back a backend that was removed.",
    )
    command.add_argument(
        "backend",
        metavar="HOST:PORT|NAME",
        help="HTTP port of a Triton, whose gRPC and metrics are at the next two ports; or a name, "
        "with the addresses by the options below",
    )
    for name in ("http", "grpc", "metrics"):
        command.add_argument(f"--{name}", metavar="ADDRESS", help=f"address of its {name} port")
    command.add_argument(
        "--kind",
        choices=_KINDS,
        metavar="KIND",
        help=f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]} (default {_KINDS[0]})",
    )
    command.add_argument(
        "--weight", type=factor, metavar="N", help="share of the load relative to the others"
    )
    command.add_argument(
        "--max-requests", type=count, metavar="N", help="requests in flight at once; 0 is no limit"
    )
    command.add_argument(
        "--wait",
        type=duration,
        metavar="TIME",
        help="return when the backend is up, or fail after this time, such as 1m",
    )
    _add_admin_address(command)
    _add_quiet(command, "print errors only")
    command.set_defaults(handler=handlers.add)


def _add_admin_address(
    command: argparse.ArgumentParser, group: argparse._MutuallyExclusiveGroup | None = None
) -> None:
    """Add the options that say which processes to ask; `group` excludes `--admin` with others."""
    (group or command).add_argument(
        "--admin",
        action="append",
        metavar="URL",
        help=f"admin API of the process (default $TRITON_LB_ADMIN, or {DEFAULT_ADMIN}); repeat it "
        "for several processes",
    )
    command.add_argument(
        "--all",
        action="store_true",
        help="ask all addresses of the host names in --admin, as of a headless service, and the "
        "replicas that the configuration names (admin.replicas)",
    )
    command.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with the token of the admin API (default $TRITON_LB_ADMIN_TOKEN)",
    )
