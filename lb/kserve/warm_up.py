"""An inference made up from a model's configuration: zeros of the right shapes and types.

Source: Triton's `model_config.proto` and its extension "binary tensor data", in which all types
have a form, also those that JSON has none for (FP16, BF16).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from lb.kserve.datatypes import BYTES, SIZES

MAX_BYTES: Final = 64 * 2**20
"""Larger requests are not made up."""
_SIZES: Final = SIZES | {BYTES: 4}
"""A string is its length in four bytes; these are empty."""
_PREFIX: Final = "TYPE_"
_STRING: Final = "STRING"


@dataclass(frozen=True, slots=True)
class WarmUpRequest:
    """The body of `POST v2/models/MODEL/infer`."""

    body: bytes
    json_size: int
    """How much of it is JSON: `inference-header-content-length`."""


def warm_up_request(config: str) -> WarmUpRequest | None:
    """Make up a request of batch size 1; dimensions of any size are 1, too.

    Returns:
        None for models that cannot be asked like that: they work on sequences, answer any number
        of times, have no inputs, or inputs that are too large.

    Raises:
        ValueError: it is no model configuration.
    """
    try:
        content = json.loads(config)
        policy = content.get("model_transaction_policy") or {}
        if content.get("sequence_batching") is not None or policy.get("decoupled"):
            return None
        batch = [1] if int(content.get("max_batch_size") or 0) > 0 else []
        given = [each for each in content.get("input") or () if not each.get("optional")]
        tensors = [_tensor(each, batch) for each in given]
    except (
        AttributeError, KeyError, OverflowError, TypeError, ValueError, RecursionError,
    ) as error:  # fmt: skip
        raise ValueError(f"not a model configuration: {error!r}") from error
    size = sum(size for _, size in tensors)
    if not tensors or size > MAX_BYTES:
        return None
    head = json.dumps(
        {
            "inputs": [tensor for tensor, _ in tensors],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return WarmUpRequest(head + bytes(size), len(head))


def _tensor(described: dict[str, Any], batch: list[int]) -> tuple[dict[str, Any], int]:
    name = str(described["data_type"]).removeprefix(_PREFIX)
    datatype = BYTES if name == _STRING else name
    # A tensor of shapes is one for all of a batch.
    whole = [] if described.get("is_shape_tensor") else batch
    shape = whole + [max(int(each), 1) for each in described["dims"]]
    size = prod(shape) * _SIZES[datatype]
    parameters = {"binary_data_size": size}
    tensor = {
        "name": str(described["name"]),
        "shape": shape,
        "datatype": datatype,
        "parameters": parameters,
    }
    return tensor, size
