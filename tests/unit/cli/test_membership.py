"""The commands that add, drain and remove backends, against a script of answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from lb.cli.main import main
from tests.fakes import views

Answer = tuple[int, dict[str, Any]]


def backend(state: str, **changed: Any) -> Answer:
    return 200, views.backend("a", **{"state": state, "empty": False, **changed})


def error(status: int, text: str) -> Answer:
    return status, {"error": text}


class Script:
    """A server that gives one answer after the other; the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[str] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length).decode()
                script.asked.append(f"{self.command} {self.path} {body}".rstrip())
                answers = script.answers
                status, content = answers.pop(0) if len(answers) > 1 else answers[0]
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = answer  # noqa: N815  # as http.server wants it

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    def run(self, *arguments: str, answers: list[Answer]) -> int:
        self.answers = answers
        return main([*arguments, "--admin", f"127.0.0.1:{self.server.server_port}"])


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setattr("lb.cli.admin._LOOK_S", 0.001)
    made = Script()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_a_drain_waits_until_nothing_runs_any_more(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    draining = backend("draining", in_flight=2, open_sequences=1)
    empty = backend("draining", empty=True)
    assert script.run("drain", "a", "--wait", answers=[draining, draining, empty]) == 0
    assert script.asked == ["POST /api/v1/backends/a/drain", *["GET /api/v1/backends/a"] * 2]
    assert capsys.readouterr().out.splitlines() == [
        "a: draining, 2 in flight, 1 sequences open",
        "a: drained",
    ]


def test_a_removal_waits_until_the_backend_is_gone(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    leaving = backend("removing", in_flight=2)
    gone = error(404, "there is no backend 'a'")
    assert (
        script.run("remove", "a", "--wait", "--limit", "1m", answers=[leaving, leaving, gone]) == 0
    )
    assert script.asked[0] == "DELETE /api/v1/backends/a?limit=1m"
    assert capsys.readouterr().out.splitlines() == ["a: removing, 2 in flight", "a: removed"]


def test_a_drained_backend_is_not_waited_for(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.run("drain", "a", "--wait", answers=[backend("draining", empty=True)]) == 0
    assert script.asked == ["POST /api/v1/backends/a/drain"]
    assert capsys.readouterr().out.splitlines()[-1] == "a: drained"


def test_the_removal_of_an_empty_backend_ends_with_the_same_word(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    leaving = backend("removing", empty=True)
    gone = error(404, "there is no backend 'a'")
    assert script.run("remove", "a", "--wait", answers=[leaving, leaving, gone]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "a: removed"


def test_waiting_ends_when_somebody_adds_the_backend_again(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.run("remove", "a", "--wait", answers=[backend("removing"), backend("up")]) == 1
    assert capsys.readouterr().err == "triton-lb: a has been added again\n"


def test_a_quiet_change_prints_errors_only(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.run("drain", "a", "-q", answers=[backend("draining")]) == 0
    assert script.run("drain", "a", "-q", answers=[error(404, "no")]) == 1
    assert capsys.readouterr() == ("", "triton-lb: no\n")


def test_waiting_ends_when_somebody_enables_the_backend(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.run("drain", "a", "--wait", answers=[backend("draining"), backend("up")]) == 1
    assert capsys.readouterr().err == "triton-lb: a has been enabled again\n"


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        (["gpu", "--http", "h:1", "--weight", "2"], {"name": "gpu", "http": "h:1", "weight": 2.0}),
        (["gpu"], {"name": "gpu"}),
        (
            ["h:8", "--grpc", "h:9", "--kind", "kserve"],
            {"name": "h:8", "grpc": "h:9", "kind": "kserve"},
        ),
        (
            ["h:8", "--max-requests", "3"],
            {"http": "h:8", "grpc": "h:9", "metrics": "h:10", "max_requests": 3},
        ),
    ],
)
def test_a_backend_is_added_as_the_arguments_say(
    script: Script, arguments: list[str], sent: dict[str, Any]
) -> None:
    assert script.run("add", *arguments, answers=[(201, backend("starting")[1])]) == 0
    (asked,) = script.asked
    assert json.loads(asked.removeprefix("POST /api/v1/backends ")) == sent


def test_an_address_may_be_the_name_of_one_that_was_removed(script: Script) -> None:
    answers = [error(409, "no backend 'h:8' was removed"), (201, backend("starting")[1])]
    assert script.run("add", "h:8", answers=answers) == 0
    sent = [json.loads(asked.removeprefix("POST /api/v1/backends ")) for asked in script.asked]
    assert sent == [{"name": "h:8"}, {"http": "h:8", "grpc": "h:9", "metrics": "h:10"}]


def test_adding_may_wait_until_the_backend_gets_requests(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [backend("starting"), backend("starting"), backend("up")]
    assert script.run("add", "a", "--wait", "20", answers=answers) == 0
    assert capsys.readouterr().out.splitlines() == ["a: starting, 0 in flight", "a: up"]


def test_adding_does_not_wait_for_ever(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    down = backend("down", why="http: refused")
    assert script.run("add", "a", "--wait", "0s", answers=[down]) == 1
    assert capsys.readouterr().err == "triton-lb: a is still down: http: refused\n"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["add", "a", "--http", "x"], error(400, "http: expected HOST:PORT")),
        (["remove", "a"], error(404, "there is no backend 'a'")),
    ],
)
def test_a_refusal_is_one_line(
    script: Script, command: list[str], answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.run(*command, answers=[answer]) == 1
    assert capsys.readouterr() == ("", f"triton-lb: {answer[1]['error']}\n")


def test_what_is_not_the_admin_api_is_said_so(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("add", "remove"):
        assert script.run(command, "a", answers=[(200, {})]) == 1
    assert capsys.readouterr().err.count("is not the admin API of triton-lb") == 2
