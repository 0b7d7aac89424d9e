from __future__ import annotations

from lb.kserve import inference_pb2 as pb
from lb.simulator.http_json import as_json, dumps


def test_json_is_compact_and_keeps_characters() -> None:
    assert dumps({"a": [1, "é", True]}) == '{"a":[1,"é",true]}'.encode()


def test_bytes_that_are_no_text_go_out_as_they_came_in() -> None:
    assert dumps({"a": b"\xff\xfe".decode("utf-8", "surrogateescape")}) == b'{"a":"\xff\xfe"}'


def test_scalars_at_their_default_are_written_and_absent_messages_are_not() -> None:
    written = as_json(pb.ModelConfig(name="m"))
    assert written["max_batch_size"] == 0
    assert written["input"] == []
    assert written["parameters"] == {}
    assert "sequence_batching" not in written


def test_wide_integers_are_numbers_and_enums_are_names() -> None:
    config = pb.ModelConfig(
        input=[pb.ModelInput(name="I", data_type=pb.TYPE_INT32, dims=[-1, 2**40])]
    )
    (written,) = as_json(config)["input"]  # type: ignore[misc]  # a list, as the test shows
    assert written["dims"] == [-1, 2**40]
    assert written["data_type"] == "TYPE_INT32"


def test_maps_and_bytes_are_written() -> None:
    request = pb.ModelInferRequest(raw_input_contents=[b"x"])
    request.parameters["p"].int64_param = 3
    written = as_json(request)
    assert written["parameters"] == {"p": {"int64_param": 3}}
    assert written["raw_input_contents"] == ["x"]
