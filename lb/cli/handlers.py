"""From parsed arguments to what runs a command.

A handler imports its command when it is called, so that each command loads only what it needs:
`triton-lb drain` should not wait for the data plane, nor `check` for aiohttp.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Final

from lb.cli.parser import refuse

if TYPE_CHECKING:
    from lb.cli.admin_client import AdminTarget

DEFAULT_ADMIN: Final = "http://127.0.0.1:8003"
"""Where the admin API listens by default."""
_LISTENERS: Final = ("http", "grpc", "metrics", "admin")
_ADDED: Final = ("http", "grpc", "metrics", "kind", "weight", "max_requests")
"""Options of `add` that are settings of the backend."""


def serve(arguments: argparse.Namespace) -> int:
    """Run `triton-lb serve`."""
    from lb.runtime.workers.parent import end_with_supervisor

    end_with_supervisor(os.environ)
    from lb.runtime.signals import hold_signals

    file = arguments.config or arguments.file
    if not (file or arguments.backend):
        refuse("triton-lb serve", "name a configuration FILE, or a Triton by --backend HOST:PORT")
    hold_signals()  # before the other imports, which take most of the start
    from lb.cli.serve import ServeOptions
    from lb.cli.serve import serve as run
    from lb.settings.choices import LogLevel

    given = {name: getattr(arguments, name) for name in _LISTENERS}
    level = LogLevel.WARNING if arguments.quiet else LogLevel.DEBUG if arguments.verbose else None
    return run(
        ServeOptions(
            config=file,
            backends=arguments.backend,
            listen={name: address for name, address in given.items() if address is not None},
            pid_file=arguments.pid_file or "",
            log_level=level,
        )
    )


def check(arguments: argparse.Namespace) -> int:
    """Run `triton-lb check`."""
    from lb.cli.check import check as run

    return run(arguments.file, syntax_only=arguments.syntax_only, quiet=arguments.quiet)


def config(arguments: argparse.Namespace) -> int:
    """Run `triton-lb config`."""
    from lb.cli.config import show_config_of_file, show_running_config

    if arguments.file is not None:
        return show_config_of_file(arguments.file, as_json=arguments.json)
    return _ask_admin(arguments, show_running_config)


def schema(_arguments: argparse.Namespace) -> int:
    """Run `triton-lb schema`."""
    import json

    from lb.settings.json_schema import json_schema

    print(json.dumps(json_schema(), indent=2))
    return 0


def demo(arguments: argparse.Namespace) -> int:
    """Run `triton-lb demo`."""
    from lb.cli.demo import run_demo

    return run_demo(arguments.backends, arguments.once)


def simulate(arguments: argparse.Namespace) -> int:
    """Run `triton-lb simulate`."""
    from lb.cli.simulate import simulate as run

    return run(arguments.count, arguments.first_port, arguments.speed)


def replay(arguments: argparse.Namespace) -> int:
    """Run `triton-lb replay`."""
    from lb.cli.replay import Tolerance
    from lb.cli.replay import replay as run

    return run(arguments.file, arguments.to, Tolerance(arguments.atol, arguments.rtol))


def generate(arguments: argparse.Namespace) -> int:
    """Run `triton-lb generate`."""
    from lb.cli.generate import generate as run
    from lb.cli.generate_arguments import options_of

    with _unless_quiet(arguments):
        return run(options_of(arguments))


def completion(arguments: argparse.Namespace) -> int:
    """Run `triton-lb completion`."""
    from lb.cli.completion import print_completion

    return print_completion(arguments.parser, arguments.shell)


def version(_arguments: argparse.Namespace) -> int:
    """Run `triton-lb version`."""
    from importlib import metadata

    from lb.wire.compiled import is_compiled

    kind = "compiled" if is_compiled() else "pure Python"
    try:
        print(f"triton-lb {metadata.version('triton-lb')} ({kind})")
    except metadata.PackageNotFoundError:
        print("triton-lb, run from its source tree")
    return 0


# Running processes


def status(arguments: argparse.Namespace) -> int:
    """Run `triton-lb status`."""
    from lb.cli.admin import show_status

    is_strict = arguments.fail_if_degraded
    return _ask_admin(arguments, lambda admin: show_status(admin, fail_if_degraded=is_strict))


def backends(arguments: argparse.Namespace) -> int:
    """Run `triton-lb backends`."""
    from lb.cli.admin import list_backends

    return _ask_admin(arguments, list_backends)


def models(arguments: argparse.Namespace) -> int:
    """Run `triton-lb models`."""
    from lb.cli.admin import list_models

    return _ask_admin(arguments, lambda admin: list_models(admin, arguments.name))


def queue(arguments: argparse.Namespace) -> int:
    """Run `triton-lb queue`."""
    from lb.cli.admin import show_queue

    return _ask_admin(arguments, show_queue)


def placement(arguments: argparse.Namespace) -> int:
    """Run `triton-lb placement`."""
    from lb.cli.admin import show_placement

    return _ask_admin(arguments, show_placement)


def change_placement(arguments: argparse.Namespace) -> int:
    """Run `triton-lb pin`, `unpin` or `evict`."""
    from lb.cli.admin import change_placement as run

    model, action, backend = arguments.model, arguments.action, getattr(arguments, "backend", None)
    return _ask_admin(arguments, lambda admin: run(admin, model, action, backend))


def sources(arguments: argparse.Namespace) -> int:
    """Run `triton-lb sources`."""
    from lb.cli.admin import list_sources

    return _ask_admin(arguments, list_sources)


def variants(arguments: argparse.Namespace) -> int:
    """Run `triton-lb variants`."""
    from lb.cli.admin import list_variants

    return _ask_admin(arguments, list_variants)


def compare(arguments: argparse.Namespace) -> int:
    """Run `triton-lb compare`."""
    from lb.cli.admin import show_comparison

    name, is_markdown = arguments.name, arguments.markdown
    return _ask_admin(arguments, lambda admin: show_comparison(admin, name, markdown=is_markdown))


def set_shares(arguments: argparse.Namespace) -> int:
    """Run `triton-lb set`."""
    from lb.cli.admin import set_shares as run

    percents = dict(arguments.shares)
    return _ask_admin(arguments, lambda admin: run(admin, arguments.name, percents))


def promote(arguments: argparse.Namespace) -> int:
    """Run `triton-lb promote`."""
    from lb.cli.admin import promote as run

    return _ask_admin(arguments, lambda admin: run(admin, arguments.name, arguments.variant))


def top(arguments: argparse.Namespace) -> int:
    """Run `triton-lb top`."""
    from lb.cli.top import top as run

    return _with_targets(arguments, lambda targets: run(targets, once=arguments.once))


def change(arguments: argparse.Namespace) -> int:
    """Run `triton-lb drain` or another command that changes one backend."""
    from lb.cli.admin import change_backend, change_model

    name, action = arguments.name, arguments.action
    limit_s = getattr(arguments, "limit", None)  # `enable` and `disable` have neither
    wait = getattr(arguments, "wait", False)
    model = getattr(arguments, "model", None)
    if model is not None:
        if limit_s is not None:
            refuse(f"triton-lb {action}", "--limit cuts all of a backend: not with --model")
        return _ask_admin(
            arguments, lambda admin: change_model(admin, name, model, action, wait=wait)
        )
    return _ask_admin(
        arguments, lambda admin: change_backend(admin, name, action, limit_s=limit_s, wait=wait)
    )


def add(arguments: argparse.Namespace) -> int:
    """Run `triton-lb add`."""
    from lb.cli.admin import add_backend

    settings = {key: value for key in _ADDED if (value := getattr(arguments, key)) is not None}
    return _ask_admin(
        arguments,
        lambda admin: add_backend(admin, arguments.backend, settings, wait_s=arguments.wait),
    )


def reload(arguments: argparse.Namespace) -> int:
    """Run `triton-lb reload`."""
    from lb.cli.admin import reload_configuration

    return _ask_admin(arguments, reload_configuration)


def upgrade(arguments: argparse.Namespace) -> int:
    """Run `triton-lb upgrade`."""
    from lb.cli.admin import upgrade_process

    return _ask_admin(arguments, upgrade_process)


def _ask_admin(arguments: argparse.Namespace, ask: Callable[[AdminTarget], int]) -> int:
    from lb.cli.replicas import ask_each

    return _with_targets(arguments, lambda targets: ask_each(targets, ask))


def _with_targets(
    arguments: argparse.Namespace, act: Callable[[Sequence[AdminTarget]], int]
) -> int:
    """Do something with the processes that the arguments name."""
    from lb.cli.admin_client import ADDRESS_VARIABLE, AdminError, AdminTarget, find_token
    from lb.cli.replicas import addresses_of, with_replicas

    given, source = arguments.admin, "--admin"
    if given is None:
        given, source = [os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADMIN], ADDRESS_VARIABLE
    try:
        token = find_token(arguments.token_file, os.environ)
        addresses = addresses_of(given, source, every=arguments.all)
        as_json = getattr(arguments, "json", False)  # of commands that print a view
        targets = [AdminTarget(address, token, as_json=as_json) for address in addresses]
        if arguments.all:
            targets = with_replicas(targets)
    except AdminError as error:
        print(f"triton-lb: {error}", file=sys.stderr)
        return 1
    with _unless_quiet(arguments):
        return act(targets)


def _unless_quiet(arguments: argparse.Namespace) -> AbstractContextManager[object]:
    """Drop what a command prints on standard output if it has `--quiet`."""
    return redirect_stdout(io.StringIO()) if getattr(arguments, "quiet", False) else nullcontext()
