"""The balancer before a Triton answers as that Triton does: some hundreds of varied requests.

`make differential` plays many more, of any seed. What may differ: `tests/differential/compare.py`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from tests.differential.cases import GrpcCase, HttpCase, from_json, smaller, to_json
from tests.differential.compare import difference
from tests.differential.generate import make_case
from tests.differential.grpc_player import GrpcOutcome
from tests.differential.http_player import HttpOutcome
from tests.differential.payloads import MODELS
from tests.differential.run import run
from tests.differential.stage import Stage

SEED = 1
COUNT = 250
"""Cases. They take a few seconds, beside the start of two Tritons."""
LIMIT_S = 120.0
"""A busy machine may take much longer."""
UNLOADING_S = 5.0
"""A Triton needs some two seconds to end its models, and probes as long to see that it has."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Both sides, for all tests: their order matters to the last one alone."""
    running = Stage(tmp_path_factory.mktemp("differential"))
    try:
        yield running
    finally:
        running.close()


def test_answers_are_those_of_a_triton(stage: Stage) -> None:
    found: list[str] = []
    report = run(stage, SEED, numbers=iter(range(COUNT)), seconds=LIMIT_S, tell=found.append)
    assert not found, "\n".join(found)
    assert report.played == COUNT


def test_a_case_is_the_same_each_time_and_can_be_written_down() -> None:
    kinds = set()
    for number in range(300):
        case = make_case(7, number)
        assert make_case(7, number) == case
        assert from_json(to_json(case)) == case
        kinds.add(case.method if isinstance(case, GrpcCase) else case.path)
        assert all(each != case for each in smaller(case))
    assert len(kinds) > 50


def test_a_difference_is_seen_and_what_is_meant_is_not() -> None:
    case = HttpCase(method=b"GET", target=b"/v2", fields=((b"Host", b"a"),))
    answer = HttpOutcome(b"HTTP/1.1 200 OK", ((b"Content-Length", b"2"),), b"{}", stays_open=True)
    others = (
        HttpOutcome(b"HTTP/1.1 201 OK", answer.fields, b"{}", stays_open=True),
        HttpOutcome(answer.line, ((b"content-length", b"2"),), b"{}", stays_open=True),
        HttpOutcome(answer.line, answer.fields, b"[]", stays_open=True),
        HttpOutcome(answer.line, answer.fields, b"{}"),
    )
    assert not difference(case, answer, answer)
    assert all(difference(case, answer, other) for other in others)
    refused = HttpOutcome(b"HTTP/1.1 400 Bad Request", (), b"no")
    assert difference(case, answer, refused)
    assert not difference(HttpCase(method=b"GET", target=b"/v2"), answer, refused)


def test_calls_are_compared_by_what_their_messages_say() -> None:
    case = GrpcCase(path=b"/inference.GRPCInferenceService/LogSettings", messages=(b"",))
    heads = [[(b":status", b"200")], [(b"grpc-status", b"0")]]
    entries = [b"\n\x05\n\x01a\x12\x00", b"\n\x05\n\x01b\x12\x00"]
    bodies = [
        b"".join((b"\0", len(text).to_bytes(4, "big"), text))
        for text in (b"".join(order) for order in itertools.permutations(entries))
    ]
    one, other = (GrpcOutcome(heads, body) for body in bodies)
    assert not difference(case, one, other)
    assert difference(case, one, GrpcOutcome(heads, b""))
    assert difference(case, one, GrpcOutcome(heads[:1], bodies[0], reset=2))


def test_the_last_model_goes_as_on_a_triton(stage: Stage) -> None:
    """A Triton is not ready while it unloads; only it can say what has become of its models."""
    service = b"/inference.GRPCInferenceService/"
    name = b"\x0a\x06simple"
    host = ((b"Host", b"a"),)
    cases = [
        *(GrpcCase(path=service + method, messages=(name,))
          for method in (b"ModelReady", b"ModelMetadata", b"ModelConfig", b"ModelInfer")),
        *(HttpCase(method=b"GET", target=b"/v2/models/simple" + action, fields=host)
          for action in (b"", b"/ready", b"/config")),
        HttpCase(method=b"POST", target=b"/v2/models/simple/infer", fields=host, body=b"{}"),
    ]  # fmt: skip
    for side in stage.sides:
        for model in MODELS:
            target = f"/v2/repository/models/{model}/unload".encode()
            side.play(HttpCase(method=b"POST", target=target, fields=host, body=b"{}"))
    end = time.monotonic() + UNLOADING_S
    found: list[str] = []
    while time.monotonic() < end and not found:
        found = [what for case in cases if (what := difference(case, *stage.play(case)))]
    assert not found, "\n".join(found)
