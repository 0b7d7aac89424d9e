"""Settings of backends that are found through the API of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final

from pydantic import AfterValidator, PlainValidator, StringConstraints, WithJsonSchema

from lb.settings.backends import BackendSettings
from lb.settings.problems import Finding, show
from lb.settings.section import Section, one_needed
from lb.settings.values import AddressFamily, FileName

FOUND: Final = frozenset({"name", "http", "grpc", "metrics"})
"""What of a backend a source finds."""
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
SlicePort = Annotated[
    int | str,
    PlainValidator(read_port),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^(?:{_PORT_NAME.pattern})$"},
                {"type": "integer", "minimum": 1, "maximum": 65535},
            ]
        }
    ),
]
"""A port by the name that it has in the service, or by its number."""


class KubernetesSettings(Section):
    """Backends found through the Kubernetes API: the endpoints of a service, or of all services
    with given labels, from their EndpointSlices. A ready pod is a backend; one that terminates, or
    is no longer ready, gets no new requests and finishes the old ones. While the API does not
    answer, or there is no EndpointSlice at all, the last good set stays in force. Needs the right
    to `list` and `watch` `endpointslices` of the group `discovery.k8s.io` in the namespace."""

    model_config = one_needed("service", "selector")

    service: ObjectName | None = None
    """Name of the service whose endpoints are backends. Prefer a headless one; the cluster's own
    balancing is never used.

    Set this when one service holds your Tritons; otherwise `selector` is needed."""
    selector: Selector | None = None
    """Label selector for EndpointSlices, such as `app=triton`, instead of `service`. Slices carry
    the labels of their services. Pods in several services count once, with the ports of all.

    Set this when several services hold your Tritons; otherwise `service` is needed."""
    namespace: ObjectName | None = None
    """Namespace of the service.

    Set this when Tritons run in another namespace than we do; otherwise that of our own pod, or of
    the `kubeconfig`'s context, is used."""
    http_port: SlicePort | None = None
    """HTTP port of each endpoint: its name in the service, or a number.

    Set this when clients use HTTP; otherwise these backends get no HTTP requests."""
    grpc_port: SlicePort | None = None
    """gRPC port of each endpoint: its name in the service, or a number.

    Set this when clients use gRPC; otherwise these backends get no gRPC calls."""
    metrics_port: SlicePort | None = None
    """Metrics port of each endpoint: its name in the service, or a number.

    Set this when you want the backends' metrics among ours; otherwise they are not shown."""
    family: AddressFamily = AddressFamily.AUTO
    """Which addresses to use if pods have several: `ipv4`, `ipv6`, or `auto`, which is IPv6 only
    for pods without IPv4.

    Set this when Tritons listen on IPv6 only in a dual-stack cluster; otherwise IPv4 is
    preferred."""
    kubeconfig: FileName | None = None
    """File with the address of the API and the credentials: certificates, `token` or `tokenFile`.
    It is read again for every request, since tokens are replaced while we run.

    Set this when the process runs outside of the cluster; otherwise the service account of our own
    pod is used."""
    context: Annotated[str, StringConstraints(min_length=1)] | None = None
    """Context of the `kubeconfig` to use.

    Set this when the `kubeconfig` has several contexts; otherwise its current one is used."""
    backend: BackendSettings = BackendSettings()
    """Common settings of the backends found: an entry like those of `backends`, without name and
    addresses. Each is named by pod, namespace and port: `triton-0.serving:8000`. With `tls` but no
    `server_name`, certificates must hold `SERVICE.NAMESPACE.svc`, or the address if found by
    `selector`.

    Set this when these backends need TLS, headers, limits or another `kind`; otherwise the defaults
    of `backends` hold."""

    def broken_rules(self) -> Iterator[Finding]:
        """One way to find endpoints, with ports; what the API finds is not given."""
        if self.service is None and self.selector is None:
            yield (), "service or selector is needed"
        if self.service is not None and self.selector is not None:
            yield ("selector",), "there is a service already"
        if self.http_port is None and self.grpc_port is None:
            yield (), "at least one of http_port and grpc_port is needed"
        if self.context is not None and self.kubeconfig is None:
            yield ("context",), "only with kubeconfig"
        for key in FOUND & self.backend.model_fields_set:
            yield ("backend", key), "is found through the API and cannot be given"

    @property
    def identity(self) -> tuple[object, ...]:
        """Sources that have it in common find the same endpoints."""
        where = (self.kubeconfig, self.context, self.namespace)
        return (*where, self.service, self.selector, self.http_port or self.grpc_port)

    @property
    def name(self) -> str:
        """What it is called in logs, metrics and the admin API."""
        what = self.service or f"[{self.selector}]"
        where = f"{self.namespace}/" if self.namespace else ""
        port = self.http_port or self.grpc_port
        cluster = f"{self.context or ''}@{self.kubeconfig}/" if self.kubeconfig else ""
        return f"kubernetes:{cluster}{where}{what}:{port}"
