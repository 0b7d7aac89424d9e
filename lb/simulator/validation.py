"""Whether an inference fits its model: Triton's checks, in Triton's order and words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lb.simulator.errors import invalid
from lb.simulator.models import InferRequest, Model, TensorSpec
from lb.simulator.tensors import Tensor, element_count, element_size

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be"
    " prepended to each input shape. If you want to specify the full shape including the batch dim"
    " in your input dims config, try setting max_batch_size to zero. See the model configuration"
    " docs for more info on max_batch_size."
)


def check(model: Model, request: InferRequest) -> None:
    """Check everything that can be checked before the model runs.

    Raises:
        TritonError: the request does not fit the model.
    """
    known = {spec.name for spec in model.outputs}
    for name in request.outputs:
        if name not in known:
            raise invalid(f"unexpected inference output '{name}' for model '{model.name}'")
    prefix = f"[request id: {request.id or '<id_unknown>'}] "
    _check_names(model, request, prefix)
    for spec in model.inputs:
        _check_datatype(model, spec, request.inputs[spec.name], prefix)
    if model.max_batch_size:
        _check_batch(model, request, prefix)
    for spec in model.inputs:
        _check_shape(model, spec, request.inputs[spec.name], prefix)
        _check_size(model, request.inputs[spec.name], prefix)


def _check_names(model: Model, request: InferRequest, prefix: str) -> None:
    wanted = [spec.name for spec in model.inputs]
    if len(request.inputs) != len(wanted):
        missing = [name for name in wanted if name not in request.inputs]
        raise invalid(
            f"{prefix}expected {len(wanted)} inputs but got {len(request.inputs)} inputs for model"
            f" '{model.name}'. Got input(s) {_quoted(request.inputs)}, but missing required"
            f" input(s) {_quoted(missing)}. Please provide all required input(s)."
        )
    for name in request.inputs:
        if name not in wanted:
            raise invalid(f"unexpected inference input '{name}' for model '{model.name}'")


def _check_datatype(model: Model, spec: TensorSpec, tensor: Tensor, prefix: str) -> None:
    if tensor.datatype != spec.datatype:
        raise invalid(
            f"{prefix}inference input '{spec.name}' data-type is '{tensor.datatype}',"
            f" but model '{model.name}' expects '{spec.datatype}'"
        )


def _check_batch(model: Model, request: InferRequest, prefix: str) -> None:
    batch = None
    for tensor in request.inputs.values():
        size = tensor.shape[0] if tensor.shape else 0
        if size > model.max_batch_size:
            raise invalid(
                f"{prefix}inference request batch-size must be <= {model.max_batch_size}"
                f" for '{model.name}'"
            )
        if batch not in (None, size):
            raise invalid(
                f"{prefix}input '{tensor.name}' batch size does not match other inputs"
                f" for '{model.name}'"
            )
        batch = size


def _check_shape(model: Model, spec: TensorSpec, tensor: Tensor, prefix: str) -> None:
    expected = model.shape_of(spec)
    if min(tensor.shape, default=0) < 0 or not (model.any_rank or _fits(expected, tensor.shape)):
        note = _BATCH_NOTE if model.max_batch_size else ""
        raise invalid(
            f"{prefix}unexpected shape for input '{tensor.name}' for model '{model.name}'."
            f" Expected {_listed(expected)}, got {_listed(tensor.shape)}. {note}"
        )


def _check_size(model: Model, tensor: Tensor, prefix: str) -> None:
    size = element_size(tensor.datatype)
    if size is None:
        _check_strings(model, tensor, prefix)
        return
    expected = size * element_count(tensor.shape)
    if len(tensor.data) != expected:
        raise invalid(
            f"{prefix}input byte size mismatch for input '{tensor.name}' for model"
            f" '{model.name}'. Expected {expected}, got {len(tensor.data)}"
        )


def _check_strings(model: Model, tensor: Tensor, prefix: str) -> None:
    try:
        count = len(tensor.values)
    except ValueError as error:
        raise invalid(
            f"{prefix}incomplete string data for inference input '{tensor.name}'"
            f" for model '{model.name}': {error}"
        ) from None
    expected = element_count(tensor.shape)
    if count != expected:
        raise invalid(
            f"{prefix}expected {expected} string elements for inference input '{tensor.name}'"
            f" for model '{model.name}', got {count}"
        )


def _fits(expected: Sequence[int], shape: Sequence[int]) -> bool:
    return len(expected) == len(shape) and all(
        want in (-1, got) for want, got in zip(expected, shape, strict=True)
    )


def _listed(numbers: Iterable[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


def _quoted(names: Iterable[str]) -> str:
    return f"[{','.join(repr(name) for name in names)}]"
