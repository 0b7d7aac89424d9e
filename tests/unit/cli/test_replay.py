"""A replay sends what was logged, compares what can be compared, and says what it left out."""

from __future__ import annotations

import http.server
import json
import struct
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lb.cli.main import main
from lb.cli.replay import (
    Difference,
    NotReplayable,
    Tolerance,
    compare_outputs,
    exchanges,
    request_of,
)
from lb.payloads.lines import REQUEST, RESPONSE

Event = dict[str, Any]


def request(**members: Any) -> Event:
    usual = {"type": REQUEST, "id": "one", "protocol": "http", "path": "/v2/models/m/infer"}
    return {**usual, **members}


def response(**members: Any) -> Event:
    return {"type": RESPONSE, "id": "one", "protocol": "http", "status": "200", **members}


def outputs(*values: float, **members: Any) -> Event:
    tensor = {"name": "OUT", "datatype": "FP32", "shape": [len(values)], "data": list(values)}
    return {"outputs": [{**tensor, **members}]}


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers as it is told, and remembers what it was asked."""

    seen: list[tuple[str, dict[str, str], bytes]]
    answer: tuple[int, bytes]
    closes = False
    """Whether each connection ends without a word after the first answer."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        self.send_response(self.answer[0])
        self.send_header("Content-Length", str(len(self.answer[1])))
        self.end_headers()
        self.wfile.write(self.answer[1])
        self.close_connection |= self.closes

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def server(status: int, body: object, kind: type[Echo] = Echo) -> Iterator[tuple[str, type[Echo]]]:
    """A server with one answer: its address, and what it has seen."""
    handler = type("Handler", (kind,), {"seen": [], "answer": (status, json.dumps(body).encode())})
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{running.server_port}", handler
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def write(folder: Path, *events: Event) -> str:
    path = folder / "payloads.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return str(path)


def test_a_response_belongs_to_the_request_before_it() -> None:
    lines = [
        json.dumps(event)
        for event in (
            response(),
            request(id="lost"),
            request(),
            response(),
            request(id="a"),
            response(id="b"),
        )
    ]
    assert list(exchanges(lines)) == [(request(), response())]


def test_answers_on_streams_belong_to_requests_by_their_ids() -> None:
    path = {"path": "/inference.GRPCInferenceService/ModelStreamInfer", "protocol": "grpc"}
    first, second = request(id="s/1", **path), request(id="s/2", **path)
    lines = [first, second, request(id="s", **path)]
    lines += [response(id="s/2", **path), response(id="s", **path), response(id="s/1", **path)]
    found = [(sent["id"], got["id"]) for sent, got in exchanges(map(json.dumps, lines))]
    assert found == [("s/2", "s/2"), ("s/1", "s/1")]


def test_tensors_go_out_as_they_came_and_come_back_binary() -> None:
    tensors = [
        {"name": "A", "datatype": "INT8", "shape": [1], "data": [1]},
        {"name": "B", "datatype": "FP16", "shape": [1], "data_base64": b64encode(b"\1\2").decode()},
    ]
    data = {"model_name": "m/x", "model_version": "3", "id": "7", "inputs": tensors}
    sent = request_of(request(protocol="grpc", path="/inference.X/ModelInfer", data=data))
    size = int(sent.headers["inference-header-content-length"])
    head = json.loads(sent.body[:size])
    assert sent.path == "/v2/models/m%2Fx/versions/3/infer"
    assert sent.body[size:] == b"\1\2"
    assert head["inputs"][0] == tensors[0]
    assert head["inputs"][1]["parameters"] == {"binary_data_size": 2}
    assert (head["id"], head["parameters"]) == ("7", {"binary_data_output": True})


def test_outputs_that_were_asked_for_come_back_binary() -> None:
    wanted = [{"name": "OUT", "parameters": {"classification": 2}}, {"name": "OTHER"}]
    sent = request_of(request(data={"inputs": [], "outputs": wanted, "parameters": {"p": 1}}))
    head = json.loads(sent.body)
    assert head["outputs"] == [
        {"name": "OUT", "parameters": {"classification": 2, "binary_data": True}},
        {"name": "OTHER", "parameters": {"binary_data": True}},
    ]
    assert head["parameters"] == {"p": 1}


def test_other_requests_go_out_byte_for_byte() -> None:
    raw = b64encode(b"\0\1").decode()
    sent = request_of(
        request(
            data_base64=raw,
            datacontenttype="application/octet-stream",
            inferenceheadercontentlength=0,
        )
    )
    assert sent.body == b"\0\1"
    assert sent.headers == {
        "content-type": "application/octet-stream",
        "inference-header-content-length": "0",
    }
    zipped = request_of(request(data_base64=raw, contentencoding="gzip"))
    assert zipped.headers["content-encoding"] == "gzip"
    assert request_of(request(data={"text_input": "x"})).body == b'{"text_input": "x"}'


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (request(omitted="too_large"), r"the request is omitted \(too_large\)"),
        (request(protocol="grpc", data_base64="AA=="), "the request could not be read"),
        (
            request(data={"inputs": [{"name": "A", "left_out": True}]}),
            "a tensor of the request is left out",
        ),
    ],
)
def test_what_was_not_logged_cannot_be_sent(event: Event, why: str) -> None:
    with pytest.raises(NotReplayable, match=why):
        request_of(event)


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ({"outputs": []}, "outputs"),
        (outputs(1.0, 2.0, shape=[1, 2]), r"OUT: shape \[1, 2\]"),
        (outputs(1, 2, datatype="INT32"), "OUT: datatype INT32"),
        (outputs(1.0, 2.1), "OUT: other values"),
    ],
)
def test_a_difference_says_where(found: Event, what: str) -> None:
    with pytest.raises(Difference, match=what):
        compare_outputs(outputs(1.0, 2.0), found, Tolerance(atol=0.01, rtol=0.01))


def test_values_may_differ_as_far_as_the_user_says() -> None:
    raw = b64encode(struct.pack("<3f", 1.0, 2.001, float("nan"))).decode()
    expected = outputs(1.0, 2.0)
    expected["outputs"][0].pop("data")
    expected["outputs"][0]["data_base64"] = b64encode(
        struct.pack("<3f", 1.0, 2.0, float("nan"))
    ).decode()
    found = outputs(1.0, 2.0)
    found["outputs"][0].pop("data")
    found["outputs"][0]["data_base64"] = raw
    compare_outputs(expected, found, Tolerance(rtol=1e-2))
    with pytest.raises(Difference):
        compare_outputs(expected, found, Tolerance())


def test_the_command_tells_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"inputs": [{"name": "IN", "datatype": "INT8", "shape": [1], "data": [1]}]}
    file = write(
        tmp_path,
        request(data=body),
        response(data=outputs(1.0)),
        request(id="two", data=body),
        response(id="two", data=outputs(2.0)),
        request(id="three", data=body),
        response(id="three", status="400", data={"error": "no"}),
        request(id="four", data=body),
        response(id="four", status="503", reason="no_backend"),
    )
    with server(200, outputs(1.0)) as (address, seen):
        assert main(["replay", file, "--to", address]) == 1
        assert len(seen.seen) == 3
    assert capsys.readouterr().out.splitlines() == [
        "3 replayed: 1 same, 2 different",
        "  two: OUT: other values",
        "  three: status 200 instead of 400",
        "1 skipped: no server had answered it",
    ]


def test_what_is_logged_meanwhile_is_not_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server is a load balancer that logs to the very file."""
    body = {"inputs": [{"name": "IN", "datatype": "INT8", "shape": [1], "data": [1]}]}
    file = write(tmp_path, request(data=body), response(data=outputs(1.0)))
    known = Path(file).read_text()

    class Logging(Echo):
        def do_POST(self) -> None:
            with Path(file).open("a") as log:
                log.write(known)
            super().do_POST()

    with server(200, outputs(1.0), Logging) as (address, seen):
        assert main(["replay", file, "--to", address]) == 0
        assert len(seen.seen) == 1
    assert capsys.readouterr().out == "1 replayed: 1 same, 0 different\n"


def test_an_error_is_the_same_answer_if_its_status_is(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        request(data={"inputs": []}),
        response(status="400", data={"error": "one"}),
    )
    with server(400, {"error": "another"}) as (address, _):
        assert main(["replay", file, "--to", f"http://{address}/"]) == 0


@pytest.mark.parametrize(
    ("answer", "logged", "line"),
    [
        ({"ready": True}, {"data": {"ready": True}}, ""),
        ({"ready": True}, {"data": {"ready": False}}, "another JSON"),
        ("text", {"data": '"text"'}, ""),
        ("text", {"data": '"other"'}, "another text"),
        ("text", {"data_base64": b64encode(b'"text"').decode()}, ""),
        ("text", {}, "other bytes"),
        (outputs(1.0), {"data": outputs(1.0), "protocol": "grpc", "status": "OK"}, ""),
        (outputs(1.0), {"protocol": "grpc", "status": "NOT_FOUND"}, "status 200"),
    ],
)
def test_every_kind_of_answer_is_compared(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answer: object,
    logged: Event,
    line: str,
) -> None:
    file = write(tmp_path, request(data={"inputs": []}), response(**logged))
    with server(200, answer) as (address, _):
        assert main(["replay", file, "--to", address]) == (1 if line else 0)
    told = capsys.readouterr().out.splitlines()
    assert told[1:] == ([f"  one: {line}"] if line else [])


@pytest.mark.parametrize(
    "answer",
    [
        "no object",
        {"outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1], "data": [1e300]}]},
        {"outputs": [{"datatype": "FP32", "shape": [1], "data": [1.0]}]},
        {"outputs": [{"name": "OUT", "datatype": "FP32", "shape": [1]}]},
        {**outputs(1.0), "padding": "x" * 2**16},
    ],
)
def test_an_answer_that_cannot_be_read_is_one_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: object
) -> None:
    one = (request(data={"inputs": []}), response(data=outputs(1.0)))
    with server(200, answer) as (address, handler):
        assert main(["replay", write(tmp_path, *one, *one), "--to", address]) == 1
        assert len(handler.seen) == 2
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "2 replayed: 0 same, 2 different"
    assert told[1].startswith("  one: cannot be compared: ")


def test_a_server_that_closes_kept_connections_is_asked_over_another(tmp_path: Path) -> None:
    one = (request(data={"inputs": []}), response(data=outputs(1.0)))
    with server(200, outputs(1.0)) as (address, handler):
        handler.protocol_version = "HTTP/1.1"
        handler.closes = True
        assert main(["replay", write(tmp_path, *one, *one), "--to", address]) == 0
        assert len(handler.seen) == 2


def test_what_the_log_lacks_is_skipped_and_many_differences_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left_out = outputs(1.0, left_out=True)
    differing = (
        event
        for number in range(30)
        for event in (
            request(id=f"d{number}", data={"inputs": []}),
            response(id=f"d{number}", data=outputs(2.0)),
        )
    )
    file = write(
        tmp_path,
        request(data={"inputs": []}),
        response(omitted="too large"),
        request(id="two", data={"inputs": []}),
        response(id="two", data=left_out),
        *differing,
    )
    with server(200, outputs(1.0)) as (address, _):
        assert main(["replay", file, "--to", address]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "30 replayed: 0 same, 30 different"
    assert told[-3].startswith("  and ")
    assert told[-2:] == [
        "1 skipped: the response is omitted (too large)",
        "1 skipped: a tensor of the response is left out",
    ]


@pytest.mark.parametrize(
    ("content", "to"),
    [
        (None, "127.0.0.1:1"),
        ("[1]\n", "127.0.0.1:1"),
        ("{\n", "127.0.0.1:1"),
        ("", "127.0.0.1:1"),
        ("", "nowhere"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, to: str
) -> None:
    file = tmp_path / "payloads.jsonl"
    if content is not None:
        file.write_text(content)
    assert main(["replay", str(file), "--to", to]) == 1
    told = capsys.readouterr()
    assert (told.out + told.err).count("\n") == 1


def test_what_is_no_payload_log_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "payloads.jsonl"
    file.write_bytes(b'{"type":"other"}\n\xbe\n')
    assert main(["replay", str(file), "--to", "127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert said == f"triton-lb replay: {file}: line 2 is no event of a payload log\n"


def test_a_server_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, request(data={"inputs": []}), response(data=outputs(1.0)))
    assert main(["replay", file, "--to", "127.0.0.1:1"]) == 1
    assert "refused" in capsys.readouterr().err
