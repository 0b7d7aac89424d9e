from __future__ import annotations

import h11
import pytest

from lb.domain.backend import Address
from lb.health.port import Finding
from lb.probes.http import HttpGet
from lb.probes.plan import NO_BACKEND_READY, ProbeAnswer, ProbePlan, ProbeQuestion

ADDRESS = Address(host="127.0.0.1", port=8000)


def make_plan(
    *,
    address: Address = ADDRESS,
    expected: tuple[int, ...] = (200,),
    headers: tuple[tuple[str, str], ...] = (),
) -> ProbePlan:
    return ProbePlan(
        question=ProbeQuestion.HTTP_GET, address=address, expected_status=expected, headers=headers
    )


def request_of(plan: ProbePlan) -> h11.Request:
    """The opening as an independent server reads it."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(HttpGet(plan).opening())
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert isinstance(server.next_event(), h11.EndOfMessage)
    return request


def answer_to(*pieces: bytes, plan: ProbePlan | None = None) -> ProbeAnswer | None:
    client_call = HttpGet(plan or make_plan())
    for piece in pieces:
        if client_call.answer is None:
            assert client_call.receive(piece) == b""
    return client_call.answer


def test_the_request_is_a_get_that_asks_to_close() -> None:
    request = request_of(make_plan())
    assert (request.method, request.target) == (b"GET", b"/v2/health/ready")
    fields = dict(request.headers)
    assert fields[b"host"] == b"127.0.0.1:8000"
    assert fields[b"connection"] == b"close"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        (Address(host="::1", port=8000), b"[::1]:8000"),
        (Address(path="/run/triton.sock"), b"localhost"),
    ],
)
def test_the_host_field_fits_the_address(address: Address, host: bytes) -> None:
    assert dict(request_of(make_plan(address=address)).headers)[b"host"] == host


def test_own_headers_are_added_and_replace_ours() -> None:
    plan = make_plan(headers=(("authorization", "Bearer x"), ("HOST", "triton.internal")))
    fields = request_of(plan).headers
    assert (b"authorization", b"Bearer x") in fields
    assert [value for name, value in fields if name == b"host"] == [b"triton.internal"]


@pytest.mark.parametrize(
    ("reply", "finding", "detail"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", Finding.READY, ""),
        (b"HTTP/1.0 200 OK\r\n\r\n", Finding.READY, ""),
        (b"HTTP/1.1 200\r\n\r\n", Finding.READY, ""),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Finding.MODELS_NOT_READY, "HTTP status 400"),
        (b"HTTP/1.1 503 \r\n\r\n", Finding.NOT_READY, "HTTP status 503"),
        (b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", Finding.READY, ""),
        (b"HTTP/1.1 2000 OK\r\n\r\n", Finding.ERROR, "the answer is not HTTP/1.1"),
        (b"\0\0\x12\x04\0\0\0\0\0" + 18 * b"\0", Finding.ERROR, "the answer is not HTTP/1.1"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Finding.ERROR, "the answer is not HTTP/1.1"),
    ],
)
def test_answers_at_every_split_point(reply: bytes, finding: Finding, detail: str) -> None:
    expected = ProbeAnswer(finding, detail)
    for at in range(len(reply) + 1):
        assert answer_to(reply[:at], reply[at:]) == expected
    assert answer_to(*(bytes((byte,)) for byte in reply)) == expected


def test_a_half_sent_status_line_is_no_answer_yet() -> None:
    assert answer_to(b"HTTP/1.1 200") is None


def test_the_expected_statuses_are_what_is_ready() -> None:
    plan = make_plan(expected=(204, 404))
    not_found = answer_to(b"HTTP/1.1 404 Not Found\r\n\r\n", plan=plan)
    assert not_found == ProbeAnswer(Finding.READY)
    assert answer_to(b"HTTP/1.1 200 OK\r\n\r\n", plan=plan) == ProbeAnswer(
        Finding.NOT_READY, "HTTP status 200"
    )


def test_an_interim_answer_without_end_is_given_up() -> None:
    answer = answer_to(b"HTTP/1.1 100 Continue\r\n", *[b"x: " + 1000 * b"y" + b"\r\n"] * 20)
    assert answer == ProbeAnswer(Finding.ERROR, "endless interim answers")


@pytest.mark.parametrize("at_once", [True, False])
def test_interim_answers_without_end_are_given_up(at_once: bool) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    few, many = [interim] * 10, [interim] * 11
    final = b"HTTP/1.1 200 OK\r\n\r\n"
    for pieces, finding in ((few, Finding.READY), (many, Finding.ERROR)):
        heard = [*pieces, final]
        assert answer_to(*([b"".join(heard)] if at_once else heard)).finding is finding


STATUS = ProbePlan(question=ProbeQuestion.MODEL_STATUS_GET, address=ADDRESS, path="/v1/models/m")
AVAILABLE = b'{"model_version_status": [{"version": "1", "state": "AVAILABLE"}]}'
LOADING = AVAILABLE.replace(b"AVAILABLE", b"LOADING")


def status(body: bytes, *, code: int = 200) -> bytes:
    return b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%b" % (code, len(body), body)


@pytest.mark.parametrize("step", [1, 20, 1000])
@pytest.mark.parametrize(
    ("answer", "finding"),
    [
        (status(AVAILABLE), Finding.READY),
        (status(LOADING), Finding.NOT_READY),
        (status(b'{"error": "not found"}', code=404), Finding.NOT_READY),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            Finding.NOT_READY,
        ),
    ],
)
def test_a_model_is_healthy_when_a_version_is_available(
    answer: bytes, finding: Finding, step: int
) -> None:
    pieces = [answer[at : at + step] for at in range(0, len(answer), step)]
    judged = answer_to(*pieces, plan=STATUS)
    assert judged is not None
    assert judged.finding is finding


def test_an_incomplete_or_endless_state_is_no_good_news() -> None:
    assert answer_to(status(LOADING)[:-1], plan=STATUS) is None
    endless = answer_to(b"HTTP/1.1 200 OK\r\n\r\n", bytes(70_000), plan=STATUS)
    assert endless is not None
    assert endless.finding is Finding.ERROR


def test_probes_are_marked_where_we_have_an_identity() -> None:
    own = b"triton-lb-0123456789abcdef"
    plan = ProbePlan(question=ProbeQuestion.HTTP_GET, address=ADDRESS, identity=own)
    assert dict(request_of(plan).headers)[b"cdn-loop"] == own
    assert b"cdn-loop" not in dict(request_of(make_plan()).headers)


def test_a_balancer_says_through_whom_it_is_ready() -> None:
    path = tuple(b"triton-lb-%016x" % number for number in range(3))
    reply = b"HTTP/1.1 200 OK\r\nTriton-LB-Ready-Through: %b\r\n\r\n" % b", ".join(path)
    for at in range(len(reply) + 1):
        answer = answer_to(reply[:at], reply[at:])
        assert answer == ProbeAnswer(Finding.READY, "", path)


def test_a_balancer_says_that_none_of_its_backends_is_ready() -> None:
    field = b"Triton-LB-Ready-Through: triton-lb-0123456789abcdef\r\n"
    reply = b"HTTP/1.1 400 Bad Request\r\n%bContent-Length: 0\r\n\r\n" % field
    for at in range(len(reply) + 1):
        assert answer_to(reply[:at], reply[at:]) == NO_BACKEND_READY
    triton = answer_to(reply.replace(field, b""))
    assert triton == ProbeAnswer(Finding.MODELS_NOT_READY, "HTTP status 400")


def test_a_head_without_end_is_given_up() -> None:
    answer = answer_to(b"HTTP/1.1 200 OK\r\n", *[b"x: " + 1000 * b"y" + b"\r\n"] * 20)
    assert answer == ProbeAnswer(Finding.ERROR, "endless head of an answer")


def test_a_loop_is_named() -> None:
    answer = answer_to(b"HTTP/1.1 508 Loop Detected\r\n\r\n")
    assert answer == ProbeAnswer(Finding.NOT_READY, "HTTP status 508: loop detected")
