"""The JSON schema, as an editor uses it: what it accepts and what it marks."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from ruamel.yaml import YAML, YAMLError

from lb.settings.json_schema import json_schema
from tests.unit.settings.test_reading import BROKEN, GOOD

ROOT = Path(__file__).parents[3]
FILES = [
    *ROOT.glob("config/*.yaml"),
    *ROOT.glob("deploy/*/*/triton-lb/triton-lb.yaml"),
    ROOT / "deploy/kubernetes/base/triton-lb.yaml",
    ROOT / "deploy/sidecar/triton-lb.yaml",
]
VALIDATOR = Draft7Validator(json_schema())

UNSEEN = {
    "variants without weights",
    "variant with variants",
    "two variants of one name",
    "two variants of one model",
    "variant on an unknown backend",
    "sticky by tenants that are none",
    "ramp of a single variant",
    "ramp down",
    "rollback without variants",
    "no backends",
    "empty list of backends",
    "backend without address",
    "two backends of one name",
    "one backend twice, without names",
    "two listeners at one address",
    "listener at a backend's address",
    "line longer than the head",
    "window larger than HTTP/2 knows",
    "window larger than it may grow",
    "memory less than one window",
    "sample that is no number",
    "variable that is not set",
    "file that is not there",
    "half of a character",
    "HTTPS without TLS",
    "admin API open to all",
    "PROXY protocol from anyone",
    "network with bits beyond its length",
    "duration beyond a year",
    "two tokens of one name",
    "limit by token without tokens",
    "default that is no level",
}
"""Mistakes that no schema can see: rules between settings, bounds of texts with units, bits of
networks, `.nan` (a number to YAML), and what is known only where the process runs."""


def parsed(text: str) -> Any:
    """The text as an editor reads it, by YAML 1.2."""
    return YAML(typ="safe", pure=True).load(StringIO(text))


def mistakes(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(parsed(text))]


def test_it_is_a_schema() -> None:
    Draft7Validator.check_schema(json_schema())


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_the_files_of_this_repository_are_accepted(path: Path) -> None:
    assert mistakes(path.read_text()) == []


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in UNSEEN])
def test_mistakes_are_marked(name: str) -> None:
    text, _ = BROKEN[name]
    try:
        found = mistakes(text)
    except YAMLError:
        return  # an editor marks it without a schema
    assert found


@pytest.mark.parametrize("name", sorted(UNSEEN))
def test_what_is_called_unseen_is_unseen(name: str) -> None:
    text, _ = BROKEN[name]
    assert mistakes(text) == []


@pytest.mark.parametrize(
    "more",
    [
        "timeouts: {connect: 500ms, head: 1.5, attempt: 0s, request: 2m}",
        "limits: {head_bytes: 64KiB, body_bytes: 0, memory_bytes: 1GiB}",
        "retry: {attempts: '${ATTEMPTS}', budget: '${BUDGET:-0.2}'}",
        "balancing: {policy: '${POLICY}'}",
        "metrics: {backends: '${SHOWN}'}",
        "health: {expected_status: [200, '${STATUS}']}",
        "health:\nlog: {level: }",
        "scheduling: {max_requests_per_backend: 4, weights: [4, 1], shares: {a: 2}}",
        "models: {m: {max_requests_per_backend: off, attempt_timeout: 2s}}",
        "forwarded: off",
    ],
)
def test_whatever_a_file_may_hold_is_accepted(more: str) -> None:
    assert mistakes(GOOD + more) == []


@pytest.mark.parametrize(
    "backend",
    [
        "{http: 'unix:/run/a', shared_memory: true}",
        "{http: '[::1]:8000', grpc: 'host_1:8001', weight: 0.5}",
        "{http: '${HOST}:8000', headers: {authorization: 'Bearer ${file:/run/token}'}}",
        "{http: 'a:65535', tls: {ports: [grpc]}, health: {interval: 1}}",
    ],
)
def test_backends_are_accepted_as_they_are_written(backend: str) -> None:
    assert mistakes(f"listen: {{http: '127.0.0.1:0'}}\nbackends: [{backend}]") == []


@pytest.mark.parametrize(
    "more",
    [
        "timeouts: {connect: 0}",
        "timeouts: {connect: 0ms}",
        "timeouts: {connect: 1 s}",
        "limits: {head_bytes: 1}",
        "limits: {head_bytes: 1.5KiB}",
        "discovery: {dns: [{host: a, http_port: 8000, servers: ['10.0.0.2:0']}]}",
        "discovery: {kubernetes: [{service: t, http_port: HTTP}]}",
        "access: {limits: [{by: cookie}]}",
        "listen: {http: {address: 'a:1', tls: {certificates: []}}}",
        "listen: {http: '127.0.0.1:65536'}",
        "scheduling: {max_requests_per_backend: many}",
    ],
)
def test_values_that_cannot_be_are_marked(more: str) -> None:
    text = GOOD if not more.startswith("listen") else GOOD.split("\n", 1)[1]
    assert mistakes(text + more)


def test_an_editor_shows_what_a_setting_does_and_its_default() -> None:
    drain = json_schema()["$defs"]["ShutdownSettings"]["properties"]["drain"]
    assert drain["default"] == "20s"
    assert "Set this when" in drain["description"]
    assert "500ms" in drain["anyOf"][0]["examples"]
