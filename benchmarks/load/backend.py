"""The stand-in for Triton: faster than every proxy, so that the proxy is what gets measured.

HTTP is one nginx that answers infer requests itself; gRPC is one `nghttpd` per backend that sends
a file and the trailer `grpc-status: 0`. Sites that need streams, events or very many ports have
`grpc_backend` and `events_backend` instead. All answer the health calls of a Triton. One process
serves the HTTP ports of all backends, and two the gRPC ports of `grpc_backend`.
"""

from __future__ import annotations

import os
import resource
import string
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import payloads
from benchmarks.load.cells import Answers, Site
from benchmarks.load.processes import REPOSITORY, Child, Children, free_ports, tool

TEMPLATES = Path(__file__).parent / "peers"
_STAND_INS = 2


@dataclass(frozen=True)
class BackendAddress:
    """Loopback ports of one backend."""

    http: int
    grpc: int


def render(template: str, directory: Path, name: str, **values: object) -> Path:
    """Fill a template of `peers/` (`string.Template`) into a file of the run's directory.

    Every template may use `files` (open files allowed), `connections` (half of that, rounded
    down) and `user`.
    """
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)
    text = string.Template((TEMPLATES / template).read_text()).substitute(
        {key: str(value) for key, value in values.items()},
        files=files,
        connections=files // 2 - 100,
        # Workers of a root nginx would become a user who may not read the run's directory.
        user="user root;" if os.geteuid() == 0 else "",
    )
    path = directory / name
    path.write_text(text)
    return path


def start_backends(
    children: Children, directory: Path, site: Site, *, usual: int, core: int
) -> list[BackendAddress]:
    """Start the backends and wait until they accept.

    Args:
        children: their owner.
        directory: where configuration and logs go.
        site: what they are.
        usual: how many, where the site does not say.
        core: the core that all of them share.
    """
    count = site.backends or usual
    ports = free_ports(2 * count)
    addresses = [BackendAddress(*pair) for pair in zip(ports[:count], ports[count:], strict=True)]
    grpc = [each.grpc for each in addresses]
    if site.events:
        argv = [sys.executable, "-m", "benchmarks.load.events_backend", *map(str, ports[:count])]
        http = children.start("backend-events", argv, core=core, cwd=REPOSITORY)
    else:
        http = _start_nginx(children, directory, addresses, core)
    started = [(http, ports[:count])]
    if site.grpc is Answers.STAND_IN:
        for number in range(_STAND_INS):
            some = grpc[number::_STAND_INS]
            started.append((_start_stand_in(children, number, some, core), some))
    else:
        answer = payloads.LARGE_GRPC_ANSWER if site.grpc is Answers.LARGE else None
        for number, port in enumerate(grpc):
            started.append(
                (_start_nghttpd(children, directory, number, port, core, answer), [port])
            )
    for child, served in started:
        child.wait_until_listening(*served)
    return addresses


def _start_nginx(
    children: Children, directory: Path, addresses: list[BackendAddress], core: int
) -> Child:
    root = directory / "http-root"
    answers = {
        "large": bytes(payloads.LARGE_BYTES),
        "image": payloads.small_http_response("image", numbers=4).encode(),
    }
    for model, answer in answers.items():
        # nginx refuses POST only where a file is; the redirect of the 405 then reads the other.
        for path in (root / model, root / "v2" / "models" / model / "infer"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(answer)
    config = render(
        "backend-nginx.conf",
        directory,
        "backend-nginx.conf",
        listens="\n    ".join(f"listen 127.0.0.1:{each.http};" for each in addresses),
        root=root,
        small=payloads.small_http_response("simple"),
        index=payloads.repository_index_json(),
        # nginx puts the model that its expression found in place of this name.
        config=payloads.model_config_json("$1"),
    )
    argv = [tool("nginx"), "-p", str(directory), "-e", "stderr", "-c", str(config)]
    return children.start("backend-nginx", argv, core=core, cwd=directory)


def _start_nghttpd(
    children: Children, directory: Path, number: int, port: int, core: int, answer: bytes | None
) -> Child:
    root = directory / "grpc-root"
    types = directory / "mime.types"
    if not root.exists():
        answers = dict(payloads.GRPC_ANSWERS)
        if answer is not None:
            answers[payloads.INFER_PATH[1:]] = answer
        for path, content in answers.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        # nghttpd takes what follows the last dot of the path for the extension.
        extensions = " ".join(path.rpartition(".")[2] for path in answers)
        types.write_text(f"application/grpc {extensions}\n")
    argv = [
        *(tool("nghttpd"), "--no-tls", "-a", "127.0.0.1", "-d", str(root)),
        *("--mime-types-file", str(types), "--trailer", "grpc-status: 0", "--no-content-length"),
        # Concurrent streams as good as unlimited, and windows that a busy gRPC server grows to.
        *("-m", "100000", "-w", "22", "-W", "24", str(port)),
    ]
    return children.start(f"backend-nghttpd-{number}", argv, core=core)


def _start_stand_in(children: Children, number: int, ports: list[int], core: int) -> Child:
    argv = [sys.executable, "-m", "benchmarks.load.grpc_backend", *map(str, ports)]
    return children.start(f"backend-grpc-{number}", argv, core=core, cwd=REPOSITORY)
