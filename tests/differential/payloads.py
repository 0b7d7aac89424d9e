"""Inference requests for the models of `tests/triton/models`, as JSON, as bytes and as messages."""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

from tritonclient.grpc import service_pb2 as pb

Tensor = tuple[str, str, list[int], list[Any]]
"""Name, datatype, shape and content."""
MODELS = (
    "simple", "simple_identity", "simple_string", "identity_fp32", "simple_sequence",
    "accumulator", "repeat_int32", "failing", "simple_ensemble",
)  # fmt: skip
"""Those that are loaded from the beginning."""
SEQUENCES = ("simple_sequence", "accumulator")
SPARE = "simple_int8"
"""Loaded and unloaded by requests."""
_TEXTS = ("", "a", "words and spaces", "ä€😀", "0" * 300)
_PACKED = {"INT32": "i", "UINT32": "I", "FP32": "f", "INT64": "q", "FP64": "d", "INT8": "b"}
_CONTENTS = {
    "INT32": "int_contents", "INT8": "int_contents", "UINT32": "uint_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "INT64": "int64_contents",
    "BYTES": "bytes_contents",
}  # fmt: skip


def tensors(rng: Random, model: str) -> list[Tensor]:
    """Inputs that a model takes."""
    numbers = [rng.randint(-(2**15), 2**15) for _ in range(16)]
    match model:
        case "simple" | "simple_ensemble":
            return [("INPUT0", "INT32", [1, 16], numbers), ("INPUT1", "INT32", [1, 16], numbers)]
        case "simple_string":
            texts = [str(number) for number in numbers]
            return [("INPUT0", "BYTES", [1, 16], texts), ("INPUT1", "BYTES", [1, 16], texts)]
        case "simple_int8":
            small = [number % 64 for number in numbers]
            return [("INPUT0", "INT8", [1, 16], small), ("INPUT1", "INT8", [1, 16], small)]
        case "simple_identity":
            words = [rng.choice(_TEXTS) for _ in range(rng.randint(1, 3))]
            return [("INPUT0", "BYTES", [1, len(words)], words)]
        case "identity_fp32":
            floats = [rng.randint(-64, 64) / 4 for _ in range(rng.choice((1, 3, 2000)))]
            return [("INPUT0", "FP32", [len(floats)], floats)]
        case "simple_sequence":
            return [("INPUT", "INT32", [1, 1], numbers[:1])]
        case "accumulator":
            return [("VALUE", "INT32", [1, 1], numbers[:1])]
        case "repeat_int32":
            count = rng.randint(1, 3)
            delays = [rng.randint(0, 2) for _ in range(count)]
            return [("IN", "INT32", [count], numbers[:count]), ("DELAY", "UINT32", [count], delays)]
        case _:
            return [("WHY", "BYTES", [1], [rng.choice(("because", "raise", "ä"))])]


def outputs(model: str) -> list[str]:
    """Outputs that are asked for by name: those of `repeat_int32` that are the same each time."""
    return ["OUT", "IDX"] if model == "repeat_int32" else []


def damaged(rng: Random, inputs: list[Tensor]) -> list[Tensor]:
    """Inputs with something wrong. None of them is empty: Triton 2.51 never answers to that."""
    found = list(inputs)
    number = rng.randrange(len(found))
    name, datatype, shape, values = found[number]
    match rng.randrange(6):
        case 0:
            found.pop(number)
        case 1:
            found.append(found[number])
        case 2:
            found[number] = ("OTHER", datatype, shape, values)
        case 3:
            found[number] = (name, rng.choice(("INT64", "FP32", "BYTES", "NONE")), shape, values)
        case 4:
            found[number] = (name, datatype, [*shape, 1], values)
        case _:
            found[number] = (name, datatype, [*shape[:-1], shape[-1] + 1], values)
    return found


def sequence(rng: Random) -> dict[str, Any]:
    """Parameters of a step of a sequence. Text ids kill Triton 2.51, where the id is a number."""
    said: dict[str, Any] = {"sequence_id": rng.choice((0, 1, 2, 3, 7, 2**32, 2**63))}
    for flag in ("sequence_start", "sequence_end"):
        if rng.random() < 0.6:
            said[flag] = rng.random() < 0.5
    return said


def parameters(rng: Random, *, may_be_wrong: bool = True) -> dict[str, Any]:
    """Parameters that mean something, or nothing, to a Triton. It names any of two wrong ones."""
    choices: list[tuple[str, Any]] = [
        ("priority", rng.choice((0, 1, 5))), ("timeout", rng.choice((0, 10**7))),
        ("note", "text"), ("flag", True), ("count", -3), ("share", 0.25),
        ("triton_enable_empty_final_response", True),
    ]  # fmt: skip
    if may_be_wrong:
        choices.append(("triton_note", 1))
    return dict(rng.sample(choices, rng.choice((0, 0, 0, 1, 2))))


def json_body(
    rng: Random, inputs: list[Tensor], said: dict[str, Any], asked: list[str], *, binary: bool
) -> tuple[bytes, int]:
    """The body of an HTTP inference, and how much of it is JSON."""
    listed, raw = [], b""
    for name, datatype, shape, values in inputs:
        tensor: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
        if binary and (packed := _packed(datatype, values)) is not None:
            tensor["parameters"] = {"binary_data_size": len(packed)}
            raw += packed
        else:
            tensor["data"] = values
        listed.append(tensor)
    content: dict[str, Any] = {}
    if rng.random() < 0.5:
        content["id"] = rng.choice(("", "1", "r-ä", "x" * 200))
    content["inputs"] = listed
    if asked:
        content["outputs"] = [{"name": name} for name in asked]
    if binary and rng.random() < 0.5:
        said = said | {"binary_data_output": rng.random() < 0.8}
    if said:
        content["parameters"] = said
    text = json.dumps(content, ensure_ascii=rng.random() < 0.5).encode()
    return text + raw, len(text)


def _packed(datatype: str, values: list[Any]) -> bytes | None:
    if datatype == "BYTES":
        texts = [str(value).encode() for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    letter = _PACKED.get(datatype)
    try:
        return None if letter is None else struct.pack(f"<{len(values)}{letter}", *values)
    except struct.error:
        return None


def infer_message(
    rng: Random, model: str, inputs: list[Tensor], said: dict[str, Any], id_: str
) -> bytes:
    """A `ModelInferRequest`."""
    request = pb.ModelInferRequest(model_name=model, id=id_)
    if rng.random() < 0.1:
        request.model_version = rng.choice(("1", "2", "x", "01"))
    is_raw = rng.random() < 0.5
    for name, datatype, shape, values in inputs:
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        packed = _packed(datatype, values)
        if is_raw and packed is not None:
            request.raw_input_contents.append(packed)
            continue
        field = _CONTENTS.get(datatype, "int_contents")
        if field == "bytes_contents":
            values = [str(value).encode() for value in values]
        try:
            getattr(tensor.contents, field).extend(values)
        except (TypeError, ValueError):
            tensor.contents.int_contents.append(1)
    for name in outputs(model):
        request.outputs.add(name=name)
    for name, value in said.items():
        _set(request.parameters[name], value)
    return bytes(request.SerializeToString(deterministic=True))


def _set(parameter: Any, value: Any) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        if value >= 2**63:
            parameter.uint64_param = value
        else:
            parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
