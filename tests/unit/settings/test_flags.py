"""Settings from flags alone: Triton's ports, default listeners, and errors that name the flag."""

from __future__ import annotations

import pytest

from lb.domain.backend import Address, BackendSpec
from lb.settings.flags import settings_from_flags
from lb.settings.listening import ListenerSettings
from lb.settings.problems import SettingsError


def test_grpc_and_metrics_stand_at_the_next_two_ports() -> None:
    assert settings_from_flags(["10.0.0.1:18000", "[::1]:8000"]).specs() == (
        BackendSpec(
            name="10.0.0.1:18000",
            http=Address("10.0.0.1", 18000),
            grpc=Address("10.0.0.1", 18001),
            metrics=Address("10.0.0.1", 18002),
        ),
        BackendSpec(
            name="[::1]:8000",
            http=Address("::1", 8000),
            grpc=Address("::1", 8001),
            metrics=Address("::1", 8002),
        ),
    )


def test_a_unix_socket_serves_http_alone() -> None:
    [spec] = settings_from_flags(["unix:/run/triton.sock"]).specs()
    assert spec.http == Address(path="/run/triton.sock")
    assert spec.grpc is None


def test_the_four_default_listeners_are_on_and_bound_to_loopback() -> None:
    listen = settings_from_flags(["10.0.0.1:18000"]).listen
    given = [listener for _, listener in listen if isinstance(listener, ListenerSettings)]
    assert [str(listener.address) for listener in given] == [
        "127.0.0.1:8000",
        "127.0.0.1:8001",
        "127.0.0.1:8002",
        "127.0.0.1:8003",
    ]


def test_listeners_can_be_moved_one_by_one() -> None:
    listen = settings_from_flags(["10.0.0.1:18000"], grpc="0.0.0.0:0").listen
    assert listen.grpc is not None
    assert listen.grpc.address == Address("0.0.0.0", 0)


EXPECTED = "expected HOST:PORT, [IPV6]:PORT or unix:PATH, got"


@pytest.mark.parametrize(
    ("backends", "listen", "expected"),
    [
        ([], {}, ["--backend: at least one is needed"]),
        (["x"], {}, [f"--backend x: {EXPECTED} 'x'"]),
        (["a:1", "b:"], {}, ["--backend b:: port must be 0 to 65535, got ''"]),
        (
            ["a:65535"],
            {},
            ["--backend a:65535 (grpc): port must be 0 to 65535, got '65536'"],
        ),
        (["a:1", "a:1"], {}, ["--backend a:1: given twice"]),
        (
            ["http://a:1"],
            {},
            [f"--backend http://a:1: drop http://: {EXPECTED} 'http://a:1'"],
        ),
        (
            ["x"],
            {"http": "8000", "admin": "y"},
            [
                f"--http: {EXPECTED} '8000'",
                f"--admin: {EXPECTED} 'y'",
                f"--backend x: {EXPECTED} 'x'",
            ],
        ),
        (
            ["127.0.0.1:8001"],
            {"metrics": "127.0.0.1:0", "admin": "127.0.0.1:0"},
            ["--backend 127.0.0.1:8001: 127.0.0.1:8001 is our own listener --grpc"],
        ),
    ],
)
def test_problems_name_the_flag(
    backends: list[str], listen: dict[str, str], expected: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_from_flags(backends, **listen)
    assert [str(problem) for problem in caught.value.problems] == expected
