"""A stack as systemd units: a template for the servers, triton-lb with its sockets, one target.

The files lie as they go below `/`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from lb.domain.backend import parse_address
from lb.generate.balancer import FILE, SERVER_STOP_S, STOP_S, balancer_configuration, told
from lb.generate.devices import GenerateError
from lb.generate.document import HEADER, command_comment
from lb.generate.files import GeneratedFile
from lb.generate.mig import SCRIPT
from lb.generate.servers import Place, server_command
from lb.generate.stack import Server, ServerKind, Stack
from lb.settings.values import is_ip_address

UNITS: Final = "etc/systemd/system"
TARGET: Final = "triton.target"
_PROGRAMS: Final = {
    ServerKind.TRITON: "/opt/tritonserver/bin/tritonserver",
    ServerKind.TFSERVING: "/usr/bin/tensorflow_model_server",
}
_ENVIRONMENT: Final = "/etc/triton"
_DEFAULT_MODELS: Final = "/srv/models"


def systemd_files(stack: Stack) -> list[GeneratedFile]:
    """All files of the stack.

    Raises:
        GenerateError: triton-lb would refuse its configuration, a device has no UUID that CUDA
            could find it by, or a path or an argument is nothing for a unit file.
    """
    if not _models_of(stack).startswith("/"):
        raise GenerateError(
            f"--models: systemd needs an absolute path such as {_DEFAULT_MODELS}, "
            f"got {_models_of(stack)!r}"
        )
    files = [
        GeneratedFile(f"{UNITS}/{TARGET}", _target(stack)),
        GeneratedFile(f"{UNITS}/triton@.service", _server_unit(stack)),
        GeneratedFile(f"{UNITS}/triton-lb.service", _BALANCER_UNIT),
        GeneratedFile(f"{UNITS}/triton-lb.socket", _socket_unit(stack)),
        GeneratedFile(f"etc/triton-lb/{FILE}", balancer_configuration(stack)),
    ]
    files += [
        GeneratedFile(f"{_ENVIRONMENT[1:]}/{server.name}.env", _environment(server))
        for server in stack.servers
    ]
    return files


def _models_of(stack: Stack) -> str:
    return stack.options.models or _DEFAULT_MODELS


def _target(stack: Stack) -> str:
    command = "".join(f"# {line}\n" for line in command_comment(stack.options.command))
    wants = "".join(f"Wants=triton@{server.name}.service\n" for server in stack.servers)
    return f"""\
{HEADER}
{command}# {told(stack)}, and triton-lb before them: systemctl enable --now {TARGET}
[Unit]
Description=Triton Inference Servers behind triton-lb
{wants}Wants=triton-lb.socket triton-lb.service

[Install]
WantedBy=multi-user.target
"""


def _server_unit(stack: Stack) -> str:
    options = replace(
        stack.options,
        models=_literal(_models_of(stack)),
        model=_literal(stack.options.model),
        server_args=tuple(map(_literal, stack.options.server_args)),
    )
    place = Place(
        name="%i",  # of an instance: the name behind the @
        models=options.models,
        http="${HTTP_PORT}",
        grpc="${GRPC_PORT}",
        metrics="${METRICS_PORT}",
        shares_memory=True,
        gpu_metrics="true" if all(each.has_gpu_metrics for each in stack.servers) else _METRICS,
    )
    _, *arguments = server_command(options, place)
    words = (_PROGRAMS[options.server], *map(_quoted, arguments))
    return _SERVER_UNIT.format(
        header=HEADER,
        command=" \\\n  ".join(words),
        user=_SHARING_USER if options.shared_memory else _DYNAMIC_USER,
        environment=_ENVIRONMENT,
        stop=SERVER_STOP_S,
    )


def _literal(text: str) -> str:
    """What stands for `text` where systemd replaces `%` and `$` (systemd.service(5)).

    Raises:
        GenerateError: it has characters that no unit file can hold.
    """
    if not text.isprintable():
        raise GenerateError(f"systemd cannot have {text!r} in a command")
    return text.replace("%", "%%").replace("$", "$$")


def _quoted(word: str) -> str:
    """One argument of a command."""
    if not re.search(r"[\s\"'\\;]", word):
        return word
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _environment(server: Server) -> str:
    device = server.device
    if device is not None and ":" in device.identifier:
        raise GenerateError(
            f"CUDA finds MIG devices by UUID only: run {SCRIPT}, then generate anew without --mig"
        )
    lines = [
        HEADER,
        "# The device that it sees: nothing is the CPU.",
        f"CUDA_VISIBLE_DEVICES={device.identifier if device else ''}",
        f"HTTP_PORT={server.http}",
        f"GRPC_PORT={server.grpc}",
    ]
    if server.metrics:
        lines.append(f"METRICS_PORT={server.metrics}")
    if not server.has_gpu_metrics:
        lines.append("GPU_METRICS=false")
    elif server.metrics:
        lines.append("GPU_METRICS=true")
    return "\n".join(lines) + "\n"


def _socket_unit(stack: Stack) -> str:
    """Listeners of IP addresses; triton-lb opens others, by host name, itself."""
    streams = []
    for text in stack.options.listen.addresses.values():
        address = parse_address(text)
        if address.path or is_ip_address(address.host):
            streams.append(f"ListenStream={address.path or text}\n")
    return _SOCKET_UNIT.format(header=HEADER, streams="".join(streams))


_METRICS: Final = "${GPU_METRICS}"
_DYNAMIC_USER: Final = "DynamicUser=yes\nCapabilityBoundingSet="
_SHARING_USER: Final = """\
# Regions of shared memory belong to the clients that made them: only root opens all.
User=root
CapabilityBoundingSet=CAP_DAC_OVERRIDE"""

_SERVER_UNIT: Final = """\
{header}
# One inference server; what is its own stands in {environment}/%i.env.
[Unit]
Description=Inference server %i
PartOf=triton.target
After=network.target nvidia-persistenced.service triton-mig.service
# Stopped in the opposite order: once nothing runs on it any more.
Before=triton-lb.service
StartLimitIntervalSec=0

[Service]
EnvironmentFile={environment}/%i.env
# As nvidia-smi counts.
Environment=CUDA_DEVICE_ORDER=PCI_BUS_ID
ExecStart={command}
Restart=always
RestartSec=2s
TimeoutStopSec={stop}s
KillMode=mixed
LimitMEMLOCK=infinity
LimitNOFILE=65536
{user}
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectControlGroups=yes
ProtectKernelTunables=yes
ProtectKernelLogs=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
SystemCallArchitectures=native
"""

_BALANCER_UNIT: Final = f"""\
{HEADER}
# A new version without a gap: systemctl kill -s USR2 --kill-whom=main triton-lb
[Unit]
Description=triton-lb, one address for several Triton Inference Servers
PartOf=triton.target
Requires=triton-lb.socket
After=network.target triton-lb.socket
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=/usr/local/bin/triton-lb serve --config /etc/triton-lb/{FILE}
ExecReload=/bin/kill -HUP $MAINPID
Restart=always
RestartSec=1s
TimeoutStopSec={STOP_S}s
KillMode=mixed
LimitNOFILE=65536
# Models that take all memory must not take this with them.
OOMScoreAdjust=-500
DynamicUser=yes
UMask=0077
CapabilityBoundingSet=
NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
Also=triton-lb.socket
"""

_SOCKET_UNIT: Final = """\
{header}
# Held by systemd: connections wait here while triton-lb restarts.
[Unit]
Description=Addresses of triton-lb
PartOf=triton.target

[Socket]
{streams}Backlog=4096
NoDelay=yes

[Install]
WantedBy=sockets.target
"""
