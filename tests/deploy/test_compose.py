"""Compose files hold to the specification, and the triton-lb of a stack starts as written."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import pytest
import tritonclient.grpc
import yaml

from lb.cli.main import main
from lb.settings.reading import read_settings
from lb.simulator.process import Ports, Simulator
from lb.simulator.server import SimulatedTriton
from tests.deploy.listings import FOLDER, LISTINGS
from tests.deploy.stacks import GeneratedStack, generate, running, serve_command
from tests.fakes.process import ChildProcess, wait_until
from tests.triton.server import ENVIRONMENT, MODELS, START_TIMEOUT_S
from tests.triton.target import http_status

REPOSITORY = Path(__file__).parents[2]
INFER = json.dumps(
    {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
            for name in ("INPUT0", "INPUT1")
        ]
    }
)


@pytest.fixture(scope="module")
def schema() -> jsonschema.protocols.Validator:
    """The published schema of Compose files."""
    vendor = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    text = (vendor / "compose-spec.json").read_text()
    return jsonschema.validators.validator_for(json.loads(text))(json.loads(text))


def problems(schema: jsonschema.protocols.Validator, text: str) -> list[str]:
    return [
        f"{error.json_path}: {error.message}" for error in schema.iter_errors(yaml.safe_load(text))
    ]


@pytest.mark.parametrize("listing", LISTINGS)
@pytest.mark.parametrize(
    "options",
    [(), ("--shared-memory", "--grafana"), ("--server", "tfserving", "--server-arg=--x=$Y")],
    ids=["plain", "all", "tfserving"],
)
def test_a_generated_stack_holds_to_the_specification(
    listing: str,
    options: tuple[str, ...],
    tmp_path: Path,
    schema: jsonschema.protocols.Validator,
) -> None:
    source = ["--from", str(FOLDER / f"{listing}.txt"), "--output", str(tmp_path)]
    assert main(["generate", "compose", *source, *options]) == 0
    assert problems(schema, (tmp_path / "compose.yaml").read_text()) == []


def test_prometheus_takes_what_is_written_for_it(tmp_path: Path) -> None:
    listen = "--metrics=10.0.0.5:9102"
    assert (
        main(["generate", "compose", "--cpu", "1", listen, "--grafana", "--output", str(tmp_path)])
        == 0
    )
    file = tmp_path / "prometheus" / "prometheus.yml"
    done = subprocess.run(
        ["promtool", "check", "config", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout
    assert "10.0.0.5:9102" in file.read_text()


def test_the_specification_is_looked_at(schema: jsonschema.protocols.Validator) -> None:
    text = "services: {a: {image: x, healthchek: {}}}"
    assert problems(schema, text) == [
        "$.services.a: Unevaluated properties are not allowed ('healthchek' was unexpected)"
    ]


FILES = sorted((REPOSITORY / "deploy" / "compose").glob("*/compose.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_an_example_holds_to_the_specification(
    path: Path, schema: jsonschema.protocols.Validator
) -> None:
    assert problems(schema, path.read_text()) == []


@asynccontextmanager
async def simulated(stack: GeneratedStack) -> AsyncIterator[None]:
    """A simulated Triton at the ports of every backend."""
    async with AsyncExitStack() as tritons:
        for backend in stack.backends:
            ports = Ports(
                "127.0.0.1",
                *(int(backend[name].rpartition(":")[2]) for name in ("http", "grpc", "metrics")),
            )
            await tritons.enter_async_context(Simulator(SimulatedTriton(("simple",)), ports))
        yield


async def test_every_triton_lb_starts_as_written_and_serves(tmp_path: Path) -> None:
    async with AsyncExitStack() as tritons:
        stacks = []
        for listing in LISTINGS:
            stack = generate("compose", tmp_path / listing, listing)
            await tritons.enter_async_context(simulated(stack))
            stacks.append(stack)
        # At once: each takes a second to start.
        async with asyncio.TaskGroup() as tasks:
            for stack in stacks:
                tasks.create_task(starts_and_serves(stack))


async def starts_and_serves(stack: GeneratedStack) -> None:
    """Send requests to its triton-lb over both protocols."""
    asked = 3 * len(stack.backends)
    url = f"http://{stack.http}/v2/models/simple/infer"
    served = running(stack, serve_command(stack.folder / "triton-lb" / "triton-lb.yaml"))
    await asyncio.to_thread(served.__enter__)
    try:
        async with aiohttp.ClientSession() as session:

            async def infer() -> int:
                async with session.post(url, data=INFER) as response:
                    await response.read()
                    return response.status

            assert await asyncio.gather(*(infer() for _ in range(asked))) == [200] * asked
        assert await asyncio.to_thread(ready_over_grpc, stack)
        views = await asyncio.to_thread(stack.views)
    finally:
        await asyncio.to_thread(served.__exit__, None, None, None)
    assert sum(view["served"] for view in views) >= asked
    assert {view["name"] for view in views} == set(stack.compose["services"]) - {"triton-lb"}


def ready_over_grpc(stack: GeneratedStack) -> bool:
    with tritonclient.grpc.InferenceServerClient(stack.grpc) as client:
        return bool(client.is_server_ready(client_timeout=30.0))


def start_as_written(
    name: str, service: dict[str, Any], models: Path, folder: Path
) -> ChildProcess:
    """A real Triton with the command line of a container; only its folders are those of here."""
    native = ENVIRONMENT / "native"
    program, repository, *arguments = service["command"]
    assert (program, repository) == ("tritonserver", "--model-repository=/models")
    command = (
        str(native / "tritonserver"),
        f"--model-repository={models}",
        f"--backend-directory={native / 'backends'}",
        *arguments,
    )
    env = {
        "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(ENVIRONMENT),
        "LD_LIBRARY_PATH": str(native),
        "OPENBLAS_NUM_THREADS": "1",
        "TEST_SERVER_NAME": name,
        "TEST_RECORDS": str(folder),
    }
    return ChildProcess(command, log=folder / f"{name}.log", env=env)


def test_real_tritons_run_with_the_command_lines_of_their_containers(tmp_path: Path) -> None:
    stack = generate("compose", tmp_path / "stack", ["--cpu", "2"], "--shared-memory")
    models = tmp_path / "models"
    models.mkdir()
    (models / "simple").symlink_to(MODELS / "simple")
    services = {
        name: each for name, each in stack.compose["services"].items() if name != "triton-lb"
    }
    tritons = []
    try:
        for name, service in services.items():
            tritons.append(start_as_written(name, service, models, tmp_path))
        for service in services.values():
            _, host, path = service["healthcheck"]["test"][-1].split("/", 3)[1:]
            wait_until(
                lambda host=host, path=path: http_status(host, f"/{path}") == 200,
                timeout_s=START_TIMEOUT_S,
                what="the health check of a container passes",
            )
        with running(stack, serve_command(stack.folder / "triton-lb" / "triton-lb.yaml")):
            assert ready_over_grpc(stack)
            assert http_status(stack.http, "/v2/models/simple/ready") == 200
            assert all(view["state"] == "up" for view in stack.views())
    finally:
        for triton in tritons:
            triton.close()


def test_the_example_of_gpus_is_what_generate_writes(capsys: pytest.CaptureFixture[str]) -> None:
    folder = REPOSITORY / "deploy" / "compose" / "gpus"
    code = main(["generate", "compose", "--gpus", "2", "--output", str(folder), "--check"])
    assert (capsys.readouterr().out, code) == ("", 0)


def test_the_demo_finds_its_simulators() -> None:
    folder = REPOSITORY / "deploy" / "compose" / "demo"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    settings = read_settings((folder / "triton-lb" / "triton-lb.yaml").read_text(), {}, str)
    for backend in settings.backends:
        service = services[backend.name]
        assert service["entrypoint"] == ["python3", "-m", "lb.simulator"]
        words = service["command"]
        given = dict(zip(words[::2], words[1::2], strict=True))
        assert [str(backend.http), str(backend.grpc), str(backend.metrics)] == [
            f"{backend.name}:{given[f'--{name}-port']}" for name in ("http", "grpc", "metrics")
        ]
    assert set(services) == {"triton-lb", *(backend.name for backend in settings.backends)}
