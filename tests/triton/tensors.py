"""Requests to the models of this folder and checks of their answers, for all of NVIDIA's clients.

The HTTP and the gRPC client have classes of the same names and shapes; `client` is either module.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def tensor(client: ModuleType, name: str, values: Array, **how: Any) -> Any:
    """One input; `how` goes to `set_data_from_numpy` (`binary_data` with HTTP)."""
    datatypes = {"int32": "INT32", "uint32": "UINT32", "float32": "FP32", "object": "BYTES"}
    made = client.InferInput(name, list(values.shape), datatypes[values.dtype.name])
    made.set_data_from_numpy(values, **how)
    return made


def numbers(seed: int = 0, batch: int = 1) -> tuple[Array, Array]:
    """Two INT32 vectors that differ from seed to seed."""
    left = np.arange(seed, seed + 16 * batch, dtype=np.int32).reshape(batch, 16)
    return left, np.full_like(left, seed + 7)


def pair(client: ModuleType, values: tuple[Array, Array], **how: Any) -> list[Any]:
    """The two inputs of `simple` and `simple_string`."""
    return [
        tensor(client, "INPUT0", values[0], **how),
        tensor(client, "INPUT1", values[1], **how),
    ]


def check_sum_and_difference(result: Any, values: tuple[Array, Array]) -> None:
    """What `simple` answers."""
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values[0] + values[1])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), values[0] - values[1])


def texts(values: Array) -> Array:
    """Numbers as Triton's BYTES elements."""
    return values.astype(np.bytes_).astype(np.object_)


def milliseconds(client: ModuleType, count: int) -> list[Any]:
    """The input of `sleeper` and `slow_cancel`."""
    return [tensor(client, "MILLISECONDS", np.array([count], dtype=np.int32))]


def repeat(client: ModuleType, values: list[int], delay_ms: int) -> list[Any]:
    """The inputs of `repeat_int32`: one response per value, each after the delay."""
    return [
        tensor(client, "IN", np.array(values, dtype=np.int32)),
        tensor(client, "DELAY", np.full(len(values), delay_ms, dtype=np.uint32)),
    ]


def large(mebibytes: int) -> Array:
    """An FP32 vector of that size, no two neighbours alike."""
    return np.arange(mebibytes << 18, dtype=np.float32)
