"""A stack as manifests for Kubernetes, in the layout of `deploy/kubernetes`.

There a device is no address but a resource that the scheduler gives out, so servers come in groups:
one Deployment and one headless Service for each kind of device, whose pods triton-lb finds through
the API. They are made from the manifests in `deploy/kubernetes/tritons`; the base of triton-lb is
copied along, so that the folder stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from lb.generate.assets import asset_files
from lb.generate.balancer import FILE, checked, told
from lb.generate.devices import Device
from lb.generate.document import command_comment, document
from lb.generate.files import GeneratedFile
from lb.generate.servers import Place, server_command
from lb.generate.stack import BALANCER_IMAGE, Stack

_BASE: Final = "base"
_COMMON: Final = "tritons"
_COMPONENT: Final = "app.kubernetes.io/component"
"""Label that tells a group; all have the one of the base's rules, too."""
KUSTOMIZATION: Final = "kustomization.yaml"
_OWN: Final = ("deployment.yaml", "service.yaml")
"""Manifests of servers that each group has of its own; the others are for all."""


@dataclass(frozen=True, slots=True)
class Group:
    """Servers on devices of one kind."""

    name: str
    resource: str
    """Extended resource of the device plugin; empty on the CPU."""
    replicas: int
    weight: int
    has_gpu_metrics: bool


def kubernetes_files(stack: Stack) -> list[GeneratedFile]:
    """All files of the stack.

    Raises:
        GenerateError: triton-lb would refuse its configuration.
    """
    groups = list(_groups(stack))
    base = dict(asset_files("kubernetes", ".yaml"))
    tritons = dict(asset_files("tritons", ".yaml"))
    common = sorted(tritons.keys() - {*_OWN, KUSTOMIZATION})
    resources = [
        _BASE,
        *(f"{group.name}.yaml" for group in groups),
        *(f"{_COMMON}/{name}" for name in common),
    ]
    return [
        GeneratedFile(KUSTOMIZATION, _kustomization(stack, resources)),
        GeneratedFile(FILE, _configuration(base[FILE], stack, groups)),
        *(
            GeneratedFile(f"{group.name}.yaml", _manifests(group, stack, tritons))
            for group in groups
        ),
        *(GeneratedFile(f"{_COMMON}/{name}", tritons[name]) for name in common),
        *(GeneratedFile(f"{_BASE}/{name}", text) for name, text in base.items()),
    ]


def _groups(stack: Stack) -> Iterator[Group]:
    members: dict[str, int] = {}
    for server in stack.servers:
        resource = resource_of(server.device)
        members[resource] = members.get(resource, 0) + 1
    for resource, count in members.items():
        first = next(each for each in stack.servers if resource_of(each.device) == resource)
        kind = resource.rpartition("/")[2] or "cpu"
        yield Group(
            name="triton-" + re.sub(r"[^a-z0-9]+", "-", kind),
            resource=resource,
            replicas=count,
            weight=first.weight,
            has_gpu_metrics=first.has_gpu_metrics,
        )


def resource_of(device: Device | None) -> str:
    """What the device plugin of NVIDIA calls such a device, with its `mixed` strategy for MIG."""
    if device is None:
        return ""
    if not device.profile:
        return "nvidia.com/gpu"
    return "nvidia.com/mig-" + device.profile.replace("+", ".")


def _kustomization(stack: Stack, resources: list[str]) -> str:
    content: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
        "configMapGenerator": [{"name": "triton-lb", "behavior": "replace", "files": [FILE]}],
        "generatorOptions": {"disableNameSuffixHash": True},
    }
    if stack.options.balancer_image != BALANCER_IMAGE:
        content["images"] = [{"name": "triton-lb", **image_parts(stack.options.balancer_image)}]
    return document(
        content,
        *command_comment(stack.options.command),
        f"{told(stack)}, and triton-lb before them: kubectl apply -k .",
    )


def image_parts(image: str) -> dict[str, str]:
    """The name of an image and its tag or digest, as kustomize has them."""
    name, at, digest = image.partition("@")
    if at:
        return {"newName": name, "digest": digest}
    folder, slash, last = image.rpartition("/")
    last, colon, tag = last.partition(":")
    parts = {"newName": f"{folder}{slash}{last}"}
    return {**parts, "newTag": tag} if colon else parts


def _configuration(base: str, stack: Stack, groups: list[Group]) -> str:
    """The configuration of the base, with one source for each group."""
    content = yaml.safe_load(base)
    (source,) = content["discovery"]["kubernetes"]
    if not stack.is_triton:
        del source["metrics_port"]
    content["discovery"]["kubernetes"] = [
        {**source, "service": group.name, "backend": _backend(group, stack)} for group in groups
    ]
    text = document(content, "triton-lb before " + told(stack) + ".", "Weights: compute slices.")
    return checked(text)


def _backend(group: Group, stack: Stack) -> dict[str, Any]:
    backend: dict[str, Any] = {"weight": group.weight}
    if not stack.is_triton:
        backend["kind"] = stack.options.server.value
        backend["health"] = {"model": stack.options.model}
    return backend


def _manifests(group: Group, stack: Stack, tritons: dict[str, str]) -> str:
    deployment, service = (yaml.safe_load(tritons[name]) for name in _OWN)
    own = {_COMPONENT: group.name.removeprefix("triton-")}
    for manifest in (deployment, service):
        manifest["metadata"]["name"] = group.name
        manifest["metadata"]["labels"].update(own)
    service["spec"]["selector"].update(own)
    spec = deployment["spec"]
    spec["replicas"] = group.replicas
    spec["selector"]["matchLabels"].update(own)
    spec["template"]["metadata"]["labels"].update(own)
    _adapt(spec["template"]["spec"], group, stack)
    if not stack.is_triton:
        service["spec"]["ports"] = [
            port for port in service["spec"]["ports"] if port["name"] != "metrics"
        ]
    first = document(service, "Servers on " + (group.resource or "the CPU") + ".")
    return first + "---\n" + document(deployment).partition("\n\n")[2]


def _adapt(pod: dict[str, Any], group: Group, stack: Stack) -> None:
    """Make the pod of an example one of a group."""
    (container,) = pod["containers"]
    container["image"] = stack.image
    limits = container["resources"]["limits"]
    del limits["nvidia.com/gpu"]
    if group.resource:
        limits[group.resource] = "1"
    if stack.is_triton:
        if not group.has_gpu_metrics:
            container["args"].append("--allow-gpu-metrics=false")
        container["args"] += stack.options.server_args
    else:
        _adapt_to_tf_serving(container, stack)
    if stack.options.models:
        (volume,) = (each for each in pod["volumes"] if each["name"] == "models")
        volume.clear()
        volume.update({"name": "models", **_models(stack.options.models)})


def _models(models: str) -> dict[str, Any]:
    if models.startswith("/"):
        return {"hostPath": {"path": models, "type": "Directory"}}
    return {"persistentVolumeClaim": {"claimName": models, "readOnly": True}}


def _adapt_to_tf_serving(container: dict[str, Any], stack: Stack) -> None:
    ports = {port["name"]: port for port in container["ports"]}
    place = Place(
        name=container["name"],
        models=container["volumeMounts"][0]["mountPath"],
        http=str(ports["http"]["containerPort"]),
        grpc=str(ports["grpc"]["containerPort"]),
        metrics="0",
    )
    program, *arguments = server_command(stack.options, place)
    container["command"], container["args"] = [program], arguments
    container["ports"] = [ports["http"], ports["grpc"]]
    loaded = {"path": f"/v1/models/{stack.options.model}", "port": "http"}
    for probe in ("startupProbe", "readinessProbe"):
        container[probe]["httpGet"] = loaded
    del container["livenessProbe"]["httpGet"]
    container["livenessProbe"]["tcpSocket"] = {"port": "http"}
