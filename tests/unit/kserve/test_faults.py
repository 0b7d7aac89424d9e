from __future__ import annotations

import pytest

from lb.domain.backend import AppProtocol
from lb.domain.fault import Fault
from lb.kserve.faults import fault_of_answer

HTTP = AppProtocol.HTTP
GRPC = AppProtocol.GRPC


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: device-side assert triggered",
        "Failed to process the request(s) for model instance 'm_0', message: RuntimeError: CUDA "
        "error: an illegal memory access was encountered",
        "in ensemble 'e', CUBLAS_STATUS_EXECUTION_FAILED",
        "failed to run: uncorrectable ECC error encountered",
        "onnx runtime error 6: CUDNN failure 4: CUDNN_STATUS_INTERNAL_ERROR",
        "Stub process 'm_0_0' is not healthy.",
    ],
)
def test_errors_of_a_device_are_known_whatever_their_code(text: str) -> None:
    for code in (400, 500, 503):
        assert fault_of_answer(HTTP, code, text) is Fault.DEVICE
    for code in (2, 3, 13, 14):
        assert fault_of_answer(GRPC, code, text) is Fault.DEVICE


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (500, "failed to parse the request JSON buffer: Invalid value. at 0"),
        (400, "unexpected inference input 'CUDA error' for model 'm'"),
        (400, "[request id: 7] expected 2 inputs but got 1 inputs for model 'm'"),
        (400, "inference input data-type is 'FP32', model expects 'INT32' for 'm'"),
        (400, "[request id: 7] input byte size mismatch for input 'X' for model 'm'. Expected 0"),
        (400, "[request id: 7] incomplete string length indicator for inference input 'X'"),
        (500, "attempt to access JSON non-string as string"),
        (500, "attempt to get members for non-object"),
        (500, "failed to get request params.: attempt to get members for non-object"),
        (500, "Unable to set 'classification': attempt to access JSON non-unsigned-integer"),
        (500, "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object"),
        (400, "Converting keyword: 'parameters': parameter 'p' has invalid type."),
        (400, "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'."),
        (400, "[request id: 7] Raw request must only have 1 input (found 1) to be deduced"),
        (400, "Input must set only one of the following fields: 'data', 'binary_data_size'"),
        (400, "sending BF16 data via JSON is not supported."),
        (400, "Unable to find shared memory region: 'r'"),
        (400, "in ensemble 'e', unexpected shape for input 'X' for model 'm'. Expected [4]"),
        (403, "This API is restricted, expecting header 'k'"),
        (404, "Request for unknown model: 'm' is not found"),
        (503, "Exceeds maximum queue size"),
        (503, "Request timeout expired"),
        (503, "explicit model load / unload is not allowed if polling is enabled"),
        (501, "doesn't support models with decoupled transaction policy"),
        (501, "HTTP end point doesn't support models with decoupled transaction policy"),
        (200, ""),
    ],
)
def test_mistakes_of_clients_say_nothing_against_a_backend(code: int, text: str) -> None:
    assert fault_of_answer(HTTP, code, text) is None


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (13, "Unable to parse request"),
        (14, "This protocol is restricted, expecting header 'triton-grpc-protocol-k'"),
        (14, "Request timeout expired"),
        (14, "GRPC server is shutting down and has stopped accepting new requests."),
        (12, "ModelInfer RPC doesn't support models with decoupled transaction policy"),
        (8, "Received message larger than max"),
        (3, "expected 2 inputs but got 1 inputs for model 'm'"),
        (3, "unable to find data for input tensor 'X' for model 'm' in request."),
        (3, "contents field must not be specified when using raw_input_contents for 'X'"),
        (3, "failed to get model version from specified version string 'x' (details: stol)"),
        (3, "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter"),
        (4, "Deadline Exceeded"),
        (0, ""),
    ],
)
def test_grpc_mistakes_of_clients_say_nothing_against_a_backend(code: int, text: str) -> None:
    assert fault_of_answer(GRPC, code, text) is None


def test_what_may_be_either_sides_fault_stays_open() -> None:
    text = "Failed to process the request(s) for model instance 'm_0', message: ValueError"
    assert fault_of_answer(HTTP, 500, text) is Fault.ERROR
    assert fault_of_answer(HTTP, 400, "poisoned") is Fault.ERROR
    assert fault_of_answer(HTTP, 500, "") is Fault.ERROR
    assert fault_of_answer(GRPC, 13, text) is Fault.ERROR
    assert fault_of_answer(GRPC, 2, "poisoned") is Fault.ERROR


def test_no_code_hides_a_backend_that_answers_everything_so() -> None:
    for code in (401, 403, 404, 405, 415, 422, 501):
        assert fault_of_answer(HTTP, code, "it does not work") is Fault.ERROR
    for code in (1, 3, 5, 6, 7, 9, 10, 11, 12, 15, 16):
        assert fault_of_answer(GRPC, code, "it does not work") is Fault.ERROR


def test_a_request_that_was_too_large_for_the_device_may_be_to_blame_itself() -> None:
    assert fault_of_answer(HTTP, 500, "CUDA out of memory. Tried to allocate 2 GiB") is Fault.ERROR
