"""Answers of the admin API, as the server would give them, for tests of what reads them."""

from __future__ import annotations

from typing import Any

from lb.admin.models import Backend, Backends, Drift, Latency, Load, Models, Status


def backend(name: str, **changed: Any) -> dict[str, Any]:
    """A backend that is up and idle, apart from what is `changed`."""
    idle = Backend(
        name=name,
        state="up",
        why="",
        since_s=5.9,
        in_flight=0,
        open_sequences=0,
        served=0,
        latency=Latency(p50_ms=None, p99_ms=None),
        weight=1.0,
        share=1.0,
        set_aside=0,
        max_requests=0,
        empty=True,
        origin="configuration",
        cut_in_s=None,
        standby=None,
        load=Load(age_s=None, pending=0.0, others=None, devices=[]),
        ports={},
    )
    return idle.model_dump() | changed


def backends(*each: dict[str, Any]) -> dict[str, Any]:
    """A pool of backends."""
    return Backends(backends=[Backend.model_validate(one) for one in each]).model_dump()


def models(**changed: Any) -> dict[str, Any]:
    """The models of a backend that lists none, apart from what is `changed`."""
    drift = Drift(models=[], configurations=[], settings=[])
    return Models(listed=True, age_s=1.0, models=[], regions=[], drift=drift).model_dump() | changed


def status(up: int, in_flight: int = 0, served: int = 0, **not_up: str) -> dict[str, Any]:
    """The state of a process with so many backends up, and others in the states of `not_up`."""
    return Status(
        version="1.2.3",
        backends=up + len(not_up),
        up=up,
        not_up=not_up,
        in_flight=in_flight,
        served=served,
        changed_shares=[],
    ).model_dump()
