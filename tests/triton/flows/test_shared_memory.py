"""Tensors that stay in shared memory: regions are registered, used by any request, unregistered."""

from __future__ import annotations

import base64
import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, serialized_byte_size
from tritonclient.utils import shared_memory as shm

from tests.fakes.process import wait_until
from tests.triton.flows.kit import Kit
from tests.triton.tensors import Array, numbers, texts

_counter = itertools.count()
PAGE = 4096
"""Where a part of a region may begin."""
MANY = 12
"""Enough uses of a region to reach every server behind the balancer."""


class Region:
    """A region of this machine's memory, known to the server as `name` while it is registered."""

    def __init__(self, byte_size: int) -> None:
        number = next(_counter)
        self.name = f"region-{number}"
        self.key = f"/lbflow-{os.getpid()}-{number}"
        self.byte_size = byte_size
        self.handle = shm.create_shared_memory_region(self.name, self.key, byte_size)

    def fill(self, *tensors: Array) -> None:
        shm.set_shared_memory_region(self.handle, list(tensors))

    def read(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> Array:
        return np.copy(shm.get_contents_as_numpy(self.handle, dtype, list(shape), offset=offset))

    def register(self, kit: Kit, offset: int = 0) -> None:
        kit.client.register_system_shared_memory(
            self.name, self.key, self.byte_size - offset, offset=offset
        )


def unregister(kit: Kit, name: str = "") -> None:
    """Unregister a region, or all, once the server lets go: it may do so only a moment after it has
    sent its response to the last request that used the region."""

    def is_unregistered() -> bool:
        try:
            kit.client.unregister_system_shared_memory(name)
        except InferenceServerException as error:
            if "nregister" not in str(error):
                raise
            return False
        return True

    wait_until(is_unregistered, what="the server lets go of its regions")


@pytest.fixture
def region(control_kit: Kit) -> Iterator[Any]:
    """Makes regions; afterwards none is left, neither here nor at the server."""
    made: list[Region] = []

    def make(byte_size: int) -> Region:
        made.append(Region(byte_size))
        return made[-1]

    yield make
    unregister(control_kit)
    for each in made:
        shm.destroy_shared_memory_region(each.handle)


def used(kit: Kit, region: Region, datatype: str, byte_size: int) -> list[Any]:
    """The inputs of `simple`, the second behind the first in the region."""
    inputs = [kit.module.InferInput(name, [1, 16], datatype) for name in ("INPUT0", "INPUT1")]
    inputs[0].set_shared_memory(region.name, byte_size)
    inputs[1].set_shared_memory(region.name, byte_size, offset=byte_size)
    return inputs


def test_numbers_go_and_come_through_shared_memory(control_kit: Kit, region: Any) -> None:
    values = numbers(seed=4)
    taken, given = region(128), region(128)
    taken.fill(*values)
    taken.register(control_kit)
    given.register(control_kit)
    outputs = [control_kit.module.InferRequestedOutput(f"OUTPUT{number}") for number in (0, 1)]
    outputs[0].set_shared_memory(given.name, 64)
    outputs[1].set_shared_memory(given.name, 64, offset=64)
    for _ in range(MANY):
        given.fill(np.zeros(32, dtype=np.int32))
        control_kit.client.infer("simple", used(control_kit, taken, "INT32", 64), outputs=outputs)
        np.testing.assert_array_equal(given.read(np.int32, (1, 16)), values[0] + values[1])
        np.testing.assert_array_equal(given.read(np.int32, (1, 16), 64), values[0] - values[1])


def test_strings_go_and_come_through_shared_memory(control_kit: Kit, region: Any) -> None:
    left, right = numbers(seed=40)
    parts = [serialize_byte_tensor(texts(values)) for values in (left, right)]
    sizes = [serialized_byte_size(part) for part in parts]
    taken, given = region(sum(sizes)), region(512)
    taken.fill(*parts)
    taken.register(control_kit)
    given.register(control_kit)
    inputs = [
        control_kit.module.InferInput(f"INPUT{number}", [1, 16], "BYTES") for number in (0, 1)
    ]
    inputs[0].set_shared_memory(taken.name, sizes[0])
    inputs[1].set_shared_memory(taken.name, sizes[1], offset=sizes[0])
    output = control_kit.module.InferRequestedOutput("OUTPUT0")
    output.set_shared_memory(given.name, 512)
    for _ in range(MANY):
        control_kit.client.infer("simple_string", inputs, outputs=[output])
        total = given.read(np.object_, (1, 16)).astype(np.bytes_).astype(np.int64)
        np.testing.assert_array_equal(total, left + right)


def test_memory_may_be_changed_between_requests(control_kit: Kit, region: Any) -> None:
    taken = region(128)
    taken.register(control_kit)
    inputs = used(control_kit, taken, "INT32", 64)
    for seed in range(MANY):
        values = numbers(seed)
        taken.fill(*values)
        result = control_kit.client.infer("simple", inputs)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values[0] + values[1])


def test_status_shows_regions_until_they_are_unregistered(control_kit: Kit, region: Any) -> None:
    first, second = region(128), region(PAGE + 192)
    assert control_kit.system_regions() == {}
    first.register(control_kit)
    second.register(control_kit, offset=PAGE)
    status = control_kit.system_regions()
    assert set(status) == {first.name, second.name}
    assert status[first.name]["key"] == first.key
    assert int(status[second.name]["byte_size"]) == 192
    assert int(status[second.name]["offset"]) == PAGE
    one = control_kit.json("get_system_shared_memory_status", first.name)
    assert first.name in str(one)
    assert second.name not in str(one)
    control_kit.client.unregister_system_shared_memory(first.name)
    assert set(control_kit.system_regions()) == {second.name}
    control_kit.client.unregister_system_shared_memory()
    assert control_kit.system_regions() == {}


def test_unregistered_regions_are_refused(control_kit: Kit, region: Any) -> None:
    taken = region(128)
    taken.fill(*numbers())
    inputs = used(control_kit, taken, "INT32", 64)
    taken.register(control_kit)
    control_kit.client.infer("simple", inputs)
    unregister(control_kit, taken.name)
    for _ in range(MANY):
        with pytest.raises(
            InferenceServerException, match=f"Unable to find shared memory region: '{taken.name}'"
        ):
            control_kit.client.infer("simple", inputs)


def test_regions_are_registered_once(control_kit: Kit, region: Any) -> None:
    taken = region(128)
    taken.fill(*numbers())
    taken.register(control_kit)
    with pytest.raises(
        InferenceServerException, match=f"shared memory region '{taken.name}' already in manager"
    ):
        taken.register(control_kit)
    control_kit.client.infer("simple", used(control_kit, taken, "INT32", 64))
    unregister(control_kit, taken.name)
    taken.register(control_kit)
    control_kit.client.infer("simple", used(control_kit, taken, "INT32", 64))


def test_keys_that_do_not_exist_are_refused(control_kit: Kit) -> None:
    with pytest.raises(InferenceServerException, match="Unable to open shared memory region"):
        control_kit.client.register_system_shared_memory("none", "/lbflow-none", 64)
    assert control_kit.system_regions() == {}


def test_uses_beyond_a_region_are_refused(control_kit: Kit, region: Any) -> None:
    taken = region(128)
    taken.register(control_kit)
    inputs = used(control_kit, taken, "INT32", 64)
    inputs[1].set_shared_memory(taken.name, 64, offset=100)
    with pytest.raises(InferenceServerException, match="Invalid offset"):
        control_kit.client.infer("simple", inputs)


def test_memory_of_a_gpu_is_refused_where_there_is_none(control_kit: Kit) -> None:
    client = control_kit.client
    assert control_kit.json("get_cuda_shared_memory_status") in ([], {})
    handle = base64.b64encode(bytes(64))
    with pytest.raises(InferenceServerException, match="failed to register shared memory region"):
        client.register_cuda_shared_memory("of-a-gpu", handle, 0, 64)
    client.unregister_cuda_shared_memory("of-a-gpu")
    client.unregister_cuda_shared_memory()
