"""Whom a question concerns."""

from __future__ import annotations

import dataclasses

import pytest

from lb.domain.backend import Backend, BackendKind, BackendSpec, parse_address
from lb.domain.control import Reach
from lb.kserve.operations import http_route
from lb.proxy.fan_out.targets import concerned

REGISTER = http_route(b"POST", b"/v2/systemsharedmemory/region/r/register").operation
UNREGISTER = http_route(b"POST", b"/v2/systemsharedmemory/unregister").operation
INDEX = http_route(b"POST", b"/v2/repository/index").operation


def reach(
    name: str,
    http: str = "10.0.0.1:8000",
    kind: BackendKind = BackendKind.TRITON,
    shared: bool | None = None,
) -> Reach:
    spec = BackendSpec(name=name, http=parse_address(http), kind=kind, shared_memory=shared)
    return Reach(Backend(spec), (True, False))


def names(roster: list[Reach], operation: object = REGISTER) -> str:
    return "".join(each.backend.name for each in concerned(roster, operation))  # type: ignore[arg-type]


def test_other_servers_take_no_part() -> None:
    roster = [reach("a"), reach("b", kind=BackendKind.GENERIC), reach("c")]
    assert names(roster, INDEX) == "ac"


def test_an_operation_says_which_servers_it_is_about() -> None:
    roster = [reach("a"), reach("b", kind=BackendKind.TFSERVING)]
    reload_config = dataclasses.replace(INDEX, asks=BackendKind.TFSERVING)
    assert names(roster, reload_config) == "b"


@pytest.mark.parametrize("here", ["127.0.0.9:1", "[::1]:1", "localhost:1", "unix:/run/t.sock"])
def test_regions_are_registered_on_this_host(here: str) -> None:
    assert names([reach("a"), reach("b", here), reach("c", "gpu-1:8000")]) == "b"


def test_regions_are_registered_everywhere_where_no_backend_has_an_address_of_this_host() -> None:
    assert names([reach("a"), reach("b", "gpu-1:8000")]) == "ab"


def test_configuration_says_who_shares_memory() -> None:
    here = "127.0.0.1:1"
    assert names([reach("a", shared=True), reach("b"), reach("c", here)]) == "ac"
    assert names([reach("a", here, shared=False), reach("b")]) == "b"
    assert names([reach("a", here, shared=False)]) == ""


def test_regions_are_taken_away_everywhere() -> None:
    assert names([reach("a", shared=False), reach("b", "127.0.0.1:1")], UNREGISTER) == "ab"
