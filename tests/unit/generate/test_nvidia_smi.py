"""Asking nvidia-smi: what it prints, that it is not there, that it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from lb.generate.devices import GenerateError, parse_listing
from lb.generate.nvidia_smi import read_nvidia_smi
from tests.deploy.listings import FOLDER


def program(folder: Path, script: str) -> str:
    """A program that stands for nvidia-smi."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_listing_and_modes_are_read_together(tmp_path: Path) -> None:
    listed = FOLDER / "a100_seven_slices.txt"
    row = "1, GPU-11111111-2222-4333-8444-555555555555, NVIDIA A100, Enabled"
    script = f'case "$1" in -L) cat {listed};; --query-gpu=*) echo "{row}";; esac'
    listing = parse_listing(read_nvidia_smi(program(tmp_path, script)) or "")
    assert (len(listing.devices), listing.empty) == (7, ("1",))


def test_a_machine_without_it_has_none(tmp_path: Path) -> None:
    assert read_nvidia_smi(str(tmp_path / "nvidia-smi")) is None


def test_a_machine_without_gpu_has_no_devices(tmp_path: Path) -> None:
    text = read_nvidia_smi(program(tmp_path, "echo No devices were found; exit 6"))
    assert text is not None
    assert parse_listing(text).devices == ()


def test_a_broken_driver_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GenerateError, match="ended with 9 and said: cannot talk to the driver"):
        read_nvidia_smi(program(tmp_path, "echo cannot talk to the driver; exit 9"))


def test_what_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    path = program(tmp_path, "")
    Path(path).chmod(0o644)
    with pytest.raises(GenerateError, match="cannot be run"):
        read_nvidia_smi(path)
