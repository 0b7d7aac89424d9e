"""The models: defaults, frozenness, and what they say in words of the domain."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lb.domain.backend import Address, BackendKind, BackendPort, BackendSpec, BackendTls
from lb.settings.backends import BackendTlsSettings, GrpcProbe, ProbeKind
from lb.settings.model import ForwardedMode, PolicyName, Settings
from lb.settings.reporting import AccessLogMode, LogFormat, LogLevel


def make(**sections: Any) -> Settings:
    return Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "gpu-0:8000"}], **sections}
    )


def test_defaults_are_those_of_the_design() -> None:
    settings = make()
    dump = {name: section.model_dump() for name, section in settings if name in DEFAULTS}
    assert dump == DEFAULTS
    assert settings.forwarded is ForwardedMode.OFF
    assert settings.models == {}


DEFAULTS = {
    "balancing": {"policy": PolicyName.LEAST_LOADED},
    "health": {
        "probe": ProbeKind.AUTO,
        "interval": 1.0,
        "timeout": 2.0,
        "rise": 2,
        "fall": 3,
        "http_path": None,
        "expected_status": (200,),
        "grpc_service": GrpcProbe.AUTO,
    },
    "timeouts": {
        "connect": 1.0,
        "head": 10.0,
        "body_progress": 30.0,
        "client_idle": 620.0,
        "upstream_idle": 30.0,
        "request": 0.0,
        "handshake": 10.0,
    },
    "limits": {
        "head_bytes": 32 * 1024,
        "request_line_bytes": 8 * 1024,
        "fields": 100,
        "body_bytes": 0,
        "retained_body_bytes": 64 * 1024,
        "memory_bytes": 0,
        "concurrent_streams": 1024,
        "stream_window_bytes": 1024 * 1024,
        "stream_window_max_bytes": 4 * 1024 * 1024,
        "frame_bytes": 1024 * 1024,
        "http_buffer_bytes": 64 * 1024,
    },
    "retry": {"attempts": 3},
    "access_log": {"mode": AccessLogMode.ERRORS, "sample": 0.01, "path": "-"},
    "log": {"level": LogLevel.INFO, "format": LogFormat.TEXT},
    "metrics": {"backends": True, "model_labels": 100},
    "shutdown": {"settle": 0.0, "drain": 20.0},
}


def test_a_listener_left_out_is_off_and_a_mapping_equals_its_address() -> None:
    listen = make(listen={"http": "127.0.0.1:0", "grpc": {"address": "127.0.0.1:0"}}).listen
    assert listen.http is not None
    assert listen.http.address == Address("127.0.0.1", 0)
    assert listen.http == listen.grpc
    assert listen.metrics is None
    assert listen.admin is None


def test_settings_cannot_be_changed() -> None:
    settings = make()
    with pytest.raises(ValidationError, match="frozen"):
        settings.retry.attempts = 5  # type: ignore[misc]


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
                "max_in_flight": 7,
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


def test_a_backends_own_health_settings_replace_single_common_ones() -> None:
    settings = make(
        health={"interval": "5s", "fall": 4},
        backends=[{"http": "a:1", "health": {"fall": 9, "http_path": "/ok"}}, {"http": "b:1"}],
    )
    own, common = (settings.health_of(backend) for backend in settings.backends)
    assert (own.interval, own.fall, own.http_path) == (5.0, 9, "/ok")
    assert common == settings.health


def test_headers_do_not_show_in_a_representation() -> None:
    settings = make(backends=[{"http": "a:1", "headers": {"authorization": "Bearer secret"}}])
    assert "secret" not in repr(settings)


def test_what_is_dumped_reads_back_unchanged() -> None:
    settings = make(listen={"http": "unix:/run/a"}, backends=[{"grpc": "[::1]:1"}])
    assert settings.model_dump()["backends"][0]["grpc"] == "[::1]:1"
    assert Settings.model_validate(settings.model_dump()) == settings
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


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
