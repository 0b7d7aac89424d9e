"""Plans: which devices, which files, what the user is told."""

from __future__ import annotations

import pytest

from lb.generate.devices import GenerateError
from lb.generate.plan import FilePlan, Request, make_plan
from lb.generate.stack import Options, Target
from tests.deploy.listings import read_listing

EMPTY = "GPU 3: NVIDIA A30 (UUID: GPU-3)\n3, GPU-3, NVIDIA A30, Enabled\n"


def plan(listing: str | None = "none", **wanted: object) -> FilePlan:
    text = read_listing(listing) if listing is not None else None
    request = {"target": Target.COMPOSE, "listing": text, **wanted}
    return make_plan(Request(**request))  # type: ignore[arg-type]


def servers(made: FilePlan) -> list[str]:
    assert made.stack is not None
    return [server.name for server in made.stack.servers]


def test_all_devices_are_used() -> None:
    made = plan("h100_mixed")
    assert len(servers(made)) == 5
    assert made.notes == ()


def test_only_those_that_are_wanted_are_used() -> None:
    assert servers(plan("eight_gpus", devices=("2", "gpu-5"))) == ["gpu-2", "gpu-5"]


@pytest.mark.parametrize(
    ("listing", "why"), [("none", "there is no GPU"), (None, "there is no nvidia-smi")]
)
def test_without_a_gpu_there_is_one_server_on_the_cpu(listing: str | None, why: str) -> None:
    made = plan(listing)
    assert servers(made) == ["cpu-0"]
    assert made.notes == (f"{why}: a server on the CPU",)


def test_numbers_go_before_what_is_listed() -> None:
    assert servers(plan("h100_mixed", gpus=2)) == ["gpu-0", "gpu-1"]
    assert servers(plan("h100_mixed", gpus=4, devices=("3",))) == ["gpu-3"]
    assert servers(plan("h100_mixed", cpu_servers=2)) == ["cpu-0", "cpu-1"]


def test_devices_are_taken_as_written_where_nothing_can_be_asked() -> None:
    made = plan(None, devices=("0:3", "1"))
    assert servers(made) == ["gpu-0-mig-3", "gpu-1"]
    assert "as written" in made.notes[0]


def test_a_gpu_in_mig_mode_without_mig_device_is_told() -> None:
    with pytest.raises(GenerateError, match="GPU 3 is in MIG mode without a MIG device"):
        make_plan(Request(target=Target.COMPOSE, listing=EMPTY))
    made = make_plan(Request(target=Target.COMPOSE, listing=read_listing("h100_mixed") + EMPTY))
    assert len(servers(made)) == 5
    assert made.notes[0].startswith("left out: GPU 3")


def test_a_layout_is_made_by_a_script_before_the_stack_starts() -> None:
    made = make_plan(Request(target=Target.COMPOSE, listing=EMPTY, mig="1g.6gb=4"))
    assert servers(made) == [f"gpu-3-mig-{number}" for number in range(4)]
    assert [file.path for file in made.files[:3]] == [
        "mig.sh",
        "triton-mig.service",
        "compose.yaml",
    ]
    assert "mig.sh" in made.notes[0]


def test_only_the_gpus_that_are_wanted_are_divided() -> None:
    listing = read_listing("eight_gpus") + EMPTY.replace("3", "8")
    for wanted in ("2", "8"):
        made = make_plan(
            Request(target=Target.COMPOSE, listing=listing, mig="1g.10gb=7", devices=(wanted,))
        )
        assert f"gpus=({wanted})\n" in made.files[0].text
        assert servers(made) == [f"gpu-{wanted}-mig-{number}" for number in range(7)]


def test_a_gpu_without_a_known_index_is_not_divided() -> None:
    with pytest.raises(GenerateError, match="named by index"):
        plan(None, devices=("GPU-1",), mig="1g.5gb=7")
    assert "gpus=(3)\n" in plan(None, devices=("3",), mig="1g.5gb=7").files[0].text


def test_units_wait_for_the_devices_of_a_layout() -> None:
    made = plan("eight_gpus", target=Target.SYSTEMD, mig="1g.10gb=7")
    assert made.stack is None
    assert [file.path for file in made.files] == ["mig.sh", "triton-mig.service"]
    assert "generate without --mig" in made.notes[0]


@pytest.mark.parametrize("target", [Target.COMPOSE, Target.SYSTEMD])
def test_the_same_request_gives_the_same_bytes(target: Target) -> None:
    assert plan("h100_mixed", target=target) == plan("h100_mixed", target=target)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (Target.SYSTEMD, Options(prometheus=True), "for compose"),
        (Target.KUBERNETES, Options(prometheus=True), "for compose"),
        (Target.KUBERNETES, Options(shared_memory=True), "for one machine"),
    ],
)
def test_what_a_target_has_not_is_refused(target: Target, options: Options, message: str) -> None:
    with pytest.raises(GenerateError, match=message):
        plan("eight_gpus", target=target, options=options)
