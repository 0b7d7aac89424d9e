"""What a model's configuration says that matters to a balancer (Triton `model_config.proto`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError

from lb.domain.model import NO_FACTS, ModelFacts
from lb.kserve import inference_pb2 as pb

_DEFAULT_IDLE_US: Final = 1_000_000
"""Triton `core/src/constants.h`: `SEQUENCE_IDLE_DEFAULT_MICROSECONDS`."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The facts of one version of one model, before its steps are looked at."""

    facts: ModelFacts
    steps: tuple[bytes, ...] = ()
    """Models that an ensemble runs, which decide with it."""


_ONE_BY_ONE: Final = frozenset({
    "dali", "fil", "onnxruntime", "openvino", "python", "pytorch", "tensorflow", "tensorrt",
})  # fmt: skip
"""Backends of Triton whose instances run one execution after the other. Those of language models
take many requests at once and mix them; of others nobody knows."""
_PLATFORMS: Final = frozenset({
    "onnxruntime_onnx", "pytorch_libtorch", "tensorflow_graphdef", "tensorflow_savedmodel",
    "tensorrt_plan",
})  # fmt: skip
"""What older configurations say in place of the backend."""
_UNREADABLE: Final = (
    ParseError, RecursionError, UnicodeDecodeError, json.JSONDecodeError,
    OverflowError, SystemError,
)  # fmt: skip
"""What reading any JSON as a message may raise: the last two come of infinite numbers and of text
that is no Unicode."""

UNKNOWN: Final = Configured(NO_FACTS)
"""Its configuration could not be read."""


def configured_from_message(message: bytes) -> Configured:
    """Read a `ModelConfigResponse`.

    Raises:
        ValueError: it is none.
    """
    try:
        return _configured(pb.ModelConfigResponse.FromString(message).config)
    except DecodeError as error:
        raise ValueError(f"not a model configuration: {error}") from error


def configured_from_json(body: bytes) -> Configured:
    """Read the answer to `GET v2/models/MODEL/config`.

    Raises:
        ValueError: it is no model configuration.
    """
    config = pb.ModelConfig()
    try:
        content = json.loads(body)
        if not isinstance(content, dict):
            raise ValueError("not a model configuration: expected an object")
        ParseDict(content, config, ignore_unknown_fields=True)
    except _UNREADABLE as error:
        raise ValueError(f"not a model configuration: {error}") from error
    return _configured(config)


def resolve(models: Mapping[bytes, Sequence[Configured]]) -> dict[bytes, ModelFacts]:
    """The facts of all models, from their versions and from the steps of ensembles.

    A model is stateful or decoupled when any version of it, or of a step of it, is.
    """
    return {
        name: versions[0].facts
        if len(versions) == 1 and not versions[0].steps
        else _combined(_parts(name, models))
        for name, versions in models.items()
    }


def _parts(name: bytes, models: Mapping[bytes, Sequence[Configured]]) -> list[ModelFacts]:
    """The facts of all versions of a model, of its steps, of their steps, and so on."""
    parts: list[ModelFacts] = []
    found = {name}
    left = [name]
    while left:
        versions = models.get(left.pop(), (UNKNOWN,))
        for version in versions:
            parts.append(version.facts)
            left += (step for step in version.steps if step not in found)
            found.update(version.steps)
    return parts


def _combined(parts: Sequence[ModelFacts]) -> ModelFacts:
    stateful = [facts for facts in parts if facts.is_stateful]
    return ModelFacts(
        is_stateful=_any(facts.is_stateful for facts in parts),
        is_decoupled=_any(facts.is_decoupled for facts in parts),
        idle_s=max((facts.idle_s for facts in stateful), default=NO_FACTS.idle_s),
        has_number_ids=any(facts.has_number_ids for facts in stateful),
        slots=min((facts.slots for facts in stateful if facts.slots), default=0),
        instances=min(facts.instances for facts in parts),
        is_mixed=any(facts.is_mixed for facts in parts),
        max_batch=min(facts.max_batch for facts in parts),
        max_rows=min(facts.max_rows for facts in parts),
    )


def _any(values: Iterable[bool | None]) -> bool | None:
    """Whether one of them is true; None where only unknown ones might be."""
    found = set(values)
    return True if True in found else None if None in found or not found else False


def _configured(config: pb.ModelConfig) -> Configured:
    batching = config.sequence_batching if config.HasField("sequence_batching") else None
    is_stateful = batching is not None and not batching.iterative_sequence
    is_decoupled = config.model_transaction_policy.decoupled
    if batching is not None and is_stateful:
        facts = ModelFacts(
            is_stateful=True,
            is_decoupled=is_decoupled,
            idle_s=(batching.max_sequence_idle_microseconds or _DEFAULT_IDLE_US) / 1e6,
            has_number_ids=_has_number_ids(batching),
            slots=_slots(config),
        )
    else:
        facts = ModelFacts(
            is_stateful=False,
            is_decoupled=is_decoupled,
            instances=_executions(config),
            is_mixed=_is_mixed(config),
            max_batch=config.max_batch_size if config.HasField("dynamic_batching") else 0,
            max_rows=max(config.max_batch_size, 0) if _is_by_row(config) else 0,
            preferred=tuple(config.dynamic_batching.preferred_batch_size),
        )
    steps = dict.fromkeys(step.model_name.encode() for step in config.ensemble_scheduling.step)
    return Configured(facts, tuple(steps))


def _is_by_row(config: pb.ModelConfig) -> bool:
    """Whether nothing is said of tensors that have no rows, or share them."""
    return (
        not config.model_transaction_policy.decoupled
        and not config.HasField("sequence_batching")
        and not config.batch_input
        and not config.batch_output
        and not any(
            each.is_shape_tensor or each.allow_ragged_batch or each.is_non_linear_format_io
            for each in config.input
        )
        and not any(each.is_shape_tensor or each.is_non_linear_format_io for each in config.output)
    )


def _has_number_ids(batching: pb.ModelSequenceBatching) -> bool:
    kind = pb.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
    return any(
        control.kind == kind and control.data_type != pb.TYPE_STRING
        for tensor in batching.control_input
        for control in tensor.control
    )


def _slots(config: pb.ModelConfig) -> int:
    """Sequences that one server runs at once: by instance, as many as a batch or as candidates."""
    batching = config.sequence_batching
    if batching.HasField("oldest"):
        each = batching.oldest.max_candidate_sequences
    else:
        each = max(config.max_batch_size, 1)
    return max(each, 0) * max(_instances(config), 1)


def _instances(config: pb.ModelConfig) -> int:
    return sum(max(group.count, 1) * max(len(group.gpus), 1) for group in config.instance_group)


def _executions(config: pb.ModelConfig) -> int:
    """Executions side by side; 0 where requests do not run one after the other on an instance."""
    if (
        not _is_one_by_one(config)
        or config.model_transaction_policy.decoupled
        or config.HasField("sequence_batching")
    ):
        return 0
    return _instances(config)


def _is_mixed(config: pb.ModelConfig) -> bool:
    """Whether requests are worked on side by side."""
    if config.HasField("ensemble_scheduling"):
        return True
    return bool(config.backend) and not _is_one_by_one(config)


def _is_one_by_one(config: pb.ModelConfig) -> bool:
    """Whether its instances run one execution after the other. A Triton tells of them then."""
    is_known = config.backend in _ONE_BY_ONE or config.platform in _PLATFORMS
    return is_known and not config.HasField("ensemble_scheduling")
