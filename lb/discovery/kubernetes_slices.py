"""What EndpointSlices (`discovery.k8s.io/v1`) say about pods, and which of them get requests.

A pod may stand in several slices: while it moves from one to another, for each family of its
addresses, and for each service that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from lb.discovery.source import SourceError
from lb.settings.values import AddressFamily

_FAMILIES: Final = {"IPv4": AddressFamily.IPV4, "IPv6": AddressFamily.IPV6}
_CHOICES: Final = {
    AddressFamily.AUTO: (AddressFamily.IPV4, AddressFamily.IPV6),
    AddressFamily.IPV4: (AddressFamily.IPV4,),
    AddressFamily.IPV6: (AddressFamily.IPV6,),
}

_MOST_ENDPOINTS: Final = 1000
"""Endpoints of one slice: the API takes no more either."""
_UNREADABLE: Final = "the API tells an EndpointSlice that cannot be read"
_WORD: Final = re.compile("[!-.0-~]*")
"""ASCII without blanks and slashes. Kubernetes allows less, and our names and labels no more."""
LONGEST_NAME: Final = 253
"""Characters of the name or uid of an object, as the API limits them."""

Port = int | str
"""A port by its number, or by its name in a slice."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One pod, or whatever else is behind a service, as one slice sees it."""

    address: str
    pod: str
    """Name of the pod; empty where it is none."""
    uid: str
    """Tells a pod from its successors of the same name or address; empty where it is none."""
    is_ready: bool
    is_serving: bool
    """Its readiness probe is good, also while it terminates."""
    is_terminating: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """One EndpointSlice, as far as it concerns us."""

    family: AddressFamily
    ports: Mapping[str, int]
    """TCP ports by name."""
    endpoints: tuple[Endpoint, ...]

    @property
    def size(self) -> int:
        """What it holds, in parts of about 300 bytes of memory each."""
        return 1 + len(self.ports) + len(self.endpoints)


@dataclass(frozen=True, slots=True)
class Server:
    """One backend to be."""

    pod: str
    host: str
    ports: tuple[int | None, ...]
    """Of HTTP, gRPC and metrics."""


@dataclass(slots=True)
class _Pod:
    """What all slices together say about one."""

    name: str
    addresses: dict[AddressFamily, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    is_ready: bool = False
    is_serving: bool = False
    is_terminating: bool = False


def word_of(value: object) -> str:
    """A text of the API that is kept, sent back or shown; empty where there is none.

    Raises:
        ValueError: it is no text, or not one that Kubernetes allows.
    """
    if value is None:
        return ""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise ValueError("expected a word")
    return value


def name_of(item: object) -> str:
    """The name of an EndpointSlice as the API tells it.

    Raises:
        SourceError: it has none that can be read.
    """
    try:
        return _name(_mapping(_mapping(item).get("metadata")).get("name"))
    except (TypeError, ValueError) as error:
        raise SourceError(_UNREADABLE) from error


def read_slice(item: object) -> Slice | None:
    """Take over an EndpointSlice as the API tells it; None for one of host names (`FQDN`).

    Raises:
        SourceError: it is none.
    """
    try:
        return _read_slice(item)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(_UNREADABLE) from error


def servers_of(
    slices: Iterable[Slice], ports: tuple[Port | None, ...], family: AddressFamily
) -> tuple[Server, ...]:
    """Which servers get requests, in a lasting order: those that are ready and do not terminate.

    Where there is none, those that terminate and still serve: as long as they do, that is better
    than nothing.

    Args:
        slices: all of them.
        ports: of HTTP, gRPC and metrics; None: not wanted. Whoever lacks one of the first two
            that is wanted is left out.
        family: which addresses to use.

    Raises:
        SourceError: nobody has these ports.
    """
    pods = _pods_of(slices)
    usable = [pod for pod in pods if pod.is_ready and not pod.is_terminating]
    usable = usable or [pod for pod in pods if pod.is_terminating and pod.is_serving]
    reachable = [(pod, host) for pod in usable if (host := _host_of(pod, family))]
    found = [
        Server(pod.name, host, tuple(_number_of(port, pod.ports) for port in ports))
        for pod, host in reachable
        if all(port is None or _number_of(port, pod.ports) for port in ports[:2])
    ]
    if reachable and not found:
        wanted = " and ".join(str(port) for port in ports[:2] if port is not None)
        raise SourceError(f"no endpoint has the ports that are configured ({wanted})")
    return tuple(sorted(found, key=lambda each: (each.pod, each.host)))


def _pods_of(slices: Iterable[Slice]) -> Iterable[_Pod]:
    """Everybody that slices name, once."""
    pods: dict[str, _Pod] = {}
    for each in slices:
        for endpoint in each.endpoints:
            pod = pods.setdefault(endpoint.uid or endpoint.address, _Pod(endpoint.pod))
            pod.addresses.setdefault(each.family, endpoint.address)
            pod.ports.update(each.ports)
            pod.is_ready |= endpoint.is_ready
            pod.is_serving |= endpoint.is_serving
            # There is no way back from this, so whoever says so knows more.
            pod.is_terminating |= endpoint.is_terminating
    return pods.values()


def _host_of(pod: _Pod, family: AddressFamily) -> str:
    found = (pod.addresses.get(each) for each in _CHOICES[family])
    return next((address for address in found if address), "")


def _number_of(port: Port | None, named: Mapping[str, int]) -> int | None:
    return named.get(port) if isinstance(port, str) else port


# The API's words


def _read_slice(item: object) -> Slice | None:
    tree = _mapping(item)
    family = _FAMILIES.get(_name(tree["addressType"]))
    if family is None:
        return None
    ports = {
        _name(port.get("name")): _port(port["port"])
        for port in _mappings(tree.get("ports"))
        if port.get("protocol", "TCP") == "TCP" and port.get("port") is not None
    }
    listed = _list(tree.get("endpoints"))
    if len(listed) > _MOST_ENDPOINTS:
        raise ValueError("expected fewer endpoints")
    return Slice(family, ports, tuple(_read_endpoints(listed)))


def _read_endpoints(items: object) -> Iterator[Endpoint]:
    for item in _mappings(items):
        conditions = _mapping(item.get("conditions") or {})
        target = _mapping(item.get("targetRef") or {})
        is_pod = target.get("kind") == "Pod"
        # Unknown counts as ready, says the API; `serving` is younger than `ready`.
        is_ready = conditions.get("ready") is not False
        is_serving = conditions.get("serving")
        # All are addresses of the same; the API promises that the first one does.
        first = next(iter(_list(item["addresses"])), "")
        yield Endpoint(
            address=str(ip_address(_name(first))),
            pod=_name(target["name"]) if is_pod else "",
            uid=_name(target.get("uid")) if is_pod else "",
            is_ready=is_ready,
            is_serving=is_ready if is_serving is None else is_serving is True,
            is_terminating=conditions.get("terminating") is True,
        )


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError("expected a mapping")
    return value


def _list(value: object) -> list[object]:
    """A list; the API leaves out, or says `null` for, those that are empty."""
    if value is not None and not isinstance(value, list):
        raise TypeError("expected a list")
    return value or []


def _mappings(value: object) -> Iterator[Mapping[str, object]]:
    return map(_mapping, _list(value))


def _name(value: object) -> str:
    """A name or uid; empty where there is none."""
    name = word_of(value)
    if len(name) > LONGEST_NAME:
        raise ValueError("expected a shorter name")
    return name


def _port(value: object) -> int:
    if not isinstance(value, int) or not 1 <= value <= 65535:
        raise ValueError("expected a port")
    return value
