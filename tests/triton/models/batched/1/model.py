"""Doubles a number and says how many requests Triton put into the same batch."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request, len(requests)) for request in requests]

    def answer(self, request, batch):
        value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("DOUBLE", value * 2),
                pb_utils.Tensor("BATCH", np.full(value.shape, batch, dtype=np.int32)),
            ]
        )
