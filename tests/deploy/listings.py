"""Saved outputs of nvidia-smi."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "nvidia_smi"
LISTINGS: Final = ("eight_gpus", "a100_seven_slices", "h100_mixed", "none")


def read_listing(name: str) -> str:
    """The text of one."""
    return (FOLDER / f"{name}.txt").read_text()
