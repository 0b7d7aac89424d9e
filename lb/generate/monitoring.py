"""Prometheus and Grafana beside a stack: what they read at their start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import yaml

from lb.generate.assets import asset_files
from lb.generate.document import document
from lb.generate.files import GeneratedFile
from lb.generate.stack import PROMETHEUS_PORT

PROMETHEUS_IMAGE: Final = "prom/prometheus:v3.1.0"
GRAFANA_IMAGE: Final = "grafana/grafana:11.4.0"
_CONFIGURATION: Final = "prometheus.yml"


def monitoring_files(target: str, *, grafana: bool) -> list[GeneratedFile]:
    """Files for Prometheus, and for Grafana if it is wanted.

    Args:
        target: `HOST:PORT` of the metrics of triton-lb; those of the servers are among them.
        grafana: whether there is one.
    """
    assets = dict(asset_files("prometheus", ".yml"))
    files = [GeneratedFile(f"prometheus/{_CONFIGURATION}", _prometheus(assets, target))]
    files += [
        GeneratedFile(f"prometheus/{name}", text)
        for name, text in assets.items()
        if name != _CONFIGURATION
    ]
    if grafana:
        files += [
            GeneratedFile("grafana/provisioning/datasources/prometheus.yaml", _data_source()),
            GeneratedFile("grafana/provisioning/dashboards/triton-lb.yaml", _dashboards()),
        ]
        files += [
            GeneratedFile(f"grafana/dashboards/{name}", text)
            for name, text in asset_files("grafana", ".json")
        ]
    return files


def _prometheus(assets: Mapping[str, str], target: str) -> str:
    content = yaml.safe_load(assets[_CONFIGURATION])
    (job,) = content["scrape_configs"]
    job["static_configs"] = [{"targets": [target]}]
    return document(content, "triton-lb, whose metrics hold those of the servers, and its rules.")


def _data_source() -> str:
    return document(
        {
            "apiVersion": 1,
            "datasources": [
                {
                    "name": "Prometheus",
                    "type": "prometheus",
                    "access": "proxy",
                    "url": f"http://127.0.0.1:{PROMETHEUS_PORT}",
                    "isDefault": True,
                }
            ],
        }
    )


def _dashboards() -> str:
    provider = {
        "name": "triton-lb",
        "type": "file",
        "options": {"path": "/etc/grafana/dashboards"},
    }
    return document({"apiVersion": 1, "providers": [provider]})
