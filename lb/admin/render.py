"""Views as JSON. Times that people compare with a clock are in seconds, latencies in ms."""

from __future__ import annotations

from typing import Any

from lb.control.views import BackendView, LatencyView, LoadView, PortView


def render_backend(view: BackendView) -> dict[str, Any]:
    """One backend, as `Backend` of the OpenAPI document says."""
    return {
        "name": view.name,
        "state": view.state.value,
        "why": view.why,
        "since_s": round(view.since_s, 3),
        "in_flight": view.in_flight,
        "open_sequences": view.open_sequences,
        "served": view.served,
        "latency": _render_latency(view.latency),
        "weight": view.weight,
        "share": round(view.share, 3),
        "max_in_flight": view.max_in_flight,
        "empty": view.empty,
        "origin": view.origin,
        "cut_in_s": None if view.cut_in_s is None else round(view.cut_in_s, 3),
        "load": _render_load(view.load),
        "ports": {port.protocol.label: _render_port(port) for port in view.ports},
    }


def _render_port(view: PortView) -> dict[str, Any]:
    return {
        "address": view.address,
        "state": view.state.value,
        "why": view.why,
        "since_s": round(view.since_s, 3),
        "changes": view.changes,
        "in_flight": view.in_flight,
        "connections": view.connections,
        "served": view.served,
        "failed": view.failed,
        "latency": _render_latency(view.latency),
        "probe_ms": _in_ms(view.probe_latency_s),
    }


def _render_load(view: LoadView) -> dict[str, Any]:
    return {
        "age_s": _rounded(view.age_s),
        "pending": view.pending,
        "others": _rounded(view.others),
        "devices": [
            {
                "id": each.device.decode("utf-8", "backslashreplace"),
                "utilization": _rounded(each.utilization),
                "memory_used_bytes": each.memory_used,
                "memory_total_bytes": each.memory_total,
            }
            for each in view.devices
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _render_latency(view: LatencyView) -> dict[str, float | None]:
    return {"p50_ms": _in_ms(view.p50_s), "p99_ms": _in_ms(view.p99_s)}


def _in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
