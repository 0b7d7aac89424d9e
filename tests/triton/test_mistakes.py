"""What a real Triton answers to requests that make no sense is known to be their client's fault."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

import pytest

from lb.domain.backend import AppProtocol
from lb.kserve.faults import fault_of_answer
from tests.triton.target import Target

_ODD: Final = (None, True, 5, -1, 1.5, "a", "", [], [1], {}, {"a": 1}, [[]], [None], 2**70)
_INPUT: Final = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": [1] * 16}
_REQUEST: Final = {
    "id": "a",
    "parameters": {"sequence_id": 1, "priority": 1, "timeout": 1, "binary_data_output": True},
    "inputs": [
        _INPUT | {"parameters": {"binary_data_size": 1, "shared_memory_offset": 1}},
        _INPUT | {"name": "INPUT1"},
    ],
    "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": False, "classification": 1}}],
}


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where all that a request is made of stands in it; of lists the first element."""
    yield place
    for key in value if isinstance(value, dict) else range(min(len(value), 1)):
        if isinstance(value[key], dict | list):
            yield from _places(value[key], (*place, key))
        else:
            yield (*place, key)


def _odd_requests() -> Iterator[Any]:
    """The request with one part of it left out, or something else in its place."""
    yield from _ODD
    for *above, last in filter(None, _places(_REQUEST)):
        for odd in (..., *_ODD):
            request: Any = deepcopy(_REQUEST)
            parent = request
            for key in above:
                parent = parent[key]
            if odd is ...:
                del parent[last]
            else:
                parent[last] = odd
            yield request


@pytest.mark.parametrize("operation", ["infer", "generate"])
def test_errors_of_odd_requests_are_known_as_mistakes(reference: Target, operation: str) -> None:
    host, port = reference.http.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    path = f"/v2/models/simple/{operation}"
    unknown = set()
    errors = 0
    for request in _odd_requests():
        connection.request("POST", path, json.dumps(request), {"content-type": "application/json"})
        response = connection.getresponse()
        body = response.read()
        if response.status >= 400:
            errors += 1
            text = json.loads(body)["error"]
            if fault_of_answer(AppProtocol.HTTP, response.status, text) is not None:
                unknown.add(text)
    connection.close()
    assert errors > 100
    assert not unknown
