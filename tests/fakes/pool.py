"""A directory in a known state, for tests of what shows it."""

from __future__ import annotations

from lb.control.directory import BackendDirectory
from lb.control.record import Member
from lb.domain.backend import AppProtocol
from lb.health.port import Finding
from lb.probes.probe import ProbeResult
from tests.fakes.backends import make_spec
from tests.fakes.relay import named_policy

READY_AT = 101.0


def make_pool() -> BackendDirectory:
    """Backend a (weight 2, at most 8 in flight) is up; b answers HTTP and refuses gRPC."""
    directory = BackendDirectory(named_policy("least_loaded"))
    specs = [make_spec("a", weight=2.0, max_in_flight=8), make_spec("b")]
    directory.replace([Member(spec) for spec in specs], 100.0)
    for port in directory.ports():
        refuses = port.backend.name == "b" and port.protocol is AppProtocol.GRPC
        directory.probe_sent(port, READY_AT)
        result = ProbeResult(Finding.READY, latency_s=0.002)
        if refuses:
            result = ProbeResult(Finding.REFUSED, "closed", 0.001)
        directory.probed(port, result, READY_AT)
    return directory
