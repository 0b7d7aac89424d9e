"""SageMaker's container: what each Triton is told, which ports, and who ends first."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from lb.generate.devices import GenerateError, whole_gpus
from lb.generate.stack import make_stack
from lb.settings.reading import read_settings
from tests.deploy.listings import FOLDER
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_from, wait_until, whole_lines
from tests.triton.target import http_status

REPOSITORY = Path(__file__).parents[2]
SERVE = REPOSITORY / "deploy" / "sagemaker" / "serve.py"
STAND_IN = f"""#!{sys.executable}
# Stands for tritonserver: notes what it is told, and simulates.
import json, os, sys
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
note = dict(pid=os.getpid(), device=os.environ["CUDA_VISIBLE_DEVICES"], arguments=sys.argv[1:])
with open(os.environ["NOTES"], "a") as notes:
    notes.write(json.dumps(note) + chr(10))
ports = [word for name in ("http", "grpc", "metrics")
         for word in (f"--{{name}}-port", given[name + "-port"])]
command = [sys.executable, "-m", "lb.simulator", *ports, "--models", "simple"]
os.execv(sys.executable, command)
"""


@pytest.fixture(scope="module")
def serve() -> ModuleType:
    """The program, as a module."""
    spec = importlib.util.spec_from_file_location("sagemaker_serve", SERVE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_variables_of_the_environment_are_told_to_every_triton(serve: ModuleType) -> None:
    environment = {
        "SAGEMAKER_TRITON_THREAD_COUNT": "4",
        "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT": "2",
        "SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT": "0.8",
        "SAGEMAKER_TRITON_LOG_VERBOSE": "",
    }
    assert serve.server_arguments(environment, "flower")[-3:] == (
        "--buffer-manager-thread-count=2",
        "--http-thread-count=4",
        "--model-load-gpu-limit=0:0.8",
    )


@pytest.mark.parametrize(
    ("folders", "environment", "expected"),
    [
        (["flower"], {}, "flower"),
        (["flower", "dali"], {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "flower"}, "flower"),
        (["flower", "dali"], {}, "must name one of: dali, flower"),
        ([], {}, "must name one of: none"),
        (["flower"], {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "rose"}, "no folder"),
        (["flower"], {"SAGEMAKER_MULTI_MODEL": "true"}, "many models"),
    ],
)
def test_the_model_is_named_or_the_only_one(
    serve: ModuleType,
    folders: list[str],
    environment: Mapping[str, str],
    expected: str,
    tmp_path: Path,
) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
    if " " not in expected:
        assert serve.choose_model(environment, tmp_path) == expected
    else:
        with pytest.raises(GenerateError, match=expected):
            serve.choose_model(environment, tmp_path)


def test_a_folder_that_is_a_model_is_refused(serve: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").touch()
    with pytest.raises(GenerateError, match="a folder for each model"):
        serve.choose_model({}, tmp_path)


@pytest.mark.parametrize("front", ["20100", "20000", "20199"])
def test_all_ports_are_of_the_safe_range(serve: ModuleType, front: str) -> None:
    environment = {"SAGEMAKER_SAFE_PORT_RANGE": "20000-20199", "SAGEMAKER_BIND_TO_PORT": front}
    stack = make_stack(serve.make_options(environment, "m", Path("/m")), whole_gpus(8))
    settings = read_settings(serve.configuration(stack, "m"), environment, str)
    ports = [
        address.port
        for backend in settings.backends
        for address in (backend.http, backend.grpc, backend.metrics)
        if address is not None
    ]
    listen = yaml.safe_load(serve.configuration(stack, "m"))["listen"]
    ports += [int(address.rpartition(":")[2]) for address in listen.values()]
    ports.append(settings.fronts.sagemaker.address.port)
    assert len(set(ports)) == 8 * 3 + 5
    assert min(ports) >= 20000
    assert max(ports) <= 20199


class Container:
    """The program with two GPUs and stand-ins for Tritons."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "bin").mkdir()
        listed = (FOLDER / "eight_gpus.txt").read_text().splitlines()[:2]
        (folder / "gpus.txt").write_text("\n".join(listed))
        self._program("nvidia-smi", f'#!/bin/sh\n[ "$1" != -L ] || cat {folder}/gpus.txt\n')
        self._program("tritonserver", STAND_IN)
        (folder / "models" / "simple").mkdir(parents=True)
        first = free_from(range(11))
        self.front = f"127.0.0.1:{first}"
        environment = {
            **ENVIRONMENT,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "NOTES": str(folder / "notes"),
            "SAGEMAKER_BIND_TO_PORT": str(first),
            "SAGEMAKER_SAFE_PORT_RANGE": f"{first}-{first + 10}",
        }
        command = [sys.executable, str(SERVE), "--models", str(folder / "models")]
        command += ["--config", str(folder / "lb.yaml")]
        self.process = ChildProcess(command, log=folder / "log", env=environment)

    def _program(self, name: str, text: str) -> None:
        path = self._folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    @contextmanager
    def without_triton(self) -> Iterator[None]:
        """Meanwhile none can be started."""
        path = self._folder / "bin" / "tritonserver"
        away = path.rename(path.with_suffix(".away"))
        try:
            yield
        finally:
            away.rename(path)

    @property
    def started(self) -> list[dict[str, Any]]:
        """What each stand-in noted, in the order of their starts."""
        path = self._folder / "notes"
        return [json.loads(line) for line in whole_lines(path)]

    def is_ready(self) -> bool:
        assert self.process.is_running, self.process.last_lines()
        return http_status(self.front, "/ping") == 200


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    running = Container(tmp_path)
    try:
        wait_until(running.is_ready, timeout_s=40.0, what="the container is ready")
        yield running
    finally:
        running.process.signal(signal.SIGTERM)
        try:
            running.process.wait(30.0)
        finally:
            running.process.close()
            for note in running.started:
                try:
                    os.kill(note["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    pass


def test_a_container_serves_on_every_gpu_until_told_to_end(container: Container) -> None:
    wait_until(lambda: len(container.started) == 2, timeout_s=30, what="both have started")
    first, second = sorted(container.started, key=lambda note: str(note["device"]))
    assert first["device"].startswith("GPU-0b35")
    assert second["device"].startswith("GPU-6018")
    assert "--load-model=simple" in first["arguments"]
    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: len(container.started) == 3, timeout_s=30, what="it is started again")
    assert container.started[2]["device"] == first["device"]
    assert http_status(container.front, "/ping") == 200
    container.process.signal(signal.SIGTERM)
    assert container.process.wait(30.0) == 0
    for note in container.started:
        with pytest.raises(ProcessLookupError):
            os.kill(note["pid"], 0)


def test_a_triton_that_cannot_be_started_again_for_a_while_ends_nothing(
    container: Container,
) -> None:
    wait_until(lambda: len(container.started) == 2, timeout_s=30, what="both have started")
    first = container.started[0]
    with container.without_triton():
        os.kill(first["pid"], signal.SIGKILL)
        wait_until(
            lambda: "did not start" in container.process.log.read_text(),
            timeout_s=30,
            what="it cannot be started",
        )
        assert http_status(container.front, "/ping") == 200
    wait_until(lambda: len(container.started) == 3, timeout_s=30, what="it is started again")
    assert container.started[2]["device"] == first["device"]


def test_the_image_is_built_as_the_other_one_is() -> None:
    """`make stack-test` builds both."""
    ours, other = (
        re.findall(r"^RUN .*image_install\.sh (.*)$", path.read_text(), re.MULTILINE)
        for path in (SERVE.with_name("Dockerfile"), REPOSITORY / "Dockerfile")
    )
    assert ours == other
    assert "ARG COMPILE=1\n" in SERVE.with_name("Dockerfile").read_text()
    assert os.access(SERVE, os.X_OK)


def test_what_is_missing_is_told_at_once(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "PATH": "/usr/bin:/bin"}
    process = ChildProcess([sys.executable, str(SERVE)], log=tmp_path / "log", env=environment)
    try:
        assert process.wait(30.0) == 1
        assert "serve: there is no tritonserver in PATH" in process.last_lines()
    finally:
        process.close()
