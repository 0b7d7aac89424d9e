"""The banner of `triton-lb serve`: URLs, how many backends are ready, how to stop."""

from __future__ import annotations

from lb.domain.backend import Address
from lb.runtime.banner import banner


def at(port: int, host: str = "127.0.0.1") -> Address:
    return Address(host, port)


def test_it_says_where_and_what_is_ready() -> None:
    addresses = {
        "http": at(8000, "0.0.0.0"),
        "grpc": at(8001),
        "metrics": at(8002),
        "admin": at(8003),
    }
    assert banner(addresses, 2, [("gpu-2", "down")]) == [
        "triton-lb serves: 2 of 3 backends ready",
        "  not ready  gpu-2 (down)",
        "  HTTP       http://127.0.0.1:8000 (all interfaces)",
        "  gRPC       127.0.0.1:8001",
        "  metrics    http://127.0.0.1:8002/metrics",
        "  page       http://127.0.0.1:8003/",
        "  stop       Ctrl-C; press it again to cut running requests",
    ]


def test_it_never_has_more_than_eight_lines() -> None:
    names = ("http", "https", "grpc", "grpcs", "metrics", "admin", "sagemaker", "vertex")
    addresses = {name: at(8000 + index, "::") for index, name in enumerate(names)}
    lines = banner(addresses, 0, [(f"gpu-{index}", "down") for index in range(16)])
    assert len(lines) == 8
    assert lines[1] == "  not ready  gpu-0 (down), gpu-1 (down), gpu-2 (down) and 13 more"
    assert lines[2] == (
        "  HTTP       http://[::1]:8000 (all interfaces)  https://[::1]:8001 (all interfaces)"
    )


def test_it_names_only_what_there_is() -> None:
    lines = banner({"grpc": Address(path="/run/lb.sock")}, 1, [])
    assert lines == [
        "triton-lb serves: 1 of 1 backends ready",
        "  gRPC       unix:/run/lb.sock",
        "  stop       Ctrl-C; press it again to cut running requests",
    ]
