"""Plain readers of a request's sequence: they decode the whole request."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import DecodeError

from lb.domain.sequence import SequenceKey, SequenceStep
from lb.kserve import inference_pb2 as pb
from lb.kserve.sequence import SEQUENCE_ID_BYTES


def grpc_step(message: bytes, model: bytes) -> SequenceStep | None:
    """What protobuf makes of the message."""
    try:
        request = pb.ModelInferRequest.FromString(message)
    except DecodeError:
        return None
    said = {}
    for name in ("sequence_id", "sequence_start", "sequence_end"):
        if name in request.parameters:
            value = request.parameters[name]
            choice = value.WhichOneof("parameter_choice")
            wanted = ("int64_param", "string_param") if name == "sequence_id" else ("bool_param",)
            if choice not in wanted:
                return None
            said[name] = getattr(value, choice)
    return _step(model, said, signed=True)


def http_step(text: bytes, model: bytes) -> SequenceStep | None:
    """What a JSON parser makes of the text; None where it is no JSON."""
    try:
        request = json.loads(
            text.decode("utf-8", "surrogateescape"),
            object_pairs_hook=lambda pairs: dict(reversed(pairs)),
        )
    except (ValueError, RecursionError):
        return None
    parameters = request.get("parameters") if isinstance(request, dict) else None
    if not isinstance(parameters, dict):
        return None
    for name, kinds in (
        ("sequence_id", (int, str)),
        ("sequence_start", (bool,)),
        ("sequence_end", (bool,)),
    ):
        value = parameters.get(name, kinds[0]())
        if not isinstance(value, kinds) or (kinds != (bool,) and isinstance(value, bool)):
            return None
    return _step(model, parameters, signed=False)


def _step(model: bytes, said: dict[str, Any], *, signed: bool) -> SequenceStep | None:
    sequence_id = said.get("sequence_id", 0)
    if isinstance(sequence_id, str):
        sequence_id = sequence_id.split("\0")[0]
        try:
            if len(sequence_id.encode("utf-8", "surrogateescape")) > SEQUENCE_ID_BYTES:
                return None
        except UnicodeEncodeError:
            return None
    elif signed:
        sequence_id %= 2**64
    elif not 0 <= sequence_id < 2**64:
        return None
    if not sequence_id:
        return None
    start, end = said.get("sequence_start", False), said.get("sequence_end", False)
    return SequenceStep(SequenceKey(model, sequence_id), start, end)
