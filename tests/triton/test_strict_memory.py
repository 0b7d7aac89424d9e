"""Shared memory in inferences of real clients, where only those who may control may use it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.triton.balancer import RunningBalancer
from tests.triton.server import RealTriton
from tests.triton.target import Target
from tests.triton.tensors import numbers, pair

STRICT = {"strict_shared_memory": True, "control": {"loopback": False}}


@pytest.fixture(scope="module")
def strict(
    tmp_path_factory: pytest.TempPathFactory, tritons: tuple[RealTriton, ...]
) -> Iterator[Target]:
    workspace = tmp_path_factory.mktemp("strict")
    for running in RunningBalancer.run(workspace, tritons[:1], access=STRICT):
        yield running.target


def inputs(client: ModuleType, *, is_shared: bool) -> list[Any]:
    """Both inputs of `simple`, the first in a region or not."""
    first, second = pair(client, numbers())
    if is_shared:
        first = client.InferInput("INPUT0", [1, 16], "INT32")
        first.set_shared_memory("region", 64)
    return [first, second]


def test_a_client_that_may_not_control_names_no_region_by_http(strict: Target) -> None:
    with tritonclient.http.InferenceServerClient(strict.http) as client:
        assert client.infer("simple", inputs(tritonclient.http, is_shared=False))
        for compression in (None, "gzip", "deflate"):
            with pytest.raises(InferenceServerException, match="may not use") as raised:
                client.infer(
                    "simple",
                    inputs(tritonclient.http, is_shared=True),
                    request_compression_algorithm=compression,
                )
            assert raised.value.status() == "403"


def test_a_client_that_may_not_control_names_no_region_by_grpc(strict: Target) -> None:
    with tritonclient.grpc.InferenceServerClient(strict.grpc) as client:
        assert client.infer("simple", inputs(tritonclient.grpc, is_shared=False))
        for compression in (None, "gzip", "deflate"):
            with pytest.raises(InferenceServerException, match="may not use") as raised:
                client.infer(
                    "simple",
                    inputs(tritonclient.grpc, is_shared=True),
                    compression_algorithm=compression,
                )
            assert raised.value.status() == "StatusCode.PERMISSION_DENIED"
