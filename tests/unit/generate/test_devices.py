"""Listings of nvidia-smi: both spellings of MIG devices, parts instead of wholes, choosing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.generate.devices import (
    Device,
    GenerateError,
    as_written,
    choose,
    parse_listing,
    slices_of,
    whole_gpus,
)
from tests.deploy.listings import read_listing

FULL = "11111111-2222-4333-8444-555555555555"


def test_whole_gpus_are_devices() -> None:
    devices = parse_listing(read_listing("eight_gpus")).devices
    assert [device.index for device in devices] == list("01234567")
    assert [device.name for device in devices] == [f"gpu-{number}" for number in range(8)]
    assert {device.product for device in devices} == {"NVIDIA A100-SXM4-80GB"}
    assert all(device.identifier.startswith("GPU-") and not device.profile for device in devices)


def test_mig_devices_of_2020_stand_instead_of_their_gpu() -> None:
    devices = parse_listing(read_listing("a100_seven_slices")).devices
    gpu = "GPU-6e89a967-292d-f5fc-2af0-a2e2f2ccc326"
    assert [device.identifier for device in devices] == [f"MIG-{gpu}/{gi}/0" for gi in range(7, 14)]
    assert [device.index for device in devices] == [f"0:{number}" for number in range(7)]
    assert {device.profile for device in devices} == {"1g.5gb"}


def test_mig_devices_of_today_stand_beside_whole_gpus() -> None:
    listing = parse_listing(read_listing("h100_mixed"))
    assert [(each.name, each.profile, each.slices) for each in listing.devices] == [
        ("gpu-0-mig-0", "3g.40gb", 3),
        ("gpu-0-mig-1", "2g.20gb", 2),
        ("gpu-0-mig-2", "1g.10gb", 1),
        ("gpu-0-mig-3", "1g.10gb", 1),
        ("gpu-1", "", 7),
    ]
    assert listing.empty == ()


@pytest.mark.parametrize("text", ["", "No devices found.\n", "No devices were found\n\n"])
def test_nothing_is_nothing(text: str) -> None:
    assert parse_listing(text).devices == ()


def test_a_gpu_in_mig_mode_without_mig_device_is_no_device() -> None:
    text = (
        f"GPU 0: NVIDIA A30 (UUID: GPU-{FULL})\nGPU 1: NVIDIA A30 (UUID: GPU-{FULL[::-1]})\n"
        f"0, GPU-{FULL}, NVIDIA A30, Enabled\n1, GPU-{FULL[::-1]}, NVIDIA A30, [N/A]\n"
    )
    listing = parse_listing(text)
    assert (listing.empty, [each.name for each in listing.devices]) == (("0",), ["gpu-1"])


def test_the_rows_of_the_query_are_enough() -> None:
    listing = parse_listing(f"10, GPU-{FULL}, Tesla T4, N/A\n2, GPU-{FULL[::-1]}, Tesla T4, N/A\n")
    assert [each.index for each in listing.devices] == ["2", "10"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GPU 0: A (UUID: GPU-1)\nhello\n", "line 2: this is no line of `nvidia-smi -L`: 'hello'"),
        ("  MIG 1g.5gb Device 0: (UUID: MIG-1)\n", "line 1: this is no line"),
        (
            "GPU 0: A (UUID: GPU-1)\n  MIG big Device 0: (UUID: MIG-1)\n",
            "line 2: expected a MIG profile such as 1g.5gb, got 'big'",
        ),
    ],
)
def test_other_text_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(GenerateError, match=message):
        parse_listing(text)


@pytest.mark.parametrize(
    ("profile", "slices"),
    [("1g.5gb", 1), ("7g.80gb", 7), ("1c.3g.20gb", 1), ("1g.10gb+me", 1), ("2g.35gb", 2)],
)
def test_slices_are_those_of_the_profile(profile: str, slices: int) -> None:
    assert slices_of(profile) == slices


@pytest.mark.parametrize(("product", "slices"), [("NVIDIA A30", 4), ("NVIDIA H100", 7), ("", 7)])
def test_a_whole_gpu_has_the_slices_of_its_product(product: str, slices: int) -> None:
    assert Device("0", "GPU-1", product).slices == slices


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (["1"], ["gpu-1"]),
        (["0"], ["gpu-0-mig-0", "gpu-0-mig-1", "gpu-0-mig-2", "gpu-0-mig-3"]),
        (["gpu-1", "0:3"], ["gpu-0-mig-3", "gpu-1"]),
        (["MIG-870e7076-ddb8-5d4b-8dda-0da9f8c6800b"], ["gpu-0-mig-0"]),
        (["GPU-e9", "1"], ["gpu-1"]),
    ],
)
def test_devices_are_chosen_by_index_name_or_uuid(wanted: list[str], names: list[str]) -> None:
    devices = parse_listing(read_listing("h100_mixed")).devices
    assert [device.name for device in choose(devices, wanted)] == names


@pytest.mark.parametrize(
    ("word", "message"), [("2", "no device '2'; there are: 0:0, 0:1"), ("MIG-", "several UUIDs")]
)
def test_what_names_no_device_or_several_is_refused(word: str, message: str) -> None:
    devices = parse_listing(read_listing("h100_mixed")).devices
    with pytest.raises(GenerateError, match=message):
        choose(devices, [word])


def test_devices_of_another_machine_are_taken_as_written() -> None:
    assert whole_gpus(2) == (Device("0", "0"), Device("1", "1"))
    assert as_written(["0:1", "3"]) == (Device("0:1", "0:1"), Device("3", "3"))
    assert [each.identifier for each in as_written([f"GPU-{FULL}", f"MIG-GPU-{FULL}/7/0"])] == [
        f"GPU-{FULL}",
        f"MIG-GPU-{FULL}/7/0",
    ]


@pytest.mark.parametrize("wanted", [["x"], ["0", "0"], ["1", f"GPU-{FULL}", "0", "1"]])
def test_what_is_no_device_is_not_taken(wanted: list[str]) -> None:
    with pytest.raises(GenerateError):
        as_written(wanted)


LINES = st.sampled_from(
    [
        "GPU 0: A (UUID: GPU-1)",
        "GPU 1: A (UUID: GPU-2)",
        "  MIG 1g.5gb Device 0: (UUID: MIG-GPU-1/7/0)",
        "  MIG 3g.40gb     Device  1: (UUID: MIG-5)",
        "0, GPU-1, A, Enabled",
        "index, uuid, name, mig.mode.current",
        "",
    ]
)


@given(st.lists(LINES, max_size=8) | st.lists(LINES | st.text(max_size=40), max_size=8))
def test_a_listing_gives_each_device_once_or_an_error(lines: list[str]) -> None:
    try:
        listing = parse_listing("\n".join(lines))
    except GenerateError:
        return
    indexes = [device.index for device in listing.devices]
    assert not set(indexes) & set(listing.empty)
    assert len(set(indexes)) == len(indexes)
