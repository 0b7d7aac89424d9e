"""Command lines of the servers."""

from __future__ import annotations

from lb.generate.servers import Place, server_command
from lb.generate.stack import Options, ServerKind

PLACE = Place(name="gpu-0", models="/models", http="1", grpc="2", metrics="3")


def test_a_triton_listens_on_its_ports_of_loopback() -> None:
    assert server_command(Options(server_args=("--log-info=false",)), PLACE) == (
        "tritonserver",
        "--model-repository=/models",
        "--http-address=127.0.0.1",
        "--http-port=1",
        "--grpc-address=127.0.0.1",
        "--grpc-port=2",
        "--metrics-address=127.0.0.1",
        "--metrics-port=3",
        "--exit-timeout-secs=30",
        "--log-info=false",
    )


def test_a_triton_that_shares_memory_on_a_part_of_a_gpu_says_so() -> None:
    place = Place(
        name="gpu-0-mig-1",
        models="/models",
        http="1",
        grpc="2",
        metrics="3",
        shares_memory=True,
        gpu_metrics="false",
    )
    assert server_command(Options(), place)[-2:] == (
        "--allow-gpu-metrics=false",
        "--backend-config=python,shm-region-prefix-name="
        "triton_python_backend_shm_region_gpu-0-mig-1_",
    )


def test_tf_serving_has_one_model() -> None:
    options = Options(server=ServerKind.TFSERVING, model="flower", server_args=("--x",))
    assert server_command(options, PLACE) == (
        "tensorflow_model_server",
        "--rest_api_port=1",
        "--port=2",
        "--model_name=flower",
        "--model_base_path=/models/flower",
        "--x",
    )
