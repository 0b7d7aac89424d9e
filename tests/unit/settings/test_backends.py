"""Backends: what their settings say in words of the domain."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lb.domain.backend import Address, BackendKind, BackendPort, BackendSpec, BackendTls
from lb.settings.backends import BackendTlsSettings
from lb.settings.model import Settings


def make(**sections: Any) -> Settings:
    return Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "gpu-0:8000"}], **sections}
    )


def test_specs_carry_everything_of_a_backend() -> None:
    settings = make(
        backends=[
            {
                "name": "gpu-0",
                "http": "a:1",
                "grpc": "[::1]:2",
                "metrics": "a:3",
                "kind": "kserve",
                "weight": 2,
                "max_requests": 7,
                "headers": {"Authorization": "Bearer x", "authorization": "Bearer y"},
            },
        ]
    )
    assert settings.specs() == (
        BackendSpec(
            name="gpu-0",
            http=Address("a", 1),
            grpc=Address("::1", 2),
            metrics=Address("a", 3),
            kind=BackendKind.KSERVE,
            weight=2.0,
            max_in_flight=7,
            headers=(("authorization", "Bearer x"), ("authorization", "Bearer y")),
        ),
    )


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ({"http": "a:1", "grpc": "b:2"}, "a:1"),
        ({"grpc": "b:2"}, "b:2"),
        ({"http": "unix:/run/t.sock"}, "unix:_run_t.sock"),
        ({"http": "a:1", "name": "n"}, "n"),
    ],
)
def test_a_backend_is_named_after_its_address_where_it_has_no_name(
    backend: dict[str, str], name: str
) -> None:
    assert make(backends=[backend]).specs()[0].name == name


def test_headers_do_not_show_in_a_representation() -> None:
    settings = make(backends=[{"http": "a:1", "headers": {"authorization": "Bearer secret"}}])
    assert "secret" not in repr(settings)


def test_tls_of_a_backend_goes_into_its_spec() -> None:
    tls = {"ca": "/ca", "server_name": "triton", "ports": ["grpc"]}
    settings = Settings.model_validate(
        {
            "listen": {"http": "a:1"},
            "backends": [{"http": "b:1", "grpc": "b:2", "tls": tls}, {"http": "c:1"}],
        }
    )
    first, second = settings.specs()
    expected = BackendTls(ca="/ca", server_name="triton", ports=frozenset({BackendPort.GRPC}))
    assert first.tls == expected
    assert first.tls_of(BackendPort.GRPC) is first.tls
    assert first.tls_of(BackendPort.HTTP) is None
    assert second.tls is None


@pytest.mark.parametrize("name", ["", "a b", "*.example", "-a"])
def test_server_names_are_names_of_hosts(name: str) -> None:
    with pytest.raises(ValidationError):
        BackendTlsSettings(server_name=name)
    assert BackendTlsSettings(server_name="::1").server_name == "::1"
