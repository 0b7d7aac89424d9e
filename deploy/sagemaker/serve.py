#!/opt/triton-lb/bin/python
"""`serve`, as SageMaker starts a container: a Triton for each GPU, and triton-lb as its front.

What ends first: at SIGTERM triton-lb, which answers what it has; then the Tritons. SageMaker kills
the container after 30 s. A Triton that dies is started again; where triton-lb ends, all does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from lb.generate.balancer import balancer_configuration
from lb.generate.devices import GenerateError, parse_listing
from lb.generate.nvidia_smi import read_nvidia_smi
from lb.generate.servers import Place, server_command
from lb.generate.stack import FIRST_PORT, LAST_PORT, Listen, Options, Server, Stack, make_stack

MODELS: Final = "/opt/ml/model"
CONFIGURATION: Final = "/tmp/triton-lb.yaml"
FRONT_PORT: Final = 8080
DRAIN_S: Final = 18
BALANCER_END_S: Final = 20.0
SERVERS_END_S: Final = 8.0
"""After which what still runs is killed: 28 s in all."""
EXIT_S: Final = 6
_LONGEST_PAUSE_S: Final = 30.0
_VARIABLES: Final = {
    "SAGEMAKER_TRITON_BUFFER_MANAGER_THREAD_COUNT": "--buffer-manager-thread-count={}",
    # Of Triton's own front for SageMaker; requests come to its HTTP port here.
    "SAGEMAKER_TRITON_THREAD_COUNT": "--http-thread-count={}",
    "SAGEMAKER_TRITON_LOG_VERBOSE": "--log-verbose={}",
    "SAGEMAKER_TRITON_LOG_INFO": "--log-info={}",
    "SAGEMAKER_TRITON_LOG_WARNING": "--log-warning={}",
    "SAGEMAKER_TRITON_LOG_ERROR": "--log-error={}",
    "SAGEMAKER_TRITON_SHM_DEFAULT_BYTE_SIZE": "--backend-config=python,shm-default-byte-size={}",
    "SAGEMAKER_TRITON_SHM_GROWTH_BYTE_SIZE": "--backend-config=python,shm-growth-byte-size={}",
    "SAGEMAKER_TRITON_TENSORFLOW_VERSION": "--backend-config=tensorflow,version={}",
    # Each Triton sees one GPU, which is its first.
    "SAGEMAKER_TRITON_MODEL_LOAD_GPU_LIMIT": "--model-load-gpu-limit=0:{}",
}
"""Variables of SageMaker's Triton containers, and what they are for each Triton."""


def server_arguments(environment: Mapping[str, str], model: str) -> tuple[str, ...]:
    """What every Triton is told beside its ports."""
    given = (
        text.format(value) for name, text in _VARIABLES.items() if (value := environment.get(name))
    )
    # The latter of two settings counts: less than what is usual elsewhere.
    return (
        "--model-control-mode=explicit",
        f"--load-model={model}",
        f"--exit-timeout-secs={EXIT_S}",
        *given,
    )


def choose_model(environment: Mapping[str, str], models: Path) -> str:
    """The model, or ensemble, that invocations are for.

    Raises:
        GenerateError: it is not there, or there is no telling which it is.
    """
    if environment.get("SAGEMAKER_MULTI_MODEL") == "true":
        raise GenerateError("endpoints of many models need Triton's own container")
    if (models / "config.pbtxt").exists():
        raise GenerateError(f"{models} holds a model, but should hold a folder for each model")
    there = (
        sorted(path.name for path in models.iterdir() if path.is_dir()) if models.exists() else []
    )
    name = environment.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "")
    if name:
        if name not in there:
            raise GenerateError(f"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME: no folder {models}/{name}")
        return name
    if len(there) != 1:
        found = ", ".join(there) or "none"
        raise GenerateError(f"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME must name one of: {found}")
    return there[0]


def make_options(environment: Mapping[str, str], model: str, models: Path) -> Options:
    """The stack's options; with SAGEMAKER_SAFE_PORT_RANGE all ports are of that range."""
    low, _, high = environment.get("SAGEMAKER_SAFE_PORT_RANGE", "").partition("-")
    ports: Sequence[int] = (8000, 8001, 8002, 8003)
    first, last = FIRST_PORT, LAST_PORT
    if high:
        front = int(environment.get("SAGEMAKER_BIND_TO_PORT") or FRONT_PORT)
        start = front + 1 if front + 1 + 4 < int(high) else int(low)
        ports = [port for port in range(start, int(high) + 1) if port != front][:4]
        first, last = max(ports) + 1, int(high)
    http, grpc, metrics, admin = (f"127.0.0.1:{port}" for port in ports)
    return Options(
        models=str(models),
        server_args=server_arguments(environment, model),
        listen=Listen(http=http, grpc=grpc, metrics=metrics, admin=admin),
        first_port=first,
        last_port=last,
    )


def configuration(stack: Stack, model: str) -> str:
    """That of triton-lb: the generated one, with the front."""
    content: dict[str, Any] = yaml.safe_load(balancer_configuration(stack))
    content["fronts"] = {"sagemaker": {"enabled": True, "default_model": model}}
    content["shutdown"] = {"drain": f"{DRAIN_S}s"}
    del content["reload"]
    return yaml.safe_dump(content, sort_keys=False)


@dataclass(slots=True)
class Child:
    """A process that this one started."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        """Start it, in a session of its own: signals to the container reach it through us."""
        self.process = await asyncio.create_subprocess_exec(
            *self.command, env=dict(self.environment), start_new_session=True
        )
        return self.process

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def end(self, limit_s: float) -> None:
        """Tell it to end, and kill it where it does not."""
        if self.process is None:
            return
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), limit_s)
        except TimeoutError:
            say(f"{self.name} is killed")
            self.signal(signal.SIGKILL)
            await self.process.wait()


def say(text: str) -> None:
    """Write a line to the container's log."""
    print(f"serve: {text}", file=sys.stderr, flush=True)


async def keep(server: Child) -> None:
    """Run a Triton, and start it again whenever it ends, later each time until it has held."""
    loop = asyncio.get_running_loop()
    pause_s = 1.0
    while True:
        began = loop.time()
        try:
            process = await server.start()
        except OSError as error:  # memory or processes are short for a while
            end = f"did not start: {error}"
        else:
            end = f"ended with {await process.wait()}"
        if loop.time() - began > _LONGEST_PAUSE_S:
            pause_s = 1.0
        say(f"{server.name} {end}; it is started again in {pause_s:.0f} s")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def run(balancer: Child, servers: Sequence[Child]) -> int:
    """Run all until triton-lb ends or a signal comes; the exit code."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with asyncio.TaskGroup() as tasks:
        keepers = [tasks.create_task(keep(server)) for server in servers]
        process = await balancer.start()
        ended = tasks.create_task(process.wait())
        waiting = tasks.create_task(told.wait())
        await asyncio.wait((ended, waiting), return_when=asyncio.FIRST_COMPLETED)
        await balancer.end(BALANCER_END_S)
        for task in (*keepers, waiting):
            task.cancel()
    await asyncio.gather(*(server.end(SERVERS_END_S) for server in servers))
    return 0 if told.is_set() else process.returncode or 1


def child_of(server: Server, stack: Stack, environment: Mapping[str, str]) -> Child:
    """The Triton of a device."""
    place = Place(
        name=server.name,
        models=stack.options.models,
        http=str(server.http),
        grpc=str(server.grpc),
        metrics=str(server.metrics),
        shares_memory=True,
        gpu_metrics="true" if server.has_gpu_metrics else "false",
    )
    device = server.device.identifier if server.device else ""
    own = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device}
    return Child(server.name, server_command(stack.options, place), {**environment, **own})


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to end; the exit code."""
    parser = argparse.ArgumentParser(prog="serve")
    parser.add_argument("command", nargs="?", choices=["serve"], help="as SageMaker says it")
    parser.add_argument("--models", type=Path, default=Path(MODELS))
    parser.add_argument("--config", type=Path, default=Path(CONFIGURATION))
    arguments = parser.parse_args(argv)
    environment = dict(os.environ)
    try:
        if not shutil.which("tritonserver"):
            raise GenerateError("there is no tritonserver in PATH")
        model = choose_model(environment, arguments.models)
        devices = parse_listing(read_nvidia_smi() or "").devices
        options = make_options(environment, model, arguments.models)
        stack = make_stack(options, devices, 0 if devices else 1)
        arguments.config.write_text(configuration(stack, model))
    except (GenerateError, OSError, ValueError) as error:
        say(str(error))
        return 1
    servers = [child_of(server, stack, environment) for server in stack.servers]
    program = Path(sys.executable).with_name("triton-lb")
    command = (str(program), "serve", "--config", str(arguments.config))
    return asyncio.run(run(Child("triton-lb", command, environment), servers))


if __name__ == "__main__":
    sys.exit(main())
