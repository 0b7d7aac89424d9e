"""Stands for a GPU: takes its time without using the processor. Answers which server it ran on."""

import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        milliseconds = pb_utils.get_input_tensor_by_name(request, "MILLISECONDS").as_numpy()
        time.sleep(int(milliseconds[0]) / 1000)
        server = np.array([os.environ["TEST_SERVER_NAME"]], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SERVER", server)])
