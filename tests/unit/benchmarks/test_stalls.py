"""What is done while small requests are measured, and what the table of stalls says."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from benchmarks.load import stalls
from benchmarks.load.disturb import KINDS, json_body, sequence_message
from benchmarks.load.fleet_backend import SEQUENCES, Fleet, metrics_page, names
from benchmarks.load.stalls import SCENARIOS, Measured, Outcome, make_section
from lb.kserve import inference_pb2 as pb


@pytest.mark.parametrize("piece", ["0.1234567,", '"a","b",', "[1],[2],"])
def test_large_bodies_are_json_of_the_size_with_parameters_at_the_end(piece: str) -> None:
    body = json_body(piece, "X", size=10_000)
    assert len(body) == 10_000
    found = json.loads(body)
    assert found["parameters"]["sequence_id"] == 7
    (tensor,) = found["inputs"]
    assert len(tensor["data"]) == tensor["shape"][1] > 900
    assert body.rstrip().endswith(b"true}}")


def test_large_messages_have_their_parameters_at_the_end() -> None:
    message = sequence_message(size=100_000)
    assert int.from_bytes(message[1:5], "big") == len(message) - 5
    request = pb.ModelInferRequest.FromString(message[5:])
    assert request.model_name == SEQUENCES
    assert request.parameters["sequence_id"].int64_param == 7
    assert request.parameters["sequence_end"].bool_param
    assert message.index(b"sequence_id") > 98_000


def test_the_stand_in_lists_its_models_and_changes_the_list_when_told() -> None:
    fleet = Fleet(models=9)
    index = "/v2/repository/index"
    first = fleet.answer(index)
    assert first == fleet.answer(index)
    assert [each["name"] for each in json.loads(first.partition(b"\r\n\r\n")[2])] == names(9)
    fleet.answer("/churn/on")
    assert fleet.answer(index) != fleet.answer(index)
    fleet.answer("/churn/off")
    assert fleet.answer(index) == fleet.answer(index)
    assert b"sequence_batching" in fleet.answer(f"/v2/models/{SEQUENCES}/config")
    assert b"sequence_batching" not in fleet.answer("/v2/models/model_0001/config")


def test_a_metrics_page_has_two_hundred_lines() -> None:
    assert 150 < metrics_page().count(b"\n") < 250


def test_every_scenario_can_be_done() -> None:
    assert {scenario.kind for scenario in SCENARIOS} == KINDS.keys()
    given = Namespace(http=1, grpc=1, metrics=1, admin=1, fleet=1, files=[])
    assert callable(KINDS["scrape"](given))


def _measured(quiet_us: list[float], beside_us: list[float]) -> Measured:
    protocols = ("http", "grpc")
    return Measured(
        quiet={each: [quiet_us] for each in protocols},
        beside={each: [beside_us] for each in protocols},
    )


def test_what_the_harness_loses_is_not_the_proxys() -> None:
    proxied = _measured([1000.0] * 1000, [1000.0] * 990 + [13_000.0] * 10)
    direct = _measured([500.0] * 1000, [500.0] * 990 + [2500.0] * 10)
    section = make_section({"numbers": Outcome(proxied, direct, done=5)})
    (verdict,) = section.verdicts
    assert verdict.measured == pytest.approx(10.0)
    assert verdict.limit == stalls.LIMIT_MS
    assert verdict.word == "missed"
    assert section.rows[1][-1] == "5"
    assert not section.failures


def test_a_scenario_that_failed_is_told_and_has_no_figure() -> None:
    section = make_section({"numbers": Outcome(error="broke")})
    assert section.verdicts[0].word == "not measured"
    assert section.failures == ["64 MiB of JSON numbers for a stateful model: broke"]
    assert len(section.rows) == 1
