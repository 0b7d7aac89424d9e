"""`triton-lb check`: OK and 0, or every problem and 1."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from lb.cli.check import check


def test_a_good_file_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lb.yaml"
    file.write_text("listen: {http: '127.0.0.1:0'}\nbackends: [{http: 'a:1'}]\n")
    assert check(str(file)) == 0
    assert capsys.readouterr() == (f"OK: {file}\n", "")


def test_every_problem_of_a_bad_file_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lb.yaml"
    file.write_text("listen:\n  http: x\nbackends:\n  - weight: 0\n")
    assert check(str(file)) == 1
    assert capsys.readouterr() == (
        f"{file}:2: listen.http: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 'x'\n"
        f"{file}:4: backends[0].weight: expected more than 0, got 0\n"
        f"{file}:4: backends[0]: at least one of http and grpc is needed\n",
        "",
    )


def test_files_with_backends_are_checked_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, good, bad = (tmp_path / name for name in ("lb.yaml", "good.yaml", "bad.json"))
    good.write_text("- http: a:1\n")
    bad.write_text('[{"http": "127.0.0.1:1"},\n {"name": "x"}]')
    config = "listen: {http: '127.0.0.1:1'}\ndiscovery: {files: [%s]}\n"
    file.write_text(config % good)
    assert check(str(file)) == 0
    file.write_text(config % f"{good}, {bad}, /none")
    assert check(str(file)) == 1
    assert check(str(file), syntax_only=True) == 0
    *told, last = capsys.readouterr().out.splitlines()
    assert last == f"OK: {file}"
    assert told == [
        f"OK: {file}",
        f"{bad}:1: backends[0].http: 127.0.0.1:1 is our own listener listen.http",
        f"{bad}:2: backends[1]: at least one of http and grpc is needed",
        "/none: cannot be read: No such file or directory",
    ]


def test_two_backends_at_one_address_are_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, more = tmp_path / "lb.yaml", tmp_path / "more.yaml"
    more.write_text("- {name: c, grpc: 'A:1', kind: generic}\n")
    file.write_text(
        "listen: {http: '127.0.0.1:0'}\n"
        "backends: [{name: a, http: 'a:1'}, {name: b, http: 'a:1', tls: {}}]\n"
        f"discovery: {{files: [{more}]}}\n"
    )
    assert check(str(file)) == 0
    text = "have the same address: that server gets the load of both; drop one"
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: warning: backends: 'a' and 'b' {text}",
        f"{file}: warning: backends: 'a' and 'c' {text}",
        f"OK: {file}",
    ]


def test_values_of_the_environment_are_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2hunter2")
    file, more = tmp_path / "lb.yaml", tmp_path / "more.yaml"
    more.write_text("- {http: 'a:1', weight: '${TOKEN}'}\n")
    file.write_text(
        "listen: {http: '127.0.0.1:0'}\nbackends: [{http: 'b:1'}]\n"
        f"discovery: {{files: [{more}]}}\n"
    )
    assert check(str(file)) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{more}:1: backends[0].weight: ")
    assert "hunter2" not in out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "cannot be read: it is not UTF-8 text"),
        (b"[", "1: not valid YAML: "),
        (b"- {http: 'a:1', weight: x}", "1: backends[0].weight: expected a number, got 'x'"),
    ],
)
def test_files_are_named_as_the_configuration_names_them(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: bytes | None,
    problem: str,
) -> None:
    monkeypatch.setenv("SECRET", "hunter2hunter2")
    if text is not None:
        (tmp_path / "hunter2hunter2.yaml").write_bytes(text)
    file = tmp_path / "lb.yaml"
    file.write_text(
        f"listen: {{http: '127.0.0.1:0'}}\ndiscovery: {{files: ['{tmp_path}/${{SECRET}}.yaml']}}\n"
    )
    assert check(str(file)) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"{tmp_path}/${{SECRET}}.yaml:")
    assert problem in out
    assert "hunter2" not in out


def test_files_that_it_names_are_opened_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, good = tmp_path / "lb.yaml", tmp_path / "good.token"
    good.write_text("0123456789abcdef\n")
    file.write_text(
        "listen: {https: {address: '127.0.0.1:0', tls: {client_ca: /no.ca, "
        "certificates: [{certificate: /no.crt, key: /no.key}]}}}\n"
        f"backends: [{{name: a, http: 'a:1', tls: {{ca: {file}, certificate: /c, key: /k}}}}]\n"
        "access: {tokens: [{name: t, file: /none}, {name: u, file: %s}]}\n" % good
    )
    assert check(str(file)) == 1
    missing = "No such file or directory"
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: listen.https.tls.certificates[0]: cannot read /no.crt: {missing}",
        f"{file}: listen.https.tls.client_ca: cannot read /no.ca: {missing}",
        f"{file}: backends[a].tls.ca: {file} holds no certificates of authorities",
        f"{file}: backends[a].tls.certificate: cannot read /c: {missing}",
        f"{file}: access.tokens[t].file: tokens of /none: {missing}",
    ]
    assert check(str(file), syntax_only=True) == 0
    assert capsys.readouterr().out == f"OK: {file}\n"


def test_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("listen: {http: '127.0.0.1:0'}\n"))
    assert check("-") == 1
    assert capsys.readouterr().out.startswith("<stdin>: backends: is required")


LISTEN = "listen: {http: '127.0.0.1:0'}\n"
A = "{name: a, http: 'a:1'}"
WARNINGS = {
    "listener without a backend": (
        f"listen: {{http: '127.0.0.1:0', grpc: '127.0.0.1:0'}}\nbackends: [{A}]\n",
        "listen.grpc: no backend has grpc: give one that address, or drop the listener",
    ),
    "HTTP and gRPC on different hosts": (
        LISTEN + "backends: [{name: a, http: 'a:1', grpc: 'b:1'}]\n",
        "backends[a]: HTTP is on a, and gRPC on b: write two backends, or correct one address",
    ),
    "weights of scheduled models": (
        LISTEN + f"backends: [{A}, {{name: b, http: 'b:1', weight: 2}}]\n",
        "backends[b].weight: counts only for models that are not scheduled; scheduled ones go by "
        "measured speed (balancing.policy: least_requests goes by weights)",
    ),
    "pinned models without placement": (
        LISTEN + f"backends: [{A}]\nmodels: {{m: {{pin: true}}}}\n",
        "models.m.pin: has no effect without placement.mode: on_demand",
    ),
    "more pinned models than fit": (
        LISTEN + f"backends: [{A}, {{http: 'b:1', kind: kserve}}]\n"
        "placement: {mode: on_demand, max_models: 1}\nmodels: {m: {pin: true}}\n",
        "placement.max_models: 1 copies of models are pinned, and all backends have room for 1: "
        "no other model can be loaded",
    ),
    "more copies than Tritons": (
        LISTEN + f"backends: [{A}]\n"
        "placement: {mode: on_demand, max_models: 3}\nmodels: {m: {min_copies: 2}}\n",
        "models.m.min_copies: is 2, and there are 1 Tritons",
    ),
    "copies without placement": (
        LISTEN + f"backends: [{A}]\nmodels: {{m: {{min_copies: 1}}}}\n",
        "models.m.min_copies: has no effect without placement.mode: on_demand",
    ),
    "more pinned memory than there is": (
        LISTEN + f"backends: [{A}]\nplacement: {{mode: on_demand, memory: 3GiB}}\n"
        "models: {m: {pin: true, size: 2GiB}, n: {pin: true, size: 1GiB}}\n",
        "placement.memory: models that are pinned take 3GiB, and all backends have room for 3GiB: "
        "no other model can be loaded",
    ),
    "a model that never fits": (
        LISTEN + f"backends: [{A}]\nplacement: {{mode: on_demand, memory: 3GiB}}\n"
        "models: {m: {size: 4GiB}}\n",
        "models.m.size: is more than placement.memory: it never fits",
    ),
    "memory that nobody tells": (
        LISTEN + f"backends: [{A}]\nplacement: {{mode: on_demand, memory: 3GiB}}\n",
        "placement.memory: no model has a size, and backend a has no metrics port: nothing tells "
        "how much memory its models take",
    ),
    "requests that give up before a model may be evicted": (
        LISTEN + f"backends: [{A}]\nplacement: {{mode: observe, max_models: 1, wait: 30s}}\n",
        "placement.wait: is not longer than min_age and a load: where all models are young, "
        "requests give up before one may be evicted",
    ),
    "limits that each worker counts alone": (
        LISTEN + f"backends: [{A}]\nworkers: 2\nlimits: {{max_connections_per_client: 10}}\n",
        "limits.max_connections_per_client: counts in each worker alone, so that all together may "
        "let through `workers` times this",
    ),
    "weights that are all the same": (
        LISTEN + "balancing: {policy: round_robin}\n"
        "backends: [{name: a, http: 'a:1', weight: 2}, {name: b, http: 'b:1', weight: 2}]\n",
        "backends: all have the weight 2, which is as good as none",
    ),
}


@pytest.mark.parametrize(("text", "warning"), WARNINGS.values(), ids=list(WARNINGS))
def test_what_nearly_nobody_means_is_a_warning(
    text: str, warning: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lb.yaml"
    file.write_text(text)
    assert check(str(file)) == 0
    assert capsys.readouterr().out == f"{file}: warning: {warning}\nOK: {file}\n"
    assert check(str(file), quiet=True) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "text",
    [
        "listen: {grpc: '127.0.0.1:0'}\ndiscovery: {dns: [{host: a, grpc_port: 1}]}\n",
        LISTEN + "backends: [{http: 'localhost:1', grpc: '127.0.0.1:2'}]\n",
        LISTEN + "balancing: {policy: round_robin}\n"
        f"backends: [{A}, {{name: b, http: 'b:1', weight: 2}}]\n",
        LISTEN + "scheduling: {max_requests_per_backend: off}\n"
        f"backends: [{A}, {{name: b, http: 'b:1', weight: 2}}]\n",
    ],
)
def test_what_may_be_meant_is_no_warning(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lb.yaml"
    file.write_text(text)
    assert check(str(file)) == 0
    assert capsys.readouterr().out == f"OK: {file}\n"


def test_files_that_cannot_be_written_are_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, fifo, missing = (tmp_path / name for name in ("lb.yaml", "fifo", "none/log"))
    os.mkfifo(fifo)
    config = (
        "listen: {http: '127.0.0.1:0'}\nbackends: [{http: 'a:1'}]\nstate: %s\n"
        "access_log: {path: %s}\npayload_log: {path: %s, models: {m: 1}}\n"
    )
    good = tmp_path / "good"
    file.write_text(config % (good, good, good))
    assert check(str(file)) == 0
    assert not good.exists()
    file.write_text(config % (fifo, missing, fifo))
    assert check(str(file), syntax_only=True) == 0
    capsys.readouterr()
    assert check(str(file)) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: access_log.path: {missing}: No such file or directory",
        f"{file}: payload_log.path: {fifo}: it is a FIFO that nobody reads, or a socket",
        f"{file}: state: {fifo}: it is a FIFO or pipe, not a regular file",
    ]
