"""Which requests are logged, and what a line says."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lb.domain.outcome import Reason
from lb.settings.reporting import AccessLogMode
from lb.telemetry.access_log import LINES_AT_ONCE, MAX_LINE_BYTES, AccessLog
from lb.telemetry.line_writer import LineWriter
from tests.fakes.backends import make_backend
from tests.fakes.lines import KeptLines
from tests.fakes.records import PlainRecord, grpc_record

SECOND_NS = 1_000_000_000


def make_log(
    mode: AccessLogMode = AccessLogMode.ALL, **options: Any
) -> tuple[AccessLog, KeptLines]:
    kept = KeptLines()
    usual: dict[str, Any] = {"sample": 1.0, "rng": Random(1), "wall_ns": lambda: 0}
    return AccessLog(kept, mode=mode, **(usual | options)), kept


def logged(mode: AccessLogMode, *records: PlainRecord, sample: float = 1.0) -> list[str]:
    """Paths of the records that are logged."""
    log, kept = make_log(mode, sample=sample)
    for record in records:
        log.finished(record)
    return [json.loads(line)["path"] for line in kept.lines]


GOOD = PlainRecord(path=b"/good", backend=make_backend())
OURS = PlainRecord(path=b"/ours", status=503, reason=Reason.NO_BACKEND)
CUT = PlainRecord(path=b"/cut", reason=Reason.CLIENT_GONE, backend=make_backend())
OURS_5XX = PlainRecord(path=b"/ours-5xx", status=500)
THEIRS_5XX = PlainRecord(path=b"/theirs-5xx", status=500, backend=make_backend())
ALL = (GOOD, OURS, CUT, OURS_5XX, THEIRS_5XX)


def test_off_logs_nothing() -> None:
    assert logged(AccessLogMode.OFF, *ALL) == []


def test_errors_are_those_that_we_made() -> None:
    assert logged(AccessLogMode.ERRORS, *ALL) == ["/ours", "/cut", "/ours-5xx"]


def test_all_logs_every_request() -> None:
    assert len(logged(AccessLogMode.ALL, *ALL)) == len(ALL)


def test_a_sample_is_even_and_has_every_error() -> None:
    requests = [PlainRecord(path=b"/%d" % number) for number in range(8)]
    paths = logged(AccessLogMode.SAMPLED, *requests, OURS, sample=0.25)
    assert paths == ["/3", "/7", "/ours"]


def test_a_sample_of_nothing_has_only_errors() -> None:
    assert logged(AccessLogMode.SAMPLED, *ALL, sample=0.0) == ["/ours", "/cut", "/ours-5xx"]


@pytest.mark.parametrize("reason", [Reason.BAD_REQUEST, Reason.CLIENT_GONE, Reason.FLOOD])
def test_a_flood_of_bad_requests_does_not_fill_the_log(reason: Reason) -> None:
    log, kept = make_log(mode=AccessLogMode.ERRORS)
    for number in range(3 * LINES_AT_ONCE):
        log.finished(PlainRecord(reason=reason, ended_at=100.0 + number / 1e6))
    assert len(kept.lines) == LINES_AT_ONCE
    log.finished(PlainRecord(reason=Reason.UPSTREAM_LOST, ended_at=101.5))
    last = json.loads(kept.lines[-1])
    assert (last["reason"], last["left_out"]) == (reason.value, 2 * LINES_AT_ONCE)
    assert len(kept.lines) == LINES_AT_ONCE + 2


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(AccessLogMode.ALL, Reason.BAD_REQUEST), (AccessLogMode.ERRORS, Reason.UPSTREAM_LOST)],
)
def test_what_is_asked_for_and_what_is_not_the_clients_fault_is_logged_whole(
    mode: AccessLogMode, reason: Reason
) -> None:
    log, kept = make_log(mode=mode)
    for _ in range(2 * LINES_AT_ONCE):
        log.finished(PlainRecord(reason=reason))
    assert len(kept.lines) == 2 * LINES_AT_ONCE


def test_a_line_has_all_fields_in_order() -> None:
    log, _ = make_log(wall_ns=lambda: 1_700_000_000 * SECOND_NS + 7_900_000)
    record = grpc_record(
        backend=make_backend("gpu-0"), request_id=b"abc", attempts=2, grpc_status=14
    )
    assert log.line(record) == (
        b'{"time":"2023-11-14T22:13:20.007Z","request_id":"abc","protocol":"grpc",'
        b'"operation":"ModelInfer","method":"POST",'
        b'"path":"/inference.GRPCInferenceService/ModelInfer","model":"simple","variant":null,'
        b'"sequence":null,'
        b'"backend":"gpu-0","attempts":2,"parts":null,"queue_ms":1.000,"queue_position":null,'
        b'"queue_why":null,"connect_ms":2.000,"first_byte_ms":10.000,'
        b'"total_ms":12.500,"bytes_in":130,"bytes_out":200,"status":200,'
        b'"grpc_status":"UNAVAILABLE","reason":null,"client":"10.0.0.9:4711","token":null,"trace_id":null}\n'
    )


def test_what_did_not_happen_is_null() -> None:
    log, _ = make_log()
    line = json.loads(
        log.line(PlainRecord(placed_at=0.0, connected_at=0.0, first_byte_at=0.0, status=0))
    )
    for name in ("queue_ms", "connect_ms", "first_byte_ms", "status", "grpc_status", "backend"):
        assert line[name] is None


def test_a_request_without_an_id_gets_one_of_its_own() -> None:
    log, _ = make_log()
    ids = {json.loads(log.line(PlainRecord()))["request_id"] for _ in range(100)}
    assert len(ids) == 100
    assert all(len(made) == 16 for made in ids)


def test_time_goes_on() -> None:
    moments = iter([0, 999_999_999, SECOND_NS, 86_400 * SECOND_NS])
    log, _ = make_log(wall_ns=lambda: next(moments))
    assert [json.loads(log.line(GOOD))["time"] for _ in range(4)] == [
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:00.999Z",
        "1970-01-01T00:00:01.000Z",
        "1970-01-02T00:00:00.000Z",
    ]


def test_forged_lines_stay_inside_their_value() -> None:
    log, _ = make_log()
    path = b'/v2/x"}\r\n{"time":"forged"}\x1b[31m\xff\xe2\x80\xa8'
    line = log.line(PlainRecord(path=path))
    assert line.count(b"\n") == 1
    expected = '/v2/x"}\r\n{"time":"forged"}\x1b[31m\\xff\u2028'
    assert json.loads(line)["path"] == expected


def test_a_long_path_is_kept_as_far_as_the_line_allows() -> None:
    log, _ = make_log()
    line = log.line(PlainRecord(path=b"/" * 100_000))
    assert json.loads(line)["path"] == "/" * 4096 + "..."


def test_the_longest_possible_line_is_within_the_limit() -> None:
    log, _ = make_log()
    worst = b"\x00" * 1_000_000
    record = grpc_record(
        path=worst, method=worst, model=worst, request_id=worst, client="\x00" * 1_000_000,
        backend=make_backend("\x00" * 1_000_000), reason=Reason.UPSTREAM_PROTOCOL,
        bytes_in=2**63, bytes_out=2**63, ended_at=1e9, first_byte_at=1e9, grpc_status=2**31,
        sequence="\x00" * 128,
    )  # fmt: skip
    line = log.line(record)
    assert 7000 < len(line) <= MAX_LINE_BYTES
    assert json.loads(line)["path"] == "\x00" * 350 + "..."


@pytest.mark.parametrize(
    ("sequence", "shown"),
    [(77, "77"), ("77", '"77"'), ('a"\udce4', '"a\\"\\udce4"'), (None, "null")],
)
def test_a_sequence_is_named_as_it_is_told_apart(sequence: int | str | None, shown: str) -> None:
    log, _ = make_log()
    line = log.line(grpc_record(sequence=sequence))
    assert f',"sequence":{shown},' in line.decode()
    assert json.loads(line)["sequence"] == sequence


def test_lines_reach_a_file_through_the_writer(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "access.log", name="access")
    log = AccessLog(writer, mode=AccessLogMode.ALL, sample=1.0, rng=Random(1))
    log.finished(GOOD)
    writer.close()
    assert json.loads((tmp_path / "access.log").read_bytes())["path"] == "/good"


def test_a_line_names_the_token() -> None:
    log, _ = make_log()
    assert json.loads(log.line(PlainRecord(token="team-a")))["token"] == "team-a"
    assert json.loads(log.line(PlainRecord()))["token"] is None
