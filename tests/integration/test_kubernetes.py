"""A cluster scales the Tritons down and up again while clients ask: the balancer follows its API,
through outages of that, and nobody loses a request."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.fakes.kubernetes import KubernetesApi, endpoint, kubernetes_api, leaving
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.fakes.steady_load import SteadyLoad
from tests.integration.test_membership import Balancer, ask

LIMIT_S = 60.0


class Cluster:
    """An API in a thread of its own, and pods of a service with simulated Tritons in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: dict[str, ChildProcess] = {}
        self.hosts: dict[str, str] = {}
        self.terminating: set[str] = set()
        http, grpc = free_ports(2)
        self.numbers = {"http": http, "grpc": grpc}
        """Ports of all pods, as those of a service have the same ones on addresses of their own."""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        started = threading.Event()

        async def serve() -> None:
            async with kubernetes_api() as self.api:
                started.set()
                await self._stop.wait()

        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(serve(),), name="api"
        )
        self.api = KubernetesApi()
        self._thread.start()
        assert started.wait(LIMIT_S)

    def tell(self, command: Callable[[], object]) -> None:
        """Do something with the API, in its thread."""

        async def run() -> None:
            found = command()
            if asyncio.iscoroutine(found):
                await found

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(LIMIT_S)

    def kubeconfig(self) -> str:
        path = self.folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "current-context": "c",
                    "contexts": [
                        {"name": "c", "context": {"cluster": "c", "namespace": "serving"}}
                    ],
                    "clusters": [
                        {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.api.port}"}}
                    ],
                }
            )
        )
        return str(path)

    def start_pod(self, name: str, host: str) -> None:
        """Start a pod and say that it is ready."""
        port = [
            word
            for kind, number in self.numbers.items()
            for word in (f"--{kind}-port", str(number))
        ]
        log = self.folder / f"{name}.log"
        command = (sys.executable, "-m", "lb.simulator", "--host", host, *port)
        self.pods[name] = ChildProcess(command, log=log, env=ENVIRONMENT)
        wait_until(lambda: "\n" in log.read_text(), timeout_s=LIMIT_S, what="the simulator")
        self.hosts[name] = host
        self.publish()

    def delete_pod(self, name: str, running: Balancer) -> None:
        """As a cluster does it whose pods wait a while in a `preStop` hook before they end."""
        self.terminating.add(name)
        self.publish()
        gone = f"{name}.serving:{self.numbers['http']}"
        wait_until(lambda: gone not in running.backends(), timeout_s=LIMIT_S, what=f"{gone} gone")
        self.pods[name].signal(signal.SIGTERM)
        self.pods[name].wait(LIMIT_S)
        del self.hosts[name]
        self.publish()

    def publish(self) -> None:
        endpoints = [
            (leaving if name in self.terminating else endpoint)(host, name)
            for name, host in self.hosts.items()
        ]
        self.tell(lambda: self.api.put("triton-x", endpoints, numbers=self.numbers))

    def names(self, *pods: str) -> dict[str, str]:
        """How the balancer calls them, all up."""
        return {f"{pod}.serving:{self.numbers['http']}": "up" for pod in pods}

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(LIMIT_S)
        self._loop.close()
        for pod in self.pods.values():
            pod.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def running(tmp_path: Path, cluster: Cluster) -> Iterator[Balancer]:
    cluster.start_pod("one", "127.0.0.1")
    cluster.start_pod("two", "127.0.0.2")
    source = {
        "service": "triton",
        "http_port": "http",
        "grpc_port": "grpc",
        "kubeconfig": cluster.kubeconfig(),
    }
    listen = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    serving = Balancer(tmp_path, listen=listen, discovery={"kubernetes": [source]})
    try:
        yield serving
        assert "Traceback" not in serving.log
        assert "crashed" not in serving.log
    finally:
        serving.serving.process.close()


def status(running: Balancer) -> dict[str, object]:
    """Of the source."""
    found = json.loads(ask(running.admin, "GET", "/api/v1/sources")[1])["sources"]
    assert len(found) == 1
    return dict(found[0])


def test_scaling_down_and_up_and_an_api_that_is_away_lose_no_request(
    cluster: Cluster, running: Balancer
) -> None:
    running.until(**cluster.names("one", "two"))
    line = next(line for line in running.log.splitlines() if " serving " in line)
    words = dict(word.split("=", 1) for word in line.split() if "=" in word)
    with SteadyLoad(words["http"], words["grpc"]) as load:
        cluster.delete_pod("one", running)
        running.until(**cluster.names("two"))
        cluster.start_pod("three", "127.0.0.3")
        running.until(**cluster.names("two", "three"))
        cluster.tell(lambda: cluster.api.stop())
        wait_until(lambda: bool(status(running)["error"]), timeout_s=LIMIT_S, what="the outage")
        # Who was there last is still there, and what has changed meanwhile is listed anew.
        assert running.backends() == cluster.names("two", "three")
        cluster.start_pod("four", "127.0.0.1")
        cluster.tell(lambda: cluster.api.forget())
        cluster.tell(lambda: cluster.api.start())
        running.until(**cluster.names("two", "three", "four"))
        assert not status(running)["error"]
        cluster.delete_pod("two", running)
        cluster.delete_pod("three", running)
        running.until(**cluster.names("four"))
    load.check()
    assert cluster.api.lists == 2
