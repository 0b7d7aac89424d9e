"""Manifests as kustomize makes them, and whether the API of Kubernetes would take them.

Only what our files use is understood; everything else is refused, so that nothing passes unseen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

Manifest = dict[str, Any]

_KEYS = {
    "apiVersion",
    "kind",
    "namespace",
    "resources",
    "components",
    "patches",
    "images",
    "labels",
    "replicas",
    "configMapGenerator",
    "generatorOptions",
}
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
}
"""Lists that a patch changes one by one, by what tells their items apart."""
_CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
_WITH_TEMPLATES = {"Deployment", "StatefulSet", "DaemonSet", "Job"}


def render(folder: Path) -> list[Manifest]:
    """The manifests of a kustomization, in its order.

    Raises:
        ValueError: it uses what is not understood here.
    """
    return _build(folder, [])


def manifests_in(path: Path) -> list[Manifest]:
    """All documents of a file."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def _build(folder: Path, before: list[Manifest]) -> list[Manifest]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = kustomization.keys() - _KEYS
    if unknown:
        raise ValueError(f"{folder}: {sorted(unknown)} is not understood by tests/fakes/manifests")
    found = list(before)
    for name in kustomization.get("resources", ()):
        path = folder / name
        found += _build(path, []) if path.is_dir() else manifests_in(path)
    for entry in kustomization.get("configMapGenerator", ()):
        if not kustomization.get("generatorOptions", {}).get("disableNameSuffixHash"):
            raise ValueError(f"{folder}: names with hashes are not understood")
        _generate(found, folder, entry)
    for name in kustomization.get("components", ()):
        found = _build(folder / name, found)
    for patch in kustomization.get("patches", ()):
        _patch(found, folder, patch)
    _transform(found, kustomization)
    identities = [identity(each) for each in found]
    if len(set(identities)) < len(identities):
        raise ValueError(f"{folder}: a manifest is there twice: {sorted(identities)}")
    return found


def identity(manifest: Manifest) -> tuple[str, str]:
    """Kind and name."""
    return manifest["kind"], manifest["metadata"]["name"]


def _generate(found: list[Manifest], folder: Path, entry: dict[str, Any]) -> None:
    if entry.keys() - {"name", "files", "behavior"}:
        raise ValueError(f"{folder}: {sorted(entry)} of configMapGenerator is not understood")
    data = {}
    for file in entry["files"]:
        key, _, name = file.rpartition("=")
        data[key or Path(name).name] = (folder / name).read_text()
    known = [each for each in found if identity(each) == ("ConfigMap", entry["name"])]
    behavior = entry.get("behavior", "create")
    if (behavior == "create") == bool(known) or behavior not in ("create", "replace", "merge"):
        raise ValueError(f"{folder}: cannot {behavior} the ConfigMap {entry['name']}")
    for each in known:
        each["data"] = {**each["data"], **data} if behavior == "merge" else data
    if not known:
        metadata = {"name": entry["name"]}
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def _patch(found: list[Manifest], folder: Path, entry: dict[str, Any]) -> None:
    if entry.keys() - {"path", "patch", "target"}:
        raise ValueError(f"{folder}: {sorted(entry)} of a patch is not understood")
    text = entry.get("patch") or (folder / entry["path"]).read_text()
    patch = yaml.safe_load(text)
    if not isinstance(patch, dict):
        raise ValueError(f"{folder}: only strategic merge patches are understood")
    target = entry.get("target") or {"kind": patch["kind"], "name": patch["metadata"]["name"]}
    if target.keys() - {"kind", "name"}:
        raise ValueError(f"{folder}: {sorted(target)} of a target is not understood")
    change = {key: value for key, value in patch.items() if key not in ("apiVersion", "kind")}
    change["metadata"] = {k: v for k, v in patch["metadata"].items() if k != "name"}
    hit = [each for each in found if _is_target(each, target)]
    if not hit:
        raise ValueError(f"{folder}: nothing is patched by {target}")
    for each in hit:
        _merge(each, change)


def _is_target(manifest: Manifest, target: dict[str, str]) -> bool:
    kind, name = identity(manifest)
    return target.get("kind", kind) == kind and target.get("name", name) == name


def _merge(into: Manifest, change: Manifest) -> None:
    for key, value in change.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, list) and key in _MERGE_KEYS and key in into:
            name = _MERGE_KEYS[key]
            known = {item[name]: item for item in into[key]}
            # As kustomize does it: what is new comes first.
            new = [copy.deepcopy(item) for item in value if item[name] not in known]
            for item in value:
                if item[name] in known:
                    _merge(known[item[name]], item)
            into[key] = new + into[key]
        else:
            into[key] = copy.deepcopy(value)


def _transform(found: list[Manifest], kustomization: Manifest) -> None:
    namespace = kustomization.get("namespace")
    for each in found:
        if namespace and each["kind"] not in _CLUSTER_WIDE:
            each["metadata"]["namespace"] = namespace
        for subject in each.get("subjects", ()) if namespace else ():
            subject["namespace"] = namespace
        for entry in kustomization.get("labels", ()):
            _label(each, entry)
        for image in kustomization.get("images", ()):
            for container in containers(each):
                _rename(container, image)
        for entry in kustomization.get("replicas", ()):
            if each["kind"] in _WITH_TEMPLATES and each["metadata"]["name"] == entry["name"]:
                each["spec"]["replicas"] = entry["count"]


def _label(manifest: Manifest, entry: dict[str, Any]) -> None:
    if entry.keys() - {"pairs", "includeTemplates"}:
        raise ValueError(f"{sorted(entry)} of labels is not understood")
    manifest["metadata"].setdefault("labels", {}).update(entry["pairs"])
    if entry.get("includeTemplates") and manifest["kind"] in _WITH_TEMPLATES:
        template = manifest["spec"]["template"]["metadata"]
        template.setdefault("labels", {}).update(entry["pairs"])


def _rename(container: Manifest, image: dict[str, str]) -> None:
    name, _, tag = container["image"].rpartition(":")
    if name == image["name"]:
        container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"


def pod_of(manifest: Manifest) -> Manifest:
    """The specification of the pods that a manifest makes; empty where it makes none."""
    if manifest["kind"] not in _WITH_TEMPLATES:
        return {}
    found: Manifest = manifest["spec"]["template"]["spec"]
    return found


def containers(manifest: Manifest) -> list[Manifest]:
    """All containers of the pods that a manifest makes."""
    pod = pod_of(manifest)
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


# Whether the API would take them


def _closed(required: Iterable[str] = (), **properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 0}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = _closed(["name"], name=_TEXT, namespace=_TEXT, labels=_LABELS, annotations=_LABELS)

OWN_SCHEMAS: dict[tuple[str, str], dict[str, object]] = {
    # https://keda.sh/docs/latest/reference/scaledobject-spec/: what we use of it
    ("keda.sh/v1alpha1", "ScaledObject"): _closed(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=_closed(["name"], apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
        pollingInterval=_COUNT,
        cooldownPeriod=_COUNT,
        minReplicaCount=_COUNT,
        maxReplicaCount=_COUNT,
        fallback=_closed(
            ["failureThreshold", "replicas"], failureThreshold=_COUNT, replicas=_COUNT
        ),
        triggers={
            "type": "array",
            "minItems": 1,
            "items": {
                "oneOf": [
                    _closed(
                        ["type", "metadata"],
                        type={"const": "prometheus"},
                        metricType={"enum": ["AverageValue", "Value"]},
                        # Values of triggers are always text.
                        metadata=_closed(
                            ["serverAddress", "query", "threshold"],
                            serverAddress=_TEXT,
                            query=_TEXT,
                            threshold=_TEXT,
                            activationThreshold=_TEXT,
                        ),
                    ),
                    _closed(
                        ["type", "metricType", "metadata"],
                        type={"const": "cpu"},
                        metricType={"enum": ["Utilization", "AverageValue"]},
                        metadata=_closed(["value"], value=_TEXT),
                    ),
                ]
            },
        },
    ),
    # https://prometheus-operator.dev/docs/api-reference/api/#monitoring.coreos.com/v1.PodMonitor
    ("monitoring.coreos.com/v1", "PodMonitor"): _closed(
        ["selector", "podMetricsEndpoints"],
        selector=_closed(["matchLabels"], matchLabels=_LABELS),
        podMetricsEndpoints={
            "type": "array",
            "minItems": 1,
            "items": _closed(
                ["port"],
                port=_TEXT,
                path=_TEXT,
                interval={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
                relabelings={
                    "type": "array",
                    "items": _closed([], targetLabel=_TEXT, replacement=_TEXT),
                },
            ),
        },
    ),
}
"""Specifications of kinds that the API has only where somebody has installed them."""


def validate(manifest: Manifest) -> None:
    """Check a manifest strictly: nothing unknown, nothing missing, nothing of a wrong type.

    Raises:
        Exception: it is not good; the message says where.
    """
    own = OWN_SCHEMAS.get((manifest["apiVersion"], manifest["kind"]))
    if own is None:
        kubernetes_validate.validate(manifest, "1.33", strict=True)
        return
    whole = _closed(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion=_TEXT,
        kind=_TEXT,
        metadata=_METADATA,
        spec=own,
    )
    Draft202012Validator(whole).validate(manifest)
