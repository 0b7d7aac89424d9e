from __future__ import annotations

import json

from lb.kserve.work import Work, json_work


def body(shape: list[int], **parameters: object) -> bytes:
    inputs = [{"name": "IN", "shape": shape, "datatype": "INT32", "data": [1]}]
    return json.dumps({"inputs": inputs, "parameters": parameters}).encode()


def test_rows_and_priority_stand_in_json() -> None:
    assert json_work(body([5, 3])) == Work(5)
    assert json_work(body([5, 3], priority=2)) == Work(5, 2)
    assert json_work(body([2], priority=True)) == Work(2)
    assert json_work(body([2], priority="1")) == Work(2)
    assert json_work(body([2], priority=-3)) == Work(2)


def test_a_shape_outside_of_the_inputs_is_none() -> None:
    assert json_work(b'{"shape":[9],"inputs":[{"name":"shape","datatype":"INT8"}]}') == Work()
    assert json_work(b'{"inputs" : [ {"shape" : [ 12 , 3 ]') == Work(12)
    assert json_work(b'{"inputs":[{"shape":[12') == Work()
    assert json_work(b"") == Work()
