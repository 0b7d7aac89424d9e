"""Adds and subtracts two vectors of decimal numbers written as strings."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        left = self.numbers(request, "INPUT0")
        right = self.numbers(request, "INPUT1")
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("OUTPUT0", (left + right).astype(np.bytes_).astype(np.object_)),
                pb_utils.Tensor("OUTPUT1", (left - right).astype(np.bytes_).astype(np.object_)),
            ]
        )

    def numbers(self, request, name):
        return pb_utils.get_input_tensor_by_name(request, name).as_numpy().astype(np.int64)
