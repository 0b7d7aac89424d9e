"""gRPC for Java, over Netty, as Debian has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.balancer import Balancer, run

SOURCE = Path(__file__).parent / "java" / "Peer.java"
JARS = Path("/usr/share/java")
LIBRARIES = (
    *("error_prone_annotations", "grpc-api", "grpc-context", "grpc-core", "grpc-netty"),
    *("grpc-stub", "guava", "opencensus-api", "netty-buffer", "netty-codec", "netty-codec-http"),
    *("netty-codec-http2", "netty-codec-socks", "netty-common", "netty-handler"),
    *("netty-handler-proxy", "netty-resolver", "netty-tcnative", "netty-transport", "perfmark-api"),
)
NATIVE = "libnetty_tcnative.so"
"""OpenSSL for Netty: of that age, it does not find ALPN in newer Javas."""
CLASS_PATH = ":".join(str(JARS / f"{name}.jar") for name in LIBRARIES)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the compiled client, and the native library by the name that Netty looks for."""
    folder = tmp_path_factory.mktemp("java")
    run("javac", "-cp", CLASS_PATH, "-d", str(folder), str(SOURCE))
    (native,) = Path("/usr/lib").glob("*/jni/libnetty-tcnative.so")
    (folder / NATIVE).write_bytes(native.read_bytes())
    return folder


def test_calls_cancels_deadlines_and_keep_alive(
    balancer: Balancer, folder: Path, is_tls: bool
) -> None:
    listener, more = ("grpcs", (balancer.world.ca,)) if is_tls else ("grpc", ())
    port = str(balancer.port(listener))
    with balancer.expecting(connections=1):
        java = ("java", f"-Djava.library.path={folder}", "-cp", f"{CLASS_PATH}:{folder}")
        said = run(*java, "Peer", "localhost", port, *more)
    assert said.endswith("all well\n"), said
