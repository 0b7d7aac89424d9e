"""MIG layouts, and what the script does: nvidia-smi is a stand-in that keeps its state in files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lb.generate.devices import Device, GenerateError, parse_listing
from lb.generate.mig import SCRIPT, UNIT, gpus_of, mig_files, parse_layout
from tests.deploy.listings import read_listing

STAND_IN = """#!/bin/bash
cd "$(dirname "$0")"
echo "$*" >>calls
gpu=0
case "$*" in
  -L)
    echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)"
    [ ! -e parts ] || for part in $(tr , ' ' <parts); do
      echo "  MIG $part     Device  $((gpu++)): (UUID: MIG-$gpu)"
    done
    ;;
  *--query-compute-apps*) [ ! -e busy ] || echo 4711 ;;
  *--query-gpu=mig.mode.current*) if [ -e mode ]; then echo Enabled; else echo Disabled; fi ;;
  *"-mig 1") [ -e needs-reset ] || touch mode ;;
  *" -cgi "*) echo "$5" >parts ;;
  *" -dgi") rm parts ;;
esac
"""


class Machine:
    """A GPU, as the stand-in has it, and the script."""

    def __init__(self, folder: Path, layout: str) -> None:
        self.folder = folder
        (folder / "nvidia-smi").write_text(STAND_IN)
        (folder / "nvidia-smi").chmod(0o755)
        script = next(f for f in mig_files(parse_layout(layout, ["0"])) if f.path == SCRIPT)
        assert script.is_executable
        (folder / SCRIPT).write_text(script.text)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of the script."""
        env = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", str(self.folder / SCRIPT), *arguments],
            capture_output=True,
            text=True,
            env=env,
            timeout=20,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    @property
    def parts(self) -> str:
        path = self.folder / "parts"
        return path.read_text().strip() if path.exists() else ""


SEVEN = ",".join(["1g.5gb"] * 7)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "1g.5gb=7")


def test_without_argument_the_script_only_says_what_it_would_do(machine: Machine) -> None:
    code, said = machine.run()
    assert code == 0
    assert "+ nvidia-smi -i 0 -mig 1" in said
    assert f"+ nvidia-smi mig -i 0 -cgi {SEVEN} -C" in said
    assert "nothing was changed" in said
    assert machine.parts == ""


def test_applied_it_divides_once(machine: Machine) -> None:
    assert machine.run("--apply")[0] == 0
    assert machine.parts == SEVEN
    (machine.folder / "calls").unlink()
    code, said = machine.run("--apply")
    assert code == 0
    assert "divided as wanted" in said
    assert "-cgi" not in (machine.folder / "calls").read_text()


def test_what_is_there_is_destroyed_only_on_demand(machine: Machine) -> None:
    (machine.folder / "mode").touch()
    (machine.folder / "parts").write_text("3g.20gb")
    code, said = machine.run("--apply")
    assert (code, machine.parts) == (1, "3g.20gb")
    assert "divided into 3g.20gb" in said
    assert machine.run("--replace")[0] == 0
    assert machine.parts == SEVEN


def test_a_gpu_in_use_is_left_alone(machine: Machine) -> None:
    (machine.folder / "busy").touch()
    code, said = machine.run("--replace")
    assert (code, machine.parts) == (1, "")
    assert "GPU 0 is in use" in said


def test_a_gpu_that_needs_a_reset_is_told(machine: Machine) -> None:
    (machine.folder / "needs-reset").touch()
    code, said = machine.run("--apply")
    assert (code, machine.parts) == (1, "")
    assert "--gpu-reset -i 0" in said


def test_the_order_of_profiles_does_not_matter(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "1g.5gb=4,3g.20gb=1")
    (tmp_path / "mode").touch()
    (tmp_path / "parts").write_text("1g.5gb,3g.20gb,1g.5gb,1g.5gb,1g.5gb")
    assert "divided as wanted" in machine.run("--apply")[1]


def test_other_arguments_are_refused(machine: Machine) -> None:
    assert machine.run("--yes")[0] == 2


def test_the_unit_runs_before_what_needs_devices() -> None:
    unit = next(f.text for f in mig_files(parse_layout("7g.40gb=1", ["0"])) if f.path == UNIT)
    assert "Before=docker.service" in unit
    assert "ExecStart=/usr/local/sbin/triton-mig --apply" in unit


def test_devices_are_known_by_index_largest_first() -> None:
    layout = parse_layout("1g.5gb=2,3g.20gb=1", ["0", "2"])
    assert [(each.identifier, each.profile) for each in layout.devices] == [
        (f"{gpu}:{number}", profile)
        for gpu in ("0", "2")
        for number, profile in enumerate(["3g.20gb", "1g.5gb", "1g.5gb"])
    ]


@pytest.mark.parametrize(
    "layout",
    [
        *("", "1g.5gb", "1g.5gb=0", "1g.5gb=x", "=7", "big=1", "1g.5gb=3,1g.5gb=4"),
        *("1g.5gb=8", "3g.20gb=2,1g.5gb=1", "7g.40gb=1,1g.5gb=1", "4g.20gb=2", "5g.1gb=1"),
    ],
)
def test_what_no_gpu_can_be_is_refused(layout: str) -> None:
    with pytest.raises(GenerateError):
        parse_layout(layout, ["0"])


@pytest.mark.parametrize(
    "layout", ["3g.20gb=2", "3g.20gb=1,1g.5gb=4", "2g.10gb=3,1g.5gb=1", "4g.20gb=1,3g.20gb=1"]
)
def test_what_a_gpu_can_be_is_taken(layout: str) -> None:
    assert parse_layout(layout, ["0"]).profiles


def test_a_gpu_must_be_there() -> None:
    with pytest.raises(GenerateError, match="no GPU to divide"):
        parse_layout("1g.5gb=7", [])


def test_gpus_are_those_behind_the_devices() -> None:
    devices = parse_listing(read_listing("h100_mixed")).devices
    assert gpus_of([Device("11", "11"), *devices]) == ["0", "1", "11"]
