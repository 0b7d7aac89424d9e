"""Command-line clients: curl, nghttp, h2load, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fakes.grpc_server import path
from tests.peers.balancer import Balancer, run
from tests.wire.frames import message

GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")
DOWNLOAD = 8 << 20
TIMES = 8


@pytest.fixture
def body(tmp_path: Path) -> str:
    """One gRPC message in a file."""
    file = tmp_path / "message"
    file.write_bytes(message(b"hello"))
    return str(file)


@pytest.fixture
def blob(tmp_path: Path) -> str:
    """A gRPC message that asks for a large one."""
    file = tmp_path / "blob"
    file.write_bytes(message(b"%d" % DOWNLOAD))
    return str(file)


def _url(balancer: Balancer, method: str, *, is_tls: bool) -> str:
    scheme, listener = ("https", "grpcs") if is_tls else ("http", "grpc")
    return f"{scheme}://{balancer.address(listener)}{path(method)}"


def _all_succeeded(report: str, requests: int) -> None:
    counts = re.search(r"requests: .*?(\d+) succeeded, (\d+) failed, (\d+) errored", report)
    assert counts, report
    assert [int(count) for count in counts.groups()] == [requests, 0, 0], report
    assert f"status codes: {requests} 2xx" in report, report


@pytest.mark.parametrize("streams", [1, 32])
def test_h2load_calls(balancer: Balancer, body: str, is_tls: bool, streams: int) -> None:
    url = _url(balancer, "ModelInfer", is_tls=is_tls)
    with balancer.expecting(connections=4):
        report = run(
            "h2load", "-n2000", "-c4", "-t1", f"-m{streams}", "-d", body, *GRPC, url
        )  # fmt: skip
    _all_succeeded(report, 2000)


@pytest.mark.parametrize("window_bits", [10, 14, 20])
def test_h2load_downloads_through_windows_of_every_size(
    balancer: Balancer, blob: str, is_tls: bool, window_bits: int
) -> None:
    """Small windows are many WINDOW_UPDATEs: 64 MiB in all through 1 KiB, and more."""
    url = _url(balancer, "Blob", is_tls=is_tls)
    windows = (f"-w{window_bits}", f"-W{max(window_bits, 16)}")
    with balancer.expecting(connections=2):
        report = run("h2load", f"-n{TIMES}", "-c2", "-t1", *windows, "-d", blob, *GRPC, url)
    _all_succeeded(report, TIMES)


def test_h2load_over_http_1(balancer: Balancer, is_tls: bool) -> None:
    scheme, listener = ("https", "https") if is_tls else ("http", "http")
    url = f"{scheme}://{balancer.address(listener)}/blob?size=2000"
    with balancer.expecting(connections=4):
        report = run("h2load", "--h1", "-n2000", "-c4", "-t1", url)
    _all_succeeded(report, 2000)


def test_nghttp_with_priorities_and_a_long_head(
    balancer: Balancer, body: str, is_tls: bool
) -> None:
    url = _url(balancer, "ModelInfer", is_tls=is_tls)
    with balancer.expecting(connections=1):
        said = run(
            *("nghttp", "-nv", "-m20", "--continuation", "-d", body, *GRPC, url),
        )
    assert said.count("grpc-status: 0") == 20, said


def test_nghttp_with_padding_and_a_window_of_a_kilobyte(
    balancer: Balancer, blob: str, is_tls: bool
) -> None:
    url = _url(balancer, "Blob", is_tls=is_tls)
    with balancer.expecting(connections=1):
        said = run("nghttp", "-n", "-v", "-w10", "-b200", "-d", blob, *GRPC, url)
    assert "grpc-status: 0" in said


def test_curl_with_prior_knowledge(balancer: Balancer, body: str, is_tls: bool) -> None:
    url = _url(balancer, "ModelInfer", is_tls=is_tls)
    how = "--http2" if is_tls else "--http2-prior-knowledge"
    # Without TLS, curl 7.88 cannot use a connection twice, whatever the server.
    times, connections = (10, 1) if is_tls else (1, 3)
    with balancer.expecting(connections):
        for _ in range(connections):
            said = run(
                *("curl", "-sS", "-v", "--cacert", balancer.world.ca, how, *GRPC),
                *("--data-binary", f"@{body}", "-w", "%{http_version} %{http_code}\n"),
                *("-o", "/dev/null", url) * times,
            )
            assert said.count("2 200\n") == times, said
            assert said.count("< grpc-status: 0") == times, said


def test_curl_over_http_1(balancer: Balancer, is_tls: bool, tmp_path: Path) -> None:
    scheme, listener = ("https", "https") if is_tls else ("http", "http")
    url = f"{scheme}://{balancer.address(listener)}"
    file = tmp_path / "large"
    file.write_bytes(bytes(range(256)) * 20_000)
    back = tmp_path / "back"
    curl = ("curl", "-sS", "--cacert", balancer.world.ca)
    with balancer.expecting(connections=2):
        run(*curl, "--data-binary", f"@{file}", "-o", str(back), f"{url}/echo")
        chunked = ("-H", "Transfer-Encoding: chunked", "--data-binary", f"@{file}")
        said = run(
            *(*curl, *chunked, "-w", "%{http_version} %{http_code}\n"),
            *("-o", "/dev/null", f"{url}/echo") * 5,
        )
    assert back.read_bytes() == file.read_bytes()
    assert said == "1.1 200\n" * 5
