"""Rules that span the settings of the fronts and others; see `lb.settings.relations`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from lb.domain.backend import Address
from lb.settings.fronts import DEFAULT_ADDRESS, is_enabled
from lb.settings.problems import Path

_NAMES: Final = ("sagemaker", "vertex")
_ROUTES: Final = {"health_route": "AIP_HEALTH_ROUTE", "predict_route": "AIP_PREDICT_ROUTE"}


def enabled_fronts(root: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """The sections of the fronts that are enabled, by name."""
    fronts = root.get("fronts")
    if not isinstance(fronts, dict):
        return {}
    found = {name: fronts.get(name) for name in _NAMES}
    return {
        name: section
        for name, section in found.items()
        if isinstance(section, dict) and is_enabled(section)
    }


def check_fronts(
    fronts: Mapping[str, Mapping[str, object]], addresses: Mapping[str, Address]
) -> Iterator[tuple[Path, str]]:
    """Yield the path and message of every rule that is broken.

    Args:
        fronts: those that are enabled.
        addresses: those of them that can be read.
    """
    for key, variable in _ROUTES.items():
        if "vertex" in fronts and fronts["vertex"].get(key) is None:
            yield ("fronts", "vertex", key), f"must be given, here or by {variable}"
    allowed = fronts.get("sagemaker", {}).get("safe_port_range")
    address = addresses.get("sagemaker", DEFAULT_ADDRESS)
    if isinstance(allowed, str) and not _is_within(address.port, allowed):
        yield (
            ("fronts", "sagemaker", "address"),
            f"port {address.port} is outside of the safe_port_range {allowed}",
        )


def _is_within(port: int, allowed: str) -> bool:
    low, _, high = allowed.partition("-")
    # What cannot be read is complained about elsewhere.
    return not (low.isdecimal() and high.isdecimal()) or int(low) <= port <= int(high)
