from __future__ import annotations

import pytest
from pydantic import ValidationError

from lb.settings.discovery import DnsSettings
from lb.settings.values import AddressFamily


def test_a_look_up_is_called_by_the_name_that_is_asked_for() -> None:
    lookup = DnsSettings.model_validate({"host": "a.example.", "http_port": 8000})
    assert lookup.name == "dns:a.example."
    assert lookup.family is AddressFamily.AUTO
    assert DnsSettings(http_service="_http._tcp.a").name == "dns:_http._tcp.a"
    assert DnsSettings(grpc_service="_grpc._tcp.a").name == "dns:_grpc._tcp.a"


@pytest.mark.parametrize(
    "host", ["", ".", "a..b", "a b", "a/b", "*.example", f"{'x' * 64}.example", "a." * 127]
)
def test_a_name_that_dns_cannot_have_is_refused(host: str) -> None:
    with pytest.raises(ValidationError, match="expected a DNS name"):
        DnsSettings(host=host)


@pytest.mark.parametrize("port", [0, 65536, True, "x"])
def test_a_port_that_does_not_exist_is_refused(port: object) -> None:
    with pytest.raises(ValidationError):
        DnsSettings.model_validate({"host": "a", "http_port": port})
