"""The pod with triton-lb and its Tritons: nobody takes another's port, triton-lb ends first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lb.kserve.gate import RESERVED
from lb.settings.model import Settings
from lb.settings.reading import read_settings
from tests.fakes.manifests import containers, pod_of, render, validate

FOLDER = Path(__file__).parents[2] / "deploy" / "sidecar"
TRITONS = FOLDER.with_name("kubernetes") / "tritons"


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    (deployment,) = (each for each in render(FOLDER) if each["kind"] == "Deployment")
    return deployment


@pytest.fixture(scope="module")
def settings() -> Settings:
    return read_settings((FOLDER / "triton-lb.yaml").read_text(), {}, str)


def options(container: dict[str, Any]) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in container["args"] if "=" in word)


def test_the_manifests_are_valid() -> None:
    for manifest in render(FOLDER):
        validate(manifest)


def test_each_triton_listens_where_its_backend_is(pod: dict[str, Any], settings: Settings) -> None:
    tritons = pod_of(pod)["initContainers"]
    found = [
        tuple(
            f"{given[f'{port}-address']}:{given[f'{port}-port']}"
            for port in ("http", "grpc", "metrics")
        )
        for given in map(options, tritons)
    ]
    assert found == [
        (str(backend.http), str(backend.grpc), str(backend.metrics))
        for backend in settings.backends
    ]
    assert [each["name"] for each in tritons] == [backend.name for backend in settings.backends]


def test_shared_memory_of_each_triton_is_its_own_and_reserved(pod: dict[str, Any]) -> None:
    words = [word for each in pod_of(pod)["initContainers"] for word in each["args"]]
    prefixes = [word.rpartition("=")[2] for word in words if "shm-region-prefix-name" in word]
    assert len(set(prefixes)) == len(pod_of(pod)["initContainers"])
    assert all(each.encode().startswith(RESERVED) for each in prefixes)


def test_ports_of_the_pod_are_there_once(pod: dict[str, Any], settings: Settings) -> None:
    ports = [
        address.port
        for backend in settings.backends
        for address in (backend.http, backend.grpc, backend.metrics)
        if address is not None
    ]
    listen = yaml.safe_load((FOLDER / "triton-lb.yaml").read_text())["listen"]
    own = [int(address.rpartition(":")[2]) for address in listen.values()]
    assert len({*ports, *own}) == len(ports) + len(own)
    (balancer,) = pod_of(pod)["containers"]
    assert {port["containerPort"] for port in balancer["ports"]} <= set(own)


def test_the_tritons_end_last_and_there_is_time(pod: dict[str, Any], settings: Settings) -> None:
    tritons = pod_of(pod)["initContainers"]
    assert {each["restartPolicy"] for each in tritons} == {"Always"}
    last = max(int(options(each)["exit-timeout-secs"]) for each in tritons)
    needed = settings.shutdown.pre_stop_delay + settings.shutdown.drain + last
    assert pod_of(pod)["terminationGracePeriodSeconds"] > needed


def test_each_triton_has_time_to_load_its_models(pod: dict[str, Any]) -> None:
    """It answers once that is done. As much time as where Kubernetes waits for the start."""
    (tritons,) = (each for each in render(TRITONS) if each["kind"] == "Deployment")
    startup = pod_of(tritons)["containers"][0]["startupProbe"]
    needed_s = startup["periodSeconds"] * startup["failureThreshold"]
    for triton in pod_of(pod)["initContainers"]:
        assert "startupProbe" not in triton  # it would hold up the next container
        assert triton["livenessProbe"]["initialDelaySeconds"] >= needed_s


def test_each_triton_has_a_gpu_of_its_own(pod: dict[str, Any]) -> None:
    with_gpu = [
        each["name"] for each in containers(pod) if "nvidia.com/gpu" in each["resources"]["limits"]
    ]
    assert with_gpu == ["triton-0", "triton-1"]
