"""The manifests: the API would take them, and what they say fits the product and one another."""

from __future__ import annotations

import copy
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lb.settings.listening import ListenerSettings
from lb.settings.model import Settings
from lb.settings.reading import read_settings
from lb.telemetry.catalogue import COLLECTED, SCRAPE_CUTS, SCRAPE_FAILURES
from tests.fakes.manifests import Manifest, containers, identity, pod_of, render, validate

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
WHOLE = sorted(path.parent for path in FOLDER.rglob("overlays/*/kustomization.yaml"))
SERIES = re.compile(r"\btriton_lb_[a-z0-9_]*[a-z0-9]\b")


def kustomization(*parts: str) -> dict[tuple[str, str], Manifest]:
    return {identity(each): each for each in render(FOLDER.joinpath(*parts))}


BASE = kustomization("base")
TRITONS = kustomization("tritons")


def settings_of(manifests: dict[tuple[str, str], Manifest]) -> Settings:
    text = manifests["ConfigMap", "triton-lb"]["data"]["triton-lb.yaml"]
    return read_settings(text, {}, lambda name: Path(name).read_text())


def container(manifests: dict[tuple[str, str], Manifest], name: str) -> Manifest:
    (found,) = containers(manifests["Deployment", name])
    return found


def ports(found: Manifest) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in found["ports"]}


def test_every_overlay_is_looked_at() -> None:
    assert [path.name for path in WHOLE] == ["cpu", "gpu", "hpa", "keda"]


@pytest.mark.parametrize("folder", WHOLE, ids=lambda path: path.name)
def test_the_api_takes_every_manifest(folder: Path) -> None:
    for manifest in render(folder):
        validate(manifest)


@pytest.mark.parametrize(
    ("folder", "kind", "name", "change"),
    [
        ("gpu", "Deployment", "triton-lb", {"replicaz": 1}),
        ("gpu", "Service", "triton", {"ports": [{"port": "x"}]}),
        ("keda", "ScaledObject", "triton", {"minReplicas": 1}),
        ("keda", "ScaledObject", "triton", {"triggers": [{"type": "prometheus"}]}),
        ("keda", "PodMonitor", "triton-lb", {"podMetricsEndpoints": [{}]}),
    ],
)
def test_a_mistake_would_be_found(
    folder: str, kind: str, name: str, change: dict[str, Any]
) -> None:
    manifest = copy.deepcopy(kustomization("overlays", folder)[kind, name])
    manifest["spec"].update(change)
    with pytest.raises(Exception, match=r"(?s)."):
        validate(manifest)


def test_what_is_not_understood_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: a-\n")
    with pytest.raises(ValueError, match="namePrefix"):
        render(tmp_path)


def test_every_metric_that_is_named_exists() -> None:
    known = {spec.name for spec in (*COLLECTED, SCRAPE_FAILURES, SCRAPE_CUTS)}
    known |= {f"{name}{end}" for name in known for end in ("_bucket", "_sum", "_count")}
    named = {
        name
        for path in FOLDER.rglob("*")
        if path.is_file()
        for name in SERIES.findall(path.read_text())
    }
    assert {"triton_lb_desired_backends", "triton_lb_requests_total"} <= named
    assert named <= known


# The balancer


def test_the_container_has_the_ports_that_are_listened_on() -> None:
    listen = settings_of(BASE).listen
    ours = {
        name: listener.address
        for name, listener in listen
        if isinstance(listener, ListenerSettings)
    }
    admin = ours.pop("admin")
    assert str(admin) == "127.0.0.1:8003"
    assert {address.host for address in ours.values()} == {"0.0.0.0"}
    assert {name: address.port for name, address in ours.items()} == ports(
        container(BASE, "triton-lb")
    )


def test_probes_ask_the_metrics_port() -> None:
    found = container(BASE, "triton-lb")
    probes = {key: found[key]["httpGet"] for key in found if key.endswith("Probe")}
    assert probes == {
        "readinessProbe": {"path": "/readyz", "port": "metrics"},
        "livenessProbe": {"path": "/livez", "port": "metrics"},
        "startupProbe": {"path": "/livez", "port": "metrics"},
    }


def test_a_pod_has_the_time_to_end_that_it_needs() -> None:
    settings = settings_of(BASE)
    grace = pod_of(BASE["Deployment", "triton-lb"])["terminationGracePeriodSeconds"]
    assert settings.shutdown.pre_stop_delay == 5.0
    assert grace >= settings.shutdown.pre_stop_delay + settings.shutdown.drain + 5


def test_pods_have_no_rights_that_they_do_not_need() -> None:
    pod = pod_of(BASE["Deployment", "triton-lb"])
    user = pod["securityContext"]
    assert (user["runAsNonRoot"], user["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"ARG UID={user['runAsUser']}\n" in dockerfile
    assert user["runAsUser"] == user["runAsGroup"] > 10_000
    assert container(BASE, "triton-lb")["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert BASE["Role", "triton-lb"]["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        }
    ]
    assert pod["serviceAccountName"] == BASE["RoleBinding", "triton-lb"]["subjects"][0]["name"]


def test_nobody_is_trusted_for_coming_from_loopback() -> None:
    assert settings_of(BASE).access.control.loopback is False


def test_the_image_is_that_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = container(BASE, "triton-lb")
    assert found["image"] == f"triton-lb:{version}"
    (mount,) = found["volumeMounts"]
    assert found["args"] == ["serve", "--config", f"{mount['mountPath']}/triton-lb.yaml"]


@pytest.mark.parametrize(("manifests", "name"), [(BASE, "triton-lb"), (TRITONS, "triton")])
def test_selectors_mean_the_pods(manifests: dict[tuple[str, str], Manifest], name: str) -> None:
    labels = manifests["Deployment", name]["spec"]["template"]["metadata"]["labels"]
    assert manifests["Deployment", name]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service", name]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget", name]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["NetworkPolicy", name]["spec"]["podSelector"]["matchLabels"] == labels
    targets = {port["targetPort"] for port in manifests["Service", name]["spec"]["ports"]}
    assert targets <= set(ports(container(manifests, name)))


# The Tritons


def test_the_balancer_looks_for_the_service_of_the_tritons() -> None:
    (source,) = settings_of(BASE).discovery.kubernetes
    service = TRITONS["Service", str(source.service)]["spec"]
    wanted = [source.http_port, source.grpc_port, source.metrics_port]
    assert [port["name"] for port in service["ports"]] == wanted == ["http", "grpc", "metrics"]
    assert service["clusterIP"] == "None"


def test_the_balancer_may_reach_the_tritons_and_nobody_else_may() -> None:
    egress = BASE["NetworkPolicy", "triton-lb"]["spec"]["egress"][0]
    triton = TRITONS["Deployment", "triton"]["spec"]["selector"]["matchLabels"]
    assert egress["to"] == [{"podSelector": {"matchLabels": triton}}]
    numbers = ports(container(TRITONS, "triton"))
    assert {port["port"] for port in egress["ports"]} == set(numbers.values())
    (ingress,) = TRITONS["NetworkPolicy", "triton"]["spec"]["ingress"]
    ours = BASE["Deployment", "triton-lb"]["spec"]["selector"]["matchLabels"]
    assert ingress["from"] == [{"podSelector": {"matchLabels": ours}}]
    assert {port["port"] for port in ingress["ports"]} == set(numbers)


def test_a_triton_outlives_what_drains_from_it() -> None:
    found = container(TRITONS, "triton")
    (limit,) = [arg for arg in found["args"] if arg.startswith("--exit-timeout-secs=")]
    exit_timeout_s = int(limit.partition("=")[2])
    pre_stop_s = int(found["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = pod_of(TRITONS["Deployment", "triton"])["terminationGracePeriodSeconds"]
    assert grace >= pre_stop_s + exit_timeout_s + 10
    assert pre_stop_s + exit_timeout_s >= settings_of(BASE).discovery.drain
    assert pre_stop_s >= 5


def test_without_a_gpu_none_is_asked_for() -> None:
    gpu = container(kustomization("overlays", "gpu"), "triton")["resources"]["limits"]
    cpu = container(kustomization("overlays", "cpu"), "triton")["resources"]["limits"]
    assert gpu["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in cpu


# Scaling and monitoring


@pytest.mark.parametrize(
    ("overlay", "kind"), [("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")]
)
def test_what_scales_is_left_to_the_autoscaler(overlay: str, kind: str) -> None:
    manifests = kustomization("overlays", overlay)
    scaled = {
        manifest["spec"]["scaleTargetRef"]["name"]
        for (each, _), manifest in manifests.items()
        if each == kind
    }
    assert scaled == {"triton-lb", "triton"}
    for name in scaled:
        assert "replicas" not in manifests["Deployment", name]["spec"]


def test_the_monitor_reads_our_metrics_port() -> None:
    manifests = kustomization("overlays", "keda")
    monitor = manifests["PodMonitor", "triton-lb"]["spec"]
    deployment = manifests["Deployment", "triton-lb"]
    assert monitor["selector"] == deployment["spec"]["selector"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in ports(container(manifests, "triton-lb"))
    jobs = re.findall(r'job="([^"]+)"', str(manifests["ScaledObject", "triton"]))
    assert jobs == [endpoint["relabelings"][0]["replacement"]]
