"""A stack as manifests for Kubernetes: an overlay over the base of `deploy/kubernetes`.

There a device is no address but a resource that the scheduler gives out, so servers come in groups:
one Deployment and one headless Service for each kind of device, whose pods triton-lb finds through
the API. The base is copied along, so that the folder stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from lb.generate.assets import asset_files
from lb.generate.balancer import FILE, SERVER_STOP_S, checked, told
from lb.generate.devices import Device
from lb.generate.document import document
from lb.generate.files import GeneratedFile
from lb.generate.servers import Place, server_command
from lb.generate.stack import Stack

CLAIM: Final = "triton-models"
"""PersistentVolumeClaim with the models, unless a folder of the nodes has them."""
_MODELS: Final = "/models"
_PORTS: Final = {"http": 8000, "grpc": 8001, "metrics": 8002}
_BASE: Final = "base"
_NAME: Final = "app.kubernetes.io/name"
_COMPONENT: Final = "app.kubernetes.io/component"
_USER: Final = 1000
"""`triton-server` of the image."""
_SETTLE_S: Final = 5
"""How long a pod that is told to end goes on as before: until triton-lb has heard of it."""


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
    files = [
        GeneratedFile("kustomization.yaml", _kustomization(stack, groups)),
        GeneratedFile(FILE, _configuration(base[FILE], stack, groups)),
    ]
    files += [GeneratedFile(f"{group.name}.yaml", _manifests(group, stack)) for group in groups]
    files += [GeneratedFile(f"{_BASE}/{name}", text) for name, text in base.items()]
    return files


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


def _kustomization(stack: Stack, groups: list[Group]) -> str:
    name, _, tag = stack.options.balancer_image.rpartition(":")
    content: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [_BASE, *(f"{group.name}.yaml" for group in groups)],
        "configMapGenerator": [{"name": "triton-lb", "behavior": "replace", "files": [FILE]}],
        "images": [{"name": "triton-lb", "newName": name, "newTag": tag}],
    }
    return document(content, f"{told(stack)}, and triton-lb before them: kubectl apply -k .")


def _configuration(base: str, stack: Stack, groups: list[Group]) -> str:
    """The configuration of the base, with one source for each group."""
    content = yaml.safe_load(base)
    content["discovery"]["kubernetes"] = [
        {
            "service": group.name,
            **{f"{name}_port": name for name in _ports(stack)},
            "backend": _backend(group, stack),
        }
        for group in groups
    ]
    text = document(content, "triton-lb before " + told(stack) + ".", "Weights: compute slices.")
    return checked(text)


def _backend(group: Group, stack: Stack) -> dict[str, Any]:
    backend: dict[str, Any] = {"weight": group.weight}
    if not stack.is_triton:
        backend["kind"] = stack.options.server.value
        backend["health"] = {"model": stack.options.model}
    return backend


def _ports(stack: Stack) -> Mapping[str, int]:
    return _PORTS if stack.is_triton else {"http": 8000, "grpc": 8001}


def _manifests(group: Group, stack: Stack) -> str:
    labels = {_NAME: "triton", _COMPONENT: group.name.removeprefix("triton-")}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": group.name, "labels": labels},
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            "ports": [
                {"name": name, "port": port, "targetPort": name}
                for name, port in _ports(stack).items()
            ],
        },
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": group.name, "labels": labels},
        "spec": {
            "replicas": group.replicas,
            "selector": {"matchLabels": labels},
            # There is no device left for one more.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "template": {"metadata": {"labels": labels}, "spec": _pod(group, stack)},
        },
    }
    first = document(service, "Servers on " + (group.resource or "the CPU") + ".")
    return first + "---\n" + document(deployment).partition("\n\n")[2]


def _pod(group: Group, stack: Stack) -> dict[str, Any]:
    return {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": SERVER_STOP_S + _SETTLE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(group, stack)],
        "volumes": [
            {"name": "models", **_models(stack)},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        ],
    }


def _models(stack: Stack) -> dict[str, Any]:
    models = stack.options.models
    if models.startswith("/"):
        return {"hostPath": {"path": models, "type": "Directory"}}
    return {"persistentVolumeClaim": {"claimName": models or CLAIM, "readOnly": True}}


def _container(group: Group, stack: Stack) -> dict[str, Any]:
    place = Place(
        name=group.name,
        models=_MODELS,
        host="0.0.0.0",
        http=str(_PORTS["http"]),
        grpc=str(_PORTS["grpc"]),
        metrics=str(_PORTS["metrics"]),
        gpu_metrics="true" if group.has_gpu_metrics else "false",
    )
    container: dict[str, Any] = {
        "name": "server",
        "image": stack.image,
        "command": list(server_command(stack.options, place)),
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(stack).items()],
        **_probes(stack),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_SETTLE_S)]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "models", "mountPath": _MODELS, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if group.resource:
        container["resources"] = {"limits": {group.resource: "1"}}
    return container


def _probes(stack: Stack) -> dict[str, Any]:
    ready: dict[str, Any] = {"httpGet": {"path": "/v2/health/ready", "port": "http"}}
    live: dict[str, Any] = {"httpGet": {"path": "/v2/health/live", "port": "http"}}
    if not stack.is_triton:
        ready = {"httpGet": {"path": f"/v1/models/{stack.options.model}", "port": "http"}}
        live = {"tcpSocket": {"port": "http"}}
    return {
        # Large models take minutes to load.
        "startupProbe": {**ready, "periodSeconds": 5, "failureThreshold": 120},
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {**live, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
    }
