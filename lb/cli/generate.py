"""`triton-lb generate compose|kubernetes|systemd`: from the GPUs of a machine to a stack."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

from lb.cli.generate_arguments import GenerateOptions, remembered
from lb.generate.compose import COMPOSE_FILE
from lb.generate.devices import GenerateError
from lb.generate.docker import what_is_missing
from lb.generate.files import (
    FileComparison,
    GeneratedFile,
    command_of,
    compare,
    difference,
    write,
)
from lb.generate.nvidia_smi import read_nvidia_smi
from lb.generate.plan import MAIN_FILES, FilePlan, Request, make_plan
from lb.generate.stack import Server, Stack, Target

_NEXT: Final = {
    Target.COMPOSE: "docker compose -f {folder}/compose.yaml up -d",
    Target.KUBERNETES: "kubectl apply -k {folder}",
    Target.SYSTEMD: (
        "sudo cp -r {folder}/etc/. /etc/ && sudo systemctl daemon-reload"
        " && sudo systemctl enable --now triton.target"
    ),
}


def generate(options: GenerateOptions) -> int:
    """Write the files, or show how they differ.

    Returns:
        The exit code: 1 where nothing could be written, or where files differ with `check`.
    """
    try:
        if options.up and (options.check or options.target is not Target.COMPOSE):
            raise GenerateError("--up is for compose, without --check")
        if options.check or not options.arguments:
            options = _as_made(options)
        plan = make_plan(_request(options))
        for note in plan.notes:
            print(f"triton-lb: {note}", file=sys.stderr)
        comparison = compare(plan.files, options.folder)
        if options.check:
            return _show(comparison, options.folder)
        _write(comparison, options)
    except GenerateError as error:
        print(f"triton-lb: {error}", file=sys.stderr)
        return 1
    _tell(plan, options)
    return _start(plan, plan.stack, options.folder) if options.up and plan.stack else 0


def _as_made(options: GenerateOptions) -> GenerateOptions:
    """The options, completed by those that the files there were made with."""
    path = options.folder / MAIN_FILES[options.target]
    command = command_of(path)
    if not command:
        return options
    try:
        found = remembered(options, command)
    except ValueError as error:
        raise GenerateError(f"{path}: its command cannot be read: {error}") from error
    if found.source == "-" and options.source is None:
        raise GenerateError(
            "the files were made from standard input: give its text again by --from"
        )
    if not options.check and found.arguments:
        used = shlex.join(found.arguments)
        print(f"triton-lb: with the options in {path}: {used}", file=sys.stderr)
    return found


def _request(options: GenerateOptions) -> Request:
    listing = None
    if not (options.gpus or options.cpu_servers):
        listing = _read(options.source) if options.source else read_nvidia_smi()
    return Request(
        target=options.target,
        options=options.options,
        listing=listing,
        gpus=options.gpus,
        cpu_servers=options.cpu_servers,
        devices=options.devices,
        mig=options.mig,
    )


def _read(source: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise GenerateError(f"--from {source}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise GenerateError(f"--from {source}: it is not UTF-8 text") from error


def _show(comparison: FileComparison, folder: Path) -> int:
    print(difference(comparison, folder), end="")
    return 0 if comparison.is_same else 1


def _write(comparison: FileComparison, options: GenerateOptions) -> None:
    changed = [file for file, _ in comparison.changed]
    if changed and not options.force:
        names = "\n  ".join(str(options.folder / file.path) for file in changed)
        raise GenerateError(
            f"these files are there and differ (--check shows how, --force replaces them), "
            f"nothing was written:\n  {names}"
        )
    wanted: list[GeneratedFile] = [*comparison.new, *changed]
    write(wanted, options.folder)
    for file in wanted:
        print(f"wrote {options.folder / file.path}")
    for path in comparison.left_over:
        print(f"no longer part of the stack: {options.folder / path}")


def _tell(plan: FilePlan, options: GenerateOptions) -> None:
    if plan.stack is None:
        return
    for server in plan.stack.servers:
        print(f"  {_line(server, options.target)}")
    if not options.up:
        print(f"next: {_NEXT[options.target].format(folder=options.folder)}")


def _line(server: Server, target: Target) -> str:
    device = server.device
    on = "CPU"
    if device is not None:
        on = " ".join(word for word in (device.profile, device.identifier) if word)
    if target is Target.KUBERNETES:
        return f"{server.name}  {on}"
    ports = [str(port) for port in (server.http, server.grpc, server.metrics) if port]
    return f"{server.name}  {on}  ports {' '.join(ports)}  weight {server.weight}"


def _start(plan: FilePlan, stack: Stack, folder: Path) -> int:
    """Print the Compose file and have Docker start it, or say what it lacks for that."""
    if missing := what_is_missing(stack, folder):
        print(f"triton-lb: --up: {missing}", file=sys.stderr)
        return 1
    print(next(file.text for file in plan.files if file.path == COMPOSE_FILE), flush=True)
    command = ("docker", "compose", "-f", str(folder / COMPOSE_FILE), "up", "--detach")
    return subprocess.run(command, check=False).returncode
