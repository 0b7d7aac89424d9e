"""Units: what systemd would replace or split is escaped, every server has its environment."""

from __future__ import annotations

import pytest

from lb.generate.devices import Device, GenerateError, parse_listing
from lb.generate.stack import Listen, Options, ServerKind, make_stack
from lb.generate.systemd import systemd_files
from tests.deploy.listings import read_listing


def files(listing: str = "none", **options: object) -> dict[str, str]:
    devices = parse_listing(read_listing(listing)).devices
    chosen = Options(**{"models": "/srv/models", **options})  # type: ignore[arg-type]
    stack = make_stack(chosen, devices, 0 if devices else 1)
    return {file.path: file.text for file in systemd_files(stack)}


def test_each_server_has_its_environment_and_is_wanted() -> None:
    found = files("h100_mixed")
    assert "METRICS_PORT=18002\nGPU_METRICS=false\n" in found["etc/triton/gpu-0-mig-0.env"]
    assert "CUDA_VISIBLE_DEVICES=GPU-e941aa79-" in found["etc/triton/gpu-1.env"]
    target = found["etc/systemd/system/triton.target"]
    assert target.count("Wants=triton@") == 5
    assert "--allow-gpu-metrics=${GPU_METRICS}" in found["etc/systemd/system/triton@.service"]


def test_a_server_on_the_cpu_sees_no_device() -> None:
    assert "CUDA_VISIBLE_DEVICES=\n" in files()["etc/triton/cpu-0.env"]


def test_the_sockets_are_the_listeners() -> None:
    listen = Listen(http="[::]:80", grpc="unix:/run/grpc.sock", metrics="localhost:8002")
    unit = files(listen=listen)["etc/systemd/system/triton-lb.socket"]
    assert [line for line in unit.splitlines() if line.startswith("Listen")] == [
        "ListenStream=[::]:80",
        "ListenStream=/run/grpc.sock",
        "ListenStream=127.0.0.1:8003",
    ]


def test_what_systemd_would_replace_or_split_is_escaped() -> None:
    found = files(models="/srv/my %models", server_args=("--x=\"$Y\\'", "--plain=1"))
    unit = found["etc/systemd/system/triton@.service"]
    assert '  "--model-repository=/srv/my %%models" \\\n' in unit
    assert '  "--x=\\"$$Y\\\\\'" \\\n  --plain=1\n' in unit


def test_shared_memory_needs_root() -> None:
    name = "etc/systemd/system/triton@.service"
    assert "DynamicUser=yes" in files()[name]
    assert "User=root" in files(shared_memory=True)[name]


def test_tf_serving_has_no_metrics_port() -> None:
    found = files(server=ServerKind.TFSERVING)
    assert "METRICS" not in found["etc/triton/cpu-0.env"]
    unit = found["etc/systemd/system/triton@.service"]
    assert "ExecStart=/usr/bin/tensorflow_model_server \\\n  --rest_api_port=${HTTP_PORT}" in unit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": "models"}, "absolute path"),
        ({"server_args": ("a\nb",)}, "cannot have"),
    ],
)
def test_what_no_unit_can_hold_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(GenerateError, match=message):
        files(**options)


def test_mig_devices_must_have_a_uuid() -> None:
    stack = make_stack(Options(models="/m"), [Device("0:0", "0:0", profile="1g.5gb")])
    with pytest.raises(GenerateError, match="by UUID only"):
        systemd_files(stack)
