"""Manifests: a group of servers for each kind of device."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from lb.generate.devices import Device, parse_listing
from lb.generate.kubernetes import image_parts, kubernetes_files, resource_of
from lb.generate.stack import Options, ServerKind, make_stack
from tests.deploy.listings import read_listing


def documents(listing: str, options: Options | None = None) -> dict[str, list[dict[str, Any]]]:
    """All files, by their paths."""
    devices = parse_listing(read_listing(listing)).devices
    stack = make_stack(options or Options(), devices, 0 if devices else 2)
    return {file.path: list(yaml.safe_load_all(file.text)) for file in kubernetes_files(stack)}


def container(found: list[dict[str, Any]]) -> dict[str, Any]:
    _, deployment = found
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.mark.parametrize(
    ("device", "resource"),
    [
        (None, ""),
        (Device("0", "GPU-1"), "nvidia.com/gpu"),
        (Device("0:1", "MIG-1", profile="1g.5gb"), "nvidia.com/mig-1g.5gb"),
        (Device("0:1", "MIG-1", profile="1g.10gb+me"), "nvidia.com/mig-1g.10gb.me"),
    ],
)
def test_a_device_is_a_resource(device: Device | None, resource: str) -> None:
    assert resource_of(device) == resource


def test_each_kind_of_device_is_a_group() -> None:
    found = documents("h100_mixed")
    names = ["triton-mig-3g-40gb", "triton-mig-2g-20gb", "triton-mig-1g-10gb", "triton-gpu"]
    groups = [found[f"{name}.yaml"] for name in names]
    assert [deployment["spec"]["replicas"] for _, deployment in groups] == [1, 1, 2, 1]
    limits = [container(group)["resources"]["limits"] for group in groups]
    assert limits[2]["nvidia.com/mig-1g.10gb"] == "1"
    assert "nvidia.com/gpu" not in limits[2]
    assert limits[3]["nvidia.com/gpu"] == "1"
    (balancer,) = found["triton-lb.yaml"]
    assert [
        (source["service"], source["backend"]["weight"])
        for source in balancer["discovery"]["kubernetes"]
    ] == list(zip(names, [3, 2, 1, 7], strict=True))


def test_a_service_finds_the_pods_of_its_group_alone() -> None:
    found = documents("h100_mixed")
    selectors = []
    for path, (service, deployment) in (
        (path, each)
        for path, each in found.items()
        if path.startswith("triton-") and len(each) == 2
    ):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert service["metadata"]["name"] + ".yaml" == path
        assert (
            service["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]
        )
        selectors.append(tuple(labels.items()))
    assert len(set(selectors)) == 4


def test_the_cpu_needs_no_resource() -> None:
    found = documents("none")
    limits = container(found["triton-cpu.yaml"])["resources"]["limits"]
    assert not [name for name in limits if name.startswith("nvidia.com/")]


def test_tf_serving_is_asked_for_its_model() -> None:
    options = Options(server=ServerKind.TFSERVING, model="flower", models="/srv/models")
    found = documents("eight_gpus", options)
    server = container(found["triton-gpu.yaml"])
    assert server["command"] == ["tensorflow_model_server"]
    assert server["readinessProbe"]["httpGet"]["path"] == "/v1/models/flower"
    assert [port["name"] for port in server["ports"]] == ["http", "grpc"]
    (balancer,) = found["triton-lb.yaml"]
    (source,) = balancer["discovery"]["kubernetes"]
    assert (source["backend"]["kind"], "metrics_port" in source) == ("tfserving", False)


@pytest.mark.parametrize(
    ("models", "volume"),
    [
        ("/srv/m", {"hostPath": {"path": "/srv/m", "type": "Directory"}}),
        ("mine", {"persistentVolumeClaim": {"claimName": "mine", "readOnly": True}}),
        ("", {"persistentVolumeClaim": {"claimName": "triton-models", "readOnly": True}}),
    ],
)
def test_models_are_a_folder_of_the_node_or_a_claim(models: str, volume: dict[str, Any]) -> None:
    _, deployment = documents("none", Options(models=models))["triton-cpu.yaml"]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert {"name": "models", **volume} in volumes


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("a/b:1", {"newName": "a/b", "newTag": "1"}),
        ("host:5000/b", {"newName": "host:5000/b"}),
        ("b@sha256:12", {"newName": "b", "digest": "sha256:12"}),
    ],
)
def test_an_image_is_name_and_tag_or_digest(image: str, parts: dict[str, str]) -> None:
    assert image_parts(image) == parts


def test_another_image_replaces_that_of_the_base() -> None:
    (own,) = documents("none", Options(balancer_image="mine:2"))["kustomization.yaml"]
    assert own["images"] == [{"name": "triton-lb", "newName": "mine", "newTag": "2"}]
    assert "images" not in documents("none")["kustomization.yaml"][0]
