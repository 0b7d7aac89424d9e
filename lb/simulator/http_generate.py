"""Bodies of `/generate` and `/generate_stream`: one flat JSON object each way (Triton's extension).

Keys that name an input are tensors, all others parameters. A tensor of one element is a scalar.
"""

from __future__ import annotations

from collections.abc import Iterable

from lb.simulator.http_infer import json_values, load_object, pack_json
from lb.simulator.http_json import Json, dumps
from lb.simulator.models import VERSION, InferRequest, Model
from lb.simulator.tensors import Tensor


def parse(model: Model, version: str, body: bytes) -> InferRequest:
    """Read the body of a generate request.

    Raises:
        TritonError: the body is not such a request.
    """
    given = load_object(body)
    inputs: dict[str, Tensor] = {}
    for spec in model.inputs:
        if spec.name in given:
            value = given.pop(spec.name)
            shape: tuple[int, ...] = (len(value) if isinstance(value, list) else 1,)
            if model.max_batch_size:
                shape = (1, *shape)
            data = pack_json(spec.datatype, value)
            inputs[spec.name] = Tensor(spec.name, spec.datatype, shape, data)
    request_id = str(given.pop("id", ""))
    scalars = {k: v for k, v in given.items() if isinstance(v, bool | int | float | str)}
    return InferRequest(
        model=model.name, version=version, id=request_id, inputs=inputs, parameters=scalars
    )


def render(request: InferRequest, tensors: Iterable[Tensor]) -> bytes:
    """Return one answer as JSON, its keys in alphabetical order."""
    answer: dict[str, Json] = {"model_name": request.model, "model_version": VERSION}
    if request.id:
        answer["id"] = request.id
    for tensor in tensors:
        values = json_values(tensor)
        answer[tensor.name] = values[0] if len(values) == 1 else values
    return dumps(dict(sorted(answer.items())))
