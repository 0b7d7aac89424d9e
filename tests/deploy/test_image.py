"""What the Dockerfile says, as far as that can be told without building it (`make image-test`)."""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from lb.settings.listening import ListenerSettings
from lb.settings.reading import read_settings

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "tools" / "image_install.sh").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Step(NamedTuple):
    """One instruction."""

    name: str
    text: str


def stages() -> list[list[Step]]:
    """The instructions of each stage; what stands before the first is one of its own."""
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found: list[list[Step]] = [[]]
    for line in filter(str.strip, "\n".join(lines).replace("\\\n", " ").splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found.append([])
        found[-1].append(Step(name, " ".join(rest.split())))
    return found


GLOBAL, BUILD, FINAL = stages()


def only(name: str) -> str:
    """What an instruction of the final stage says that stands there once."""
    (text,) = [step.text for step in FINAL if step.name == name]
    return text


def test_both_stages_have_the_same_python() -> None:
    bases = dict(step.text.split("=", 1) for step in GLOBAL)
    python = r"docker\.io/library/python:(3\.\d+)-"
    base = re.fullmatch(python + "slim-([a-z]+)", bases["BASE"])
    builder = re.fullmatch(python + "([a-z]+)", bases["BUILDER"])
    assert base is not None
    assert builder is not None
    assert base.groups() == builder.groups()
    assert BUILD[0].text == "${BUILDER} AS build"
    assert FINAL[0].text == "${BASE}"


def test_it_is_compiled_unless_told_otherwise() -> None:
    assert "COMPILE=1" in [step.text for step in BUILD if step.name == "ARG"]
    (wheel,) = [step.text for step in BUILD if " wheel " in step.text]
    assert wheel.startswith("TRITON_LB_COMPILE=${COMPILE} ")


def test_nothing_is_built_in_the_final_stage() -> None:
    names = [step.name for step in FINAL]
    assert not {"RUN", "ADD", "SHELL", "VOLUME"} & set(names)
    (copied,) = [step.text for step in FINAL if "--from" in step.text]
    assert copied == "--from=build /opt/triton-lb /opt/triton-lb"
    assert "pip uninstall -q -y pip setuptools" in SCRIPT


def test_it_runs_as_nobody_in_particular() -> None:
    arguments = [step.text for step in FINAL if step.name == "ARG"]
    (uid,) = [int(text.removeprefix("UID=")) for text in arguments if text.startswith("UID=")]
    assert uid > 10_000
    assert only("USER") == "${UID}:${UID}"


def test_commands_are_lists_so_that_signals_arrive() -> None:
    assert json.loads(only("ENTRYPOINT")) == ["triton-lb"]
    assert json.loads(only("CMD")) == ["serve", "--config", "/etc/triton-lb/triton-lb.yaml"]
    assert only("STOPSIGNAL") == "SIGTERM"
    health = only("HEALTHCHECK").partition("CMD ")[2]
    assert json.loads(health)[0] == "python3"
    assert "http://127.0.0.1:8002/livez" in health


def test_its_configuration_listens_on_what_is_exposed() -> None:
    text = (ROOT / "config" / "container.yaml").read_text()
    settings = read_settings(text, {"TRITON_HTTP": "gpu:1"}, lambda name: Path(name).read_text())
    ours = {
        name: listener.address
        for name, listener in settings.listen
        if isinstance(listener, ListenerSettings)
    }
    assert str(ours.pop("admin")) == "127.0.0.1:8003"
    assert {address.host for address in ours.values()} == {"0.0.0.0"}
    exposed = [int(port) for port in only("EXPOSE").split()]
    assert sorted(address.port for address in ours.values()) == exposed
    assert [str(backend.http) for backend in settings.backends] == ["gpu:1"]


def test_labels_tell_the_version() -> None:
    assert f"VERSION={PROJECT['version']}" in [step.text for step in FINAL]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', only("LABEL")))
    assert labels["description"] == PROJECT["description"]
    assert labels["licenses"] == PROJECT["license"]
    assert labels["version"] == "${VERSION}"


def test_every_installation_goes_by_the_lock() -> None:
    installs = [line for line in SCRIPT.splitlines() if "pip" in line and " install " in line]
    assert installs
    assert all("-c constraints.txt" in line for line in installs)
    runs = [step.text for step in BUILD if step.name == "RUN"]
    assert all("./image_install.sh " in text for text in runs)


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path through: the last pattern that fits decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if (
            line
            and not line.startswith("#")
            and any(
                fnmatch.fnmatchcase(each, pattern) or fnmatch.fnmatchcase(f"./{each}", pattern)
                for each in (path, *map(str, Path(path).parents))
            )
        ):
            sent = line.startswith("!")
    return sent


@pytest.mark.parametrize("stage", [BUILD, FINAL], ids=["build", "final"])
def test_what_is_copied_is_there_and_sent(stage: list[Step]) -> None:
    copied = [
        source
        for step in stage
        if step.name == "COPY" and "--from" not in step.text
        for source in step.text.split()[:-1]
    ]
    assert copied
    assert all((ROOT / source).exists() and is_sent(source) for source in copied)


def test_nothing_else_is_sent() -> None:
    for path in ("lb/wire/http1/body.py", "deploy/kubernetes/base/pdb.yaml", "pyproject.toml"):
        assert is_sent(path)
    for path in (".git/HEAD", ".venv/bin/python", "tests/conftest.py", "lb/cli/__pycache__/x.pyc"):
        assert not is_sent(path)
