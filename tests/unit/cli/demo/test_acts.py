"""What happens by itself in the demo, and that a key ends that."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lb.cli.demo.acts import Acts
from lb.cli.demo.load import RequestTally


class Tritons:
    """Stands for simulated Tritons; notes what is done to them."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def running(self) -> list[str]:
        return ["slow", "fast"]

    def speed(self, name: str) -> float:
        return float(name == "fast")

    def kill(self, name: str) -> None:
        self.done.append(f"kill {name}")

    def freeze(self, name: str) -> None:
        self.done.append(f"freeze {name}")

    async def restore(self) -> list[str]:
        self.done.append("restore")
        return ["fast"]


@pytest.mark.parametrize(
    ("is_by_hand", "done"),
    [
        (False, ["kill fast", "restore", "freeze fast", "restore", "drain", "restore", "enable"]),
        (True, []),
    ],
)
async def test_nothing_happens_by_itself_once_somebody_does_things_by_hand(
    is_by_hand: bool, done: list[str]
) -> None:
    tritons = Tritons()

    async def change(_name: str, action: str) -> None:
        tritons.done.append(action)

    acts = Acts(cast("Any", tritons), [RequestTally("HTTP")], change, lambda _: None)
    if is_by_hand:
        acts.take_over()
    await acts.play((0.0, 0.0, 0.0))
    assert tritons.done == done
