"""Settings of backends that are found through the API of Kubernetes."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, PlainValidator, StringConstraints

from lb.settings.backends import BackendSettings
from lb.settings.problems import show
from lb.settings.section import Section
from lb.settings.units import PositiveDuration
from lb.settings.values import AddressFamily, FileName

_PORT_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


def read_port(value: object) -> int | str:
    """Check a port that is given by its number, or by its name in a service.

    Raises:
        ValueError: with a message that says what was expected.
    """
    # Text, too: it may come from a variable of the environment.
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65535:
        return value
    if isinstance(value, str) and _PORT_NAME.fullmatch(value):
        return value
    raise ValueError(f"expected the name or the number of a port, got {show(value)}")


def _check_selector(selector: str) -> str:
    if not selector.strip() or not selector.isascii() or not selector.isprintable():
        raise ValueError(f"expected a label selector such as app=triton, got {show(selector)}")
    return selector


ObjectName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
"""The name of an object of Kubernetes (RFC 1123 subdomain)."""
Selector = Annotated[str, StringConstraints(max_length=2000), AfterValidator(_check_selector)]
"""A label selector, as `kubectl get -l` takes it."""
SlicePort = Annotated[int | str, PlainValidator(read_port)]
"""A port by the name that it has in the service, or by its number."""


class KubernetesSettings(Section):
    """Backends found through the API of Kubernetes: the endpoints of a service, or of all services
    with some labels, as their EndpointSlices tell and are watched for. A pod that is ready is a
    backend; one that terminates, or is not ready any more, gets nothing new and finishes what it
    has. While the API cannot be asked, or there is no EndpointSlice at all, the last good set stays
    in force. Needs the right to `list` and `watch` `endpointslices` of the group `discovery.k8s.io`
    in the namespace."""

    service: ObjectName | None = None
    """Name of the service whose endpoints are backends. A headless one does best; the cluster's
    own balancing is never used."""
    selector: Selector | None = None
    """Instead of `service`: a label selector for EndpointSlices, such as `app=triton`. They have
    the labels of their services. Pods that several services name count once, with the ports of
    all."""
    namespace: ObjectName | None = None
    """Namespace of the service. Left out: that of our own pod, or of the `kubeconfig`'s context."""
    http_port: SlicePort | None = None
    """HTTP port of each endpoint: its name in the service, or a number."""
    grpc_port: SlicePort | None = None
    """gRPC port of each endpoint, likewise."""
    metrics_port: SlicePort | None = None
    """Metrics port of each endpoint, likewise."""
    family: AddressFamily = AddressFamily.AUTO
    """Which addresses to use where pods have several: `ipv4`, `ipv6` or `auto`, which is IPv6
    for pods without IPv4."""
    kubeconfig: FileName | None = None
    """File that says where the API is and how to log in, for a process outside of the cluster:
    certificates, `token` or `tokenFile`. Left out: the service account of our own pod. Read again
    with every request, as are tokens: they are replaced while we run."""
    context: Annotated[str, StringConstraints(min_length=1)] | None = None
    """Which context of the `kubeconfig` to use; left out, the current one."""
    timeout: PositiveDuration = 10.0
    """How long the API may take to answer."""
    backend: BackendSettings = BackendSettings()
    """What is the same for all of them: an entry like those of `backends`, without name and
    addresses. Each is called by its pod, namespace and port: `triton-0.serving:8000`. Where it has
    `tls` without a `server_name`, certificates must hold `SERVICE.NAMESPACE.svc`, or the address
    where they are found by `selector`."""

    @property
    def name(self) -> str:
        """What it is called in logs, metrics and the admin API."""
        what = self.service or f"[{self.selector}]"
        where = f"{self.namespace}/" if self.namespace else ""
        port = self.http_port or self.grpc_port
        cluster = f"{self.context or ''}@{self.kubeconfig}/" if self.kubeconfig else ""
        return f"kubernetes:{cluster}{where}{what}:{port}"
