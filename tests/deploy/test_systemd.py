"""Units hold to systemd's own judgement, and triton-lb takes the sockets that they open."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lb.cli.main import main
from tests.deploy.listings import FOLDER, LISTINGS
from tests.deploy.stacks import GeneratedStack, generate, serve_command
from tests.fakes.process import ENVIRONMENT, ChildProcess, wait_until
from tests.triton.target import http_status

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = (
    "usr/local/bin/triton-lb",
    "usr/local/sbin/triton-mig",
    "opt/tritonserver/bin/tritonserver",
    "usr/bin/tensorflow_model_server",
    "bin/kill",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with systemd's own units and what ours start."""
    root = tmp_path / "root"
    shutil.copytree("/usr/lib/systemd/system", root / "usr/lib/systemd/system", symlinks=True)
    for name in PROGRAMS:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    return root


def verify(root: Path, *units: str) -> tuple[str, int]:
    """What systemd says of units, and its verdict."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--root={root}", *units],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout, done.returncode


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize(
    "options",
    [(), ("--shared-memory", "--server-arg=--a b%c$d"), ("--server", "tfserving")],
    ids=["plain", "odd", "tfserving"],
)
def test_generated_units_are_good(listing: str, options: tuple[str, ...], root: Path) -> None:
    source = ["--from", str(FOLDER / f"{listing}.txt"), "--output", str(root)]
    assert main(["generate", "systemd", *source, *options]) == 0
    names = [path.stem for path in (root / "etc/triton").glob("*.env")]
    assert verify(
        root, "triton.target", "triton-lb.socket", *(f"triton@{name}.service" for name in names)
    ) == ("", 0)


def test_a_mistake_in_a_unit_is_found(root: Path) -> None:
    main(["generate", "systemd", "--cpu", "1", "--output", str(root)])
    unit = root / "etc/systemd/system/triton-lb.service"
    unit.write_text(unit.read_text().replace("DynamicUser=", "DynamicUsr="))
    assert "Unknown key 'DynamicUsr'" in verify(root, "triton-lb.service")[0]


def test_the_unit_for_mig_devices_is_good(root: Path) -> None:
    main(["generate", "systemd", "--gpus", "1", "--mig", "1g.5gb=7", "--output", str(root)])
    (root / "etc/systemd/system").mkdir(parents=True)
    shutil.copy(root / "triton-mig.service", root / "etc/systemd/system")
    assert verify(root, "triton-mig.service") == ("", 0)


def sockets(stack: GeneratedStack) -> list[str]:
    unit = stack.folder / "etc/systemd/system/triton-lb.socket"
    return [
        line.removeprefix("ListenStream=")
        for line in unit.read_text().splitlines()
        if line.startswith("ListenStream=")
    ]


def test_triton_lb_is_started_by_the_sockets_of_its_unit(tmp_path: Path) -> None:
    stack = generate("systemd", tmp_path / "stack", ["--cpu", "1"])
    listen = [word for address in sockets(stack) for word in ("-l", address)]
    passed = [f"-E{name}" for name in ("PYTHONPATH", "PATH")]
    config = stack.folder / "etc" / "triton-lb" / "triton-lb.yaml"
    command = ["systemd-socket-activate", *listen, *passed, *serve_command(config)]
    process = ChildProcess(command, log=tmp_path / "triton-lb.log", env=ENVIRONMENT)
    try:
        wait_until(
            lambda: http_status(stack.metrics, "/readyz", timeout_s=30) == 200,
            timeout_s=30.0,
            what="triton-lb serves",
        )
        assert len(sockets(stack)) == 4
        assert len(stack.views()) == 1
        assert "inherited socket is for no listener" not in process.last_lines(100)
    finally:
        process.close()


def test_the_example_is_what_generate_writes(capsys: pytest.CaptureFixture[str]) -> None:
    folder = REPOSITORY / "deploy" / "systemd"
    code = main(["generate", "systemd", "--gpus", "2", "--output", str(folder), "--check"])
    assert (capsys.readouterr().out, code) == ("", 0)


def test_the_example_is_good(root: Path) -> None:
    shutil.copytree(REPOSITORY / "deploy" / "systemd" / "etc", root / "etc")
    assert verify(root, "triton.target", "triton@gpu-0.service", "triton@gpu-1.service") == ("", 0)
