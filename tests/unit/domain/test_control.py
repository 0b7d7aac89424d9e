"""Who can be asked."""

from __future__ import annotations

from lb.domain.backend import AppProtocol
from lb.domain.control import Reach
from tests.fakes.backends import make_backend


def test_a_backend_can_be_asked_when_a_port_of_it_answers() -> None:
    backend = make_backend()
    assert not Reach(backend, (False, False)).is_reachable
    reach = Reach(backend, (False, True))
    assert reach.is_reachable
    assert reach.answers(AppProtocol.GRPC)
    assert not reach.answers(AppProtocol.HTTP)
