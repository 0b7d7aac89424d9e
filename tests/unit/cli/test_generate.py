"""`triton-lb generate`: files are written, compared, replaced on demand, and started."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from lb.cli.main import main
from tests.deploy.listings import FOLDER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "stack"


def generate(folder: Path, *arguments: str, listing: str = "h100_mixed") -> int:
    source = str(FOLDER / f"{listing}.txt")
    command = ["generate", "compose", "--from", source, "--output", str(folder), *arguments]
    return main(command)


def test_files_are_written_and_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(folder) == 0
    said = capsys.readouterr().out
    assert f"wrote {folder / 'compose.yaml'}" in said
    assert "gpu-0-mig-1  2g.20gb MIG-d2094681-" in said
    assert f"next: docker compose -f {folder}/compose.yaml up -d" in said
    assert (folder / "triton-lb" / "triton-lb.yaml").exists()


def test_nothing_changes_a_second_time(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate(folder)
    capsys.readouterr()
    assert generate(folder) == 0
    assert "wrote" not in capsys.readouterr().out
    assert generate(folder, "--check") == 0
    assert capsys.readouterr().out == ""


def test_a_difference_is_shown_and_nothing_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(folder, "--check") == 1
    assert "+services:\n" in capsys.readouterr().out
    assert not folder.exists()


def test_what_differs_is_replaced_only_with_force(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(folder)
    file = folder / "compose.yaml"
    whole = file.read_text()
    file.write_text("mine\n")
    (folder / "triton-lb" / "triton-lb.yaml").unlink()
    assert generate(folder) == 1
    assert f"nothing was written:\n  {file}" in capsys.readouterr().err
    assert file.read_text() == "mine\n"
    assert not (folder / "triton-lb" / "triton-lb.yaml").exists()
    assert generate(folder, "--force") == 0
    assert file.read_text() == whole


def test_files_of_an_earlier_stack_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generate(folder, "--mig", "1g.10gb=7")
    assert generate(folder, "--force") == 0
    assert f"no longer part of the stack: {folder / 'mig.sh'}" in capsys.readouterr().out


def test_a_listing_comes_from_standard_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("GPU 0: NVIDIA T4 (UUID: GPU-1)\n"))
    assert main(["generate", "compose", "--from", "-", "--output", str(folder)]) == 0
    assert "gpu-0  GPU-1  ports 18000 18001 18002" in capsys.readouterr().out


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_nvidia_smi_is_asked(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f'[ "$1" != -L ] || cat {FOLDER / "a100_seven_slices.txt"}'
    program(tmp_path / "bin", "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    command = ["generate", "systemd", "--output", str(folder)]
    assert main(command) == 0
    assert len(list((folder / "etc/triton").iterdir())) == 7


@pytest.fixture
def docker(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Has a `docker` that fails what a pattern of the shell matches, with 7 as the last step, and
    notes what it was asked for."""
    (folder / "models").mkdir(parents=True)

    def install(failing: str) -> Path:
        script = f'echo "$*" >>{tmp_path}/asked; case "$*" in {failing}) exit 7;; esac'
        program(tmp_path / "bin", "docker", script)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        return tmp_path / "asked"

    return install


def test_a_stack_is_shown_and_started(
    folder: Path, docker: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = docker("*up*")
    assert generate(folder, "--up") == 7
    assert "\nservices:\n" in capsys.readouterr().out
    assert asked.read_text().splitlines()[-1] == f"compose -f {folder}/compose.yaml up --detach"


BUILD = "build it in the source tree of triton-lb (docker build --tag triton-lb:latest .)"
LACKS = {
    "Docker": (
        "*",
        "Docker is missing: install it (https://docs.docker.com/engine/install/)",
    ),
    "the Compose plugin": (
        "compose*",
        "Docker has no Compose plugin: install the package docker-compose-plugin "
        "(https://docs.docker.com/compose/install/linux/)",
    ),
    "the daemon": (
        "info",
        "Docker does not answer: start it (sudo systemctl start docker), or join its group "
        "(sudo usermod -aG docker $USER)",
    ),
    "the image": (
        "image*",
        f"the image triton-lb:latest is missing: {BUILD}, or name another one (--lb-image)",
    ),
}


@pytest.mark.parametrize(("failing", "line"), LACKS.values(), ids=list(LACKS))
def test_what_a_start_lacks_is_one_line(
    folder: Path,
    docker: Callable[[str], Path],
    failing: str,
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    docker(failing)
    assert generate(folder, "--up") == 1
    assert capsys.readouterr().err == f"triton-lb: --up: {line}\n"
    assert (folder / "compose.yaml").exists()


def test_models_that_are_missing_are_one_line(
    folder: Path, docker: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    docker("nothing")
    assert generate(folder, "--up", "--models", "/none", "--lb-image", "example.org/lb:1") == 1
    assert capsys.readouterr().err == (
        "triton-lb: --up: the folder of the models is missing: make /none, or name another one "
        "(--models)\n"
    )


def test_a_check_remembers_the_arguments(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = ["compose", "--gpus", "2", "--server-arg=--a=b c", "--http", "0.0.0.0:9000"]
    assert main(["generate", *made, "--output", str(folder)]) == 0
    head = (folder / "compose.yaml").read_text().splitlines()[:2]
    assert head[1] == (
        "# Command: triton-lb generate compose --gpus=2 '--server-arg=--a=b c' --http=0.0.0.0:9000"
    )
    capsys.readouterr()
    check = ["generate", "compose", "--check", "--output", str(folder)]
    assert main(check) == 0
    assert capsys.readouterr().out == ""
    # What is given replaces what is remembered.
    assert main([*check, "--cpu", "1"]) == 1
    shown = capsys.readouterr().out
    assert "+# Command: triton-lb generate compose --cpu=1 '--server-arg=--a=b c'" in shown
    assert main([*check, "-q", "--gpus", "3"]) == 1
    assert capsys.readouterr() == ("", "")


def test_a_stack_is_made_again_with_its_options(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["generate", "compose", "--output", str(folder)]
    assert main([*again, "--gpus", "3", "--models", "/srv/m"]) == 0
    made = (folder / "compose.yaml").read_text()
    (folder / "compose.yaml").write_text(made.replace("memlock", "older"))
    capsys.readouterr()
    assert main([*again, "--force"]) == 0
    assert (folder / "compose.yaml").read_text() == made
    used = f"with the options in {folder}/compose.yaml: --gpus=3 --models=/srv/m"
    assert capsys.readouterr().err == f"triton-lb: {used}\n"
    # Options that are given are all that count.
    assert main([*again, "--gpus", "1", "--force"]) == 0
    assert "/srv/m" not in (folder / "compose.yaml").read_text()


def test_a_command_that_was_spoilt_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(folder) == 0
    file = folder / "compose.yaml"
    file.write_text(file.read_text().replace("compose --from", "compose '--from"))
    capsys.readouterr()
    assert main(["generate", "compose", "--check", "--output", str(folder)]) == 1
    assert capsys.readouterr().err == (
        f"triton-lb: {file}: its command cannot be read: No closing quotation\n"
    )


@pytest.mark.parametrize("target", ["kubernetes", "systemd"])
def test_each_target_remembers(folder: Path, target: str) -> None:
    output = ["--output", str(folder)]
    assert main(["generate", target, "--cpu", "2", *output]) == 0
    assert main(["generate", target, "--check", *output]) == 0


def test_a_check_of_files_from_standard_input_asks_for_it_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "compose", "--output", str(folder)]
    text = "GPU 0: NVIDIA T4 (UUID: GPU-1)\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main([*command, "--from", "-"]) == 0
    assert main([*command, "--check"]) == 1
    assert "give its text again by --from" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main([*command, "--check", "--from", "-"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--up", "--check"], "--up is for compose"),
        (["--devices", "9"], "there is no device '9'"),
        (["--http", "x"], "--http: expected HOST:PORT"),
    ],
)
def test_what_cannot_be_is_told(
    folder: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(folder, *arguments) == 1
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_a_listing_that_cannot_be_read_is_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(folder, listing="missing") == 1
    assert "No such file" in capsys.readouterr().err
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xff")
    assert main(["generate", "compose", "--from", str(binary), "--output", str(folder)]) == 1
    assert "not UTF-8" in capsys.readouterr().err
