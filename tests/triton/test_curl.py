"""curl, as in Triton's own manual and as it behaves by itself with large bodies."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.triton.target import Target

INFER = "/v2/models/simple/infer"
IDENTITY = "/v2/models/identity_fp32/infer"


def curl(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run it; it must get an answer, of whatever status."""
    return subprocess.run(
        ("curl", "--silent", "--show-error", "--max-time", "60", *arguments),
        input=stdin,
        capture_output=True,
        check=True,
    )


# Left out, curl announces a form, and Triton 2.51 dies of a large body that it takes for one.
NO_FORM = ("-H", "Content-Type: application/octet-stream")


def infer_body() -> str:
    vector = {"shape": [1, 16], "datatype": "INT32", "data": list(range(16))}
    inputs = [{"name": "INPUT0", **vector}, {"name": "INPUT1", **vector}]
    return json.dumps({"inputs": inputs})


@pytest.fixture
def megabytes(tmp_path: Path) -> tuple[Path, str]:
    """A body of 8 MiB in a file, and the header that says where its tensor begins."""
    values = np.arange(2 << 20, dtype=np.float32)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "INPUT0",
                    "shape": [values.size],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": values.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    body = tmp_path / "body"
    body.write_bytes(head + values.tobytes())
    return body, f"Inference-Header-Content-Length: {len(head)}"


def test_health_says_ok_with_an_empty_body(target: Target) -> None:
    answer = curl("-w", "%{http_code} %{size_download}", f"{target.http}/v2/health/ready")
    assert answer.stdout == b"200 0"


def test_infer_answers_json(target: Target) -> None:
    answer = curl("-d", infer_body(), f"{target.http}{INFER}")
    assert json.loads(answer.stdout)["outputs"][0]["data"] == [2 * n for n in range(16)]


def test_head_gets_no_body_and_no_later_answer_is_disturbed(target: Target) -> None:
    head = curl("--head", f"{target.http}/v2")
    assert head.stdout.startswith(b"HTTP/1.1 405 ")
    for _ in range(4):
        answer = curl(f"{target.http}/v2")
        assert json.loads(answer.stdout)["name"] == "triton"


def test_one_connection_serves_several_requests(target: Target) -> None:
    url = f"{target.http}/v2/models/simple/ready"
    answer = curl("-w", "%{http_code} %{num_connects}\n", url, url, url)
    assert answer.stdout.split() == [b"200", b"1", b"200", b"0", b"200", b"0"]


def test_small_body_with_expect_gets_continue_and_then_the_answer(target: Target) -> None:
    answer = curl("-v", "-H", "Expect: 100-continue", "-d", infer_body(), f"{target.http}{INFER}")
    assert b"< HTTP/1.1 100 Continue" in answer.stderr
    assert b"< HTTP/1.1 200 OK" in answer.stderr
    assert json.loads(answer.stdout)["model_name"] == "simple"


def test_large_upload_is_preceded_by_expect_and_comes_back_whole(
    target: Target, megabytes: tuple[Path, str]
) -> None:
    body, header = megabytes
    upload = (*NO_FORM, "-H", header, "--data-binary", f"@{body}")
    answer = curl("-v", *upload, f"{target.http}{IDENTITY}")
    assert b"< HTTP/1.1 100 Continue" in answer.stderr
    assert answer.stdout[-(8 << 20) :] == body.read_bytes()[-(8 << 20) :]


def test_chunked_upload_of_unknown_length_comes_back_whole(
    target: Target, megabytes: tuple[Path, str]
) -> None:
    body, header = megabytes
    chunked = ("-H", "Transfer-Encoding: chunked", "-H", "Expect:", "-X", "POST", "-T", "-")
    answer = curl(
        *chunked, *NO_FORM, "-H", header, f"{target.http}{IDENTITY}", stdin=body.read_bytes()
    )
    assert answer.stdout[-(8 << 20) :] == body.read_bytes()[-(8 << 20) :]


def test_compressed_answer_is_what_the_plain_one_was(target: Target) -> None:
    plain = curl("-d", infer_body(), f"{target.http}{INFER}")
    packed = curl("--compressed", "-D", "-", "-o", "-", "-d", infer_body(), f"{target.http}{INFER}")
    head, _, text = packed.stdout.partition(b"\r\n\r\n")
    assert b"Content-Encoding: " in head
    assert text == plain.stdout


def test_generate_stream_is_a_list_of_events(target: Target) -> None:
    url = f"{target.http}/v2/models/repeat_int32/generate_stream"
    answer = curl("-N", "-d", '{"IN": [4, 5], "DELAY": [0, 0]}', url)
    events = [json.loads(line[6:]) for line in answer.stdout.split(b"\n\n")[:-1]]
    assert [event["OUT"] for event in events] == [4, 5]


def test_unknown_path_gets_tritons_own_words(target: Target) -> None:
    answer = curl("-w", " %{http_code}", f"{target.http}/v2/nosuch")
    assert answer.stdout == b'{"error":"Not Found"} 404'
