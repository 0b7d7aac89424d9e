"""NVIDIA's load generator, which is the C++ client, against the balancer's listeners with TLS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.process import free_ports
from tests.fakes.tls import World
from tests.triton.balancer import RunningBalancer
from tests.triton.server import RealTriton
from tests.triton.test_perf_analyzer import check_counts, perf_analyzer


class SecureBalancer(RunningBalancer):
    """One with two listeners more."""

    def __init__(
        self, workspace: Path, tritons: Sequence[RealTriton], **sections: dict[str, Any]
    ) -> None:
        self.world = World(workspace)
        self.https, self.grpcs = free_ports(2)
        super().__init__(workspace, tritons, **sections)

    def _settings(self, tritons: Sequence[RealTriton]) -> dict[str, Any]:
        settings = super()._settings(tritons)
        certificate, key = self.world.server
        for name, port in (("https", self.https), ("grpcs", self.grpcs)):
            tls = {"certificates": [{"certificate": certificate, "key": key}]}
            settings["listen"][name] = {"address": f"127.0.0.1:{port}", "tls": tls}
        return settings


@pytest.fixture(scope="module")
def secure(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...]
) -> Iterator[SecureBalancer]:
    """Before all three."""
    folder: Path = tmp_path_factory.mktemp("secure-balancer")
    for running in SecureBalancer.run(folder, tritons):
        assert isinstance(running, SecureBalancer)
        yield running


@pytest.mark.parametrize("streaming", [(), ("--streaming",)], ids=["unary", "streaming"])
def test_grpc(secure: SecureBalancer, streaming: tuple[str, ...]) -> None:
    report = perf_analyzer(
        *("-i", "grpc", "-u", f"localhost:{secure.grpcs}", *streaming),
        *("--ssl-grpc-use-ssl", "--ssl-grpc-root-certifications-file", secure.world.ca),
    )
    check_counts(report)


def test_http(secure: SecureBalancer) -> None:
    report = perf_analyzer(
        *("-i", "http", "-u", f"https://localhost:{secure.https}"),
        *("--ssl-https-ca-certificates-file", secure.world.ca),
    )
    check_counts(report)
