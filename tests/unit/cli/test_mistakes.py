"""Mistakes in arguments and in the environment: each gets one line that says where, what, and what
instead. `tests/unit/settings/test_reading.py` holds those in a configuration."""

# ruff: noqa: E501 - a case stands on one line
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from lb.cli.main import main
from tests.unit.settings.test_reading import BROKEN

ADDRESS = "expected HOST:PORT, [IPV6]:PORT or unix:PATH"
ADMIN = "expected http://HOST:PORT, HOST:PORT or unix:PATH"
DURATION = "expected a duration such as 500ms, 1s or 2m"
AT_LEAST_1 = "expected a whole number of at least 1"
TOKEN = "expected a token, one line of visible ASCII"

USAGE: Final = {
    "": "triton-lb: missing: COMMAND (see triton-lb --help)",
    "start": "triton-lb: unknown command 'start'; did you mean status? (see triton-lb --help)",
    "sevre": "triton-lb: unknown command 'sevre'; did you mean serve? (see triton-lb --help)",
    "xyz": "triton-lb: unknown command 'xyz' (see triton-lb --help)",
    "--verbose": "triton-lb: unknown option --verbose; did you mean --version? (see triton-lb --help)",
    "serve": "triton-lb serve: name a configuration FILE, or a Triton by --backend HOST:PORT (see triton-lb serve --help)",
    "serve --config a --backend b:1": "triton-lb serve: --backend: cannot be combined with -c/--config (see triton-lb serve --help)",
    "serve a --backend b:1": "triton-lb serve: --backend: cannot be combined with FILE (see triton-lb serve --help)",
    "serve -c": "triton-lb serve: -c/--config: expected a value (see triton-lb serve --help)",
    "serve a b": "triton-lb serve: one argument too many: 'b' (see triton-lb serve --help)",
    "serve a --confg b": "triton-lb serve: unknown option --confg; did you mean --config? (see triton-lb serve --help)",
    "serve --conf a": "triton-lb serve: unknown option --conf; did you mean --config? (see triton-lb serve --help)",
    "serve a -q -v": "triton-lb serve: -v/--verbose: cannot be combined with -q/--quiet (see triton-lb serve --help)",
    "check": "triton-lb check: missing: FILE (see triton-lb check --help)",
    "check a b": "triton-lb check: one argument too many: 'b' (see triton-lb check --help)",
    "check a --syntax-onyl": "triton-lb check: unknown option --syntax-onyl; did you mean --syntax-only? (see triton-lb check --help)",
    "config a --admin b:1": "triton-lb config: --admin: cannot be combined with FILE (see triton-lb config --help)",
    "demo --backends 0": f"triton-lb demo: --backends: {AT_LEAST_1}, got '0' (see triton-lb demo --help)",
    "demo --backends many": f"triton-lb demo: --backends: {AT_LEAST_1}, got 'many' (see triton-lb demo --help)",
    "simulate --count 1.5": f"triton-lb simulate: --count: {AT_LEAST_1}, got '1.5' (see triton-lb simulate --help)",
    "simulate --first-port 70000": "triton-lb simulate: --first-port: expected a port from 0 to 65535, got '70000' (see triton-lb simulate --help)",
    "simulate --speed 0": "triton-lb simulate: --speed: expected a number above 0, got '0' (see triton-lb simulate --help)",
    "simulate --speed fast": "triton-lb simulate: --speed: expected a number above 0, got 'fast' (see triton-lb simulate --help)",
    "simulate --speed nan": "triton-lb simulate: --speed: expected a number above 0, got 'nan' (see triton-lb simulate --help)",
    "generate": "triton-lb generate: missing: TARGET (see triton-lb generate --help)",
    "generate helm": "triton-lb generate: TARGET: expected compose, kubernetes or systemd, got 'helm' (see triton-lb generate --help)",
    "generate compose --gpus 0": "triton-lb generate: --gpus: expected a whole number from 1 to 1000, got '0' (see triton-lb generate --help)",
    "generate compose --cpu 1001": "triton-lb generate: --cpu: expected a whole number from 1 to 1000, got '1001' (see triton-lb generate --help)",
    "generate compose --gpus 1 --cpu 1": "triton-lb generate: --cpu: cannot be combined with --gpus (see triton-lb generate --help)",
    "generate compose --server vllm": "triton-lb generate: --server: expected triton or tfserving, got 'vllm' (see triton-lb generate --help)",
    "set detector canary": "triton-lb set: VARIANT=PERCENT: expected one such as canary=20, 0 to 100, got 'canary' (see triton-lb set --help)",
    "set detector canary=120": "triton-lb set: VARIANT=PERCENT: expected one such as canary=20, 0 to 100, got 'canary=120' (see triton-lb set --help)",
    "promote detector": "triton-lb promote: missing: VARIANT (see triton-lb promote --help)",
    "models": "triton-lb models: missing: NAME (see triton-lb models --help)",
    "status gpu-0": "triton-lb status: one argument too many: 'gpu-0' (see triton-lb status --help)",
    "top --jason": "triton-lb top: unknown option --jason; did you mean --json? (see triton-lb top --help)",
    "drain": "triton-lb drain: missing: NAME (see triton-lb drain --help)",
    "drain a --limit soon": f"triton-lb drain: --limit: {DURATION}, got 'soon' (see triton-lb drain --help)",
    "drain a --wait 30s": "triton-lb drain: one argument too many: '30s' (see triton-lb drain --help)",
    "drain a --model m --limit 1s": "triton-lb drain: --limit cuts all of a backend: not with --model (see triton-lb drain --help)",
    "enable a --limit 1s": "triton-lb enable: unknown option --limit (see triton-lb enable --help)",
    "add": "triton-lb add: missing: HOST:PORT|NAME (see triton-lb add --help)",
    "add a:1 --weight 0": "triton-lb add: --weight: expected a number above 0, got '0' (see triton-lb add --help)",
    "add a:1 --kind tritn": "triton-lb add: --kind: expected triton, kserve, tfserving or generic, got 'tritn' (see triton-lb add --help)",
    "add a:1 --max-requests -1": "triton-lb add: --max-requests: expected a whole number of at least 0, got '-1' (see triton-lb add --help)",
    "add a:1 --wait 1min": f"triton-lb add: --wait: {DURATION}, got '1min' (see triton-lb add --help)",
    "reload --force": "triton-lb reload: unknown option --force (see triton-lb reload --help)",
    "completion tcsh": "triton-lb completion: SHELL: expected bash, zsh or fish, got 'tcsh' (see triton-lb completion --help)",
}  # fmt: skip
"""Arguments that cannot be understood."""

FAILURES: Final = {
    "serve --backend http://gpu-1:8000": f"triton-lb: --backend http://gpu-1:8000: drop http://: {ADDRESS}, got 'http://gpu-1:8000'",
    "serve --backend gpu-1": f"triton-lb: --backend gpu-1: {ADDRESS}, got 'gpu-1'",
    "serve --backend gpu-1:8000/v2": f"triton-lb: --backend gpu-1:8000/v2: drop the path: {ADDRESS}, got 'gpu-1:8000/v2'",
    "serve --backend gpu-1:99999": "triton-lb: --backend gpu-1:99999: port must be 0 to 65535, got '99999'",
    "serve --backend gpu-1:65534": "triton-lb: --backend gpu-1:65534 (metrics): port must be 0 to 65535, got '65536'",
    "serve --backend a:1 --backend a:1": "triton-lb: --backend a:1: given twice",
    "serve --backend 127.0.0.1:8000": "triton-lb: --backend 127.0.0.1:8000: 127.0.0.1:8000 is our own listener --http",
    "serve --backend a:1 --http 8000": f"triton-lb: --http: {ADDRESS}, got '8000'",
    "serve --backend a:1 --grpc=": f"triton-lb: --grpc: {ADDRESS}, got ''",
    "serve --backend a:1 --http 127.0.0.1:8002": "triton-lb: --metrics: 127.0.0.1:8002 is already taken by --http",
    "serve --backend a:1 --admin 0.0.0.0:8003": "triton-lb: --admin: 0.0.0.0:8003 can be reached from elsewhere: needs an access.tokens entry with the role read or operate, or admin.insecure",
    "serve /none.yaml": "/none.yaml: cannot be read: No such file or directory",
    "serve /": "/: cannot be read: it is a directory, not a regular file",
    "config /none.yaml": "/none.yaml: cannot be read: No such file or directory",
    "simulate --first-port 65534": "triton-lb simulate: there is no port 65536; choose others by --first-port",
    "generate kubernetes --up": "triton-lb: --up is for compose, without --check",
    "generate compose --cpu 1 --http 8000": f"triton-lb: --http: {ADDRESS}, got '8000'",
    "generate compose --cpu 1 --grpc 0.0.0.0:8000": "triton-lb: --grpc: port 8000 is taken by another listener",
    "generate compose --gpus 2 --devices 9": "triton-lb: --devices: there is no device '9'; there are: 0, 1",
    "generate compose --gpus 1 --mig 7g": "triton-lb: --mig: expected PROFILE=COUNT, such as 1g.5gb=7, got '7g'",
    "generate compose --gpus 1 --mig big=1": "triton-lb: expected a MIG profile such as 1g.5gb, got 'big'",
    "generate compose --gpus 1 --mig 1g.5gb=9": "triton-lb: --mig: 1g.5gb=9 is more than one GPU has",
    "generate compose --from /none": "triton-lb: --from /none: No such file or directory",
    "generate compose --cpu 1 --first-port 32766": "triton-lb: --first-port: no room for 1 servers from 32766 to 32767; choose a lower port",
    "generate kubernetes --cpu 1 --prometheus": "triton-lb: --prometheus and --grafana are for compose",
    "generate kubernetes --cpu 1 --shared-memory": "triton-lb: --shared-memory is for one machine: compose or systemd",
    "generate systemd --cpu 1 --models models": "triton-lb: --models: systemd needs an absolute path such as /srv/models, got 'models'",
    "status --admin https://lb:8003": f"triton-lb: --admin: {ADMIN}, got 'https://lb:8003'",
    "status --admin lb": f"triton-lb: --admin: {ADMIN}, got 'lb'",
    "drain a --admin lb:port": f"triton-lb: --admin: {ADMIN}, got 'lb:port'",
    "status --token-file /none": "triton-lb: --token-file /none: No such file or directory",
}  # fmt: skip
"""Arguments that can be understood, and that cannot be."""

ENVIRONMENT: Final[dict[str, tuple[str, dict[str, str], str]]] = {
    "admin address with TLS": ("status", {"TRITON_LB_ADMIN": "https://lb:8003"}, f"triton-lb: TRITON_LB_ADMIN: {ADMIN}, got 'https://lb:8003'"),
    "admin address without a port": ("backends", {"TRITON_LB_ADMIN": "lb"}, f"triton-lb: TRITON_LB_ADMIN: {ADMIN}, got 'lb'"),
    "token of two lines": ("status", {"TRITON_LB_ADMIN_TOKEN": "a\nb"}, f"triton-lb: TRITON_LB_ADMIN_TOKEN: {TOKEN}"),
    "token of other characters": ("status", {"TRITON_LB_ADMIN_TOKEN": "geheimnüs"}, f"triton-lb: TRITON_LB_ADMIN_TOKEN: {TOKEN}"),
    "variable that is not set": ("serve FILE", {}, "FILE:2: backends[0].http: environment variable GPU is not set"),
    "variable with a scheme": ("serve FILE", {"GPU": "http://gpu-1:8000"}, f"FILE:2: backends[0].http: drop http://: {ADDRESS}, got '${{GPU}}'"),
    "variable without a port": ("serve FILE", {"GPU": "gpu-1"}, f"FILE:2: backends[0].http: {ADDRESS}, got '${{GPU}}'"),
    "level that is none": ("serve FILE", {"GPU": "a:1", "LEVEL": "loud"}, "FILE:3: log.level: expected 'debug', 'info', 'warning' or 'error', got '${LEVEL:-info}'"),
    "port of a platform": ("serve FILE", {"GPU": "a:1", "SAGEMAKER_BIND_TO_PORT": "http"}, "FILE:4: fronts.sagemaker.address: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got '0.0.0.0:${SAGEMAKER_BIND_TO_PORT}'"),
}  # fmt: skip
"""Command, environment, and line; FILE is the file below."""
FILE = """\
listen: {http: '127.0.0.1:0'}
backends: [{http: '${GPU}'}]
log: {level: '${LEVEL:-info}'}
fronts: {sagemaker: {enabled: true}}
"""


def outcome(command: str, capsys: pytest.CaptureFixture[str], code: int) -> str:
    """The only line of a command, which ends with an exit code."""
    try:
        found: object = main(command.split())
    except SystemExit as ended:
        found = ended.code
    assert found == code
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRITON_LB_ADMIN", "TRITON_LB_ADMIN_TOKEN", "GPU", "LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("command", "line"), USAGE.items())
def test_arguments_that_cannot_be_understood(
    command: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(command, capsys, 2) == line


@pytest.mark.parametrize(("command", "line"), FAILURES.items())
def test_arguments_that_cannot_be(
    command: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(command, capsys, 1) == line


@pytest.mark.parametrize(
    ("command", "environment", "line"), ENVIRONMENT.values(), ids=list(ENVIRONMENT)
)
def test_variables_of_the_environment(
    command: str,
    environment: Mapping[str, str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = tmp_path / "lb.yaml"
    file.write_text(FILE)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    expected = line.replace("FILE", str(file))
    assert outcome(command.replace("FILE", str(file)), capsys, 1) == expected


def test_the_corpus_is_large() -> None:
    assert len(USAGE) + len(FAILURES) + len(ENVIRONMENT) >= 80
    assert len(BROKEN) >= 80
