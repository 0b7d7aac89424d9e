"""Prometheus and Grafana beside a stack: what they read at their start."""

from __future__ import annotations

from typing import Final

from lb.generate.assets import asset_files
from lb.generate.document import document
from lb.generate.files import GeneratedFile
from lb.generate.stack import PROMETHEUS_PORT

PROMETHEUS_IMAGE: Final = "prom/prometheus:v3.1.0"
GRAFANA_IMAGE: Final = "grafana/grafana:11.4.0"
JOB: Final = "triton-lb"
"""By which the rules and the dashboard find us."""


def monitoring_files(target: str, *, grafana: bool) -> list[GeneratedFile]:
    """Files for Prometheus, and for Grafana if it is wanted.

    Args:
        target: `HOST:PORT` of the metrics of triton-lb; those of the servers are among them.
        grafana: whether there is one.
    """
    files = [GeneratedFile("prometheus/prometheus.yml", _prometheus(target))]
    files += [
        GeneratedFile(f"prometheus/{name}", text)
        for name, text in asset_files("prometheus", ".rules.yaml")
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


def _prometheus(target: str) -> str:
    return document(
        {
            "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
            "rule_files": ["/etc/prometheus/*.rules.yaml"],
            "scrape_configs": [
                {
                    "job_name": JOB,
                    # Metrics of the servers have a label `backend` of their own.
                    "static_configs": [{"targets": [target]}],
                }
            ],
        },
        "What Prometheus scrapes: triton-lb, whose metrics hold those of the servers.",
    )


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
