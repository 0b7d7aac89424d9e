"""Compares two answers: what changes from one to the next is hidden, what may differ is listed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from tests.differential.cases import Case, GrpcCase, HttpCase
from tests.differential.generate import ODD_METADATA
from tests.differential.grpc_player import GrpcOutcome
from tests.differential.http_player import GONE, SILENT, HttpOutcome

Outcome = HttpOutcome | GrpcOutcome
_OF_CONNECTION = {b"connection", b"keep-alive", b"transfer-encoding"}
"""Fields between neighbours (RFC 9110 7.6.1); what they do is compared instead."""
_TIMES = re.compile(
    rb'"(ns|last_inference|execution_count)":\d+|"SENT_AT":[-+.e\d]+|"batch_stats":\[.*?\](?=,"memory)'
)
"""Also what depends on which requests of a stream come to lie in one batch."""
_SERVER = re.compile(rb"triton-\d")
_RESPONSES = {
    "ModelStatistics": pb.ModelStatisticsResponse, "LogSettings": pb.LogSettingsResponse,
    "TraceSetting": pb.TraceSettingResponse, "RepositoryIndex": pb.RepositoryIndexResponse,
    "ModelConfig": pb.ModelConfigResponse, "ModelInfer": pb.ModelInferResponse,
    "SystemSharedMemoryStatus": pb.SystemSharedMemoryStatusResponse,
}  # fmt: skip
"""Messages with maps, whose order is another one each time, or with times."""


@dataclass(frozen=True)
class Allowed:
    """A difference that is meant."""

    reason: str
    applies: Callable[[Case, Outcome, Outcome], bool]
    """Of the case, the answer of the Triton and ours."""


def difference(case: Case, direct: Outcome, balanced: Outcome) -> str:
    """What differs and should not; empty where nothing does."""
    if isinstance(direct, HttpOutcome) and isinstance(balanced, HttpOutcome):
        assert isinstance(case, HttpCase)
        direct, balanced = _plain_http(case, direct), _plain_http(case, balanced)
        found = _http_difference(direct, balanced)
    else:
        assert isinstance(direct, GrpcOutcome)
        assert isinstance(balanced, GrpcOutcome)
        assert isinstance(case, GrpcCase)
        found = _grpc_difference(case, direct, balanced)
    if found and any(each.applies(case, direct, balanced) for each in ALLOWED):
        return ""
    return found


def _named(**pairs: tuple[object, object]) -> str:
    return "; ".join(
        f"{name}: {direct!r} there, {balanced!r} here"
        for name, (direct, balanced) in pairs.items()
        if direct != balanced
    )


def _http_difference(direct: HttpOutcome, balanced: HttpOutcome) -> str:
    return _named(
        line=(direct.line, balanced.line),
        fields=(direct.fields, balanced.fields),
        body=(direct.body, balanced.body),
        cut=(direct.is_cut, balanced.is_cut),
        interim=(direct.interim, balanced.interim),
        stays_open=(direct.stays_open, balanced.stays_open),
    )


def _in_order(body: bytes) -> bytes:
    """JSON with sorted keys: a Triton writes the maps of a configuration in any order."""
    try:
        return json.dumps(json.loads(body), sort_keys=True).encode()
    except ValueError:
        return body


def _plain_http(case: HttpCase, outcome: HttpOutcome) -> HttpOutcome:
    if case.path.endswith(b"/config"):
        outcome = replace(outcome, body=_in_order(outcome.body))
    body = _SERVER.sub(b"triton-N", _TIMES.sub(b"N", outcome.body))
    is_timed = body != outcome.body and b"triton-N" not in body
    hidden = _OF_CONNECTION | ({b"content-length"} if is_timed else set())
    fields = tuple(field for field in outcome.fields if field[0].lower() not in hidden)
    return replace(outcome, fields=fields, body=body)


def _grpc_difference(case: GrpcCase, direct: GrpcOutcome, balanced: GrpcOutcome) -> str:
    there, here = direct.messages, balanced.messages
    if case.is_stream and len(case.messages) > 1:
        there, here = sorted(there), sorted(here)
    if there != here:
        there_parsed = [_parsed(case.method, message) for message in there]
        here_parsed = [_parsed(case.method, message) for message in here]
        there, here = _lines(there_parsed, here_parsed)
    return _named(
        heads=(_plain_heads(direct), _plain_heads(balanced)),
        messages=(there, here),
        reset=(direct.reset, balanced.reset),
        end=(direct.end, balanced.end),
    )


def _lines(there: list[object], here: list[object]) -> tuple[list[object], list[object]]:
    """What differs of the messages, by lines of their text."""
    if there == here:
        return [], []
    if len(there) == len(here) == 1 and not isinstance(there[0], bytes):
        lines, others = str(there[0]).splitlines(), str(here[0]).splitlines()
        return list(set(lines) - set(others)), list(set(others) - set(lines))
    return there, here


def _plain_heads(outcome: GrpcOutcome) -> list[list[tuple[bytes, bytes]]]:
    return [[(name, _SERVER.sub(b"triton-N", v)) for name, v in head] for head in outcome.heads]


def _parsed(method: str, message: bytes) -> object:
    kind = _RESPONSES.get(method)
    if kind is None:
        return message
    try:
        parsed = kind.FromString(message)
    except DecodeError:
        return message
    if method == "ModelStatistics":
        for model in parsed.model_stats:
            model.last_inference = model.execution_count = 0
            model.ClearField("batch_stats")
            durations = [value for _, value in model.inference_stats.ListFields()]
            for response in model.response_stats.values():
                durations += [value for _, value in response.ListFields()]
            for duration in durations:
                duration.ns = 0
    return parsed


# What may differ


def _http(
    check: Callable[[HttpCase, HttpOutcome, HttpOutcome], bool],
) -> Callable[[Case, Outcome, Outcome], bool]:
    def applies(case: Case, direct: Outcome, balanced: Outcome) -> bool:
        return (
            isinstance(case, HttpCase)
            and isinstance(direct, HttpOutcome)
            and isinstance(balanced, HttpOutcome)
            and check(case, direct, balanced)
        )

    return applies


def _grpc(
    check: Callable[[GrpcCase, GrpcOutcome, GrpcOutcome], bool],
) -> Callable[[Case, Outcome, Outcome], bool]:
    def applies(case: Case, direct: Outcome, balanced: Outcome) -> bool:
        return (
            isinstance(case, GrpcCase)
            and isinstance(direct, GrpcOutcome)
            and isinstance(balanced, GrpcOutcome)
            and check(case, direct, balanced)
        )

    return applies


def _is_same_but(direct: HttpOutcome, balanced: HttpOutcome, *names: str) -> bool:
    """Whether nothing but these parts of two answers differs."""
    return replace(direct, **{name: getattr(balanced, name) for name in names}) == balanced


ALLOWED: tuple[Allowed, ...] = (
    Allowed(
        "RFC 9113 8.1.1: malformed heads are refused in words; a Triton takes or resets them",
        _grpc(lambda case, _, ours: ours.status == 13 and _has_odd_metadata(case)),
    ),
    Allowed(
        "a Triton resets upon a compression that it does not know, though no message uses it",
        _grpc(
            lambda case, there, _: there.reset == 2 and (b"grpc-encoding", b"br") in case.metadata
        ),
    ),
    Allowed(
        "more JSON announced than body, which has killed Tritons: 400 whatever the route is",
        _http(lambda case, _, ours: ours.status == 400 and b"exceeds" in ours.body),
    ),
    Allowed(
        "some answers of a Triton to HTTP/1.0 have no length, on a connection that it keeps open",
        _http(lambda case, there, _: case.version == b"HTTP/1.0" and there.line == SILENT),
    ),
    Allowed(
        "RFC 9110 6.2: our version is 1.1, whatever the client's is; answers have a length",
        _http(
            lambda case, there, ours: (
                case.version == b"HTTP/1.0"
                and there.line[9:] == ours.line[9:]
                and there.body == ours.body
            )
        ),
    ),
    Allowed(
        "RFC 9112 3.2: a request needs exactly one valid Host, which a Triton does not look at",
        _http(lambda case, _, ours: ours.status == 400 and len(_hosts(case)) != 1),
    ),
    Allowed(
        "dot segments and NUL in a path, which servers on the way may read in other ways: 400",
        _http(lambda case, _, ours: ours.status == 400 and _is_traversal(case)),
    ),
    Allowed(
        "names of models that could lead out of a repository, or are longer than a folder's: 400",
        _http(lambda case, _, ours: ours.status == 400 and _is_odd_name(case)),
    ),
    Allowed(
        "a Triton answers HEAD with a body, which is no HTTP (RFC 9110 9.3.2)",
        _http(lambda case, there, ours: case.method == b"HEAD" and there.line == ours.line),
    ),
    Allowed(
        "a Triton closes without a word upon methods that it does not know; here it is 501",
        _http(lambda _, there, ours: (there.line, ours.status) == (GONE, 501)),
    ),
    Allowed(
        "OPTIONS * asks the server that is spoken to; other methods have no such target",
        _http(lambda case, _, ours: case.target == b"*" and ours.status in (200, 400)),
    ),
    Allowed(
        "characters above ASCII are escaped toward backends, and an error repeats the path",
        _http(
            lambda case, there, ours: (
                there.line == ours.line
                and not case.path.isascii()
                and (there.status == 404 or b"available" in there.body)
            )
        ),
    ),
    Allowed(
        "RFC 9110 10.1.1: an expectation is answered here; a Triton forgets it after an error",
        _http(lambda case, there, ours: _is_same_but(there, ours, "interim") and _expects(case)),
    ),
)


def _has_odd_metadata(case: GrpcCase) -> bool:
    return any(field in ODD_METADATA for field in case.metadata)


def _hosts(case: HttpCase) -> list[bytes]:
    return [value for name, value in case.fields if name.lower() == b"host"]


def _is_traversal(case: HttpCase) -> bool:
    path = case.path.lower()
    return b"/.." in path or b"%00" in path


def _is_odd_name(case: HttpCase) -> bool:
    return b"%2f" in case.path.lower() or any(len(part) > 255 for part in case.path.split(b"/"))


def _expects(case: HttpCase) -> bool:
    return bool(case.field(b"expect"))
