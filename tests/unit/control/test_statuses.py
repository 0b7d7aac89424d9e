from __future__ import annotations

from lb.control.statuses import port_statuses
from lb.domain.backend import AdminState, AppProtocol
from lb.telemetry.collector import PortStatus
from tests.fakes.pool import make_pool

HTTP, GRPC = AppProtocol.HTTP, AppProtocol.GRPC


def test_statuses_say_who_may_get_requests() -> None:
    directory = make_pool()
    directory.set_admin("a", AdminState.DISABLED, 105.0)
    assert list(port_statuses(directory)) == [
        PortStatus("a", HTTP, "disabled", is_up=False, changes=1),
        PortStatus("a", GRPC, "disabled", is_up=False, changes=1),
        PortStatus("b", HTTP, "up", is_up=True, changes=1),
        PortStatus("b", GRPC, "down", is_up=False, changes=1),
    ]
