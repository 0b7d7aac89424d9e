"""Adds up the numbers of each sequence: only the server that got all of them has the right sum."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils

START, END = 1, 2


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}
        self.server = np.array([[os.environ["TEST_SERVER_NAME"].encode()]], dtype=np.object_)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        key = request.correlation_id()
        flags = request.flags()
        value = pb_utils.get_input_tensor_by_name(request, "VALUE").as_numpy()
        total = value if flags & START else self.sums[key] + value
        if flags & END:
            self.sums.pop(key, None)
        else:
            self.sums[key] = total
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("SUM", total), pb_utils.Tensor("SERVER", self.server)]
        )
