"""Compose files: a container for each device, which gets that device alone."""

from __future__ import annotations

from typing import Any

import yaml

from lb.generate.compose import compose_files
from lb.generate.devices import parse_listing
from lb.generate.stack import Listen, Options, ServerKind, make_stack
from tests.deploy.listings import read_listing


def services(listing: str, options: Options | None = None) -> dict[str, Any]:
    devices = parse_listing(read_listing(listing)).devices
    stack = make_stack(options or Options(), devices, 0 if devices else 1)
    found: dict[str, Any] = yaml.safe_load(compose_files(stack)[0].text)["services"]
    return found


def test_each_server_gets_its_device_alone() -> None:
    found = services("a100_seven_slices")
    gpu = "GPU-6e89a967-292d-f5fc-2af0-a2e2f2ccc326"
    ids = [
        found[f"gpu-0-mig-{number}"]["deploy"]["resources"]["reservations"]["devices"][0][
            "device_ids"
        ]
        for number in range(7)
    ]
    assert ids == [[f"MIG-{gpu}/{number}/0"] for number in range(7, 14)]


def test_a_server_on_the_cpu_reserves_nothing() -> None:
    assert "deploy" not in services("none")["cpu-0"]


def test_servers_stop_after_triton_lb_and_later_than_they_need() -> None:
    found = services("h100_mixed")
    assert set(found["triton-lb"]["depends_on"]) == set(found) - {"triton-lb"}
    assert found["triton-lb"]["stop_grace_period"] == "30s"
    assert found["gpu-1"]["stop_grace_period"] == "45s"


def test_dollars_reach_the_server() -> None:
    options = Options(models="/srv/$models", server_args=("--x=${Y}",))
    server = services("none", options)["cpu-0"]
    assert server["volumes"][0]["source"] == "/srv/$$models"
    assert server["command"][-1] == "--x=$${Y}"


def test_memory_is_shared_only_if_wanted() -> None:
    alone = services("none")["cpu-0"]
    shared = services("none", Options(shared_memory=True))["cpu-0"]
    assert (alone["shm_size"], alone.get("ipc")) == ("1gb", None)
    assert (shared.get("shm_size"), shared["ipc"]) == (None, "host")


def test_tf_serving_runs_without_the_script_of_its_image() -> None:
    server = services("none", Options(server=ServerKind.TFSERVING))["cpu-0"]
    assert server["entrypoint"] == ["tensorflow_model_server"]
    assert server["healthcheck"]["test"][-1] == "exec 3<>/dev/tcp/127.0.0.1/18000"


def test_health_is_asked_where_triton_lb_listens() -> None:
    listen = Listen(metrics="10.0.0.5:9002")
    check = services("none", Options(listen=listen))["triton-lb"]["healthcheck"]["test"][-1]
    assert "http://10.0.0.5:9002/readyz" in check
