from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lb.domain.model import NO_FACTS, ModelFacts
from lb.kserve import inference_pb2 as pb
from lb.kserve.facts import (
    UNKNOWN,
    Configured,
    configured_from_json,
    configured_from_message,
    resolve,
)


def read(config: pb.ModelConfig) -> Configured:
    return configured_from_message(pb.ModelConfigResponse(config=config).SerializeToString())


STATELESS = Configured(ModelFacts(is_stateful=False, is_decoupled=False))
STATEFUL = Configured(ModelFacts(is_stateful=True, is_decoupled=False, idle_s=5.0, slots=8))


def test_a_model_without_sequence_batching_is_stateless() -> None:
    assert read(pb.ModelConfig(name="m")) == STATELESS


def test_rows_of_a_batch_are_independent_unless_the_configuration_says_otherwise() -> None:
    assert read(pb.ModelConfig(max_batch_size=8)).facts.max_rows == 8
    assert read(pb.ModelConfig()).facts.max_rows == 0


@pytest.mark.parametrize(
    "config",
    [
        {"model_transaction_policy": pb.ModelTransactionPolicy(decoupled=True)},
        {"sequence_batching": pb.ModelSequenceBatching()},
        {"sequence_batching": pb.ModelSequenceBatching(iterative_sequence=True)},
        {"input": [pb.ModelInput(name="A", is_shape_tensor=True)]},
        {"input": [pb.ModelInput(name="A", allow_ragged_batch=True)]},
        {"input": [pb.ModelInput(name="A", is_non_linear_format_io=True)]},
        {"output": [pb.ModelOutput(name="A", is_shape_tensor=True)]},
        {"batch_input": [pb.BatchInput()]},
        {"batch_output": [pb.BatchOutput()]},
    ],
)
def test_models_whose_batches_are_not_cut(config: dict[str, object]) -> None:
    assert read(pb.ModelConfig(max_batch_size=8, **config)).facts.max_rows == 0


def test_an_ensemble_is_cut_if_all_its_steps_are() -> None:
    rows = [Configured(replace(STATELESS.facts, max_rows=each)) for each in (8, 4, 0)]
    whole = Configured(replace(STATELESS.facts, max_rows=8, is_mixed=True), (b"a", b"b"))
    models = {b"e": [whole], b"a": [rows[0]], b"b": [rows[1]], b"c": [rows[2]]}
    assert resolve(models)[b"e"].max_rows == 4
    assert resolve({**models, b"b": [rows[2]]})[b"e"].max_rows == 0


def test_a_batch_input_of_json_is_read() -> None:
    body = b"""{"max_batch_size": 8, "batch_input": [{"kind": "BATCH_ELEMENT_COUNT",
      "target_name": ["A"], "data_type": "TYPE_FP32", "source_input": ["B"]}]}"""
    assert configured_from_json(body).facts.max_rows == 0


def test_direct_batching_has_a_slot_per_batch_entry_and_instance() -> None:
    config = pb.ModelConfig(
        max_batch_size=4,
        sequence_batching=pb.ModelSequenceBatching(
            direct=pb.ModelSequenceBatching.StrategyDirect(),
            max_sequence_idle_microseconds=5_000_000,
        ),
        instance_group=[
            pb.ModelInstanceGroup(count=2, kind="KIND_CPU"),
            pb.ModelInstanceGroup(count=1, kind="KIND_GPU", gpus=[0, 1]),
        ],
    )
    assert read(config).facts == ModelFacts(
        is_stateful=True, is_decoupled=False, idle_s=5.0, slots=16
    )


def test_oldest_batching_has_its_candidates_per_instance() -> None:
    config = pb.ModelConfig(
        sequence_batching=pb.ModelSequenceBatching(
            oldest=pb.ModelSequenceBatching.StrategyOldest(max_candidate_sequences=4000)
        ),
        instance_group=[pb.ModelInstanceGroup(count=2)],
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=True),
    )
    assert read(config).facts == ModelFacts(
        is_stateful=True, is_decoupled=True, idle_s=1.0, slots=8000
    )


def test_sequences_without_batches_have_one_slot() -> None:
    config = pb.ModelConfig(sequence_batching=pb.ModelSequenceBatching())
    assert read(config).facts.slots == 1


@pytest.mark.parametrize(
    ("kind", "data_type", "expected"),
    [
        ("CONTROL_SEQUENCE_CORRID", "TYPE_UINT64", True),
        ("CONTROL_SEQUENCE_CORRID", "TYPE_INT32", True),
        ("CONTROL_SEQUENCE_CORRID", "TYPE_STRING", False),
        ("CONTROL_SEQUENCE_START", "TYPE_INT32", False),
    ],
)
def test_a_control_input_tells_whether_ids_are_numbers(
    kind: str, data_type: str, expected: bool
) -> None:
    body = b"""{"sequence_batching": {"control_input": [
      {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START"}]},
      {"name": "X", "control": [{"kind": "%b", "data_type": "%b"}]}]}}"""
    configured = configured_from_json(body % (kind.encode(), data_type.encode()))
    assert configured.facts.has_number_ids is expected
    steps = {b"m": [configured], b"e": [Configured(STATELESS.facts, (b"m",))]}
    assert resolve(steps)[b"e"].has_number_ids is expected


def test_iterative_sequences_are_no_state_of_clients() -> None:
    config = pb.ModelConfig(
        sequence_batching=pb.ModelSequenceBatching(iterative_sequence=True), max_batch_size=8
    )
    assert read(config).facts == STATELESS.facts


def test_json_says_the_same() -> None:
    body = b"""{"name": "m", "max_batch_size": 4, "cache_size": 12, "backend": "python",
      "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 2, "gpus": [],
                          "secondary_devices": []}],
      "sequence_batching": {"max_sequence_idle_microseconds": "2500000", "state": [],
                            "direct": {"max_queue_delay_microseconds": 0}, "control_input": []},
      "model_transaction_policy": {"decoupled": true}}"""
    assert configured_from_json(body) == Configured(
        ModelFacts(is_stateful=True, is_decoupled=True, idle_s=2.5, slots=8)
    )


def test_an_ensemble_names_its_steps() -> None:
    body = b"""{"name": "e", "ensemble_scheduling": {"step": [
      {"model_name": "a", "model_version": -1}, {"model_name": "b"}, {"model_name": "a"}]}}"""
    facts = replace(STATELESS.facts, is_mixed=True)
    assert configured_from_json(body) == Configured(facts, (b"a", b"b"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b"{",
        b'{"max_batch_size": "x"}',
        b'{"input": 5}',
        b'{"sequence_batching": ' * 2000,
    ],
)
def test_what_is_no_configuration_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a model configuration"):
        configured_from_json(body)


@pytest.mark.parametrize("message", [b"\x0a\xff", b"\x0a\x03\x0a\x01\xff"])
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match="not a model configuration"):
        configured_from_message(message)


@pytest.mark.parametrize(
    "body", [b'{"version_policy":"\\ud800"}', b'{"input":[{"data_type":1e999}]}']
)
def test_what_no_message_can_hold_is_no_configuration(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a model configuration"):
        configured_from_json(body)


# Ensembles and versions


def ensemble(*steps: bytes) -> Configured:
    return Configured(STATELESS.facts, steps)


def test_an_ensemble_is_as_stateful_as_its_steps_at_any_depth() -> None:
    facts = resolve(
        {
            b"outer": [ensemble(b"inner", b"plain")],
            b"inner": [ensemble(b"sequence")],
            b"sequence": [STATEFUL],
            b"plain": [STATELESS],
            b"other": [ensemble(b"plain")],
        }
    )
    assert facts[b"outer"] == facts[b"sequence"] == STATEFUL.facts
    assert facts[b"other"] == STATELESS.facts


def test_a_step_that_is_not_known_leaves_it_open() -> None:
    assert resolve({b"e": [ensemble(b"absent")]})[b"e"].is_stateful is None
    facts = resolve({b"e": [ensemble(b"m", b"n")], b"m": [UNKNOWN], b"n": [STATEFUL]})
    assert facts[b"e"].is_stateful
    assert facts[b"m"] == NO_FACTS


def test_an_ensemble_that_runs_itself_ends() -> None:
    facts = resolve({b"a": [ensemble(b"b")], b"b": [ensemble(b"a", b"s")], b"s": [STATEFUL]})
    assert facts[b"a"].is_stateful
    assert facts[b"b"].is_stateful


def test_one_stateful_version_makes_a_model_stateful() -> None:
    assert resolve({b"m": [STATELESS, STATEFUL]})[b"m"] == STATEFUL.facts
    assert resolve({b"m": [STATELESS, UNKNOWN]})[b"m"].is_stateful is None


def executing(**config: object) -> tuple[int, int]:
    facts = read(pb.ModelConfig(**config)).facts
    return facts.instances, facts.max_batch


GROUPS = [
    pb.ModelInstanceGroup(count=2, kind="KIND_CPU"),
    pb.ModelInstanceGroup(count=1, kind="KIND_GPU", gpus=[0, 1]),
]


def test_instances_of_all_groups_execute_side_by_side() -> None:
    assert executing(backend="python", max_batch_size=8, instance_group=GROUPS) == (4, 0)
    assert executing(platform="tensorrt_plan", instance_group=GROUPS) == (4, 0)


def test_only_a_dynamic_batcher_puts_rows_of_several_requests_together() -> None:
    batching = pb.ModelDynamicBatching()
    batches = executing(
        backend="onnxruntime", max_batch_size=16, instance_group=GROUPS, dynamic_batching=batching
    )
    assert batches == (4, 16)


@pytest.mark.parametrize(
    "config",
    [
        {"backend": "vllm"},
        {"backend": "tensorrtllm"},
        {"backend": "mine"},
        {"backend": "python", "model_transaction_policy": {"decoupled": True}},
        {"backend": "python", "sequence_batching": {}},
        {"platform": "ensemble", "ensemble_scheduling": {"step": [{"model_name": "a"}]}},
    ],
)
def test_of_what_does_not_run_one_by_one_no_instances_are_told(config: dict[str, object]) -> None:
    body = json.dumps({**config, "instance_group": [{"count": 2, "kind": "KIND_CPU"}]}).encode()
    assert configured_from_json(body).facts.instances == 0


@pytest.mark.parametrize(
    ("config", "is_mixed"),
    [
        ({"backend": "vllm"}, True),
        ({"backend": "kaldi"}, True),
        ({"platform": "ensemble", "ensemble_scheduling": {"step": [{"model_name": "a"}]}}, True),
        ({"backend": "python"}, False),
        ({"platform": "tensorrt_plan"}, False),
        ({"platform": "something_v2"}, False),
    ],
)
def test_ensembles_and_other_engines_mix_requests(
    config: dict[str, object], is_mixed: bool
) -> None:
    assert configured_from_json(json.dumps(config).encode()).facts.is_mixed is is_mixed


def test_of_several_versions_the_fewest_instances_count() -> None:
    versions = [Configured(ModelFacts(instances=each, max_batch=8)) for each in (3, 2)]
    assert resolve({b"m": versions})[b"m"].instances == 2
    assert resolve({b"m": [*versions, UNKNOWN]})[b"m"].instances == 0
