"""Rules and alerts: valid, about what there is, and a real Prometheus that goes by them."""

from __future__ import annotations

import http.client
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from lb.domain.backend import LATENCY_BOUNDS_S
from lb.domain.outcome import NO_ALARM
from lb.simulator.process import Ports
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.fakes.promql import faults, selectors, series_of_ours
from tests.fakes.serving import Serving

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
TESTS = Path(__file__).parent / "alerts.yml"
LIMIT_S = 30.0


def rules(file: str) -> list[dict[str, Any]]:
    content = yaml.safe_load((FOLDER / file).read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


RECORDS = rules("rules.yml")
ALERTS = rules("alerts.yml")


def promtool(*arguments: str) -> None:
    """Run it; it has to be content."""
    command = shutil.which("promtool")
    assert command, "promtool is missing: tools/setup_debian.sh"
    done = subprocess.run(
        (command, *arguments), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def recorded() -> dict[str, frozenset[str]]:
    """Series that the recording rules make; the first part of a name says by which labels."""
    return {rule["record"]: frozenset(rule["record"].split(":")[0].split("_")) for rule in RECORDS}


def test_the_configuration_is_valid() -> None:
    promtool("check", "config", str(FOLDER / "prometheus.yml"))


def test_every_alert_fires_for_what_it_is_meant() -> None:
    promtool("test", "rules", str(TESTS))
    played = yaml.safe_load(TESTS.read_text())["tests"]
    tested = {test["alert_rule_test"][0]["alertname"] for test in played}
    assert tested == {rule["alert"] for rule in ALERTS}


@pytest.mark.parametrize("rule", [*RECORDS, *ALERTS], ids=lambda r: r.get("alert", r.get("record")))
def test_rules_are_about_series_that_there_are(rule: dict[str, Any]) -> None:
    assert faults(rule["expr"], series_of_ours() | recorded()) == []


def test_a_record_has_the_labels_that_its_name_says() -> None:
    for rule in RECORDS:
        grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
        named = recorded()[rule["record"]] | {"job"}
        for labels in grouped:
            assert {label.strip() for label in labels.split(",")} - {"le"} == named


@pytest.mark.parametrize("file", ["prometheus/rules.yml", "grafana/triton-lb.json"])
def test_the_share_of_failures_is_of_all_that_are_no_fault_of_clients(file: str) -> None:
    text = (FOLDER.parent / file).read_text()
    (left_out,) = re.findall(r'triton_lb_request_errors_total{[^}]*reason!~\\?"([^"\\]*)', text)
    assert left_out.split("|") == sorted(reason.value for reason in NO_ALARM)


def headings() -> set[str]:
    """Anchors of docs/operations.md."""
    lines = (ROOT / "docs" / "operations.md").read_text().splitlines()
    titles = [line.lstrip("#").strip() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_alert_says_what_is_wrong_and_where_to_read_what_to_do() -> None:
    anchors = headings()
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith((".", "."))
        file, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert file == "docs/operations.md"
        assert anchor in anchors


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("rate(triton_lb_retries_total[5m])", []),
        ("rate(triton_lb_retries[5m])", ["no series triton_lb_retries"]),
        ('triton_lb_backend_up{backends="a"}', ["triton_lb_backend_up has no label backends"]),
        ('triton_lb_backend_state{state=~"down|dead"} == 1', ["no state is dead"]),
        ("sum by (model) (triton_lb_connections)", ["nothing here has a label model"]),
        ("1 + 1e3", ["asks for nothing"]),
    ],
)
def test_what_there_is_not_is_found(expression: str, found: list[str]) -> None:
    assert faults(expression, series_of_ours()) == found


# A real Prometheus


def prometheus_of(folder: Path, targets: list[str]) -> Path:
    """The configuration as it is shipped, for other targets and less patient."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "250ms", "evaluation_interval": "250ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = targets
    for name in config["rule_files"]:
        content = yaml.safe_load((FOLDER / name).read_text())
        for group in content["groups"]:
            for rule in group["rules"]:
                rule |= {"for": "500ms"} if "alert" in rule else {}
        (folder / name).write_text(yaml.safe_dump(content))
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


class Prometheus:
    """A running one."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        command = shutil.which("prometheus")
        assert command, "prometheus is missing: tools/setup_debian.sh"
        self.process = ChildProcess(
            (
                command,
                f"--config.file={prometheus_of(folder, targets)}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
            ),
            log=folder / "prometheus.log",
            env=ENVIRONMENT,
        )

    def ask(self, path: str) -> Any:
        """The data of an answer of its API; None while it does not answer."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            connection.request("GET", f"/api/v1/{path}")
            response = connection.getresponse()
            body = response.read()
            return json.loads(body)["data"] if response.status == 200 else None
        except ConnectionRefusedError:
            return None
        finally:
            connection.close()

    def value(self, series: str) -> float | None:
        """The value of the only series of that name."""
        found = (self.ask(f"query?query={series}") or {}).get("result", [])
        return float(found[0]["value"][1]) if len(found) == 1 else None

    def firing(self) -> dict[str, dict[str, str]]:
        """Labels of the alerts that fire, by name."""
        found = (self.ask("alerts") or {}).get("alerts", [])
        return {
            each["labels"]["alertname"]: each["labels"]
            for each in found
            if each["state"] == "firing"
        }


def simulated(folder: Path, name: str, *options: str) -> tuple[ChildProcess, Ports]:
    log = folder / f"{name}.log"
    command = (sys.executable, "-m", "lb.simulator", *options)
    process = ChildProcess(command, log=log, env=ENVIRONMENT)
    wait_until(lambda: log.read_text().endswith("\n"), timeout_s=LIMIT_S, what="the simulator")
    return process, Ports.from_json(log.read_text().splitlines()[0])


@contextmanager
def watched_pair(
    folder: Path, **settings: Any
) -> Iterator[tuple[Prometheus, list[ChildProcess], dict[str, str]]]:
    """A Prometheus, two simulated Tritons `gpu-0` and `gpu-1`, and the addresses of the balancer
    before them that it scrapes, with these settings."""
    running: list[ChildProcess] = []
    try:
        tritons = [simulated(folder, name, "--gpu", name) for name in ("gpu-0", "gpu-1")]
        running += [process for process, _ in tritons]
        backends = [
            {
                "name": f"gpu-{number}",
                "http": f"127.0.0.1:{ports.http_port}",
                "metrics": f"127.0.0.1:{ports.metrics_port}",
            }
            for number, (_, ports) in enumerate(tritons)
        ]
        listen = dict.fromkeys(("http", "metrics"), "127.0.0.1:0")
        serving = Serving(folder, {"listen": listen, "backends": backends, **settings})
        running.append(serving.process)
        addresses = serving.until_serving()
        prometheus = Prometheus(folder, [addresses["metrics"]])
        running.append(prometheus.process)
        yield prometheus, [process for process, _ in tritons], addresses
    finally:
        for process in running:
            process.close()


def test_an_alert_fires_when_a_backend_is_killed(tmp_path: Path) -> None:
    with watched_pair(tmp_path) as (prometheus, tritons, _):
        there = "job:triton_lb_eligible_backends:max"
        wait_until(lambda: prometheus.value(there) == 2, timeout_s=LIMIT_S, what="both are seen")
        assert "TritonLbBackendDown" not in prometheus.firing()
        broken = [
            rule["name"]
            for group in prometheus.ask("rules")["groups"]
            for rule in group["rules"]
            if rule["health"] == "err"
        ]
        assert broken == []
        tritons[1].signal(signal.SIGKILL)
        wait_until(
            lambda: "TritonLbBackendDown" in prometheus.firing(),
            timeout_s=LIMIT_S,
            what="the alert fires",
        )
        alert = prometheus.firing()["TritonLbBackendDown"]
        assert (alert["backend"], alert["state"]) == ("gpu-1", "down")
        assert prometheus.value(there) == 1


def int32(name: str, shape: list[int], data: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": "INT32", "shape": shape, "data": data}


def ask(address: str, model: str, inputs: Sequence[list[dict[str, Any]]]) -> list[float]:
    """Seconds that requests for a model with these inputs took, one after the other."""
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    took = []
    for each in inputs:
        body = json.dumps({"inputs": each})
        began_at = time.perf_counter()
        connection.request("POST", f"/v2/models/{model}/infer", body)
        response = connection.getresponse()
        response.read()
        took.append(time.perf_counter() - began_at)
        assert response.status == 200
    connection.close()
    return took


def test_prometheus_and_the_clients_agree_on_the_latency_of_each_model(tmp_path: Path) -> None:
    running: list[ChildProcess] = []
    try:
        process, ports = simulated(tmp_path, "gpu-0", "--speed", "0.02")
        running.append(process)
        listen = dict.fromkeys(("http", "metrics"), "127.0.0.1:0")
        backends = [{"name": "gpu-0", "http": f"127.0.0.1:{ports.http_port}"}]
        serving = Serving(tmp_path, {"listen": listen, "backends": backends})
        running.append(serving.process)
        addresses = serving.until_serving()
        prometheus = Prometheus(tmp_path, [addresses["metrics"]])
        running.append(prometheus.process)
        # All take so long that a busy processor, for which clients wait, changes little.
        rng = Random(19)
        pauses = [rng.choice((60, 70, 150)) for _ in range(97)] + [700] * 3
        first, second = (int32(name, [1, 16], [1] * 16) for name in ("INPUT0", "INPUT1"))
        inputs = {
            "sleeper": [[int32("INPUT0", [1], [pause])] for pause in pauses],
            "simple": [[first, second]] * 100,
        }
        with ThreadPoolExecutor() as clients:
            asked = {
                model: clients.submit(ask, addresses["http"], model, each)
                for model, each in inputs.items()
            }
            took = {model: times.result() for model, times in asked.items()}
        name = "triton_lb_model_request_duration_seconds"

        def value(query: str) -> float | None:
            return prometheus.value(quote(query))

        wait_until(
            lambda: value(f"sum({name}_count)") == sum(map(len, took.values())),
            timeout_s=LIMIT_S,
            what="all requests are scraped",
        )
        for model, times in took.items():
            for share in (0.5, 0.9, 0.99):
                seen = value(f'histogram_quantile({share}, {name}_bucket{{model="{model}"}})')
                of_clients = sorted(times)[math.ceil(share * len(times)) - 1]
                assert seen is not None
                buckets = [bisect_left(LATENCY_BOUNDS_S, each) for each in (seen, of_clients)]
                assert abs(buckets[0] - buckets[1]) <= 1
    finally:
        for each in running:
            each.close()


def test_every_metric_of_prometheus_and_triton_that_is_named_is_scraped() -> None:
    """Those of others are listed by hand; ours come from the catalogue."""
    named = {each.name for rule in (*RECORDS, *ALERTS) for each in selectors(rule["expr"])}
    assert "triton_lb_backend_state" in named
    assert {name for name in named if not name.startswith("triton_lb_") and ":" not in name} <= {
        "up",
        "process_cpu_seconds_total",
    }
