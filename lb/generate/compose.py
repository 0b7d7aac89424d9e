"""A stack as a Compose file: one container for each server, all in the host's network.

There the servers listen on loopback, where only triton-lb reaches them, and no proxy of Docker's
stands between the two.
"""

from __future__ import annotations

from typing import Any, Final

from lb.generate.balancer import FILE, SERVER_STOP_S, STOP_S, balancer_configuration, told
from lb.generate.document import Shared, command_comment, document, merged
from lb.generate.files import GeneratedFile
from lb.generate.monitoring import GRAFANA_IMAGE, PROMETHEUS_IMAGE, monitoring_files
from lb.generate.servers import Place, server_command
from lb.generate.stack import GRAFANA_PORT, PROMETHEUS_PORT, Server, Stack, local_address

COMPOSE_FILE: Final = "compose.yaml"
_MODELS: Final = "/models"
_DEFAULT_MODELS: Final = "./models"
"""On the host, beside the file."""
_CONFIGURATION: Final = "/etc/triton-lb"
_NO_FILE_LIMIT: Final = 65536
_CHECK: Final = {"interval": "10s", "timeout": "5s", "retries": 3}


def compose_files(stack: Stack) -> list[GeneratedFile]:
    """All files of the stack.

    Raises:
        GenerateError: triton-lb would refuse its configuration.
    """
    services: dict[str, Any] = {"triton-lb": _balancer(stack)}
    common = Shared("server", _escaped(_common(stack)))
    services.update(
        (server.name, merged(common, _server(server, stack))) for server in stack.servers
    )
    content: dict[str, Any] = {"name": "triton", "x-server": common, "services": services}
    if stack.options.prometheus:
        services["prometheus"] = _prometheus()
        content["volumes"] = {"prometheus-data": {}}
    if stack.options.grafana:
        services["grafana"] = _grafana()
    text = document(
        _escaped(content),
        *command_comment(stack.options.command),
        f"{told(stack)}, and triton-lb before them.",
        "`docker compose up -d`; needs Docker Compose 2.20 or later"
        + (" and the NVIDIA Container Toolkit." if _has_devices(stack) else "."),
        "Models are taken from: " + models_of(stack),
        *_warnings(stack),
    )
    files = [
        GeneratedFile(COMPOSE_FILE, text),
        GeneratedFile(f"triton-lb/{FILE}", balancer_configuration(stack)),
    ]
    if stack.options.prometheus:
        files += monitoring_files(
            local_address(stack.options.listen.metrics), grafana=stack.options.grafana
        )
    return files


def models_of(stack: Stack) -> str:
    """The folder of the models on the host; a relative one begins at the Compose file."""
    return stack.options.models or _DEFAULT_MODELS


def _has_devices(stack: Stack) -> bool:
    return any(server.device for server in stack.servers)


def _warnings(stack: Stack) -> list[str]:
    if stack.is_triton:
        return []
    return ["TF Serving listens on all interfaces: keep its ports closed to others."]


def _common(stack: Stack) -> dict[str, Any]:
    """What all servers have."""
    common: dict[str, Any] = {
        "image": stack.image,
        "network_mode": "host",
        "restart": "unless-stopped",
        "stop_grace_period": f"{SERVER_STOP_S}s",
        "ulimits": {"memlock": -1, "stack": 67108864},
        "volumes": [
            {
                "type": "bind",
                "source": models_of(stack),
                "target": _MODELS,
                "read_only": True,
                "bind": {"create_host_path": False},
            }
        ],
    }
    if stack.options.shared_memory:
        common["ipc"] = "host"
    else:
        common["shm_size"] = "1gb"
    return common


def _server(server: Server, stack: Stack) -> dict[str, Any]:
    """What is a server's own."""
    place = Place(
        name=server.name,
        models=_MODELS,
        http=str(server.http),
        grpc=str(server.grpc),
        metrics=str(server.metrics),
        shares_memory=stack.options.shared_memory,
        gpu_metrics="true" if server.has_gpu_metrics else "false",
    )
    program, *arguments = server_command(stack.options, place)
    service: dict[str, Any] = {}
    if stack.is_triton:
        service["command"] = [program, *arguments]
    else:
        # The image's own start script has opinions about ports.
        service["entrypoint"] = [program]
        service["command"] = arguments
    if server.device:
        device = {
            "driver": "nvidia",
            "device_ids": [server.device.identifier],
            "capabilities": ["gpu"],
        }
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    service["healthcheck"] = {
        "test": _health_test(server, stack),
        **_CHECK,
        # Large models take minutes to load.
        "start_period": "10m",
    }
    return service


def _health_test(server: Server, stack: Stack) -> list[str]:
    if stack.is_triton:
        url = f"http://127.0.0.1:{server.http}/v2/health/ready"
        return ["CMD", "curl", "-fsS", "-o", "/dev/null", url]
    # The image has no curl.
    return ["CMD", "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{server.http}"]


def _balancer(stack: Stack) -> dict[str, Any]:
    metrics = local_address(stack.options.listen.metrics)
    ask = f"import urllib.request as r; r.urlopen('http://{metrics}/readyz', timeout=3)"
    return {
        "image": stack.options.balancer_image,
        "network_mode": "host",
        "restart": "unless-stopped",
        "command": ["serve", "--config", f"{_CONFIGURATION}/{FILE}"],
        # They are stopped in the opposite order: the servers once nothing runs on them any more.
        "depends_on": [server.name for server in stack.servers],
        "stop_grace_period": f"{STOP_S}s",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "ulimits": {"nofile": _NO_FILE_LIMIT},
        # The folder, not the file: a file that an editor replaces would stay the old one inside.
        "volumes": [f"./triton-lb:{_CONFIGURATION}:ro"],
        "healthcheck": {"test": ["CMD", "python3", "-c", ask], **_CHECK, "start_period": "15s"},
    }


def _prometheus() -> dict[str, Any]:
    return {
        "image": PROMETHEUS_IMAGE,
        "network_mode": "host",
        "restart": "unless-stopped",
        "command": [
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
        ],
        "volumes": ["./prometheus:/etc/prometheus:ro", "prometheus-data:/prometheus"],
    }


def _grafana() -> dict[str, Any]:
    return {
        "image": GRAFANA_IMAGE,
        "network_mode": "host",
        "restart": "unless-stopped",
        "depends_on": ["prometheus"],
        "environment": {
            "GF_SERVER_HTTP_ADDR": "127.0.0.1",
            "GF_SERVER_HTTP_PORT": str(GRAFANA_PORT),
            "GF_AUTH_ANONYMOUS_ENABLED": "true",
        },
        "volumes": [
            "./grafana/provisioning:/etc/grafana/provisioning:ro",
            "./grafana/dashboards:/etc/grafana/dashboards:ro",
        ],
    }


def _escaped(value: Any) -> Any:
    """Compose replaces `$NAME` in every string; nothing here wants that. What is shared has been
    escaped when it was made, and stays the same object."""
    if isinstance(value, str):
        return value.replace("$", "$$") if "$" in value else value
    if isinstance(value, list):
        return [_escaped(each) for each in value]
    if isinstance(value, Shared):
        return value
    if isinstance(value, dict):
        return {key: _escaped(each) for key, each in value.items()}
    return value
