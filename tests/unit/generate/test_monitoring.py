"""Prometheus and Grafana beside a stack."""

from __future__ import annotations

import json

import yaml

from lb.generate.monitoring import monitoring_files


def test_prometheus_scrapes_triton_lb_and_has_its_rules() -> None:
    files = {file.path: file.text for file in monitoring_files("10.0.0.5:8002", grafana=False)}
    content = yaml.safe_load(files["prometheus/prometheus.yml"])
    (job,) = content["scrape_configs"]
    assert job["job_name"] == "triton-lb"
    assert job["static_configs"] == [{"targets": ["10.0.0.5:8002"]}]
    for name in content["rule_files"]:
        assert yaml.safe_load(files[f"prometheus/{name}"])["groups"]
    assert not [path for path in files if path.startswith("grafana")]


def test_grafana_finds_prometheus_and_its_dashboards() -> None:
    files = {file.path: file.text for file in monitoring_files("a:1", grafana=True)}
    (source,) = yaml.safe_load(files["grafana/provisioning/datasources/prometheus.yaml"])[
        "datasources"
    ]
    assert source["url"] == "http://127.0.0.1:9090"
    (provider,) = yaml.safe_load(files["grafana/provisioning/dashboards/triton-lb.yaml"])[
        "providers"
    ]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
    assert json.loads(files["grafana/dashboards/triton-lb.json"])["uid"]
