"""Starts a generated stack on a container engine, uses it, breaks it and takes it down.

    make stack-test

Debian's engine runs in namespaces of its own: processes, mounts, /run and a network that has
nothing but loopback. So the stack listens on the ports that a user would see, and whatever is left
when this ends, ends with it. The engine's images stay in build/stack for the next run. Says of each
step whether it was done; needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import tritonclient.grpc
import tritonclient.http
from base_image import (
    BASE,
    BUILDER,
    BUILDER_ENV,
    FOLDER,
    RELEASE,
    ROOT,
    NotPossible,
    copy_sources,
    get_wheels,
    make_root,
    need,
    run,
)

STACK = ROOT / "build" / "stack"
CONTEXT = STACK / "context"
TRITON = FOLDER / "triton"
SITE = TRITON / "usr/local/lib/python3.11/dist-packages"
SERVER = TRITON / "opt" / "tritonserver"
TRITON_WHEELS = ("nvidia-pytriton==0.7.0", "numpy==1.26.4")
"""The versions of tools/setup_triton.sh."""
TRITON_IMAGE = "tritonserver-cpu:latest"
BASE_IMAGE, BUILDER_IMAGE, IMAGE = "base:latest", "compiler:latest", "triton-lb:latest"
SAGEMAKER_IMAGE = "triton-lb-sagemaker:latest"
SERVERS = 3
RUNTIME = ROOT / "tools" / "stack_runtime.py"
LIMIT_S = 180.0
INSIDE = "--inside"
CGROUP = "/triton-lb-stack"
COMPOSE = ("docker", "compose", "-f", str(STACK / "work" / "compose.yaml"))


def wait_for(what: str, is_there: Callable[[], bool]) -> None:
    """Wait until something is there, which may fail while it is not."""
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            if is_there():
                return
        except (OSError, RuntimeError):
            pass
        if time.monotonic() > until:
            raise RuntimeError(f"{what}: not within {LIMIT_S:.0f} s")
        time.sleep(0.2)


# The engine


class Engine:
    """Debian's dockerd, which gives containers no network but that of the host."""

    def __init__(self) -> None:
        need("dockerd", "docker", "containerd", "runc", "ip")
        self._log = (STACK / "dockerd.log").open("w")
        command = (
            *("dockerd", "--data-root", str(STACK / "engine"), "--cgroup-parent", CGROUP),
            *("--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"),
            *("--add-runtime", f"cut={RUNTIME}", "--default-runtime", "cut"),
        )
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def wait(self) -> str:
        """Wait until it answers; returns its version."""
        wait_for("the engine", lambda: bool(run("docker", "info")))
        engine = run("docker", "version", "--format", "{{.Server.Version}}").strip()
        compose = run("docker", "compose", "version", "--short").strip()
        self.clear()  # of a run that was ended
        return f"Docker {engine}, Compose {compose}"

    def clear(self) -> None:
        """Remove what containers there are."""
        for each in run("docker", "ps", "-aq").split():
            run("docker", "rm", "-f", each)

    def stop(self) -> None:
        """Remove what containers there are, and end it."""
        if self._process.poll() is None:
            try:
                self.clear()
            finally:
                self._process.terminate()
                self._process.wait(60)
        self._log.close()


# Steps


def make_triton() -> None:
    """Lay out Triton's server with its Python backend, unless it is there."""
    if (TRITON / ".ready").exists():
        return
    shutil.rmtree(TRITON, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:")
    run(*pip, "--python-version=3.11", "--target", str(SITE), *TRITON_WHEELS)
    server = SITE / "pytriton" / "tritonserver"
    stub = server / "python_backend_stubs" / "3.11" / "triton_python_backend_stub"
    shutil.copy(stub, server / "backends" / "python")
    (server / "backends" / "python" / stub.name).chmod(0o755)
    SERVER.parent.mkdir()
    SERVER.symlink_to(Path("/") / server.relative_to(TRITON))
    (TRITON / ".ready").touch()


def make_roots() -> str:
    """Make the roots that stand in for images of registries."""
    for root in (BASE, BUILDER):
        make_root(root)
    make_triton()
    return f"Debian {RELEASE} with Python, the same with a compiler, Triton"


def import_images() -> str:
    """Give the engine images of the roots."""
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    import_image(BASE_IMAGE, BASE, path)
    import_image(BUILDER_IMAGE, BUILDER, path, "-C", str(FOLDER), "./wheels")
    # The engine takes no folder twice: only what the root does not have.
    added = [f"./{each.relative_to(TRITON)}" for each in (*SITE.iterdir(), SERVER)]
    path = f"{path}:/opt/tritonserver/bin"
    more = ("-C", str(FOLDER), "./wheels", "-C", str(TRITON), *added)
    import_image(TRITON_IMAGE, BUILDER, path, *more)
    return run("docker", "images", "--format", "{{.Repository}} {{.Size}}").replace("\n", "; ")


def import_image(name: str, root: Path, path: str, *more: str) -> None:
    """Make an image of a root and `more` that tar adds, unless it is there."""
    if run("docker", "images", "-q", name):
        return
    changes = ("--change", f"ENV {path}", "--change", f"ENV {BUILDER_ENV}")
    pack = ("tar", "--one-file-system", "-c", "-C", str(root), ".", *more)
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
        run("docker", "import", *changes, "-", name, stdin=tar.stdout)
    if tar.returncode:
        raise RuntimeError(f"tar of {root} ended with {tar.returncode}")


def build() -> str:
    """Build the Dockerfile as it is; returns the version of what it holds."""
    return build_image(IMAGE, "Dockerfile", f"BASE={BASE_IMAGE}", f"BUILDER={BUILDER_IMAGE}")


def build_image(name: str, file: str, *arguments: str) -> str:
    """Build an image without any network; returns the version of triton-lb in it.

    Raises:
        RuntimeError: It cannot be built, or is not compiled.
    """
    # Debian's engine has no BuildKit client beside it.
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    given = [f"--build-arg={each}" for each in arguments]
    command = ("docker", "build", "--network=none", *given, "-f", file, "-t", name, ".")
    run(*command, cwd=CONTEXT, env=environment)
    ask = (
        "docker",
        "run",
        "--rm",
        "--network=none",
        "--entrypoint",
        "/opt/triton-lb/bin/triton-lb",
    )
    version = run(*ask, name, "version").strip()
    if "compiled" not in version:
        raise RuntimeError(f"the image is not compiled: {version}")
    return version


def generate(*more: str) -> str:
    """Run `triton-lb generate compose` as a user would."""
    program = Path(sys.executable).with_name("triton-lb")
    where = ("--output", str(STACK / "work"), "--image", TRITON_IMAGE)
    return run(str(program), "generate", "compose", "--cpu", str(SERVERS), *where, *more)


def start() -> str:
    """Write the stack and start it, as the command line says."""
    models = STACK / "work" / "models"
    shutil.rmtree(STACK / "work", ignore_errors=True)
    shutil.copytree(ROOT / "tests/triton/models/simple", models / "simple")
    generate("--up")
    began = time.monotonic()
    try:
        wait_for("all containers are healthy", lambda: set(health()) == {"healthy"})
    except RuntimeError as error:
        said = run(*COMPOSE, "ps", "-a") + run(*COMPOSE, "logs", "--no-color", "--tail", "10")
        raise RuntimeError(f"{error}\n{said}") from error
    took = time.monotonic() - began
    names = run(*COMPOSE, "ps", "--services").split()
    return f"{', '.join(sorted(names))} are healthy after {took:.0f} s"


def health() -> list[str]:
    """The health of each container; only "missing" unless all are there."""
    found = run("docker", "ps", "-q").split()
    if len(found) != SERVERS + 1:
        return ["missing"]
    return run("docker", "inspect", "-f", "{{.State.Health.Status}}", *found).split()


def infer(client: Any, kind: Any) -> None:
    """Infer once with a client of NVIDIA's; raises RuntimeError at a wrong answer."""
    data = numpy.arange(16, dtype=numpy.int32).reshape(1, 16)
    inputs = [kind.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for each in inputs:
        each.set_data_from_numpy(data)
    answer = client.infer("simple", inputs).as_numpy("OUTPUT0")
    if (answer != data + data).any():
        raise RuntimeError(f"a wrong answer: {answer}")


def use() -> str:
    """Infer through triton-lb until each Triton has had a share."""
    http = tritonclient.http.InferenceServerClient("127.0.0.1:8000")
    grpc = tritonclient.grpc.InferenceServerClient("127.0.0.1:8001")
    served: dict[str, int] = {}
    for count in range(1, 101):
        infer(http, tritonclient.http)
        infer(grpc, tritonclient.grpc)
        served = {each["name"]: each["served"] for each in backends()}
        if count > 10 and all(served.values()):
            break
    if len(served) != SERVERS or not all(served.values()):
        raise RuntimeError(f"not every Triton has served: {served}")
    http.close()
    grpc.close()
    return f"{2 * count} inferences over HTTP and gRPC, by {served}"


def backends() -> list[dict[str, Any]]:
    """What the admin API says of each backend."""
    with urllib.request.urlopen("http://127.0.0.1:8003/api/v1/backends", timeout=5) as answer:
        found: list[dict[str, Any]] = json.load(answer)["backends"]
    return found


def kill_a_triton() -> str:
    """Kill a Triton under load: it comes back, and no client notices."""
    name = backends()[0]["name"]
    sent, failures, is_over = [0], [], threading.Event()

    def ask() -> None:
        client = tritonclient.http.InferenceServerClient("127.0.0.1:8000")
        while not is_over.wait(0.005):
            sent[0] += 1
            try:
                infer(client, tritonclient.http)
            except Exception as error:  # whatever a client may see
                failures.append(repr(error))
        client.close()

    client = threading.Thread(target=ask)
    client.start()
    try:
        restarts = kill(name)
        wait_for(f"{name} is up", lambda: state_of(name) == "up")
    finally:
        is_over.set()
        client.join()
    if failures:
        raise RuntimeError(f"{len(failures)} of {sent[0]} failed: {failures[:3]}")
    return f"{name} was restarted {restarts} time; none of {sent[0]} requests failed"


def kill_triton_lb() -> str:
    """Kill triton-lb: it comes back and serves."""
    restarts = kill("triton-lb")
    wait_for("triton-lb serves", lambda: {each["state"] for each in backends()} == {"up"})
    use()
    return f"it was restarted {restarts} time"


def state_of(name: str) -> str:
    """The state of a backend."""
    return str(next(each["state"] for each in backends() if each["name"] == name))


def kill(service: str) -> int:
    """End the process of a container as a crash would, and wait for the engine to start it again.

    `docker kill` would not do: what somebody kills by hand stays down.
    """
    container = run(*COMPOSE, "ps", "-q", service).strip()

    def ask(what: str) -> int:
        return int(run("docker", "inspect", "-f", what, container))

    before = ask("{{.RestartCount}}")
    os.kill(ask("{{.State.Pid}}"), signal.SIGKILL)
    wait_for(f"{service} is restarted", lambda: ask("{{.RestartCount}}") > before)
    return ask("{{.RestartCount}}") - before


def check() -> str:
    """The files are still what would be written."""
    generate("--check")
    return "no difference"


def take_down() -> str:
    """End the stack: nothing of it may be left."""
    run(*COMPOSE, "down")
    left = [
        line
        for what in (("ps", "-aq"), ("volume", "ls", "-q"))
        for line in run("docker", *what).split()
    ]
    networks = set(run("docker", "network", "ls", "--format", "{{.Name}}").split())
    left += sorted(networks - {"host", "none"})
    listening = [
        line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    if left or listening:
        raise RuntimeError(f"left over: {left}, listening: {listening}")
    return "no container, volume, network or listening socket is left"


def serve_for_sagemaker() -> str:
    """Build the image for SageMaker, and use it as SageMaker does."""
    version = build_image(SAGEMAKER_IMAGE, "deploy/sagemaker/Dockerfile", f"TRITON={TRITON_IMAGE}")
    models = f"{STACK / 'work' / 'models'}:/opt/ml/model:ro"
    command = ("docker", "run", "-d", "--network=host", "-v", models, SAGEMAKER_IMAGE)
    container = run(*command).strip()
    try:
        wait_for("/ping is answered", lambda: ask_front("/ping") is not None)
    except RuntimeError as error:
        raise RuntimeError(
            f"{error}\n{run('docker', 'logs', '--tail', '10', container)}"
        ) from error
    row = list(range(16))
    tensor = {"datatype": "INT32", "shape": [1, 16], "data": row}
    inputs = [{"name": name, **tensor} for name in ("INPUT0", "INPUT1")]
    answer = json.loads(ask_front("/invocations", json.dumps({"inputs": inputs}).encode()))
    if [each["data"] for each in answer["outputs"]] != [[2 * each for each in row], [0] * 16]:
        raise RuntimeError(f"a wrong answer: {answer}")
    run("docker", "stop", container)
    code = run("docker", "inspect", "-f", "{{.State.ExitCode}}", container).strip()
    run("docker", "rm", container)
    if code != "0":
        raise RuntimeError(f"it ended with {code}")
    return f"{version}; /ping, /invocations, and a stop"


def ask_front(path: str, body: bytes | None = None) -> bytes:
    """Ask the front for SageMaker, and return the body of its answer.

    Raises:
        OSError: There is no answer, or it is an error.
    """
    request = urllib.request.Request(f"http://127.0.0.1:8080{path}", body)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=5) as answer:
        received: bytes = answer.read()
    return received


BEFORE = (
    ("sources are copied", lambda: copy_sources(CONTEXT)),
    ("packages are fetched", get_wheels),
    ("roots are made with debootstrap", make_roots),
)
STEPS = (
    ("images are made of the roots", import_images),
    ("the Dockerfile is built", build),
    ("`generate compose --cpu 3 --up` starts the stack", start),
    ("NVIDIA's clients infer through it", use),
    ("a Triton is killed and comes back", kill_a_triton),
    ("triton-lb is killed and comes back", kill_triton_lb),
    ("`generate compose --check` agrees", check),
    ("`docker compose down` leaves nothing", take_down),
    ("the image for SageMaker is built, serves and stops", serve_for_sagemaker),
)
DIFFERENT = (
    "base images are Debian's Python in place of python:3.11 images: no registry is asked",
    "the modules are compiled without the C compiler's optimiser",
    "Triton is the server of the wheel nvidia-pytriton, without GPUs: no device is reserved",
    "the engine is Debian's with its older builder (no BuildKit)",
    "limits of containers (locked memory) are cut to this machine's where root may not raise them",
    "the host's network is a namespace with loopback alone; the engine makes no bridge",
)


def play(steps: Sequence[tuple[str, Callable[[], str]]]) -> bool:
    """Do steps; the first that cannot be done, or fails, ends it."""
    for number, (what, step) in enumerate(steps):
        try:
            print(f"ran      {what}: {step()}", flush=True)
        except NotPossible as error:
            print(f"not run  {what}: {error}")
        except Exception as error:  # of clients, of tools: the report goes on
            print(f"FAILED   {what}: {error}")
        else:
            continue
        for later, _ in steps[number + 1 :]:
            print(f"not run  {later}")
        return False
    return True


def inside() -> int:
    """Play what needs the engine, in namespaces of its own."""
    for command in (
        ("mount", "--make-rprivate", "/"),
        ("mount", "-t", "tmpfs", "tmpfs", "/run"),
        ("ip", "link", "set", "lo", "up"),
    ):
        run(*command)
    plugins = STACK / "docker" / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    (plugins / "docker-compose").unlink(missing_ok=True)
    (plugins / "docker-compose").symlink_to(Path(sys.executable).with_name("docker-compose"))
    os.environ["DOCKER_CONFIG"] = str(plugins.parent)
    os.environ.pop("DOCKER_HOST", None)
    engine = Engine()
    try:
        return 0 if play((("an engine is started", engine.wait), *STEPS)) else 1
    finally:
        engine.stop()


def remove_cgroups() -> bool:
    """Remove the control groups that the engine leaves; the kernel refuses while one is in use."""
    groups = Path("/sys/fs/cgroup")
    for top in (*groups.glob(CGROUP[1:]), *groups.glob(f"*{CGROUP}")):
        for folder, _, _ in os.walk(top, topdown=False):
            os.rmdir(folder)
    return True


def main() -> int:
    """Fetch what is needed, then do the rest in namespaces."""
    STACK.mkdir(parents=True, exist_ok=True)
    for what in DIFFERENT:
        print(f"differs  {what}")
    if not play(BEFORE):
        return 1
    space = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    # Whoever ends this ends the namespaces, and all that is in them; unshare blocks SIGTERM.
    bound = ("setpriv", "--pdeathsig", "KILL")
    code = subprocess.run(
        (*bound, *space, sys.executable, __file__, INSIDE), check=False
    ).returncode
    wait_for("its control groups are empty", remove_cgroups)
    return code


if __name__ == "__main__":
    sys.exit(inside() if INSIDE in sys.argv[1:] else main())
