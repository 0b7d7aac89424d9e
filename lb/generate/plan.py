"""From what a user asks for to the files of the stack."""

from __future__ import annotations

from dataclasses import dataclass, field

from lb.generate.compose import COMPOSE_FILE, compose_files
from lb.generate.devices import (
    Device,
    GenerateError,
    Listing,
    as_written,
    choose,
    parse_listing,
    whole_gpus,
)
from lb.generate.files import GeneratedFile
from lb.generate.kubernetes import KUSTOMIZATION, kubernetes_files
from lb.generate.mig import SCRIPT, MigLayout, gpus_of, mig_files, parse_layout
from lb.generate.stack import Options, Stack, Target, make_stack
from lb.generate.systemd import TARGET, UNITS, systemd_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asks for."""

    target: Target
    options: Options = field(default_factory=Options)
    listing: str | None = None
    """What nvidia-smi printed, here or on another machine; None: it is not installed."""
    gpus: int = 0
    """So many whole GPUs, whatever is listed; 0: those that are."""
    cpu_servers: int = 0
    """So many servers without a GPU, whatever is listed; 0: as the devices say."""
    devices: tuple[str, ...] = ()
    """Which of the devices; empty: all."""
    mig: str = ""
    """How GPUs are to be divided; empty: as they are."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """What would be written."""

    files: tuple[GeneratedFile, ...]
    stack: Stack | None
    """None: it cannot be written before the MIG devices are made."""
    notes: tuple[str, ...]
    """What the user should know."""


def make_plan(request: Request) -> FilePlan:
    """Decide it all.

    Raises:
        GenerateError: says what cannot be.
    """
    if request.target is not Target.COMPOSE and request.options.prometheus:
        raise GenerateError("--prometheus and --grafana are for compose")
    if request.target is Target.KUBERNETES and request.options.shared_memory:
        raise GenerateError("--shared-memory is for one machine: compose or systemd")
    devices, empty, notes = _find(request)
    files: list[GeneratedFile] = []
    if request.mig:
        layout = parse_layout(request.mig, gpus_of(devices))
        files += mig_files(layout)
        if request.target is Target.SYSTEMD:
            notes.append(
                f"units name MIG devices by UUID: run {SCRIPT}, then generate without --mig"
            )
            return FilePlan(tuple(files), None, tuple(notes))
        devices = layout.devices
        notes.append(_before_start(layout))
    if empty and not devices:
        raise GenerateError(_undivided(empty))
    if empty:
        notes.append(f"left out: {_undivided(empty)}")
    cpu_servers = request.cpu_servers or (0 if devices else 1)
    stack = make_stack(request.options, devices, cpu_servers)
    files += _WRITERS[request.target](stack)
    return FilePlan(tuple(files), stack, tuple(notes))


_WRITERS = {
    Target.COMPOSE: compose_files,
    Target.KUBERNETES: kubernetes_files,
    Target.SYSTEMD: systemd_files,
}
MAIN_FILES = {
    Target.COMPOSE: COMPOSE_FILE,
    Target.KUBERNETES: KUSTOMIZATION,
    Target.SYSTEMD: f"{UNITS}/{TARGET}",
}
"""The file of each stack that tells its command line."""


def _find(request: Request) -> tuple[tuple[Device, ...], tuple[str, ...], list[str]]:
    """The devices to use, GPUs in MIG mode that have none, and notes."""
    if request.cpu_servers:
        return (), (), []
    if request.gpus:
        return _chosen(whole_gpus(request.gpus), request.devices), (), []
    if request.listing is None and request.devices:
        if request.mig and not all(word.isdecimal() for word in request.devices):
            raise GenerateError("--mig: GPUs are named by index where there is no nvidia-smi")
        return as_written(request.devices), (), ["there is no nvidia-smi: devices as written"]
    listing = Listing() if request.listing is None else parse_listing(request.listing)
    if request.mig:
        undivided = (Device(index, index) for index in listing.empty)
        listing = Listing((*listing.devices, *undivided))
    notes = []
    if not (listing.devices or listing.empty):
        why = "there is no nvidia-smi" if request.listing is None else "there is no GPU"
        notes.append(f"{why}: a server on the CPU")
    return _chosen(listing.devices, request.devices), listing.empty, notes


def _chosen(devices: tuple[Device, ...], wanted: tuple[str, ...]) -> tuple[Device, ...]:
    """Those that are wanted, or all."""
    return choose(devices, wanted) if wanted else devices


def _before_start(layout: MigLayout) -> str:
    gpus = ", ".join(layout.gpus)
    return f"before the stack starts, read and run {SCRIPT}: it divides GPU {gpus}"


def _undivided(empty: tuple[str, ...]) -> str:
    gpus = ", ".join(empty)
    return f"GPU {gpus} is in MIG mode without a MIG device (--mig 1g.5gb=7 writes a script)"
