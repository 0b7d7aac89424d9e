"""The commands of the admin API against canned answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from lb.admin.live import LiveView
from lb.admin.models import (
    Latency,
    Load,
    ModelBackend,
    ModelQueue,
    Queue,
    Source,
    Sources,
    Variant,
    VariantSet,
    VariantSets,
)
from lb.cli import admin_client
from lb.cli.admin import (
    change_backend,
    change_model,
    list_backends,
    list_models,
    list_sources,
    list_variants,
    promote,
    reload_configuration,
    set_shares,
    show_queue,
    show_status,
    upgrade_process,
)
from lb.cli.admin_client import TOKEN_VARIABLE, AdminError, AdminTarget, find_token
from tests.fakes import views
from tests.fakes.live import FakeClock, live_sources, read_live
from tests.fakes.pool import make_pool
from tests.fakes.views import backend


@contextmanager
def _serving(answer: Callable[[BaseHTTPRequestHandler], bytes], status: int = 200) -> Iterator[str]:
    """A server whose answers have the body that `answer` gives; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer(self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """A server with one answer for everything; yields its address and what it was asked."""
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> bytes:
        asked.append(f"{request.command} {request.path}")
        asked.extend(request.headers.get_all("Authorization", []))
        return body

    with _serving(answer, status) as address:
        yield address, asked


@contextmanager
def answering_paths(answers: dict[str, Any]) -> Iterator[str]:
    """A server with a JSON answer for each path; yields its address."""
    with _serving(lambda request: json.dumps(answers[request.path]).encode()) as address:
        yield address


def test_backends_are_listed_as_an_aligned_table(capsys: pytest.CaptureFixture[str]) -> None:
    slow = {"p50_ms": 12.34, "p99_ms": 1234.5}
    backends = [
        backend("gpu-0", since_s=90061.0, in_flight=12, served=123456, latency=slow),
        backend("b", state="down", since_s=65.0, why="grpc: connection refused"),
    ]
    with answering(json.dumps({"backends": backends}).encode()) as (address, asked):
        assert list_backends(AdminTarget(f"http://{address}/")) == 0
    assert asked == ["GET /api/v1/backends"]
    assert capsys.readouterr().out.splitlines() == [
        "NAME   STATE  SINCE  IN FLIGHT  SERVED     P50   P99  WHY",
        "gpu-0  up     1d01h         12  123456  12.3ms  1.2s",
        "b      down   1m05s          0       0       -     -  grpc: connection refused",
    ]


def load(*devices: dict[str, Any]) -> dict[str, Any]:
    named = [{"id": f"GPU-{at}", **each} for at, each in enumerate(devices)]
    return Load.model_validate(
        {"age_s": 1.0, "pending": 0.0, "others": None, "devices": named}
    ).model_dump()


def test_gpus_are_shown_where_backends_tell_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = {"utilization": 0.35, "memory_used_bytes": 2**30, "memory_total_bytes": 16 * 2**30}
    mig = {"utilization": None, "memory_used_bytes": None, "memory_total_bytes": None}
    backends = [
        backend("a", load=load(gpu, {**gpu, "utilization": 0.45})),
        backend("b", load=load(mig), why="operator"),
        backend("c"),
    ]
    with answering(json.dumps({"backends": backends}).encode()) as (address, _):
        assert list_backends(AdminTarget(address)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME  STATE  SINCE  IN FLIGHT  SERVED  P50  P99  GPU   GPU MEMORY  WHY",
        "a     up      5.9s          0       0    -    -  40%  2.0/32.0GiB",
        "b     up      5.9s          0       0    -    -    -            -  operator",
        "c     up      5.9s          0       0    -    -    -            -",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.2, "200ms"),
        (5.04, "5.0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (7620, "2h07m"),
        (86400, "1d00h"),
    ],
)
def test_durations_have_two_units(
    seconds: float, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"backends": [backend("a", since_s=seconds)]}).encode()
    with answering(body) as (address, _):
        assert list_backends(AdminTarget(address)) == 0
    assert shown in capsys.readouterr().out.split()


@pytest.mark.parametrize("action", ["drain", "enable", "disable"])
def test_a_change_says_what_became_of_the_backend(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps(backend("a/b", state="draining", in_flight=3)).encode()
    with answering(body) as (address, asked):
        assert change_backend(AdminTarget(address), "a/b", action) == 0
    assert asked == [f"POST /api/v1/backends/a%2Fb/{action}"]
    assert capsys.readouterr().out == "a/b: draining, 3 in flight\n"


def drained(**facts: Any) -> bytes:
    answer = {"backend": "a", "model": "m/1", "draining": True, "in_flight": 3, "empty": False}
    return json.dumps(answer | {"open_sequences": 2} | facts).encode()


@pytest.mark.parametrize(
    ("action", "is_draining", "shown"), [("drain", True, "draining"), ("enable", False, "enabled")]
)
def test_a_change_of_one_model_says_what_of_it_runs(
    action: str, is_draining: bool, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(drained(draining=is_draining)) as (address, asked):
        assert change_model(AdminTarget(address), "a", "m/1", action) == 0
    assert asked == [f"POST /api/v1/backends/a/models/m%2F1/{action}"]
    expected = f"a, model m/1: {shown}, 3 in flight, 2 sequences open\n"
    assert capsys.readouterr().out == expected


def test_a_drain_of_one_model_may_be_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/api/v1/backends/a/models/m"
    empty = json.loads(drained(model="m", in_flight=0, open_sequences=0, empty=True))
    answers = {f"{path}/drain": json.loads(drained(model="m")), path: empty}
    with answering_paths(answers) as address:
        assert change_model(AdminTarget(address), "a", "m", "drain", wait=True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a, model m: drained"


def test_a_drain_of_one_model_that_another_operator_ends_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = "/api/v1/backends/a/models/m"
    answers = {f"{path}/drain": json.loads(drained()), path: json.loads(drained(draining=False))}
    with answering_paths(answers) as address:
        assert change_model(AdminTarget(address), "a", "m", "drain", wait=True) == 1
    assert "enabled again" in capsys.readouterr().err


def test_a_drain_says_which_sequences_still_run(capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps(backend("a", state="draining", in_flight=3, open_sequences=2)).encode()
    with answering(body) as (address, _):
        assert change_backend(AdminTarget(address), "a", "drain") == 0
    assert capsys.readouterr().out == "a: draining, 3 in flight, 2 sequences open\n"


def test_an_error_of_the_api_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b'{"error": "there is no backend \'x\'"}', 404) as (address, _):
        assert change_backend(AdminTarget(address), "x", "drain") == 1
    assert capsys.readouterr() == ("", "triton-lb: there is no backend 'x'\n")


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[]", b"7", b'{"backends": [{}]}', b'{"backends": 7}', b"[" * 100_000],
    ids=lambda body: body[:16].decode(),
)
def test_what_is_not_the_admin_api_is_said_so(
    body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(body) as (address, _):
        assert list_backends(AdminTarget(address)) == 1
        assert change_backend(AdminTarget(address), "a", "drain") == 1
    line = f"triton-lb: what answers at {address} is not the admin API of triton-lb\n"
    assert capsys.readouterr() == ("", line + line)


@pytest.mark.parametrize(("verdict", "code"), [("good", 0), ("degraded", 1), ("bad", 1)])
def test_a_degraded_pool_may_be_a_failure(
    verdict: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock(111.0)
    document: dict[str, Any] = dict(read_live(LiveView(live_sources(make_pool()), clock)))
    document["summary"] |= {"verdict": verdict, "why": "gpu-2 is down."}
    answers = {"/api/v1/status": views.status(up=1, b="down"), "/api/v1/live": document}
    with answering_paths(answers) as address:
        assert show_status(AdminTarget(address)) == 0
        assert show_status(AdminTarget(address), fail_if_degraded=True) == code
    first, *rest = capsys.readouterr().out.splitlines()
    assert rest == [first, f"{verdict}: gpu-2 is down."]


def test_an_api_that_does_not_run_is_one_line(
    unused_tcp_port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list_backends(AdminTarget(f"http://127.0.0.1:{unused_tcp_port}")) == 1
    assert list_backends(AdminTarget(f"unix:{tmp_path}/none.sock")) == 1
    lines = capsys.readouterr().err.splitlines()
    hint = "; is triton-lb running there? --admin or TRITON_LB_ADMIN names another address"
    address = f"http://127.0.0.1:{unused_tcp_port}"
    assert lines == [
        f"triton-lb: cannot reach the admin API at {address}: Connection refused{hint}",
        f"triton-lb: cannot reach the admin API at unix:{tmp_path}/none.sock: "
        f"No such file or directory{hint}",
    ]


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """A server that says this to one client, whatever it asks. Yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_an_api_that_goes_before_it_answers_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with saying(b"") as address:
        assert list_backends(AdminTarget(f"http://{address}")) == 1
    assert capsys.readouterr().err == (
        f"triton-lb: the admin API at http://{address} gave no answer: "
        "Remote end closed connection without response; "
        "what was asked for may have been done, or go on\n"
    )


def test_a_bad_address_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_backends(AdminTarget("https://lb.example")) == 1
    assert capsys.readouterr().err.startswith("triton-lb: --admin: ")


def test_a_port_that_speaks_something_else_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    with saying(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        assert list_backends(AdminTarget(address)) == 1
    assert "is not the admin API" in capsys.readouterr().err


# Tokens


def test_the_token_is_sent_and_comes_from_file_or_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\nignored\n")
    assert find_token(str(path), {TOKEN_VARIABLE: "other"}) == "0123456789abcdef"
    assert find_token(None, {TOKEN_VARIABLE: "other\n"}) == "other"
    assert find_token(None, {}) == ""
    with answering(json.dumps({"backends": []}).encode()) as (address, asked):
        assert list_backends(AdminTarget(address, "0123456789abcdef")) == 0
    assert asked == ["GET /api/v1/backends", "Bearer 0123456789abcdef"]


def test_what_is_no_token_is_not_sent(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("")
    binary.write_bytes(b"\xff")
    for path in (empty, binary, tmp_path / "none", tmp_path):
        with pytest.raises(AdminError, match="--token-file"):
            find_token(str(path), {})
    with pytest.raises(AdminError, match=TOKEN_VARIABLE):
        find_token(None, {TOKEN_VARIABLE: "a\r\nX-Evil: b"})


def test_a_token_that_is_wanted_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b'{"error": "no"}', 401) as (address, _):
        assert list_backends(AdminTarget(address)) == 1
    assert "--token-file FILE or TRITON_LB_ADMIN_TOKEN" in capsys.readouterr().err
    assert "secret" not in repr(AdminTarget("a", "secret"))


# Models


def models(**changed: Any) -> bytes:
    table = [
        {"name": "simple", "version": "1", "state": "ready", "reason": ""},
        {"name": "other", "version": "", "state": "unavailable", "reason": "unloaded"},
    ]
    return json.dumps(views.models(**{"models": table, **changed})).encode()


def test_models_are_listed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(models()) as (address, asked):
        assert list_models(AdminTarget(address), "gpu 0") == 0
    assert asked == ["GET /api/v1/backends/gpu%200/models"]
    assert capsys.readouterr().out.splitlines() == [
        "MODEL   VERSION  STATE        REASON",
        "simple  1        ready",
        "other            unavailable  unloaded",
    ]


def test_names_of_backends_are_harmless_to_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    line = {"name": "a\x1b[2J", "version": "1", "state": "ready", "reason": "x\ny"}
    with answering(models(models=[line])) as (address, _):
        assert list_models(AdminTarget(address), "gpu-0") == 0
    assert capsys.readouterr().out.splitlines()[1] == r"a\x1b[2J  1        ready  x\ny"


def test_drift_is_said_below(capsys: pytest.CaptureFixture[str]) -> None:
    drift = {"models": ["a", "b"], "configurations": ["c", "d"], "settings": ["log_info"]}
    with answering(models(drift=drift)) as (address, _):
        assert list_models(AdminTarget(address), "gpu-0") == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "not ready here, but on another backend: a, b",
        "not configured as on most backends: c, d",
        "settings that differ from most backends: log_info",
    ]


@pytest.mark.parametrize(
    ("listed", "said"),
    [(None, "gpu-0 has not listed its models yet"), (False, "gpu-0 does not list its models")],
)
def test_a_backend_without_a_list_says_so(
    listed: bool | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(models(listed=listed, models=[])) as (address, _):
        assert list_models(AdminTarget(address), "gpu-0") == 0
    assert capsys.readouterr().out.splitlines() == [said]


# Queue, sources, status


QUEUE = Queue(
    without_backend=2,
    models=[
        ModelQueue(
            model="bert",
            version="1",
            waiting={"1": 1, "2": 3},
            oldest_ms=123.45,
            backends=[
                ModelBackend(
                    name=name,
                    in_flight=in_flight,
                    limit=in_flight,
                    backend_in_flight=in_flight,
                    backend_set_aside=0,
                    expected_ms=expected_ms,
                    row_ms=None,
                    learnt=1,
                    slowed=1.0,
                )
                for name, in_flight, expected_ms in (("gpu-0", 4, 12.34), ("gpu-1", 0, None))
            ],
        ),
        ModelQueue(model="new\x1b", version="", waiting={}, oldest_ms=0.0, backends=[]),
    ],
)


def test_the_queue_is_a_table_with_a_row_for_each_backend(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering(QUEUE.model_dump_json().encode()) as (address, asked):
        assert show_queue(AdminTarget(address)) == 0
    assert asked == ["GET /api/v1/queue"]
    assert capsys.readouterr().out.splitlines() == [
        "MODEL    VERSION  QUEUED  OLDEST  BACKEND  IN FLIGHT  LIMIT  EXPECTED",
        "bert     1             4   123ms  gpu-0            4      4    12.3ms",
        "                                  gpu-1            0      -         -",
        "new\\x1b                0       -  -                -      -         -",
        "queued without an eligible backend: 2",
    ]


def test_sources_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    sources = Sources(
        sources=[
            Source(name="dns:t", backends=3, updates=2, failures=0, age_s=65.0, error=""),
            Source(name="file:/b", backends=0, updates=0, failures=9, age_s=None, error="missing"),
        ]
    )
    with answering(sources.model_dump_json().encode()) as (address, asked):
        assert list_sources(AdminTarget(address)) == 0
    assert asked == ["GET /api/v1/sources"]
    assert capsys.readouterr().out.splitlines() == [
        "NAME     BACKENDS    AGE  UPDATES  FAILURES  ERROR",
        "dns:t           3  1m05s        2         0",
        "file:/b         0      -        0         9  missing",
    ]


def variant(name: str, percent: float, **how: Any) -> Variant:
    usual = {
        "model": "m",
        "version": "",
        "file_percent": percent,
        "ready": True,
        "answers": 7,
        "errors": 1,
        "latency": Latency(p50_ms=1.5, p99_ms=None),
    }
    return Variant.model_validate({**usual, "name": name, "percent": percent, **how})


VARIANTS = VariantSets(
    models=[
        VariantSet(
            model="detector",
            changed="rollback",
            why="canary: 11 of 19 requests failed",
            variants=[
                variant("stable", 100, file_percent=95),
                variant("canary", 0, file_percent=5, version="3"),
                variant("new", 0, ready=False),
            ],
        )
    ]
)


def test_variants_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(VARIANTS.model_dump_json().encode()) as (address, asked):
        assert list_variants(AdminTarget(address)) == 0
    assert asked == ["GET /api/v1/variants"]
    assert capsys.readouterr().out.splitlines() == [
        "NAME      VARIANT  MODEL  SHARE %  ANSWERED  ERRORS    P50  P99  NOTE",
        "detector  stable   m          100         7       1  1.5ms    -  file: 95 % (rollback)",
        "detector  canary   m:3          0         7       1  1.5ms    -  file: 5 % (rollback)",
        "detector  new      m            0         7       1  1.5ms    -  not ready, gets nothing",
        "detector: rolled back: canary: 11 of 19 requests failed",
    ]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda admin: set_shares(admin, "a b", {"canary": 20}), "shares"),
        (lambda admin: set_shares(admin, "a b", {}), "reset"),
        (lambda admin: promote(admin, "a b", "canary"), "promote"),
    ],
)
def test_shares_of_variants_are_changed(
    change: Callable[[AdminTarget], int], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(VARIANTS.models[0].model_dump_json().encode()) as (address, asked):
        assert change(AdminTarget(address)) == 0
    assert asked == [f"POST /api/v1/variants/a%20b/{path}"]
    assert capsys.readouterr().out == "detector: stable 100 %, canary 0 %, new 0 %\n"


@pytest.mark.parametrize(
    ("ask", "document"),
    [
        (list_backends, views.backends(backend("a"))),
        (lambda admin: list_models(admin, "a"), views.models()),
        (show_queue, QUEUE.model_dump()),
        (list_sources, {"sources": []}),
        (list_variants, {"models": []}),
        (show_status, views.status(1)),
    ],
)
def test_json_is_the_document_of_the_api_as_it_came(
    ask: Callable[[AdminTarget], int], document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    newer = {**document, "of_a_newer_server": "\x1b\x9b\ud800"}
    with answering(json.dumps(newer).encode()) as (address, _):
        assert ask(AdminTarget(address, as_json=True)) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == newer
    assert line.isascii()
    assert line.isprintable()


def test_an_answer_without_end_is_not_the_admin_api(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_client, "_LONGEST_ANSWER", 1 << 20)
    with saying(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (1 << 20) + b"{}") as address:
        assert list_backends(AdminTarget(address)) == 1
    assert "is not the admin API" in capsys.readouterr().err


@pytest.mark.parametrize("body", [b"[]", b'{"error": {"a": 1}}', b'{"problems": 7}'])
def test_an_error_in_other_words_is_told_by_its_status(
    capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    with answering(body, 500) as (address, _):
        assert list_backends(AdminTarget(address)) == 1
    assert capsys.readouterr().err == "triton-lb: HTTP 500\n"


def test_a_newer_server_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    newer = backend("a", state="standby", rank=1, load={**load(), "watts": 300})
    with answering(json.dumps({"backends": [newer], "more": 1}).encode()) as (address, _):
        assert list_backends(AdminTarget(address)) == 0
        assert list_backends(AdminTarget(address, as_json=True)) == 0
    assert "a     standby" in capsys.readouterr().out


@pytest.mark.parametrize("body", [b"[]", b"{}"])
def test_models_of_something_else_are_an_error(
    body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(body) as (address, _):
        assert list_models(AdminTarget(address), "gpu-0") == 1
    assert "not the admin API" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "said"), [([], "unchanged\n"), (["a.b", "c"], "applied:\n  a.b\n  c\n")]
)
def test_a_reload_says_what_has_changed(
    capsys: pytest.CaptureFixture[str], changed: list[str], said: str
) -> None:
    with answering(json.dumps({"changed": changed, "hash": "0"}).encode()) as (address, asked):
        assert reload_configuration(AdminTarget(address)) == 0
    assert asked == ["POST /api/v1/reload"]
    assert capsys.readouterr().out == said


def test_a_refused_reload_says_every_reason(capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"error": "refused", "problems": ["f:1: a: no", "f:2: b: no"]}).encode()
    with answering(body, 409) as (address, _):
        assert reload_configuration(AdminTarget(address)) == 1
    assert capsys.readouterr().err == "triton-lb: refused\n  f:1: a: no\n  f:2: b: no\n"


def test_an_upgrade_says_who_serves_now(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b'{"pid": 77}') as (address, asked):
        assert upgrade_process(AdminTarget(address)) == 0
    assert asked == ["POST /api/v1/upgrade"]
    said = capsys.readouterr()
    assert said.err == "the next process starts; until it serves, the one that runs goes on\n"
    assert said.out.startswith("process 77 serves now")


@pytest.mark.parametrize("body", [b"{}", b'{"pid": "x", "changed": 1}', b"[]"])
def test_another_server_is_no_process_of_ours(
    capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    for ask in (reload_configuration, upgrade_process):
        with answering(body) as (address, _):
            assert ask(AdminTarget(address)) == 1
        assert "is not the admin API" in capsys.readouterr().err
